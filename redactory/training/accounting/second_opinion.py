"""Main figure against second opinion: a disagreement is an error, never a choice."""

from __future__ import annotations

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.bounds import chain
from redactory.training.accounting.pairs import Pair, directions, removal
from redactory.training.accounting.second import Bracket, Steps, bracket_of
from redactory.training.accounting.spending import Spendings, in_clips
from redactory.training.mechanism import Mechanism, PoissonGaussian, Relation

ALLOWANCE, GROUP_ALLOWANCE = 1e-3, 2e-2
"""What share of a figure dp_accounting's grids may add to it by rounding upwards."""


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


def removal_bracket(spent: Spendings, delta: float, points: int) -> Bracket:
    """Bounds of the epsilon of ``points`` points there or not."""
    spent = in_clips(spent)
    if not spent:
        return Bracket(0.0, 0.0)
    sides = [_sides(one.mechanism, points * one.rows) for one in spent]
    ways: list[Steps] = [
        tuple((((1.0, side[way]),), one.steps) for side, one in zip(sides, spent, strict=True))
        for way in (0, 1)
    ]
    return _worst(ways, delta)


def group_bracket(spent: Spendings, delta: float, points: int) -> Bracket:
    """Bounds of the chain bound that ``group_epsilon_of`` searches."""

    def lower(share: float) -> float:
        return removal_bracket(spent, share, points).lower if share > 0.0 else float("inf")

    def upper(share: float) -> float:
        return removal_bracket(spent, share, points).upper if share > 0.0 else float("inf")

    return Bracket(chain(lower, lower, delta), chain(upper, upper, delta))


def confirmed(figure: float | None, second: Bracket, what: str, allowance: float = ALLOWANCE) -> float | None:
    """``figure``, which must lie in ``second``; ``GuaranteeError`` naming ``what`` otherwise."""
    if not second.holds(figure, allowance * max(1.0, figure or 1.0)):
        raise GuaranteeError(
            f"the two accountants disagree about {what}: {figure} is not between {second.lower:.6g} and "
            f"{second.upper:.6g}; no figure is stated"
        )
    return figure


def _worst(ways: list[Steps], delta: float) -> Bracket:
    found = [bracket_of(steps, delta) for steps in ways]
    return Bracket(max(b.lower for b in found), max(b.upper for b in found))


def _sides(mechanism: Mechanism, points: int) -> tuple[Pair, Pair]:
    if not isinstance(mechanism, PoissonGaussian):
        raise GuaranteeError("the second accountant knows groups under Poisson sampling only")
    return removal(mechanism.sampling_rate, mechanism.noise_multiplier, points)
