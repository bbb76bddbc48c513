"""What is checked, and told, of a training before it begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redactory.pipelines.config import Config
from redactory.pipelines.loading import Given, check, load_config
from redactory.redaction import RunFolder, is_finished, read_manifest
from redactory.training.batch import oddities


def training_of(config: Given, output: str | Path | None, changes: dict[str, Any]) -> Config:
    """The configuration that ``config`` stands for, with ``changes`` to its section ``train``."""
    settings = load_config(config, output=output)
    if not changes:
        return settings
    given = settings.model_dump(exclude_unset=True)
    return check({**given, "train": {**given.get("train", {}), **changes}})


def train_remarks(config: Given, *, output: str | Path | None = None, **changes: Any) -> list[str]:
    """What is odd about the batches of the training that :func:`redactory.train` makes of the same, in words.

    Told from the settings and the numbers of points; nothing where the run is not finished.
    """
    settings = training_of(config, output, changes)
    run = RunFolder(Path(settings.output))
    if not is_finished(run):
        return []
    return oddities(settings.train, *points_learnt(run, settings.train.trainer))


def points_learnt(run: RunFolder, trainer: str) -> tuple[int | None, int | None]:
    """How many points of the finished ``run`` noisy steps draw from, and how many are learnt without noise.

    None where a trainer has none of the kind, or learns what its settings leave of them.
    """
    counts = read_manifest(run)["counts"]
    every = int(counts["points"] - counts["quarantined"])
    match trainer:
        case "crt" | "crt-drop":
            return int(counts["private"]), int(counts["public"])
        case "dpsgd":
            return every, None
        case "redact-only":
            return None, int(counts["public"] + counts["private"])
        case "sgd" | "sdp":
            return None, every
    return None, None


def check_device(config: Config) -> None:
    """``ConfigurationError`` where the configured training asks for a device that is not here."""
    if config.train.device == "cpu":
        return
    from redactory.training.device import check_device as check_here

    check_here(config.train, RunFolder(Path(config.output)).model(config.train.model_name))
