"""Main figure against second opinion: a disagreement is an error, never a choice."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.bounds import CHAIN_SPLITS, LARGEST_EPSILON, LONGEST_LINK, SMALLEST_REST
from redactory.training.accounting.figures import epsilon_of
from redactory.training.accounting.pairs import Pair, directions, removal
from redactory.training.accounting.second import Bracket, Steps, bracket_of
from redactory.training.accounting.spending import Spendings, in_clips
from redactory.training.mechanism import Mechanism, PoissonGaussian, Relation

NOT_FINITE = "no finite epsilon at this delta: the noise is too small for so many steps"
_LOOSE = 2e-3
"""How far the bounds of a group's epsilon may lie apart, as a share of it: a figure is stated to 1%."""
TOO_SMALL = "delta is too small for this many steps"


def bracket(spent: Spendings, delta: float, relation: Relation) -> Bracket:
    """Bounds of the epsilon of ``spent`` at ``delta``, of one point under ``relation``."""
    spent = in_clips(spent)
    if not spent:
        return Bracket(0.0, 0.0)
    if any(one.rows > 1 for one in spent):
        return group_bracket(spent, delta, 1)
    ways: list[Steps] = [
        tuple((branches, one.steps) for branches, one in zip(way, spent, strict=True))
        for way in zip(*(directions(one.mechanism, relation) for one in spent), strict=True)
    ]
    return _worst(ways, delta)


def removal_bracket(
    spent: Spendings, delta: float, points: int, lesser: float | None = None, loose: float = 0.0
) -> Bracket:
    """Bounds of the epsilon of ``points`` points there or not (:func:`bracket_of`)."""
    spent = in_clips(spent)
    if not spent:
        return Bracket(0.0, 0.0)
    sides = [_sides(one.mechanism, points * one.rows) for one in spent]
    ways: list[Steps] = [
        tuple((((1.0, side[way]),), one.steps) for side, one in zip(sides, spent, strict=True))
        for way in (0, 1)
    ]
    return _worst(ways, delta, lesser, loose)


def group_bracket(spent: Spendings, delta: float, points: int) -> Bracket:
    """Bounds of the chain bound that ``group_epsilon_of`` searches, both of them a chain of bounds."""
    lower = upper = math.inf
    for share in CHAIN_SPLITS:
        first = removal_bracket(spent, share * delta, points, loose=_LOOSE)
        rest, lesser = ((1.0 - share) * delta * math.exp(-min(a, 700.0)) for a in (first.lower, first.upper))
        if first.lower >= min(lower, LONGEST_LINK) or rest <= SMALLEST_REST:
            continue
        second = removal_bracket(spent, rest, points, lesser, _LOOSE)
        lower = min(lower, first.lower + second.lower)
        if first.upper < LONGEST_LINK:
            upper = min(upper, first.upper + second.upper)
    ends = [end if end < LARGEST_EPSILON else math.inf for end in (lower, upper)]
    return Bracket(*ends)


@dataclass(frozen=True)
class Stated:
    """What may be printed: ``value``, or None with its ``reason``; ``second`` are the other one's bounds."""

    value: float | None
    second: Bracket | None
    reason: str | None = None


def stated(
    main: Callable[[float], float | None], other: Callable[[float], Bracket], delta: float, what: str
) -> Stated:
    """The figure of ``main`` at ``delta`` where ``other`` proves it to 1% (or 1e-4), else none and why.

    ``GuaranteeError`` naming ``what`` where the two accountants contradict each other.
    """
    value = main(delta)
    if value is None:
        return Stated(None, None, NOT_FINITE)
    second = other(delta)
    if second.refutes(value):
        raise GuaranteeError(
            f"the two accountants disagree about {what}: {value} is not between {second.lower:.6g} and "
            f"{second.upper:.6g}; no figure is stated"
        )
    if second.narrow(value):
        return Stated(value, second)
    return Stated(None, second, _too_small(main, other, delta))


def one_exchanged(spent: Spendings, delta: float, relation: Relation, what: str) -> Stated:
    """Epsilon of one point under ``relation``, computed twice."""
    return stated(
        lambda at: epsilon_of(spent, at, relation), lambda at: bracket(spent, at, relation), delta, what
    )


def _too_small(main: Callable[[float], float | None], other: Callable[[float], Bracket], delta: float) -> str:
    while (delta := delta * 10.0) < 0.1:
        value = main(delta)
        if value is not None and other(delta).narrow(value):
            return f"none: {TOO_SMALL}, smallest delta that can be stated: {delta:.1g}"
    return f"none: {TOO_SMALL}, and so is every larger one below 0.1"


def _worst(ways: list[Steps], delta: float, lesser: float | None = None, loose: float = 0.0) -> Bracket:
    found = [bracket_of(steps, delta, lesser, loose) for steps in ways]
    return Bracket(max(b.lower for b in found), max(b.upper for b in found))


def _sides(mechanism: Mechanism, points: int) -> tuple[Pair, Pair]:
    if not isinstance(mechanism, PoissonGaussian):
        raise GuaranteeError("the second accountant knows groups under Poisson sampling only")
    return removal(mechanism.sampling_rate, mechanism.noise_multiplier, points)
