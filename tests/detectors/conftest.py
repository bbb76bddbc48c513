"""The real engines, loaded once."""

from __future__ import annotations

import pytest

from redactory.detectors import Detector, DetectSettings


@pytest.fixture(scope="session")
def detector() -> Detector:
    """The detector of the default configuration."""
    return Detector(DetectSettings())


@pytest.fixture(scope="session")
def blank() -> Detector:
    """Patterns and rules without a model."""
    return Detector(DetectSettings(model="blank:en"))
