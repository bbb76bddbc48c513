"""Pipelines: one run, composed; the public functions are plain functions of a configuration.

The room promises that the shards of a run are the same bytes for any number of workers, any batch size and any number
of interruptions; that nothing half-written is taken for finished; and that no error it raises carries text.
"""
