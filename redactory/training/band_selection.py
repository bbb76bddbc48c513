"""Chooses the number of noise bands: more reduce the error but cost more privacy, at a fixed epsilon.

With b bands a step samples from one of b groups of examples, at b times the rate. Everything follows from public
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
"""Numbers of bands to compare; b bands need b copies of the gradient."""
_ROUGH_TOLERANCE, _NEAR_BEST_FACTOR = 1e-3, 1.05
_MAX_ERROR_RATIO = 0.9
"""Maximum error relative to independent noise for bands: at 0.95 models were worse (``benchmarks/ladder.py``)."""


@dataclass(frozen=True)
class BandChoice:
    """Cost of b ``bands``: an example is sampled at ``sampling_rate`` b·q in ``compositions`` steps.

    ``noise_multiplier`` reaches the target epsilon; ``error_ratio`` is the resulting error over that of independent
    noise.
    """

    bands: int
    sampling_rate: float
    compositions: int
    noise_multiplier: float
    error_ratio: float


def get_learning_rate_schedule(settings: TrainSettings) -> LearningRateSchedule:
    """Return the settings that determine the learning rates."""
    return settings.learning_rate_schedule, settings.warm_up


@lru_cache(maxsize=16)
def compare_band_counts(settings: TrainSettings, steps: int, relation: Relation) -> tuple[BandChoice, ...]:
    """Compare all band counts that the sampling rate allows, at the target epsilon."""
    schedule, independent_error, choices = get_learning_rate_schedule(settings), 0.0, list[BandChoice]()
    rates = compute_step_sizes(schedule, steps)
    for bands in BAND_COUNTS:
        rate, compositions = bands * settings.sampling_rate, math.ceil(steps / bands)
        if rate > 1.0 or bands > steps:
            break
        arguments = (settings.epsilon, settings.delta, rate, compositions, _ROUGH_TOLERANCE)
        noise = calibrate_noise(*arguments, relation=relation, tolerance=_ROUGH_TOLERANCE)
        error = noise * optimize_matrix(bands, steps, schedule).compute_rms_error(rates)
        independent_error = independent_error or error
        choices.append(BandChoice(bands, rate, compositions, noise, error / independent_error))
    return tuple(choices)


def choose_band_count(settings: TrainSettings, steps: int, relation: Relation) -> int:
    """Return ``train.noise_bands``; for ``auto`` the fewest with an error within 5% of the minimum.

    Returns 1 if the minimum is above 0.9 of the error of independent noise.
    """
    if settings.noise_bands != "auto":
        return settings.noise_bands
    choices = compare_band_counts(settings, steps, relation)
    min_ratio = min(choice.error_ratio for choice in choices)
    if min_ratio > _MAX_ERROR_RATIO:
        return 1
    return next(choice.bands for choice in choices if choice.error_ratio <= _NEAR_BEST_FACTOR * min_ratio)


def compute_lr_scale(settings: TrainSettings, mechanism: BandedGaussian, relation: Relation) -> float:
    """Compute the factor for Adam's learning rate so that a gradient moves the model as far as without bands.

    Adam divides by about the noise of one step: that of C⁻¹ instead of 1, at this noise instead of the noise that
    independent noise needs for the target epsilon (equal if the noise is configured).
    """
    if settings.noise_multiplier is not None:
        return mechanism.matrix.noise_gain
    steps, rate = mechanism.matrix.steps, settings.sampling_rate
    arguments = (settings.epsilon, settings.delta, rate, steps, _ROUGH_TOLERANCE)
    independent_noise = calibrate_noise(*arguments, relation=relation, tolerance=_ROUGH_TOLERANCE)
    return mechanism.matrix.noise_gain * mechanism.noise_multiplier / independent_noise
