"""How many bands correlated noise has: more make the error smaller, and privacy dearer, at one epsilon.

A step draws from one of as many groups of points, at as many times the rate.  All here follows from public
constants (``docs/guarantees.md``, "Correlated noise").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from redactory.training.accounting import calibrate_noise
from redactory.training.bands import Schedule, best_matrix, step_sizes
from redactory.training.mechanism import BandedGaussian, Relation
from redactory.training.settings import TrainSettings

WIDTHS = (1, 2, 4, 8, 16, 32)
"""Numbers of bands that are compared; each costs as many copies of the gradient."""
_ROUGHLY, _NEAR = 1e-3, 1.05
_WORTH = 0.9
"""The error beside independent noise that bands have to reach: where they promised 0.95, models were worse
(``benchmarks/ladder.py``)."""


@dataclass(frozen=True)
class Width:
    """What ``bands`` b cost and bring: a point is drawn at ``sampling_rate`` b·q in ``compositions`` steps.

    ``noise_multiplier`` reaches the target epsilon; ``error_ratio`` is the error at that noise over that of
    independent noise.
    """

    bands: int
    sampling_rate: float
    compositions: int
    noise_multiplier: float
    error_ratio: float


def schedule_of(settings: TrainSettings) -> Schedule:
    """What decides the size of a step."""
    return settings.learning_rate_schedule, settings.warm_up


@lru_cache(maxsize=16)
def widths(settings: TrainSettings, steps: int, relation: Relation) -> tuple[Width, ...]:
    """Every number of bands that the sampling rate allows at the target epsilon, from public constants."""
    schedule, alone, found = schedule_of(settings), 0.0, list[Width]()
    rates = step_sizes(schedule, steps)
    for bands in WIDTHS:
        rate, draws = bands * settings.sampling_rate, math.ceil(steps / bands)
        if rate > 1.0 or bands > steps:
            break
        own = (settings.epsilon, settings.delta, rate, draws, _ROUGHLY)
        noise = calibrate_noise(*own, relation=relation, tolerance=_ROUGHLY)
        error = noise * best_matrix(bands, steps, schedule).error(rates)
        alone = alone or error
        found.append(Width(bands, rate, draws, noise, error / alone))
    return tuple(found)


def bands_of(settings: TrainSettings, steps: int, relation: Relation) -> int:
    """``train.noise_bands``; for ``auto`` the fewest with an error within 5% of the least, at one epsilon.

    1 where that error is not a tenth below that of independent noise.
    """
    if settings.noise_bands != "auto":
        return settings.noise_bands
    found = widths(settings, steps, relation)
    least = min(one.error_ratio for one in found)
    if least > _WORTH:
        return 1
    return next(one.bands for one in found if one.error_ratio <= _NEAR * least)


def lengthened(settings: TrainSettings, mechanism: BandedGaussian, relation: Relation) -> float:
    """How much longer Adam's noisy steps are, so that a gradient moves the model as far as without bands.

    It divides by about the noise of one step: that of C⁻¹ instead of 1, at this noise instead of what
    independent noise needs for the target epsilon (where the noise is given, the same).
    """
    if settings.noise_multiplier is not None:
        return mechanism.matrix.gain
    steps, rate = mechanism.matrix.steps, settings.sampling_rate
    own = (settings.epsilon, settings.delta, rate, steps, _ROUGHLY)
    alone = calibrate_noise(*own, relation=relation, tolerance=_ROUGHLY)
    return mechanism.matrix.gain * mechanism.noise_multiplier / alone
