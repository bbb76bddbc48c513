"""The command line, and Prefect flows around the same plain functions.

Promises: nothing that an orchestrator stores holds text. Parameters are paths and small settings, every flow and task
body is sealed, and no result is persisted.
"""
