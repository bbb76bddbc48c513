"""Find the noise for a target epsilon: secants on a coarse grid, then on the real one from there."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.confirmation import bound_epsilon, bound_group_epsilon
from redactory.training.accounting.dominating_pairs import Spending, Spendings, compute_failure_delta
from redactory.training.accounting.epsilons import GROUP_DISCRETIZATION, compute_group_epsilon, compute_total_epsilon
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation

_MAX_SEARCHED_EPSILON = 1e6
_SMALL_DELTA = 1e-8
"""Below it the main accountant's rounding may leave no epsilon."""
NoiseCost = Callable[[float, float], float]
"""From how much coarser the grid is, and the noise, to epsilon, which falls with the noise and is above 0."""
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


def choose_coarsening_factor(grid: float, target: float, steps: int) -> float:
    """Return how much coarser than ``grid`` a first look may be: at most 10, and fine relative to a step's loss."""
    return min(max(1.0, 0.08 * target / (math.sqrt(steps) * grid)), 10.0)


def find_smallest_noise(target: float, cost: NoiseCost, coarsening: float, search: NoiseSearch) -> float:
    """Find about the smallest noise whose ``cost`` is at most ``target``; the result was tried on the real grid.

    The first look uses a grid that is ``coarsening`` times coarser, and only finds the start. ``GuaranteeError`` if
    ``maximum`` is not enough.
    """

    def make_log_excess(grid: float) -> Callable[[float], float]:
        return cache(lambda noise: math.log(cost(grid, noise) / target))

    coarse_root = _find_noise_root(
        make_log_excess(coarsening), _INITIAL_SLOPE, replace(search, tolerance=_COARSE_TOLERANCE, steps_per_unit=None)
    )
    start, slope = coarse_root or (search.start, _INITIAL_SLOPE)
    root = _find_noise_root(make_log_excess(1.0), slope, replace(search, start=start))
    if root is None:
        raise GuaranteeError(f"no noise multiplier below {search.maximum:.0f} reaches the target epsilon")
    return root[0]


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


@lru_cache(maxsize=64)
def calibrate_noise(
    target: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    discretization: float = 1e-3,
    group_size: int = 1,
    relation: Relation = Relation.SUBSTITUTION,
    tolerance: float = 5e-5,
    other_spendings: Spendings = (),
    covers_small_deltas: bool = True,
) -> float:
    """Find the noise multiplier σ, rounded up to four decimals, whose epsilon is at most ``target``.

    A root of :func:`compute_epsilon`; if one exchanged example exchanges ``group_size`` rows, of
    :func:`compute_group_epsilon`. σ is found to a share of ``tolerance``; ``other_spendings`` are added.
    With ``covers_small_deltas`` the second accountant's bound counts where the main one rounds delta away (slow).
    ``GuaranteeError`` if no σ below 10,000 reaches the target.
    """
    delta = delta - compute_failure_delta(other_spendings)
    target = target + math.log1p(-compute_failure_delta(other_spendings))
    if delta <= 0.0:
        raise GuaranteeError("the selection by counts uses up delta: raise delta, or lower route.delta")

    def compute_clamped_epsilon(coarsening_factor: float, noise_multiplier: float) -> float:
        spendings = (Spending(PoissonGaussian(sampling_rate, noise_multiplier, 1.0, 1.0), steps), *other_spendings)
        if group_size > 1:
            epsilon = compute_group_epsilon(spendings, delta, group_size, coarsening_factor)
        else:
            epsilon = compute_total_epsilon(spendings, delta, relation, coarsening_factor * discretization)
        if epsilon is None and covers_small_deltas and delta < _SMALL_DELTA:
            # what is printed then: the bound that is proved
            bounds = (
                bound_group_epsilon(spendings, delta, group_size)
                if group_size > 1
                else bound_epsilon(spendings, delta, relation)
            )
            epsilon = bounds.upper
        return _MAX_SEARCHED_EPSILON if epsilon is None else min(max(epsilon, 1e-12), _MAX_SEARCHED_EPSILON)

    coarsening = choose_coarsening_factor(GROUP_DISCRETIZATION if group_size > 1 else discretization, target, steps)
    search = NoiseSearch(1.0, 0.1, 10_000.0, tolerance, 1e4)
    return find_smallest_noise(target, compute_clamped_epsilon, coarsening, search)
