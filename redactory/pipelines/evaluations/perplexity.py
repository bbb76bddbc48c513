"""Evaluate perplexity: a trained model on held-out text, as it is and masked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.progress import Progress, silent, waiting
from redactory.pipelines.evaluations.model import held_out, keep_result, open_model
from redactory.pipelines.fates import detect_fates
from redactory.pipelines.sealed import sealed


def evaluate_perplexity(
    run: str | Path, model: str | None = None, test: Sequence[str] = (), progress: Progress = silent
) -> dict[str, Any]:
    """Perplexity of a model on held-out text, as it is and masked by π.

    ``test`` is in the columns and segments of the run's configuration; its ``evaluate.test`` by default.
    """
    folder, name, manifest = open_model(run, model)
    paths = tuple(test) or tuple(manifest["configuration"]["evaluate"]["test"])
    if not paths:
        raise ConfigurationError("evaluate.test: name a held-out corpus there, or with --test")

    def measure() -> dict[str, Any]:
        from redactory.evaluation.perplexity import perplexity
        from redactory.training import load_model

        texts = [text for text, _ in held_out(manifest, paths, optional=("id", "user", "label"))]
        with waiting(progress, "mask by the policies"):
            masked = [text for _, text in detect_fates(manifest)(texts)]
        trained = load_model(folder.model(name))
        return {
            "run": str(folder.root),
            "model": name,
            "as_is": perplexity(trained, texts, progress),
            "masked": perplexity(trained, masked, progress),
        }

    return sealed(folder.state, keep_result, folder, name, "perplexity", measure)
