"""Track: finished models of a run into MLflow's records, with what was measured of them by now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.settings import plainly
from redactory.pipelines.models import named_model
from redactory.pipelines.sealed import sealed
from redactory.pipelines.settings.track import TrackSettings
from redactory.pipelines.tracking.configured import check_tracking, logged
from redactory.redaction import RunFolder, read_manifest


def track(
    run: str | Path, *, mlflow: str | Path, model: str | None = None, experiment: str = "redactory"
) -> dict[str, Any]:
    """Log the finished models of ``run``, or ``model`` alone, to MLflow in the SQLite file ``mlflow``.

    Each has one of MLflow's runs: parameters (numbers and choices of the settings), metrics (figures of the
    guarantee, counts of the curation, what was measured by now), hashes as tags, ``guarantee.json`` as
    artifact.  A model that was logged before is brought up to date.  No text, and nothing is sent.

    Returns {run, mlflow, experiment, logged: {model: MLflow's run id}}.  ``ConfigurationError`` where the
    extra is not installed or the file is none of this machine, ``RunStateError`` where there is no such
    model.
    """
    folder = RunFolder(Path(run))
    read_manifest(folder)
    settings = _settings(mlflow, experiment)
    check_tracking(settings)
    names = folder.model_names() if model is None else [named_model(folder, model)]
    if not names:
        raise RunStateError(f"{folder.root} has no finished model: train one first")
    assert settings.mlflow is not None
    database = settings.mlflow
    return {
        "run": str(folder.root),
        "mlflow": str(database),
        "experiment": experiment,
        "logged": {name: sealed(folder.state, logged, database, experiment, folder, name) for name in names},
    }


def _settings(mlflow: str | Path, experiment: str) -> TrackSettings:
    try:
        return TrackSettings.model_validate({"mlflow": str(mlflow), "experiment": experiment})
    except ValidationError as error:
        raise ConfigurationError(f"mlflow: {plainly(error.errors(include_input=False)[0])}") from None
