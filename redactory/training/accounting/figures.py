"""Epsilons of what was spent: exact for one point, by a chain of worlds for groups, noise from a target."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.bounds import chain, gaussian_epsilon, revealed
from redactory.training.accounting.calibration import Search, coarseness, noise_for
from redactory.training.accounting.mixtures import (
    Branches,
    composed_deltas,
    composed_epsilon,
    exchange,
    grid_of,
    removal,
)
from redactory.training.accounting.pairs import group_weights
from redactory.training.accounting.spending import Spending, Spendings, in_clips
from redactory.training.mechanism import Mechanism, PoissonGaussian, Relation, TruncatedPoissonGaussian

DISCRETIZATION = 1e-4
GROUP_DISCRETIZATION = 2e-3
_HOPELESS_RATIO = 20.0
_LARGEST_SEARCHED = 1e6
Parts = tuple[tuple[Branches, int], ...]


def epsilon(
    mechanism: Mechanism,
    steps: int,
    delta: float,
    relation: Relation,
    discretization: float = DISCRETIZATION,
) -> float | None:
    """Epsilon of ``steps`` adaptive steps at ``delta`` in (0, 1); ``None`` where it is not finite.

    No steps cost nothing.  ``discretization`` is the grid of the privacy loss (for σ >= 1; wider for
    less noise, whose losses range further): coarser is faster and gives a larger epsilon.
    """
    return epsilon_of((Spending(mechanism, steps),), delta, relation, discretization)


def epsilon_of(
    spent: Spendings, delta: float, relation: Relation, discretization: float = DISCRETIZATION
) -> float | None:
    """Epsilon of all of ``spent`` together; as :func:`epsilon` for a single training.

    Where one exchanged point exchanges several rows of a training, substitution has the bound of
    :func:`group_epsilon_of`, and for ``ADD_OR_REMOVE`` nothing is proved (``GuaranteeError``).
    """
    spent = in_clips(spent)
    if not spent:
        return 0.0
    if any(one.rows > 1 for one in spent) and relation is Relation.SUBSTITUTION:
        return group_epsilon_of(spent, delta, 1)
    return _finite(single_epsilon(spent, relation, discretization, delta))


def curve_of(
    spent: Spendings, relation: Relation, discretization: float, epsilons: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Delta at each of ``epsilons``, never too small; ``GuaranteeError`` for several rows."""
    spent = in_clips(spent)
    _require_single(spent)
    parts = parts_of(spent, relation)
    return composed_deltas(parts, single_grid(spent, parts, discretization), epsilons)


def single_epsilon(spent: Spendings, relation: Relation, discretization: float, delta: float) -> float:
    """Epsilon where one point exchanges one row; ``inf`` where it is not finite."""
    _require_single(spent)
    if _unsampled(spent):
        return gaussian_epsilon(_shift(spent, 2 if relation is Relation.SUBSTITUTION else 1), delta)
    parts = parts_of(spent, relation)
    return composed_epsilon(parts, single_grid(spent, parts, discretization), delta)


def _require_single(spent: Spendings) -> None:
    if any(one.rows != 1 for one in spent):
        raise GuaranteeError("one exchanged point exchanges several rows: a group is accounted otherwise")


def single_grid(spent: Spendings, parts: Parts, discretization: float) -> float:
    """``discretization`` or what suits the noise and the losses of a step."""
    # the range of losses grows with 1/σ², its width that matters with 1/σ
    inverse = max(1.0 / one.mechanism.noise_multiplier for one in spent)
    return grid_of(parts, discretization * max(1.0, inverse, 0.1 * inverse**2))


def parts_of(spent: Spendings, relation: Relation) -> Parts:
    """The pairs of worlds that dominate each training's step, with the number of its steps."""
    return tuple((_branches(one.mechanism, relation), one.steps) for one in spent)


def _branches(mechanism: Mechanism, relation: Relation) -> Branches:
    rate, sigma = mechanism.sampling_rate, mechanism.noise_multiplier
    point = exchange(rate, sigma) if relation is Relation.SUBSTITUTION else removal(rate, sigma)
    match mechanism:
        case PoissonGaussian():
            return ((1.0, point),)
        case TruncatedPoissonGaussian():
            cut, within = mechanism.crowded
            if cut <= 0.0:
                return ((1.0, point),)
            return ((1.0 - cut, point), (cut, exchange(within, sigma / 2.0)))
        case _:
            raise GuaranteeError("the accountant does not know this mechanism")


def _unsampled(spent: Spendings) -> bool:
    """Whether every point is in every step: then all steps together are one Gaussian."""
    return all(
        isinstance(one.mechanism, PoissonGaussian) and one.mechanism.sampling_rate == 1.0 for one in spent
    )


def _shift(spent: Spendings, clips: float) -> float:
    """The distance of the two worlds, in deviations, where every step moves the sum by ``clips``."""
    return math.sqrt(
        math.fsum(one.steps * (clips * one.rows / one.mechanism.noise_multiplier) ** 2 for one in spent)
    )


def group_epsilon(
    mechanism: Mechanism, steps: int, delta: float, points: int, coarser: float = 1.0
) -> float | None:
    """Epsilon when ``points`` K >= 2 points are exchanged at once; ``None`` where none finite is found."""
    return group_epsilon_of((Spending(mechanism, steps),), delta, points, coarser)


def group_epsilon_of(spent: Spendings, delta: float, points: int, coarser: float = 1.0) -> float | None:
    """Epsilon when ``points`` points are exchanged at once in everything that was ``spent``.

    K points go and K others come: with MoG_K the T-fold mixture of Gaussians with sensitivities
    0..K and weights Bin(K, q), H_{e^(a+b)}(P‖Q) <= H_{e^a}(P‖R) + e^a H_{e^b}(R‖Q) through the world R
    without the K points; the smallest a + b over a few splits of ``delta``
    (``docs/guarantees.md``, "Groups of points").  Nothing is searched where K/σ is over 20: such
    noise protects no group.  A grid that is ``coarser`` by a factor is faster and gives a larger epsilon.
    """
    spent = in_clips(spent)
    if not spent:
        return 0.0
    if truncated(spent):
        return _revealed_group(spent, delta, points, 2)
    one_side = partial(_one_side, spent, points, coarser)
    return None if _hopeless(spent, points) else _finite(chain(one_side, one_side, delta))


def removal_epsilon_of(spent: Spendings, delta: float, points: int) -> float | None:
    """Epsilon when ``points`` points that contribute a gradient on one side contribute none on the other.

    One side of :func:`group_epsilon_of`: what ``crt-drop`` is accounted by (``docs/guarantees.md``,
    "Dropping masked points").
    """
    spent = in_clips(spent)
    if not spent:
        return 0.0
    if truncated(spent):
        return _revealed_group(spent, delta, points, 1)
    return None if _hopeless(spent, points) else _finite(_one_side(spent, points, 1.0, delta))


def _one_side(spent: Spendings, points: int, coarser: float, delta: float) -> float:
    """``points`` points there against not there, each standing in ``rows`` rows of what was trained on."""
    if _unsampled(spent):
        return gaussian_epsilon(_shift(spent, points), delta)
    parts: Parts = tuple(
        (((1.0, removal(m.sampling_rate, m.noise_multiplier, points * one.rows)),), one.steps)
        for one in spent
        for m in (one.mechanism,)
    )
    grid = grid_of(parts, coarser * GROUP_DISCRETIZATION * max(1.0, _ratio(spent, points)))
    return composed_epsilon(parts, grid, delta)


def _ratio(spent: Spendings, points: int) -> float:
    # the range of losses grows with K/σ: as many cells
    return max(points * one.rows / one.mechanism.noise_multiplier for one in spent)


def _hopeless(spent: Spendings, points: int) -> bool:
    return _ratio(spent, points) > _HOPELESS_RATIO


def truncated(spent: Spendings) -> bool:
    """Whether a sampler cuts large batches: groups then have the revealed bound only."""
    return any(isinstance(one.mechanism, TruncatedPoissonGaussian) for one in spent)


def _revealed_group(spent: Spendings, delta: float, points: int, shift: int) -> float | None:
    """Truncation only takes points out: at most Bin(K, q) of the group stay, each with a ``shift`` in C."""
    if len(spent) != 1:
        raise GuaranteeError("groups under a truncated sampler are accounted for one training at a time")
    (one,) = spent
    law = {
        shift * int(count): weight
        for count, weight in group_weights(one.mechanism.sampling_rate, points * one.rows).items()
    }
    return _finite(revealed(law, one.mechanism.noise_multiplier, one.steps, delta))


def calibrate_noise(
    target: float,
    delta: float,
    sampling_rate: float,
    steps: int,
    discretization: float = 1e-3,
    points: int = 1,
    relation: Relation = Relation.SUBSTITUTION,
    truncation: tuple[int, int] | None = None,
    tolerance: float = 5e-5,
) -> float:
    """The noise multiplier σ, to four decimals upwards, whose epsilon is at most ``target``.

    A root of :func:`epsilon`, or, where one exchanged point exchanges ``points`` rows, of
    :func:`group_epsilon`; ``truncation`` is (truncated_batch_size, slots) of a truncated sampler.  σ is
    found to a share of ``tolerance``.  ``GuaranteeError`` where no σ below 10,000 reaches the target.
    """

    def spent(coarse: float, noise_multiplier: float) -> float:
        mechanism: Mechanism = PoissonGaussian(sampling_rate, noise_multiplier, 1.0, 1.0)
        if truncation is not None:
            batch, slots = truncation
            mechanism = TruncatedPoissonGaussian(
                sampling_rate, noise_multiplier, 1.0, 1.0, truncated_batch_size=batch, points=slots
            )
        if points > 1:
            found = group_epsilon(mechanism, steps, delta, points, coarse)
        else:
            found = epsilon(mechanism, steps, delta, relation, coarse * discretization)
        return _LARGEST_SEARCHED if found is None else min(max(found, 1e-12), _LARGEST_SEARCHED)

    rough = coarseness(GROUP_DISCRETIZATION if points > 1 else discretization, target, steps)
    search = Search(start=1.0, least=0.1, most=10_000.0, tolerance=tolerance, parts=1e4)
    found = noise_for(target, partial(spent, 1.0), partial(spent, rough), search)
    if found is None:
        raise GuaranteeError("no noise multiplier below 10000 reaches the target epsilon")
    return found


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
