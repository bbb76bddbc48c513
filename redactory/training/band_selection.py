"""How many bands correlated noise has: more make the error smaller, and privacy dearer, at one epsilon.

A step draws from one of as many groups of points, at as many times the rate.  All here follows from public
constants (``docs/guarantees.md``, "Correlated noise").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from redactory.training.accounting import calibrate_noise
from redactory.training.mechanisms.banded_matrix import LearningRateSchedule, compute_step_sizes, optimize_matrix
from redactory.training.mechanisms.mechanism import BandedGaussian, Relation
from redactory.training.settings import TrainSettings

BAND_COUNTS = (1, 2, 4, 8, 16, 32)
"""Numbers of bands that are compared; each costs as many copies of the gradient."""
_ROUGH_TOLERANCE, _NEAR_BEST = 1e-3, 1.05
_MAX_ERROR_RATIO = 0.9
"""The error beside independent noise that bands have to reach: where they promised 0.95, models were worse
(``benchmarks/ladder.py``)."""


@dataclass(frozen=True)
class BandChoice:
    """What ``bands`` b cost and bring: a point is drawn at ``sampling_rate`` b·q in ``compositions`` steps.

    ``noise_multiplier`` reaches the target epsilon; ``error_ratio`` is the error at that noise over that of
    independent noise.
    """

    bands: int
    sampling_rate: float
    compositions: int
    noise_multiplier: float
    error_ratio: float


def get_schedule(settings: TrainSettings) -> LearningRateSchedule:
    """What decides the size of a step."""
    return settings.learning_rate_schedule, settings.warm_up


@lru_cache(maxsize=16)
def compare_band_counts(settings: TrainSettings, steps: int, relation: Relation) -> tuple[BandChoice, ...]:
    """Every number of bands that the sampling rate allows at the target epsilon, from public constants."""
    schedule, independent_error, choices = get_schedule(settings), 0.0, list[BandChoice]()
    rates = compute_step_sizes(schedule, steps)
    for bands in BAND_COUNTS:
        rate, draws = bands * settings.sampling_rate, math.ceil(steps / bands)
        if rate > 1.0 or bands > steps:
            break
        arguments = (settings.epsilon, settings.delta, rate, draws, _ROUGH_TOLERANCE)
        noise = calibrate_noise(*arguments, relation=relation, tolerance=_ROUGH_TOLERANCE)
        error = noise * optimize_matrix(bands, steps, schedule).compute_rms_error(rates)
        independent_error = independent_error or error
        choices.append(BandChoice(bands, rate, draws, noise, error / independent_error))
    return tuple(choices)


def choose_band_count(settings: TrainSettings, steps: int, relation: Relation) -> int:
    """``train.noise_bands``; for ``auto`` the fewest with an error within 5% of the least, at one epsilon.

    1 where that error is not a tenth below that of independent noise.
    """
    if settings.noise_bands != "auto":
        return settings.noise_bands
    choices = compare_band_counts(settings, steps, relation)
    min_ratio = min(choice.error_ratio for choice in choices)
    if min_ratio > _MAX_ERROR_RATIO:
        return 1
    return next(choice.bands for choice in choices if choice.error_ratio <= _NEAR_BEST * min_ratio)


def compute_lr_scale(settings: TrainSettings, mechanism: BandedGaussian, relation: Relation) -> float:
    """How much longer Adam's noisy steps are, so that a gradient moves the model as far as without bands.

    It divides by about the noise of one step: that of C⁻¹ instead of 1, at this noise instead of what
    independent noise needs for the target epsilon (where the noise is given, the same).
    """
    if settings.noise_multiplier is not None:
        return mechanism.matrix.noise_gain
    steps, rate = mechanism.matrix.steps, settings.sampling_rate
    arguments = (settings.epsilon, settings.delta, rate, steps, _ROUGH_TOLERANCE)
    independent_noise = calibrate_noise(*arguments, relation=relation, tolerance=_ROUGH_TOLERANCE)
    return mechanism.matrix.noise_gain * mechanism.noise_multiplier / independent_noise
