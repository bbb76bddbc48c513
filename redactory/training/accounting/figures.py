"""Epsilons of what was spent: exact for one point, by a chain of worlds for groups, noise from a target."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import numpy as np

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.bounds import CHAIN_SPLITS, chain, gaussian_epsilon
from redactory.training.accounting.losses import composed_deltas, composed_epsilon, grid_of
from redactory.training.accounting.pairs import Spending, Spendings, in_clips, nulled_parts, parts_of, threshold_loss
from redactory.training.mechanism import Mechanism, PoissonGaussian, Relation

DISCRETIZATION, GROUP_DISCRETIZATION = 1e-4, 2e-3
_CURVE_GRID = 1e-3
_HOPELESS_RATIO = 20.0
_LARGEST_SEARCHED = 1e6


def epsilon(
    mechanism: Mechanism, steps: int, delta: float, relation: Relation, discretization: float = DISCRETIZATION
) -> float | None:
    """:func:`epsilon_of` of a single training."""
    return epsilon_of((Spending(mechanism, steps),), delta, relation, discretization)


def epsilon_of(
    spent: Spendings, delta: float, relation: Relation, discretization: float = DISCRETIZATION
) -> float | None:
    """Epsilon at ``delta`` in (0, 1) of all adaptive steps of ``spent`` together; None where not finite.

    No steps cost nothing.  ``discretization`` is the grid of the privacy loss (for σ >= 1; wider for less
    noise, whose losses range further): coarser is faster and gives a larger epsilon.  Where one exchanged
    point exchanges several rows of a training, substitution has the bound of :func:`group_epsilon_of`, and
    for ``ADD_OR_REMOVE`` nothing is proved (``GuaranteeError``).
    """
    spent = in_clips(spent)
    if not spent:
        return 0.0
    if relation is Relation.ADD_OR_REMOVE and threshold_loss(spent):
        raise GuaranteeError("an example's removal makes room for another text: account for an exchange")
    if relation is Relation.SUBSTITUTION and any(one.rows > 1 for one in spent):
        return group_epsilon_of(spent, delta, 1)
    _require_single(spent)
    if _unsampled(spent):
        return finite(gaussian_epsilon(_shift(spent, 2 if relation is Relation.SUBSTITUTION else 1), delta))
    parts = parts_of(spent, relation)
    return finite(composed_epsilon(parts, single_grid(spent, discretization), delta))


def group_epsilon_of(
    spent: Spendings, delta: float, points: int, coarser: float = 1.0, splits: tuple[float, ...] = CHAIN_SPLITS
) -> float | None:
    """Epsilon when ``points`` K points are exchanged at once in everything that was ``spent``.

    K points go and K others come: with MoG_K the T-fold mixture of Gaussians with sensitivities
    0..K and weights Bin(K, q), H_{e^(a+b)}(P‖Q) <= H_{e^a}(P‖R) + e^a H_{e^b}(R‖Q) through the world R
    without the K points; the smallest a + b over a few ``splits`` of ``delta``
    (``docs/guarantees.md``, "Groups of points").  Nothing is searched where K/σ is over 20: such
    noise protects no group.  A grid that is ``coarser`` by a factor is faster and gives a larger epsilon.
    """
    return _of_group(spent, delta, points, 2, coarser, splits)


def best_split(spent: Spendings, delta: float, points: int) -> float:
    """The share of ``delta`` with which the chain of :func:`group_epsilon_of` is the smallest."""

    def cost(share: float) -> float:
        found = group_epsilon_of(spent, delta, points, splits=(share,))
        return math.inf if found is None else found

    return min(CHAIN_SPLITS, key=cost)


def removal_epsilon_of(spent: Spendings, delta: float, points: int) -> float | None:
    """Epsilon when ``points`` points that contribute a gradient on one side contribute none on the other.

    One side of :func:`group_epsilon_of`: what ``crt-drop`` is accounted by (``docs/guarantees.md``,
    "Dropping masked points").
    """
    return _of_group(spent, delta, points, 1)


def _of_group(
    spent: Spendings,
    delta: float,
    points: int,
    sides: int,
    coarser: float = 1.0,
    splits: tuple[float, ...] = CHAIN_SPLITS,
) -> float | None:
    spent = in_clips(spent)
    if not spent:
        return 0.0
    if threshold_loss(spent) and (sides > 1 or points > 1):
        raise GuaranteeError("a selection by counts can only be accounted for one example, or one user")
    ratio = max(points * one.rows / one.mechanism.noise_multiplier for one in spent)
    if ratio > _HOPELESS_RATIO:
        return None

    @cache
    def one_side(at: float) -> float:
        if _unsampled(spent):
            return gaussian_epsilon(_shift(spent, points), at)
        parts = nulled_parts(spent, points)
        # the range of losses grows with K/σ: as many cells
        return composed_epsilon(parts, coarser * GROUP_DISCRETIZATION * max(1.0, ratio), at)

    return finite(one_side(delta) if sides == 1 else chain(one_side, one_side, delta, splits))


def _require_single(spent: Spendings) -> None:
    if any(one.rows != 1 for one in spent):
        raise GuaranteeError("exchanging one example exchanges several rows: groups need other accounting")


def single_grid(spent: Spendings, discretization: float) -> float:
    """``discretization`` or what suits the noise of a step."""
    # the range of losses grows with 1/σ², its width that matters with 1/σ
    inverse = min(max(1.0 / one.mechanism.noise_multiplier for one in spent), 1e6)
    return discretization * max(1.0, inverse, 0.1 * inverse**2)


def _unsampled(spent: Spendings) -> bool:
    """Whether every point is in every step: then all steps together are one Gaussian."""
    return all(isinstance(one.mechanism, PoissonGaussian) and one.mechanism.sampling_rate == 1.0 for one in spent)


def _shift(spent: Spendings, clips: float) -> float:
    """The distance of the two worlds, in deviations, where every step moves the sum by ``clips``."""
    return math.hypot(*(math.sqrt(one.steps) * clips * one.rows / one.mechanism.noise_multiplier for one in spent))


def finite(value: float) -> float | None:
    """``value``, None where it is not finite."""
    return float(value) if math.isfinite(value) else None


# Epsilon against steps, for progress lines and plots; and delta against epsilon, for an audit.


@dataclass(frozen=True)
class EpsilonCurve:
    """``values[i]`` is epsilon after ``steps[i]`` steps; ``inf`` where it is not finite."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def at(self, steps: int) -> float:
        """An upper bound of epsilon after ``steps`` steps: the figure of the next number computed."""
        if steps <= 0:
            return 0.0
        place = bisect.bisect_left(self.steps, steps)
        return self.values[place] if place < len(self.values) else math.inf


def epsilon_curve(spent: Spending, delta: float, relation: Relation, points: int = 24) -> EpsilonCurve:
    """At most ``points`` numbers of steps up to ``spent.steps``, evenly spread, on a coarse grid."""
    numbers = some_steps(spent.steps, points)
    found = (epsilon_of((replace(spent, steps=count),), delta, relation, _CURVE_GRID) for count in numbers)
    return EpsilonCurve(tuple(numbers), tuple(math.inf if value is None else value for value in found))


def some_steps(total: int, points: int) -> list[int]:
    """At most ``points`` numbers of steps up to ``total``, evenly spread."""
    return sorted({max(1, round(total * part / points)) for part in range(1, points + 1)}) if total else []


def privacy_curve(spent: Spendings, relation: Relation) -> list[tuple[float, float]]:
    """(ε, δ(ε)) for ε from 0 on, both directions covered, δ never too small (``docs/guarantees.md``, L3).

    For one exchanged row; ``GuaranteeError`` where an exchanged point exchanges several.
    """
    spent, epsilons = in_clips(spent), np.linspace(0.0, 20.0, 201)
    _require_single(spent)
    parts = parts_of(spent, relation)
    deltas = composed_deltas(parts, grid_of(parts, single_grid(spent, _CURVE_GRID)), epsilons)
    return list(zip(epsilons.tolist(), deltas.tolist(), strict=True))


# The noise for a target epsilon: secants on a coarse grid, then on the real one from there.


Cost = Callable[[float, float], float]
"""From how much coarser the grid is, and the noise, to epsilon, which falls with the noise and is above 0."""
_STRIDE, _ROUGHLY, _ONE_PLACE = math.log(4.0), 3e-3, 1e-4
_USUAL, _FLATTEST, _STEEPEST = -1.5, -0.2, -20.0
_SECANTS, _MOST_TURNS = 8, 100


@dataclass(frozen=True)
class Search:
    """Where the noise is looked for: from ``start``, between ``least`` and ``most``.

    It is found to a share of ``tolerance`` above the root, or to one of its ``parts`` of 1.
    """

    start: float
    least: float
    most: float
    tolerance: float
    parts: float | None = None

    def rounded(self, noise: float) -> float:
        """``noise``, upwards to a whole number of ``parts``."""
        return noise if self.parts is None else math.ceil(noise * self.parts) / self.parts

    def spare(self, noise: float) -> float:
        """How far above the root the logarithm of ``noise`` may lie."""
        return self.tolerance if self.parts is None else max(self.tolerance, 1.0 / (self.parts * noise))


def coarseness(grid: float, target: float, steps: int) -> float:
    """By what factor a first look may be coarser than ``grid``: at most 10, and fine beside a step's loss."""
    return min(max(1.0, 0.08 * target / (math.sqrt(steps) * grid)), 10.0)


def noise_for(target: float, cost: Cost, coarser: float, search: Search) -> float:
    """About the least noise at which ``cost`` is at most ``target``: it was tried, on the real grid.

    The first look is on a grid that is ``coarser``, and only says where to begin.  ``GuaranteeError`` where
    ``most`` is not enough.
    """

    def off(grid: float) -> Callable[[float], float]:
        return cache(lambda noise: math.log(cost(grid, noise) / target))

    looked = _settled(off(coarser), _USUAL, replace(search, tolerance=_ROUGHLY, parts=None))
    begin, slope = looked or (search.start, _USUAL)
    found = _settled(off(1.0), slope, replace(search, start=begin))
    if found is None:
        raise GuaranteeError(f"no noise multiplier below {search.most:.0f} reaches the target epsilon")
    return found[0]


def _settled(off: Callable[[float], float], slope: float, search: Search) -> tuple[float, float] | None:
    """The noise with ``off`` <= 0 and no farther from its root than is spared, and the slope there.

    Secants in the logarithm of the noise, kept between what was found too little and what was enough.
    """
    aim, low, high, found = math.log(search.start), math.log(search.least), math.inf, math.inf
    before: tuple[float, float] | None = None
    for turn in range(_MOST_TURNS):
        noise = search.rounded(max(math.exp(aim), search.least))
        here, value = math.log(noise), off(noise)
        if before is not None and abs(here - before[0]) > _ONE_PLACE:
            slope = min(max((value - before[1]) / (here - before[0]), _STEEPEST), _FLATTEST)
        if value <= 0.0:
            if noise <= search.least or value >= slope * search.spare(noise):
                return noise, slope
            high, found = min(high, here), min(found, noise)
        elif noise > search.most:
            return None
        else:
            low = max(low, here)
        if search.rounded(math.exp(low + search.tolerance)) >= found:
            return found, slope
        before = here, value
        aim = here + min(max(-value / slope, -_STRIDE), _STRIDE) + search.tolerance / 8.0
        if math.isfinite(high) and (turn >= _SECANTS or not low < aim < high):
            aim = (low + high) / 2.0
        if search.parts is not None and search.rounded(math.exp(aim)) >= found:
            aim = math.log(found - 1.5 / search.parts)  # the place before
    return found, slope


@lru_cache(maxsize=64)
def calibrate_noise(
    target: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    discretization: float = 1e-3,
    points: int = 1,
    relation: Relation = Relation.SUBSTITUTION,
    tolerance: float = 5e-5,
    beside: Spendings = (),
) -> float:
    """The noise multiplier σ, to four decimals upwards, whose epsilon is at most ``target``.

    A root of :func:`epsilon`, or, where one exchanged point exchanges ``points`` rows, of
    :func:`group_epsilon_of`.  σ is found to a share of ``tolerance``; ``beside`` is spent as well.
    ``GuaranteeError`` where no σ below 10,000 reaches the target.
    """
    delta, target = delta - threshold_loss(beside), target + math.log1p(-threshold_loss(beside))
    if delta <= 0.0:
        raise GuaranteeError("the selection by counts uses up delta: raise delta, or lower route.delta")

    def cost(coarser: float, noise_multiplier: float) -> float:
        spent = (Spending(PoissonGaussian(sampling_rate, noise_multiplier, 1.0, 1.0), steps), *beside)
        if points > 1:
            found = group_epsilon_of(spent, delta, points, coarser)
        else:
            found = epsilon_of(spent, delta, relation, coarser * discretization)
        return _LARGEST_SEARCHED if found is None else min(max(found, 1e-12), _LARGEST_SEARCHED)

    coarser = coarseness(GROUP_DISCRETIZATION if points > 1 else discretization, target, steps)
    return noise_for(target, cost, coarser, Search(1.0, 0.1, 10_000.0, tolerance, 1e4))
