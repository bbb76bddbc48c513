"""Find the noise for a target epsilon: secants on dp_accounting's estimate, then on the proved bound from there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.comparisons import Comparison, confirm_epsilon

_MAX_COARSENING = 10.0
_MIN_SEARCHED_EPSILON, _MAX_SEARCHED_EPSILON = 1e-12, 1e6
_MAX_LOG_STRIDE, _COARSE_TOLERANCE, _MIN_LOG_STRIDE = math.log(4.0), 3e-3, 1e-4
_INITIAL_SLOPE, _MAX_SLOPE, _MIN_SLOPE = -1.5, -0.2, -20.0
_MAX_SECANTS, _MAX_ITERATIONS = 8, 100


@dataclass(frozen=True)
class NoiseSearch:
    """Where to search for noise: from ``start``, between ``minimum`` and ``maximum``.

    The result is within a share ``tolerance`` above the root, or of a step of 1 / ``steps_per_unit``.
    """

    start: float
    minimum: float
    maximum: float
    tolerance: float
    steps_per_unit: float | None = None

    def round_up(self, noise: float) -> float:
        """Round ``noise`` up to a multiple of 1 / ``steps_per_unit``."""
        return noise if self.steps_per_unit is None else math.ceil(noise * self.steps_per_unit) / self.steps_per_unit

    def compute_log_tolerance(self, noise: float) -> float:
        """Return how far above the root the logarithm of ``noise`` may be."""
        return (
            self.tolerance if self.steps_per_unit is None else max(self.tolerance, 1.0 / (self.steps_per_unit * noise))
        )


def find_noise(
    make_comparison: Callable[[float], Comparison],
    target: float,
    delta: float,
    search: NoiseSearch,
    is_proved: bool = True,
) -> float:
    """Find about the smallest noise whose proved epsilon at ``delta`` is at most ``target``; it was tried.

    ``make_comparison`` makes the neighbouring worlds of a noise. The first look is at dp_accounting's estimate, on a
    coarse grid, and only finds the start. Without ``is_proved`` the epsilon is approximate: milliseconds.
    ``GuaranteeError`` if ``maximum`` is not enough, or if the two accountants disagree about the noise that was found.
    """

    def make_excess(compute_epsilon: Callable[[Comparison], float]) -> Callable[[float], float]:
        return cache(lambda noise: _compute_log_excess(compute_epsilon(make_comparison(noise)), target))

    if is_proved:
        coarsening = choose_coarsening_factor(make_comparison(search.start), target, _MAX_COARSENING)
        excess = make_excess(lambda worlds: worlds.estimate_epsilon(delta, coarsening))
        coarse_search = replace(search, tolerance=_COARSE_TOLERANCE, steps_per_unit=None)
        start, slope = _find_noise_root(excess, _INITIAL_SLOPE, coarse_search) or (search.start, _INITIAL_SLOPE)
        excess, search = make_excess(lambda worlds: worlds.bound_epsilon(delta).upper), replace(search, start=start)
    else:
        excess, slope = make_excess(lambda worlds: worlds.approximate_epsilon(delta)), _INITIAL_SLOPE
    root = _find_noise_root(excess, slope, search)
    if root is None:
        raise GuaranteeError(f"no noise multiplier below {search.maximum:.0f} reaches the target epsilon")
    if is_proved:
        confirm_epsilon(make_comparison(root[0]), delta, "the noise that was found")
    return root[0]


def choose_coarsening_factor(comparison: Comparison, target: float, most: float) -> float:
    """Return how much coarser a first look may be: at ``most``, and fine relative to a step's loss."""
    interval = max((one.interval for one in comparison.transitions), default=1.0)
    return min(max(1.0, 0.08 * target / (math.sqrt(max(comparison.count_steps(), 1)) * interval)), most)


def _compute_log_excess(epsilon: float, target: float) -> float:
    return math.log(min(max(epsilon, _MIN_SEARCHED_EPSILON), _MAX_SEARCHED_EPSILON) / target)


def _find_noise_root(
    log_excess: Callable[[float], float], slope: float, search: NoiseSearch
) -> tuple[float, float] | None:
    """Return noise with ``log_excess`` <= 0 within the tolerance of its root, and the slope there.

    Secants in the logarithm of the noise, kept between the largest failed and the smallest successful noise.
    """
    aim, low, high, lowest_enough = math.log(search.start), math.log(search.minimum), math.inf, math.inf
    previous: tuple[float, float] | None = None
    for turn in range(_MAX_ITERATIONS):
        noise = search.round_up(max(math.exp(aim), search.minimum))
        here, value = math.log(noise), log_excess(noise)
        if previous is not None and abs(here - previous[0]) > _MIN_LOG_STRIDE:
            slope = min(max((value - previous[1]) / (here - previous[0]), _MIN_SLOPE), _MAX_SLOPE)
        if value <= 0.0:
            if noise <= search.minimum or value >= slope * search.compute_log_tolerance(noise):
                return noise, slope
            high, lowest_enough = min(high, here), min(lowest_enough, noise)
        elif noise > search.maximum:
            return None
        else:
            low = max(low, here)
        if search.round_up(math.exp(low + search.tolerance)) >= lowest_enough:
            return lowest_enough, slope
        previous = here, value
        aim = here + min(max(-value / slope, -_MAX_LOG_STRIDE), _MAX_LOG_STRIDE) + search.tolerance / 8.0
        if math.isfinite(high) and (turn >= _MAX_SECANTS or not low < aim < high):
            aim = (low + high) / 2.0
        if search.steps_per_unit is not None and search.round_up(math.exp(aim)) >= lowest_enough:
            aim = math.log(lowest_enough - 1.5 / search.steps_per_unit)  # the place before
    return lowest_enough, slope
