"""Evaluate canary: how much likelier a trained model finds planted secrets than others like them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redactory.evaluation.plots import exposure_plot, pictures
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import read_json
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.evaluations.model import keep_result, open_model, trained_on
from redactory.pipelines.sealed import sealed


def evaluate_canary(
    run: str | Path,
    model: str | None = None,
    canaries: str | Path | None = None,
    progress: Progress = silent,
    samples: int = 20_000,
    seed: int = 0,
) -> dict[str, Any]:
    """Exposure of the canaries of a simulated corpus, and the copies that curation left of each.

    Exact up to a million candidates; of more, ``samples`` are drawn by ``seed``.
    """
    folder, name, manifest = open_model(run, model)
    path = canaries or manifest["configuration"]["evaluate"]["canaries"]
    if path is None:
        raise ConfigurationError("evaluate.canaries: name a FILE.canaries.json there, or with --canaries")
    planted = _read_canaries(Path(path))

    def measure() -> dict[str, Any]:
        from redactory.evaluation.canary import canary_copies_left, canary_exposure
        from redactory.training import load_model

        trained = load_model(folder.model(name))
        left = canary_copies_left(trained_on(folder, name), planted)
        # what stands in a shard was not masked, whoever learns from the shards
        missed = [n > 0 for n in canary_copies_left((folder.public, folder.private), planted)]
        found = canary_exposure(trained, planted, left, progress, samples, seed, missed)
        return {"run": str(folder.root), "model": name, **found}

    def drawn(result: dict[str, Any]) -> dict[str, str]:
        return pictures("exposure.svg", exposure_plot, result)

    return sealed(folder.state, keep_result, folder, name, "canary", measure, drawn)


def _read_canaries(path: Path) -> dict[str, Any]:
    try:
        value: dict[str, Any] = read_json(path)
    except (OSError, ValueError) as error:
        problem = error.strerror if isinstance(error, OSError) else "this is not JSON"
        raise InputError(
            f"{path} cannot be read as canaries: {problem}; name the .canaries.json that redactory "
            "simulate wrote"
        ) from None
    return value
