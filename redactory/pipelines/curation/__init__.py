"""One curation: configuration, run folder, stages, release and its log.

What the other packages of pipelines share is here too.
"""
