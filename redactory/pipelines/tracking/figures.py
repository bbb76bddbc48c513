"""What another record is told of a trained model: choices and numbers of its settings, figures, hashes."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from redactory.foundation.canonical import file_sha256
from redactory.foundation.files import read_json
from redactory.pipelines.release import COUNTS
from redactory.redaction import RunFolder, read_manifest, result_of
from redactory.training.settings import TrainSettings

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


@dataclass(frozen=True)
class Told:
    """One model: its settings' ``parameters``, its ``metrics``, the ``tags`` that bind it; no text in any."""

    name: str
    parameters: dict[str, str]
    metrics: dict[str, float]
    tags: dict[str, str]
    card: Path


def told_of(run: RunFolder, model: str) -> Told:
    """What there is to tell of the finished ``model`` of ``run``, with the evaluations made by now."""
    folder = run.model(model)
    manifest, curated, card = read_manifest(folder), read_manifest(run), read_json(folder.guarantee)
    metrics = {
        **dict(_numbers(card, "")),
        **{key: float(manifest["summary"][key]) for key in _SUMMARY if key in manifest["summary"]},
        **{f"count_{name}": float(curated["counts"][name]) for name in COUNTS if name in curated["counts"]},
        **_measured(run, model),
    }
    return Told(
        name=f"{run.root.name}/{model}",
        parameters=_parameters(manifest["settings"]),
        metrics=metrics,
        tags=_tags(run, model, manifest, curated, card),
        card=folder.guarantee,
    )


def _parameters(settings: Mapping[str, Any]) -> dict[str, str]:
    """The choices of a model's manifest; what it leaves out plays no part in its training."""
    every = choices(TrainSettings.model_validate(settings))
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


def _numbers(card: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    """The figures of a guarantee card; not those that were only published."""
    for key, value in card.items():
        if key.endswith("as_published") or isinstance(value, bool):
            continue
        if isinstance(value, int | float):
            yield f"{prefix}{key}", float(value)
        elif isinstance(value, dict) and key in ("epsilon_group", "curve", "miss_rates"):
            yield from _numbers(value, f"{key}_")


def _measured(run: RunFolder, model: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for name, (evaluation, *where) in _MEASURED.items():
        value: Any = result_of(run.model(model), evaluation) or {}
        for key in where:
            value = value.get(key) if isinstance(value, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool):
            found[name] = float(value)
    return found


def _tags(
    run: RunFolder,
    model: str,
    manifest: Mapping[str, Any],
    curated: Mapping[str, Any],
    card: Mapping[str, Any],
) -> dict[str, str]:
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
