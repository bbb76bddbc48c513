"""Detectors of engines that find what they are told to."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

from redactory.detectors import Detector, DetectSettings, Reading, Span
from redactory.detectors.engine import Engine

OFF: dict[str, Any] = {"tagger": None, "spacy": None, "patterns": None}
"""No engine at all."""


def with_settings(detector: Detector, **changes: Any) -> Detector:
    """The same engines under other settings of batching, length and case."""
    other = copy.copy(detector)
    other._settings = detector._settings.model_copy(update=changes)
    return other


def with_engines(*engines: Engine, whole: Sequence[Engine] = (), **changes: Any) -> Detector:
    """A detector of these engines, without rules; those in ``whole`` read long texts whole."""
    settings = {**OFF, "conservative": {"rules": []}, **changes}
    other = Detector(DetectSettings.model_validate(settings))
    other._windowed, other._whole = list(engines), list(whole)
    return other


class Finder:
    """An engine that finds an expression, and keeps the sizes of the batches that it was handed."""

    def __init__(self, expression: str, label: str = "PERSON") -> None:
        self.expression, self.label = re.compile(expression), label
        self.batches: list[list[str]] = []

    def read(self, texts: Sequence[str]) -> list[Reading]:
        self.batches.append(list(texts))
        return [
            Reading(tuple(Span(*m.span(), self.label, 0.9, "finder") for m in self.expression.finditer(text)))
            for text in texts
        ]
