"""Compute epsilons of steps: exact for one example, by a chain of worlds for groups; find noise for a target."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.bounds import CHAIN_SPLITS, compute_chain_epsilon, compute_gaussian_epsilon
from redactory.training.accounting.dominating_pairs import (
    Spending,
    Spendings,
    compute_failure_delta,
    make_composition,
    make_removal_composition,
    normalize_spendings,
)
from redactory.training.accounting.loss_distributions import compose_deltas, compose_epsilon
from redactory.training.mechanisms.mechanism import Mechanism, PoissonGaussian, Relation

DISCRETIZATION, GROUP_DISCRETIZATION = 2.5e-4, 2e-3
_CURVE_GRID = 1e-3
MAX_GROUP_SHIFT_RATIO = 20.0
_MAX_SEARCHED_EPSILON = 1e6


def compute_epsilon(
    mechanism: Mechanism, steps: int, delta: float, relation: Relation, discretization: float = DISCRETIZATION
) -> float | None:
    """Compute :func:`compute_total_epsilon` of a single training."""
    return compute_total_epsilon((Spending(mechanism, steps),), delta, relation, discretization)


def compute_total_epsilon(
    spendings: Spendings, delta: float, relation: Relation, discretization: float = DISCRETIZATION
) -> float | None:
    """Compute epsilon at ``delta`` in (0, 1) of all adaptive steps of ``spendings`` together; None if not finite.

    No steps have epsilon 0. ``discretization`` is the grid of the privacy loss (for σ >= 1; wider for less noise,
    whose losses range further): coarser is faster and gives a larger epsilon. If one exchanged example exchanges
    several rows of a training, substitution has the bound of :func:`compute_group_epsilon`, and for
    ``ADD_OR_REMOVE`` nothing is proved (``GuaranteeError``).
    """
    spendings = normalize_spendings(spendings)
    if not spendings:
        return 0.0
    if relation is Relation.ADD_OR_REMOVE and compute_failure_delta(spendings):
        raise GuaranteeError("an example's removal makes room for another text: account for an exchange")
    if relation is Relation.SUBSTITUTION and any(spending.rows > 1 for spending in spendings):
        return compute_group_epsilon(spendings, delta, 1)
    _require_single_rows(spendings)
    if _is_unsampled(spendings):
        return replace_infinite_by_none(
            compute_gaussian_epsilon(_compute_shift(spendings, 2 if relation is Relation.SUBSTITUTION else 1), delta)
        )
    parts = make_composition(spendings, relation)
    return replace_infinite_by_none(compose_epsilon(parts, choose_discretization(spendings, discretization), delta))


def compute_group_epsilon(
    spendings: Spendings,
    delta: float,
    group_size: int,
    coarsening: float = 1.0,
    splits: tuple[float, ...] = CHAIN_SPLITS,
) -> float | None:
    """Compute epsilon if ``group_size`` K examples are exchanged at once in all of ``spendings``.

    K examples vanish and K others appear. With MoG_K the T-fold mixture of Gaussians with sensitivities 0..K and
    weights Bin(K, q), H_{e^(a+b)}(P‖Q) <= H_{e^a}(P‖R) + e^a H_{e^b}(R‖Q) through the world R without the K
    examples; the smallest a + b over a few ``splits`` of ``delta`` (``docs/guarantees.md``, "Groups of points").
    Nothing is searched if K/σ is above 20: such noise protects no group. A grid that is ``coarsening`` times
    coarser is faster and gives a larger epsilon.
    """
    return _compute_group_epsilon(spendings, delta, group_size, 2, coarsening, splits)


def find_best_delta_share(spendings: Spendings, delta: float, group_size: int) -> float:
    """Find the share of ``delta`` with the smallest chain of :func:`compute_group_epsilon`."""

    def compute_epsilon_for_share(share: float) -> float:
        epsilon = compute_group_epsilon(spendings, delta, group_size, splits=(share,))
        return math.inf if epsilon is None else epsilon

    return min(CHAIN_SPLITS, key=compute_epsilon_for_share)


def compute_removal_epsilon(spendings: Spendings, delta: float, group_size: int) -> float | None:
    """Compute epsilon if ``group_size`` examples contribute a gradient in one world and none in the other.

    One side of :func:`compute_group_epsilon`, the accounting of ``crt-drop`` (``docs/guarantees.md``, "Dropping
    masked points").
    """
    return _compute_group_epsilon(spendings, delta, group_size, 1)


def _compute_group_epsilon(
    spendings: Spendings,
    delta: float,
    group_size: int,
    directions: int,
    coarsening: float = 1.0,
    splits: tuple[float, ...] = CHAIN_SPLITS,
) -> float | None:
    spendings = normalize_spendings(spendings)
    if not spendings:
        return 0.0
    if compute_failure_delta(spendings) and (directions > 1 or group_size > 1):
        raise GuaranteeError("a selection by counts can only be accounted for one example, or one user")
    ratio = max(group_size * spending.rows / spending.mechanism.noise_multiplier for spending in spendings)
    if ratio > MAX_GROUP_SHIFT_RATIO:
        return None

    @cache
    def compute_one_sided_epsilon(target_delta: float) -> float:
        if _is_unsampled(spendings):
            return compute_gaussian_epsilon(_compute_shift(spendings, group_size), target_delta)
        parts = make_removal_composition(spendings, group_size)
        # the range of losses grows with K/σ: as many cells
        return compose_epsilon(parts, coarsening * GROUP_DISCRETIZATION * max(1.0, ratio), target_delta)

    return replace_infinite_by_none(
        compute_one_sided_epsilon(delta)
        if directions == 1
        else compute_chain_epsilon(compute_one_sided_epsilon, compute_one_sided_epsilon, delta, splits)
    )


def _require_single_rows(spendings: Spendings) -> None:
    if any(spending.rows != 1 for spending in spendings):
        raise GuaranteeError("exchanging one example exchanges several rows: groups need other accounting")


def choose_discretization(spendings: Spendings, discretization: float) -> float:
    """Return ``discretization``, or the one that suits the noise of a step."""
    # the range of losses grows with 1/σ², its width that matters with 1/σ
    inverse = min(max(1.0 / spending.mechanism.noise_multiplier for spending in spendings), 1e6)
    return discretization * max(1.0, inverse, 0.1 * inverse**2)


def _is_unsampled(spendings: Spendings) -> bool:
    """Whether every example is in every step: then all steps together are one Gaussian."""
    return all(
        isinstance(spending.mechanism, PoissonGaussian) and spending.mechanism.sampling_rate == 1.0
        for spending in spendings
    )


def _compute_shift(spendings: Spendings, clips: float) -> float:
    """Return the distance of the two worlds, in deviations, if every step moves the sum by ``clips``."""
    return math.hypot(
        *(
            math.sqrt(spending.steps) * clips * spending.rows / spending.mechanism.noise_multiplier
            for spending in spendings
        )
    )


def replace_infinite_by_none(value: float) -> float | None:
    """Return ``value``, or None if it is not finite."""
    return float(value) if math.isfinite(value) else None


# Epsilon against steps, for progress lines and plots; and delta against epsilon, for an audit.


@dataclass(frozen=True)
class EpsilonCurve:
    """``values[i]`` is epsilon after ``steps[i]`` steps; ``inf`` if not finite."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def get_upper_bound(self, steps: int) -> float:
        """Return an upper bound of epsilon after ``steps`` steps: the epsilon of the next computed number of steps."""
        if steps <= 0:
            return 0.0
        index = bisect.bisect_left(self.steps, steps)
        return self.values[index] if index < len(self.values) else math.inf


def compute_epsilon_curve(spending: Spending, delta: float, relation: Relation, max_points: int = 24) -> EpsilonCurve:
    """Compute epsilon at no more than ``max_points`` step counts of ``spending``, evenly spread, on a coarse grid."""
    step_counts = list_evenly_spaced_steps(spending.steps, max_points)
    epsilons = (
        compute_total_epsilon((replace(spending, steps=count),), delta, relation, _CURVE_GRID) for count in step_counts
    )
    return EpsilonCurve(tuple(step_counts), tuple(math.inf if value is None else value for value in epsilons))


def list_evenly_spaced_steps(total: int, max_points: int) -> list[int]:
    """Return at most ``max_points`` numbers of steps up to ``total``, evenly spread."""
    return sorted({max(1, round(total * index / max_points)) for index in range(1, max_points + 1)}) if total else []


def compute_privacy_curve(spendings: Spendings, relation: Relation) -> list[tuple[float, float]]:
    """Compute (ε, δ(ε)) for ε from 0 on, both directions covered, δ never too small (``docs/guarantees.md``, L3).

    For one exchanged row; ``GuaranteeError`` if an exchanged example exchanges several.
    """
    spendings, epsilons = normalize_spendings(spendings), np.linspace(0.0, 20.0, 201)
    _require_single_rows(spendings)
    parts = make_composition(spendings, relation)
    deltas = compose_deltas(parts, choose_discretization(spendings, _CURVE_GRID), epsilons)
    return list(zip(epsilons.tolist(), deltas.tolist(), strict=True))


# The noise for a target epsilon: secants on a coarse grid, then on the real one from there.


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
) -> float:
    """Find the noise multiplier σ, rounded up to four decimals, whose epsilon is at most ``target``.

    A root of :func:`compute_epsilon`; if one exchanged example exchanges ``group_size`` rows, of
    :func:`compute_group_epsilon`. σ is found to a share of ``tolerance``; ``other_spendings`` are added.
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
        return _MAX_SEARCHED_EPSILON if epsilon is None else min(max(epsilon, 1e-12), _MAX_SEARCHED_EPSILON)

    coarsening = choose_coarsening_factor(GROUP_DISCRETIZATION if group_size > 1 else discretization, target, steps)
    search = NoiseSearch(1.0, 0.1, 10_000.0, tolerance, 1e4)
    return find_smallest_noise(target, compute_clamped_epsilon, coarsening, search)
