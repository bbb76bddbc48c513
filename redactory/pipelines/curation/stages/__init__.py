"""The stages of a curation: plain functions over one partition (or one hash range).

Each reads files, commits files, and returns counts. Its output depends only on its input, the configuration and the
versions in the manifest, so repeating it writes the same bytes. See
:func:`redactory.pipelines.curation.curate.list_stages` for their order.
"""
