"""Train: a model on a finished run, as configured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from redactory.evaluation.report import write_report
from redactory.foundation.files import read_json
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.config import Config
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.sealed import sealed
from redactory.redaction import RunFolder, read_manifest

if TYPE_CHECKING:
    from redactory.training.settings import RecallMeasurement


def train(
    config: Given, *, output: str | Path | None = None, progress: Progress = silent, **changes: Any
) -> dict[str, Any]:
    """Train the configured model on the configuration's finished run; a summary with its guarantee.

    ``changes`` replace keys of the section ``train``.  An interrupted training goes on where it stopped.
    """
    settings = load_config(config, output=output)
    run = RunFolder(Path(settings.output))
    read_manifest(run)
    return sealed(run.state, _train, run, settings, changes, progress)


def _train(run: RunFolder, config: Config, changes: dict[str, Any], progress: Progress) -> dict[str, Any]:
    from redactory.training import TrainSettings, train_model

    settings = TrainSettings.model_validate({**config.train.model_dump(exclude_unset=True), **changes})
    if run.recall.is_file() and settings.recall is None and settings.recall_file is None:
        settings = settings.model_copy(update={"recall": _measured(run)})
    result = train_model(run, settings, progress)
    write_report(run)
    return {"run": str(run.root), **result}


def _measured(run: RunFolder) -> RecallMeasurement:
    """The misses that ``evaluate_recall`` left for the guarantee."""
    from redactory.training.settings import RecallMeasurement

    misses = read_json(run.recall)["misses"]
    return RecallMeasurement(
        labels=misses["n"],
        missed_by_strict=misses["gamma"]["misses"],
        missed_by_both=misses["delta_2"]["misses"],
        confidence=misses["confidence"],
    )


def train_summary(run: RunFolder, name: str) -> dict[str, Any]:
    """What ``train`` printed of a model that is finished."""
    model = run.model(name)
    summary: dict[str, Any] = read_manifest(model)["summary"]
    return {"run": str(run.root), **summary, "guarantee": read_json(model.guarantee)}


def guarantee(run: str | Path, model: str | None = None) -> dict[str, Any]:
    """The guarantee card of a trained model, derived again from its ledger and the run's manifest."""
    from redactory.training import guarantee_card

    folder = RunFolder(Path(run))
    card: dict[str, Any] = guarantee_card(folder, model or default_model(folder))
    return card


def default_model(run: RunFolder) -> str:
    """The model that the run's configuration trains."""
    train_section = read_manifest(run)["configuration"]["train"]
    return str(train_section["name"] or train_section["trainer"])
