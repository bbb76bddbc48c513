"""Evaluate accuracy: how often a trained classifier is wrong on held-out text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.evaluations.model import held_out, keep_result, open_model
from redactory.pipelines.sealed import sealed
from redactory.redaction import read_manifest

CLASSIFY, NEXT_WORD = "classify", "next-word"


def evaluate_accuracy(
    run: str | Path, model: str | None = None, test: Sequence[str] = (), progress: Progress = silent
) -> dict[str, Any]:
    """The test error rate of a classifier, by class, on held-out text with known classes.

    ``test`` is in the columns and segments of the run's configuration, its ``input.label`` included; the
    run's ``evaluate.test`` by default.  Each point has its row's class, as in training.  The result is that
    of :func:`redactory.evaluation.accuracy.accuracy` with {run, model}.
    """
    folder, name, manifest = open_model(run, model)
    if task_of(read_manifest(folder.model(name))) != CLASSIFY:
        raise ConfigurationError(
            f"train.task: {name} foretells words; measure it with 'redactory evaluate perplexity'"
        )
    paths = tuple(test) or tuple(manifest["configuration"]["evaluate"]["test"])
    if not paths:
        raise ConfigurationError("evaluate.test: name a held-out corpus there, or with --test")

    def measure() -> dict[str, Any]:
        from redactory.evaluation.accuracy import accuracy
        from redactory.training.model import load_classifier

        points = list(held_out(manifest, paths, optional=("id", "user")))
        texts, classes = [text for text, _ in points], [label for _, label in points]
        trained = load_classifier(folder.model(name))
        return {"run": str(folder.root), "model": name, **accuracy(trained, texts, classes, progress)}

    return sealed(folder.state, keep_result, folder, name, "accuracy", measure)


def task_of(manifest: dict[str, Any]) -> str:
    """What the model of this manifest was trained to do."""
    return str(manifest["settings"].get("task", NEXT_WORD))
