"""The trainers, one module each; importing this package imports and registers them all."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

from redactory.training.trainers.base import TRAINERS, Trainer

if TYPE_CHECKING:
    from redactory.training.settings import TrainSettings

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["TRAINERS", "Trainer", "get_trainer"]


def get_trainer(settings: TrainSettings) -> Trainer:
    """Return the trainer that ``settings`` name."""
    return TRAINERS[settings.trainer]
