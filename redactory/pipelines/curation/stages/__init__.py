"""The stages of a curation: plain functions over one partition (or one hash range).

Each reads files, commits files, and hands back counts.  Its output is a function of its input, the
configuration and the versions in the manifest, so running it again writes the same bytes.  Their order
stands in :func:`redactory.pipelines.curation.curate.list_stages`.
"""
