"""What a finished run would do to any text: side and masked text, by its own policies or not at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from redactory.detectors import Detector, DetectSettings, changed_since
from redactory.foundation.errors import ConfigurationError
from redactory.redaction import route


def detect_fates(manifest: dict[str, Any]) -> Callable[[Sequence[str]], list[tuple[str, str]]]:
    """F of a finished run: texts of points to (side, masked text) of each.

    ``ConfigurationError`` where it is another function by now: what that one misses says nothing of the run.
    """
    settings = DetectSettings.model_validate(manifest["configuration"]["detect"])
    if changed := changed_since(settings, manifest["policies"]):
        raise ConfigurationError(f"{changed}; bring back what it was, or curate again")
    detector = Detector(settings)

    def fates(texts: Sequence[str]) -> list[tuple[str, str]]:
        routed = (route(t, d) for t, d in zip(texts, detector.detect(texts), strict=True))
        return [("quarantined" if f.failure else f.side, f.text) for f in routed]

    return fates
