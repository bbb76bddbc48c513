"""Run: curate, measure the policies, train and evaluate; each step is a plain function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from redactory.foundation.errors import RunStateError
from redactory.foundation.progress import Progress, ignore_progress
from redactory.pipelines.curation.curate import curate
from redactory.pipelines.curation.finish import summarize_run
from redactory.pipelines.curation.loading import ConfigLike, load_config
from redactory.pipelines.curation.models import require_training_packages
from redactory.pipelines.curation.share import publish_if_configured
from redactory.pipelines.curation.stage_context import StageMap
from redactory.pipelines.measure.evaluate import CLASSIFY, evaluate_canary, evaluate_model
from redactory.pipelines.measure.evaluate_detection import evaluate_recall
from redactory.pipelines.modeling.train import check_device, read_train_summary, require_train_section, train
from redactory.redaction import RunFolder, is_finished

StepFunction = Callable[[], dict[str, Any]]
StepRunner = Callable[[str, StepFunction], dict[str, Any]]
"""Runs one step of a run, given its name: directly, or as a task of an orchestrator."""


def run_inline(name: str, work: StepFunction) -> dict[str, Any]:
    """Run a step directly in this process."""
    return work()


def run(
    config: ConfigLike,
    *,
    output: str | Path | None = None,
    resume: bool = False,
    workers: int | None = None,
    stage_map: StageMap | None = None,
    step: StepRunner = run_inline,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Run the whole job; return the summary of the curation with ``model`` and ``evaluation`` added.

    Evaluation measures only what the configuration names under ``evaluate``.
    """
    require_training_packages()
    settings = load_config(config, output=output, workers=workers)
    require_train_section(settings)
    folder = RunFolder(Path(settings.output))
    model = folder.get_model_folder(settings.train.model_name)
    if is_finished(model) and not resume:
        raise RunStateError(
            f"{folder.root} already holds the model {model.root.name}; give another output, or train "
            "another one beside it (train.name, redactory train)"
        )
    if not is_finished(model):
        check_device(settings)
    curated = curate(settings, resume=resume, stage_map=stage_map, progress=progress)
    measured: dict[str, Any] = {}
    if settings.evaluate.labelled:
        measured["recall"] = step("evaluate recall", lambda: evaluate_recall(settings, progress=progress))
    if is_finished(model):
        trained = read_train_summary(folder, model.root.name)
    else:
        trained = step("train", lambda: dict(train(settings, progress=progress)))
    if settings.evaluate.test:
        name = "accuracy" if settings.train.task == CLASSIFY else "perplexity"
        measured[name] = step(
            f"evaluate {name}", lambda: evaluate_model(folder.root, model.root.name, progress=progress)
        )
    if settings.evaluate.canaries:
        measured["canary"] = step(
            "evaluate canary", lambda: evaluate_canary(folder.root, model.root.name, progress=progress)
        )
    done = {**curated, **summarize_run(folder), "model": trained, "evaluation": measured}
    return publish_if_configured(settings.store, done, progress)
