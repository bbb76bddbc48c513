"""Flows: the command line, and Prefect's flows around the same plain functions.

The room promises that nothing an orchestrator stores holds text: parameters are paths and small
settings, every flow and task body is sealed, and no result is persisted.
"""
