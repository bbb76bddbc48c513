"""A training's settings as its ledger and its manifest hold them: no folder of this machine, no budget."""

from __future__ import annotations

from typing import Any

from redactory.training.settings import TrainSettings
from redactory.training.uedp.settings import UEDP_TRAINERS

_OF_UNITS = {"task", "classes", "units", "bounding", "federated", "public_text", "pretraining_epochs"}
_OF_CLASSES = {"task", "classes"}
_FILES_OF_UNITS = ("entities", "aliases", "hubs_file")
_PLACES = ("workers", "dask")
"""Where local updates are computed changes no bit of them: it may be another place after an interruption."""


def settings_json(settings: TrainSettings) -> dict[str, Any]:
    """``settings`` as JSON; files of public text and of units by their names, their content elsewhere.

    A trainer without units is described as it was before there were any.
    """
    if settings.trainer not in UEDP_TRAINERS:
        left_out = _OF_UNITS - _OF_CLASSES if settings.task == "classify" else _OF_UNITS
        return settings.model_dump(mode="json", exclude={"budget", *left_out})
    found = settings.model_dump(mode="json", exclude={"budget"})
    for key in _PLACES:
        del found["federated"][key]
    found["public_text"] = settings.public_text and settings.public_text.name
    for key in _FILES_OF_UNITS:
        path = getattr(settings.units, key)
        found["units"][key] = path and path.name
    return found
