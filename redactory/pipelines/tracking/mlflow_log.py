"""Into MLflow: one of its runs for each trained model, in a SQLite file, with the guarantee beside it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import PRIVATE_FILE, make_folder, make_private_folder
from redactory.pipelines.tracking.figures import Told

_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
_LOGGERS = ("mlflow", "alembic")
_MOST = 100
"""Parameters, or tags, that MLflow takes at once."""
_MANIFEST = "redactory.manifest"


def log(told: Told, database: Path, experiment: str) -> str:
    """Log ``told`` to ``experiment`` in the SQLite file ``database``; the id of MLflow's run.

    A model that was logged before, as it is now sealed, has its run brought up to date.  The file and the
    folder of artifacts beside it are made where they are missing, for their owner alone.

    ``ConfigurationError`` for an experiment that was deleted there.
    """
    with _quiet():
        client = _client(database)
        place = _experiment(client, database, experiment)
        found = client.search_runs([place], f"tags.`{_MANIFEST}` = '{told.tags[_MANIFEST]}'", max_results=1)
        run = found[0] if found else _begun(client, place, told)
        identity = str(run.info.run_id)
        _write(client, identity, told, run.data.metrics)
        client.log_artifact(identity, str(told.card))
        client.set_terminated(identity, "FINISHED")
    return identity


def _client(database: Path) -> Any:
    from mlflow import MlflowClient

    make_folder(database.parent)
    database.touch(mode=PRIVATE_FILE)
    return MlflowClient(tracking_uri=f"sqlite:///{database.absolute()}")


def _experiment(client: Any, database: Path, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None and found.lifecycle_stage != "active":
        raise ConfigurationError(
            f"track.experiment: '{name}' was deleted in MLflow ({database}): restore it there, or name "
            "another"
        )
    if found is not None:
        return str(found.experiment_id)
    artifacts = make_private_folder(database.absolute().with_name(f"{database.name}.artifacts"))
    return str(client.create_experiment(name, artifact_location=artifacts.as_uri()))


def _begun(client: Any, experiment: str, told: Told) -> Any:
    seconds = told.metrics.get("seconds", 0.0)
    begun = round((time.time() - seconds) * 1000)
    return client.create_run(experiment, start_time=begun, tags=told.tags, run_name=told.name)


def _write(client: Any, run: str, told: Told, known: Mapping[str, float]) -> None:
    """Parameters, and the metrics that ``known`` does not hold as they are."""
    from mlflow.entities import Metric, Param

    now = round(time.time() * 1000)
    new = {key: value for key, value in told.metrics.items() if known.get(key) != value}
    client.log_batch(run, metrics=[Metric(key, value, now, 0) for key, value in new.items()])
    parameters = [Param(key, value) for key, value in told.parameters.items()]
    for start in range(0, len(parameters), _MOST):
        client.log_batch(run, params=parameters[start : start + _MOST])


@contextmanager
def _quiet() -> Iterator[None]:
    """No telemetry, and no log lines of MLflow's and its database's own."""
    os.environ.update(_QUIET)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    try:
        import mlflow  # noqa: F401  sets up its loggers when it is imported

        for logger in loggers:
            logger.setLevel(logging.ERROR)
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
