"""A training's settings as its ledger and its manifest hold them: no folder of this machine, no budget."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from redactory.training.settings import TrainSettings
from redactory.training.units.settings import UEDP_TRAINERS

_OF_UNITS = {"task", "classes", "units", "bounding", "federated", "public_text", "pretraining_epochs"}
_OF_CLASSES = {"task", "classes"}
_FILES_OF_UNITS = ("entities", "aliases", "hubs_file")
_PLACES = ("workers", "dask")
"""Where something is computed changes no bit of it: it may be another place after an interruption."""


def settings_json(settings: TrainSettings) -> dict[str, Any]:
    """``settings`` as JSON; files and folders by their names, their content is told of elsewhere.

    A trainer without units is described as it was before there were any, and so are whole batches.
    """
    never = {"budget", "workers"}
    if settings.public_micro_batch_size is None:
        never.add("public_micro_batch_size")
    if settings.trainer not in UEDP_TRAINERS:
        left_out = _OF_UNITS - _OF_CLASSES if settings.task == "classify" else _OF_UNITS
        return by_name(settings.model_dump(mode="json", exclude={*never, *left_out}))
    found = by_name(settings.model_dump(mode="json", exclude=never))
    for key in _PLACES:
        del found["federated"][key]
    found["public_text"] = settings.public_text and settings.public_text.name
    for key in _FILES_OF_UNITS:
        path = getattr(settings.units, key)
        found["units"][key] = path and path.name
    return found


def by_name(found: dict[str, Any]) -> dict[str, Any]:
    """Settings as JSON with the folder of pretrained weights by its name: they leave with the model.

    Models of earlier versions have its path.
    """
    model = found["model"]
    if model.get("folder") is None:
        return found
    return {**found, "model": {**model, "folder": PurePath(model["folder"]).name}}
