"""Track: trained models in MLflow's records, in a SQLite file of this machine, with their guarantees.

What is told is numbers, hashes and choices of settings: never text, and nothing is sent.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import time
import typing
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import PRIVATE_FILE, make_folder, make_private_folder, read_json
from redactory.foundation.settings import plainly
from redactory.pipelines.config import TrackSettings
from redactory.pipelines.models import named_model
from redactory.pipelines.release import COUNTS
from redactory.pipelines.sealed import sealed
from redactory.redaction import RunFolder, read_manifest, result_of
from redactory.training.settings import TrainSettings

_NEEDED = ("mlflow", "sqlalchemy", "alembic")
_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
_LOGGERS = ("mlflow", "alembic")
_MOST = 100
"""Parameters, or tags, that MLflow takes at once."""
_MANIFEST = "redactory.manifest"
_NOT_TOLD = ("seed", "budget")
"""A seed is known to whoever can subtract the noise; a budget is the business of who keeps it."""
_SUMMARY = ("parameters", "steps", "seconds", "peak_mb")
_MEASURED = {
    "perplexity": ("perplexity", "as_is", "perplexity"),
    "perplexity_masked": ("perplexity", "masked", "perplexity"),
    "error_rate": ("accuracy", "error_rate"),
    "canary_highest_exposure": ("canary", "highest_exposure"),
    "canary_control_highest_exposure": ("canary", "control_highest_exposure"),
    "canary_copies_left": ("canary", "copies_left"),
    "audit_epsilon_lower": ("audit", "epsilon_lower"),
}
"""Each figure of an evaluation: which evaluation, and where in its result."""


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
    try:
        settings = TrackSettings.model_validate({"mlflow": str(mlflow), "experiment": experiment})
    except ValidationError as error:
        raise ConfigurationError(f"mlflow: {plainly(error.errors(include_input=False)[0])}") from None
    check_tracking(settings)
    names = folder.model_names() if model is None else [named_model(folder, model)]
    if not names:
        raise RunStateError(f"{folder.root} has no finished model: train one first")
    return {
        "run": str(folder.root),
        "mlflow": str(settings.mlflow),
        "experiment": experiment,
        "logged": {name: track_configured(settings, folder, name) for name in names},
    }


def check_tracking(settings: TrackSettings) -> None:
    """Refuse, before any work, a record that could not be written at its end: ``ConfigurationError``.

    A file that is missing is made, for its owner alone.
    """
    file = settings.mlflow
    if file is None:
        return
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"track.mlflow needs {', '.join(missing)}, not installed here: pip install 'redactory[mlflow]'"
        )
    if "?" in str(file.absolute()):
        # MLflow takes a URL, whose path ends there: it would write another file, open to all
        raise ConfigurationError(f"track.mlflow: {file}: its path may hold no '?'; give another file")
    try:
        make_folder(file.parent)
        file.touch(mode=PRIVATE_FILE)
        file.open("ab").close()
    except OSError as error:
        raise ConfigurationError(
            f"track.mlflow: {file} cannot be written: {error.strerror}; give another file"
        ) from None


def track_configured(settings: TrackSettings, run: RunFolder, model: str) -> str | None:
    """Log the finished ``model`` of ``run``; the id of its run in MLflow, None where no file is named.

    A model that was logged before, as it is now sealed, has its run brought up to date.  The folder of
    artifacts is made beside the file, for its owner alone.  ``ConfigurationError`` for an experiment that
    was deleted there.
    """
    if settings.mlflow is None:
        return None
    return sealed(run.state, _log, settings.mlflow, settings.experiment, run, model)


def _log(database: Path, experiment: str, run: RunFolder, model: str) -> str:
    folder = run.model(model)
    manifest, curated, card = read_manifest(folder), read_manifest(run), read_json(folder.guarantee)
    tags, metrics = _tags(run, model, manifest, curated, card), _metrics(run, model, manifest, curated, card)
    with _quiet():
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        client = MlflowClient(tracking_uri=f"sqlite:///{database.absolute()}")
        place = _experiment(client, database, experiment)
        found = client.search_runs([place], f"tags.`{_MANIFEST}` = '{tags[_MANIFEST]}'", max_results=1)
        now = round(time.time() * 1000)
        begun = now - round(metrics.get("seconds", 0.0) * 1000)
        logged = (
            found[0]
            if found
            else client.create_run(place, start_time=begun, tags=tags, run_name=f"{run.root.name}/{model}")
        )
        identity, known = str(logged.info.run_id), logged.data.metrics
        new = {key: value for key, value in metrics.items() if known.get(key) != value}
        client.log_batch(identity, metrics=[Metric(key, value, now, 0) for key, value in new.items()])
        parameters = [Param(key, value) for key, value in _parameters(manifest["settings"]).items()]
        for start in range(0, len(parameters), _MOST):
            client.log_batch(identity, params=parameters[start : start + _MOST])
        client.log_artifact(identity, str(folder.guarantee))
        client.set_terminated(identity, "FINISHED")
    return identity


def _experiment(client: Any, database: Path, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        artifacts = make_private_folder(database.absolute().with_name(f"{database.name}.artifacts"))
        return str(client.create_experiment(name, artifact_location=artifacts.as_uri()))
    if found.lifecycle_stage != "active":
        raise ConfigurationError(
            f"track.experiment: '{name}' was deleted in MLflow ({database}): restore it there, or name "
            "another"
        )
    return str(found.experiment_id)


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


# ------------------------------------------------------------------------------- what is told of a model


def _parameters(settings: Mapping[str, Any]) -> dict[str, str]:
    """The choices of a model's manifest; what it leaves out plays no part in its training."""
    every = choices(TrainSettings.read_back(settings))
    return {key: value for key, value in every if key.partition(".")[0] in settings}


def choices(settings: BaseModel, prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key, value) of every number and every choice among listed words in ``settings``, and of nothing else.

    A key whose value is free text (a name, a path, a list of words) is left out, whatever it holds.
    """
    for name, field in type(settings).model_fields.items():
        value = getattr(settings, name)
        if name in _NOT_TOLD or value is None:
            continue
        if isinstance(value, BaseModel):
            yield from choices(value, f"{prefix}{name}.")
        elif isinstance(value, Enum):
            yield f"{prefix}{name}", str(value.value)
        elif isinstance(value, bool | int | float) or (isinstance(value, str) and _listed(field.annotation)):
            yield f"{prefix}{name}", str(value)


def _listed(annotation: Any) -> bool:
    """Whether every string that this annotation allows is one of a list."""
    parts = typing.get_args(annotation)
    if typing.get_origin(annotation) is Literal:
        return True
    return annotation is not str and bool(parts) and all(_listed(p) for p in parts if p is not type(None))


def _metrics(
    run: RunFolder,
    model: str,
    manifest: Mapping[str, Any],
    curated: Mapping[str, Any],
    card: Mapping[str, Any],
) -> dict[str, float]:
    """Figures of the card, of the training, of the curation, and of the evaluations made by now."""
    found = {
        **dict(_numbers(card, "")),
        **{key: float(manifest["summary"][key]) for key in _SUMMARY if key in manifest["summary"]},
        **{f"count_{name}": float(curated["counts"][name]) for name in COUNTS if name in curated["counts"]},
    }
    for name, (evaluation, *where) in _MEASURED.items():
        value: Any = result_of(run.model(model), evaluation) or {}
        for key in where:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = float(value)
    return found


def _numbers(card: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """The figures of a guarantee card; not those that were only published."""
    for key, value in card.items():
        if key.endswith("as_published") or isinstance(value, bool):
            continue
        if isinstance(value, int | float):
            yield f"{prefix}{key}", float(value)
        elif isinstance(value, dict) and key in ("epsilon_group", "curve", "miss_rates"):
            yield from _numbers(value, f"{key}_")


def _tags(
    run: RunFolder,
    model: str,
    manifest: Mapping[str, Any],
    curated: Mapping[str, Any],
    card: Mapping[str, Any],
) -> dict[str, str]:
    """Hashes that bind the record to the model, its run, its ledger and its policies."""
    policies = {f"policy.{name}": policy.get("hash") for name, policy in curated["policies"].items()}
    found = {
        "manifest": file_sha256(run.model(model).manifest),
        "run_manifest": manifest["parent"],
        "ledger": card["ledger"]["head"],
        "configuration": curated.get("configuration_hash"),
        "version": manifest["versions"].get("redactory"),
        "holds": str(card["holds"]).lower(),
        "relation": card["relation"],
        **policies,
    }
    return {f"redactory.{key}": str(value) for key, value in found.items() if value is not None}
