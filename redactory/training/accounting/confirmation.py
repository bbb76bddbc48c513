"""Both accountants together: an epsilon is confirmed, replaced by a proved bound, or refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from redactory.foundation.bounds import format_lower, format_upper
from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.bounds import MAX_EPSILON, MIN_REMAINING_DELTA
from redactory.training.accounting.dominating_pairs import Spendings, compute_failure_delta, normalize_spendings
from redactory.training.accounting.epsilons import compute_total_epsilon, find_best_delta_share
from redactory.training.accounting.verification import (
    EpsilonBounds,
    bound_composed_epsilon,
    bound_removal_epsilon,
    rederive_composition,
)
from redactory.training.mechanisms.mechanism import Relation

NO_FINITE_EPSILON = "no finite epsilon at this delta: the noise is too small for this many steps"
_GROUP_RELATIVE_GAP = 2e-3
"""How far the bounds of a group's epsilon may lie apart, as a share of it: a figure is stated to 1%."""
NO_CONFIRMED_EPSILON = (
    "no epsilon is confirmed by both accountants: the noise is too small, or delta is too small for this many steps"
)


def bound_epsilon(spendings: Spendings, delta: float, relation: Relation) -> EpsilonBounds:
    """Bound the epsilon of ``spendings`` at ``delta``, for one example under ``relation``."""
    spendings = normalize_spendings(spendings)
    if any(spending.rows > 1 for spending in spendings):
        return bound_group_epsilon(spendings, delta, 1)
    return bound_composed_epsilon(rederive_composition(spendings, relation), delta)


def bound_group_epsilon(spendings: Spendings, delta: float, group_size: int) -> EpsilonBounds:
    """Bound the chain bound that ``compute_group_epsilon`` states: a chain of bounds at the same split."""
    share = find_best_delta_share(spendings, delta, group_size)
    first = bound_removal_epsilon(spendings, share * delta, group_size, relative_gap=_GROUP_RELATIVE_GAP)
    rest, lesser = ((1.0 - share) * delta * math.exp(-min(a, 700.0)) for a in (first.lower, first.upper))
    if rest <= MIN_REMAINING_DELTA:
        return EpsilonBounds(math.inf, math.inf)
    second = bound_removal_epsilon(spendings, rest, group_size, lesser, _GROUP_RELATIVE_GAP)
    ends = first.lower + second.lower, first.upper + second.upper
    return EpsilonBounds(*(end if end < MAX_EPSILON else math.inf for end in ends))


@dataclass(frozen=True)
class ConfirmedEpsilon:
    """The epsilon that may be printed: ``value``, or None with its ``reason``, and the second accountant's bounds.

    With ``is_computed_once`` the value is the second accountant's proved upper bound: the main one has none as tight.
    """

    value: float | None
    bounds: EpsilonBounds | None
    reason: str | None = None
    is_computed_once: bool = False


def confirm_epsilon(
    compute_main: Callable[[float], float | None],
    compute_bounds: Callable[[float], EpsilonBounds],
    delta: float,
    name: str,
    threshold_failure_delta: float = 0.0,
) -> ConfirmedEpsilon:
    """Confirm the main epsilon at ``delta`` if the bounds prove it to 1% (or 1e-4), else take the proved upper bound.

    The main accountant's transforms round delta by about 1e-12, so for a smaller delta it may have no epsilon.
    ``threshold_failure_delta`` (loss) is the chance of an event outside of which both hold: (ε, δ) becomes
    (ε − ln(1 − loss), δ + loss). ``GuaranteeError`` with ``name`` if the main epsilon is below the proved lower bound.
    """
    delta, beside = delta - threshold_failure_delta, -math.log1p(-threshold_failure_delta)
    main = compute_main(delta) if delta > 0.0 else None
    if delta <= 0.0 or (main is not None and main >= MAX_EPSILON):
        return ConfirmedEpsilon(None, None, NO_FINITE_EPSILON)
    bounds = compute_bounds(delta)
    bounds = EpsilonBounds(bounds.lower + beside, bounds.upper + beside)
    if main is not None and bounds.refutes(main + beside):
        raise GuaranteeError(
            f"the two accountants disagree about {name}: {main + beside} is not between "
            f"{format_lower(bounds.lower, 6)} and {format_upper(bounds.upper, 6)}; no epsilon is stated"
        )
    if main is not None and bounds.is_tight_for(main + beside):
        return ConfirmedEpsilon(main + beside, bounds)
    if bounds.upper >= MAX_EPSILON:
        return ConfirmedEpsilon(None, bounds, NO_FINITE_EPSILON if main is None else NO_CONFIRMED_EPSILON)
    return ConfirmedEpsilon(bounds.upper, bounds, is_computed_once=True)


def confirm_single_epsilon(spendings: Spendings, delta: float, relation: Relation, name: str) -> ConfirmedEpsilon:
    """Compute the epsilon of one example under ``relation`` twice, and confirm it."""
    return confirm_epsilon(
        lambda at: compute_total_epsilon(spendings, at, relation),
        lambda at: bound_epsilon(spendings, at, relation),
        delta,
        name,
        compute_failure_delta(spendings),
    )
