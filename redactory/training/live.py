"""Epsilon while a training runs: looked up on a curve that was computed before its first step."""

from __future__ import annotations

from collections.abc import Callable

from redactory.training.accounting import Spending
from redactory.training.accounting.curve import epsilon_curve
from redactory.training.mechanism import Relation

Told = Callable[[int], str]
"""From the number of noisy steps that were made to what the progress line says of them."""


def nothing_told(steps: int) -> str:
    """For a training without noise."""
    return ""


def live_epsilon(spending: Spending | None, delta: float, relation: Relation) -> Told:
    """An upper bound of what was spent so far, for one named secret; the card's figure is the exact one."""
    if spending is None:
        return nothing_told
    relation = relation if spending.rows == 1 else Relation.SUBSTITUTION
    curve = epsilon_curve(spending, delta, relation)
    return lambda steps: f", ε ≤ {curve.at(steps):.3g}"
