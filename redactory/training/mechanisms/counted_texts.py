"""Public by count: what a selection of texts costs one unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from redactory.training.mechanisms.mechanism import PoissonGaussian

ROUNDING_MARGIN = 0.5
"""Counts are whole and so is the noise, round(sZ): what reaches τ is a real number of at least τ − ½."""


def compute_threshold_failure_delta(deviation: float, threshold: int, texts: int) -> float:
    """Return d: the chance that one of ``texts`` texts that a single user gives reaches ``threshold``."""
    from scipy.special import ndtr

    tail_probability = float(ndtr(-(threshold - ROUNDING_MARGIN - 1.0) / deviation))
    return -math.expm1(texts * math.log1p(-tail_probability))


@dataclass(frozen=True)
class CountSelectionGaussian(PoissonGaussian):
    """A selection as seen by one unit: a Gaussian, and a chance that a threshold fails.

    ``noise_multiplier`` is that of a Gaussian whose sum the unit moves by 1 (there or not) or 2 (exchanged);
    ``texts`` are those that only this unit gives.

    Formal guarantees: outside of an event with probability at most d = :attr:`failure_delta`, in either world, the
    release is that Gaussian, post-processed. So n selections and any training after them are (ε − n·ln(1 − d), δ +
    n·d)-close if the Gaussians and that training are (ε, δ)-close.
    """

    deviation: float = 1.0
    threshold: int = 2
    texts: int = 1

    sampler: ClassVar[str] = "none"
    event_class: ClassVar[str] = "CountedTextsEvent"

    @property
    def failure_delta(self) -> float:
        """Return d of one selection."""
        return compute_threshold_failure_delta(self.deviation, self.threshold, self.texts)
