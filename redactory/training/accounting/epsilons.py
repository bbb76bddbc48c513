"""The main accountant's epsilons of steps: for one example, and by a chain of worlds for groups."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.bounds import CHAIN_SPLITS, compute_chain_epsilon, compute_gaussian_epsilon
from redactory.training.accounting.dominating_pairs import (
    MAX_GROUP_SHIFT_RATIO,
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
