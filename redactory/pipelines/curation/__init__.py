"""One curation: configuration, run folder, stages, release and its log; also code that all of pipelines shares."""
