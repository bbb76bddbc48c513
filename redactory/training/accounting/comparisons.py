"""What an epsilon compares: two neighbouring worlds, and what dominates all steps on the way from one to the other.

Every transition is stated twice. dp_accounting estimates its epsilon from the first statement; ``verification`` proves
bounds from the second one. The proved upper bound is what may be printed, and the estimate has to agree with it
(``docs/guarantees.md``, "Two accountants").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, lru_cache, partial

import numpy as np

from redactory.foundation.bounds import format_lower, format_upper
from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.approximation import approximate_epsilon
from redactory.training.accounting.bounds import (
    CHAIN_SPLITS,
    FINE_SPLITS,
    MAX_EPSILON,
    MIN_REMAINING_DELTA,
    PrivacyCurve,
    compute_chain_epsilon,
    compute_one_way_epsilon,
)
from redactory.training.accounting.loss_distributions import compose_deltas, compose_epsilon
from redactory.training.accounting.spendings import (
    MAX_GROUP_SHIFT_RATIO,
    Spendings,
    compute_failure_delta,
    normalize_spendings,
    state_compositions,
)
from redactory.training.accounting.verification import EpsilonBounds, bound_composed_epsilon
from redactory.training.mechanisms.mechanism import Relation
from redactory.training.mechanisms.pairs import Composition

NO_FINITE_EPSILON = "no finite epsilon at this delta: the noise is too small for this many steps"
NO_PROVED_EPSILON = "no epsilon is proved: the noise is too small, or delta is too small for this many steps"
_EXCHANGE_INTERVAL, _REMOVAL_INTERVAL = 2.5e-4, 2e-4
"""Grids of the estimate, for noise of about one clip."""
_CURVE_COARSENING = 4.0
_CHECKED_DELTA = 1e-6
"""At which the two statements of a transition are compared: there the estimate's rounding costs nothing."""
_CHAIN_RELATIVE_GAP = 2e-3
"""How far the bounds of each half of a chain may lie apart, as a share of epsilon."""


@dataclass(frozen=True)
class Transition:
    """From one world to another: what dominates all steps, as stated by each accountant; the grid of the estimate."""

    composition: Composition
    rederived: Composition
    interval: float

    def make_curve(self, coarsening: float = 1.0) -> PrivacyCurve:
        """Make the estimated curve from delta to epsilon, on a grid ``coarsening`` times coarser; one object each."""
        return _make_curve(self.composition, coarsening * self.interval)


@lru_cache(maxsize=64)
def _make_curve(composition: Composition, interval: float) -> PrivacyCurve:
    return cache(partial(compose_epsilon, composition, interval))


@lru_cache(maxsize=64)
def _make_approximate_curve(composition: Composition) -> PrivacyCurve:
    return cache(partial(approximate_epsilon, composition))


@dataclass(frozen=True)
class Comparison:
    """Two neighbouring worlds: equal (no transition), one transition apart, or two, through a world between them.

    ``splits`` are the shares of delta that the first of two may take. ``failure_delta`` is the chance of an event
    outside of which all this holds. Without enough noise there is no epsilon, and none is searched.
    """

    transitions: tuple[Transition, ...]
    splits: tuple[float, ...] = CHAIN_SPLITS
    failure_delta: float = 0.0
    has_enough_noise: bool = True

    def count_steps(self) -> int:
        """Count the steps of the longest transition."""
        return max((sum(count for _, count in one.composition) for one in self.transitions), default=0)

    def estimate_epsilon(self, delta: float, coarsening: float = 1.0) -> float:
        """Estimate epsilon at ``delta`` by dp_accounting; ``inf`` if there is none.

        A grid that is ``coarsening`` times coarser is faster and gives a larger epsilon.
        """
        return self._combine_curves([one.make_curve(coarsening) for one in self.transitions], delta)

    def approximate_epsilon(self, delta: float) -> float:
        """Approximate epsilon at ``delta`` within milliseconds (:mod:`.approximation`); ``inf`` if there is none."""
        return self._combine_curves([_make_approximate_curve(one.composition) for one in self.transitions], delta)

    def _combine_curves(self, curves: list[PrivacyCurve], delta: float) -> float:
        """Combine the curve of each transition; of equal ones it is one object, which a chain computes once."""
        delta, beside = self._split_off_failure(delta)
        if not self.has_enough_noise or delta <= 0.0:
            return math.inf
        epsilon = 0.0
        if curves:
            is_chain = len(curves) > 1
            epsilon = compute_chain_epsilon(curves[0], curves[-1], delta, self.splits) if is_chain else curves[0](delta)
        return epsilon + beside if epsilon + beside < MAX_EPSILON else math.inf

    def bound_epsilon(self, delta: float) -> EpsilonBounds:
        """Prove bounds of epsilon at ``delta``; for two transitions, of the best chain of bounds."""
        delta, beside = self._split_off_failure(delta)
        if not self.has_enough_noise or delta <= 0.0:
            return EpsilonBounds(0.0, math.inf)
        if len(self.transitions) == 2:
            both_orders = {self.transitions, self.transitions[::-1]}
            bounds = [self._bound_chain(*order, delta) for order in both_orders]
        else:
            bounds = [bound_composed_epsilon(one.rederived, delta) for one in self.transitions]
        lower = max((one.lower for one in bounds), default=0.0) + beside
        upper = max((one.upper for one in bounds), default=0.0) + beside
        return EpsilonBounds(lower, upper if upper < MAX_EPSILON else math.inf)

    def estimate_curve(self) -> list[tuple[float, float]]:
        """Estimate (ε, δ(ε)) for ε from 0 to 20, of one transition, both orders (``docs/guarantees.md``, L3)."""
        (one,) = self.transitions
        epsilons = np.linspace(0.0, 20.0, 201)
        deltas = compose_deltas(one.composition, _CURVE_COARSENING * one.interval, epsilons)
        return list(zip(epsilons.tolist(), deltas.tolist(), strict=True))

    def _split_off_failure(self, delta: float) -> tuple[float, float]:
        """Outside of a failure with probability d, (ε, δ) becomes (ε − ln(1 − d), δ + d)."""
        return delta - self.failure_delta, -math.log1p(-self.failure_delta)

    def _bound_chain(self, first: Transition, second: Transition, delta: float) -> EpsilonBounds:
        """Bound H_{e^a}(P‖R) + e^a·H_{e^b}(R‖Q) <= δ at the share of δ that the estimate likes best."""
        to_middle, from_middle = first.make_curve(), second.make_curve()

        def rank_share(share: float) -> tuple[float, float]:
            # without an estimate, the share nearest to a half
            return compute_one_way_epsilon(to_middle, from_middle, delta, (share,)), abs(share - 0.5)

        share = min(self.splits, key=rank_share)
        a = bound_composed_epsilon(first.rederived, share * delta, relative_gap=_CHAIN_RELATIVE_GAP)
        rest, lesser = ((1.0 - share) * delta * math.exp(-min(end, 700.0)) for end in (a.lower, a.upper))
        if lesser <= MIN_REMAINING_DELTA:
            return EpsilonBounds(a.lower, math.inf)
        b = bound_composed_epsilon(second.rederived, rest, lesser, _CHAIN_RELATIVE_GAP)
        return EpsilonBounds(a.lower + b.lower, a.upper + b.upper)


def compare_examples(spendings: Spendings, relation: Relation) -> Comparison:
    """Compare the worlds of one example under ``relation``, in all adaptive steps of ``spendings`` together.

    If one exchanged example exchanges several rows, these vanish and others appear (:func:`compare_units`).
    ``GuaranteeError`` where nothing is proved: a removal that moves several rows, or makes room for another text.
    """
    spendings = normalize_spendings(spendings)
    has_groups = any(spending.rows > 1 for spending in spendings)
    if relation is Relation.ADD_OR_REMOVE:
        if compute_failure_delta(spendings):
            raise GuaranteeError("an example's removal makes room for another text: account for an exchange")
        if has_groups:
            raise GuaranteeError("exchanging one example exchanges several rows: groups need other accounting")
        return compare_units(spendings, 1)
    if has_groups:
        return compare_units(spendings, 1, 1)
    if not spendings:
        return Comparison(())
    transition = Transition(*state_compositions(spendings), choose_exchange_interval(spendings))
    return Comparison((transition,), failure_delta=compute_failure_delta(spendings))


def compare_units(spendings: Spendings, removed: int, added: int = 0) -> Comparison:
    """Compare worlds in which ``removed`` examples vanish or become null and ``added`` others appear.

    Each example is in ``rows`` rows of a spending. With MoG_K the T-fold mixture of Gaussians with sensitivities 0..K
    and weights Bin(K, q), a removal is one transition, and both together are two, through the world without either
    (``docs/guarantees.md``, "Groups of points"). There is no epsilon if K/σ is above 20: such noise protects no group.
    """
    spendings = normalize_spendings(spendings)
    failure_delta = compute_failure_delta(spendings)
    if failure_delta and (added or removed > 1):
        raise GuaranteeError("a selection by counts can only be accounted for one example, or one user")
    sizes = [size for size in (removed, added) if size and spendings]
    transitions = tuple(
        Transition(
            *state_compositions(spendings, size),
            _REMOVAL_INTERVAL * min(max(2.5 * _compute_shift_ratio(spendings, size), 1.0), 50.0),
        )
        for size in sizes
    )
    is_unlike = removed != added
    return Comparison(
        transitions,
        FINE_SPLITS if is_unlike else CHAIN_SPLITS,
        failure_delta,
        all(_compute_shift_ratio(spendings, size) <= MAX_GROUP_SHIFT_RATIO for size in sizes),
    )


def _compute_shift_ratio(spendings: Spendings, size: int) -> float:
    return max(size * spending.rows / spending.mechanism.noise_multiplier for spending in spendings)


def choose_exchange_interval(spendings: Spendings) -> float:
    """Choose the grid of the estimate: the range of losses grows with 1/σ², its width that matters with 1/σ."""
    inverse = min(max(1.0 / spending.mechanism.noise_multiplier for spending in spendings), 1e6)
    return _EXCHANGE_INTERVAL * max(1.0, inverse, 0.1 * inverse**2)


@dataclass(frozen=True)
class ConfirmedEpsilon:
    """The epsilon that may be printed: ``value``, the proved upper bound, or None with its ``reason``; both bounds.

    With ``is_computed_once`` dp_accounting has no epsilon, or none within 1% of the proved lower bound.
    """

    value: float | None
    bounds: EpsilonBounds | None = None
    reason: str | None = None
    is_computed_once: bool = False

    def __post_init__(self) -> None:
        if (self.value is None) != (self.reason is not None):
            raise ValueError("needs either an epsilon or a reason why there is none")


def confirm_epsilon(comparison: Comparison, delta: float, name: str) -> ConfirmedEpsilon:
    """Prove the epsilon of ``comparison`` at ``delta``, and compare it with dp_accounting's estimate.

    The estimate adds about 1e-12 to delta for rounding, so for a small delta it may have no epsilon near the proved
    one. ``GuaranteeError`` with ``name`` if it is below the proved lower bound, or if the two statements of a
    transition disagree.
    """
    bounds, estimate = comparison.bound_epsilon(delta), comparison.estimate_epsilon(delta)
    if bounds.refutes(estimate):
        raise _make_disagreement(name, estimate, bounds)
    if math.isinf(bounds.upper):
        return ConfirmedEpsilon(None, reason=NO_FINITE_EPSILON if math.isinf(estimate) else NO_PROVED_EPSILON)
    is_confirmed = bounds.is_tight_for(estimate)
    if not is_confirmed and comparison.has_enough_noise:
        for transition in set(comparison.transitions):
            _require_equal_statements(transition, name)
    return ConfirmedEpsilon(bounds.upper, bounds, is_computed_once=not is_confirmed)


def _require_equal_statements(transition: Transition, name: str) -> None:
    """Raise ``GuaranteeError`` if the two statements differ at a delta at which the estimate is within 1%.

    A slip in the second statement makes the proved bound too small, and the estimate look too large.
    """
    bounds = bound_composed_epsilon(transition.rederived, _CHECKED_DELTA)
    estimate = transition.make_curve()(_CHECKED_DELTA)
    if bounds.refutes(estimate) or bounds.is_too_small_for(estimate):
        raise _make_disagreement(name, estimate, bounds)


def _make_disagreement(name: str, estimate: float, bounds: EpsilonBounds) -> GuaranteeError:
    return GuaranteeError(
        f"the two accountants disagree about {name}: {estimate} is not between {format_lower(bounds.lower, 6)} "
        f"and {format_upper(bounds.upper, 6)}; no epsilon is stated"
    )
