"""Pipelines: plain functions of a configuration, each of which runs one job.

Guarantees: the shards of a run are the same bytes for any number of workers, any batch size and any number of
interruptions; nothing half-written is taken for finished; and no error that a pipeline raises carries text.
"""
