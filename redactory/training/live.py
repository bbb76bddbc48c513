"""Epsilon while a training runs: looked up on a curve that was computed before its first step."""

from __future__ import annotations

import math
from collections.abc import Callable

from redactory.foundation.errors import upwards
from redactory.training.accounting import Spending
from redactory.training.accounting.curve import epsilon_curve
from redactory.training.ledger import AnyMechanism
from redactory.training.mechanism import PoissonGaussian, Relation
from redactory.training.settings import TrainSettings

Told = Callable[[int], str]
"""From the number of noisy steps that were made to what the progress line says of them."""
_UNIT_FIGURES = 8


def nothing_told(steps: int) -> str:
    """For a training without noise."""
    return ""


def live_epsilon(spending: Spending | None, delta: float, relation: Relation) -> Told:
    """An upper bound of what was spent so far, for one named secret; the card's figure is the exact one."""
    if spending is None:
        return nothing_told
    relation = relation if spending.rows == 1 else Relation.SUBSTITUTION
    curve = epsilon_curve(spending, delta, relation)
    return lambda steps: f", ε ≤ {upwards(curve.at(steps), 3)}"


def live_unit_epsilon(settings: TrainSettings, mechanism: AnyMechanism | None, steps: int) -> Told:
    """The same for the ``steps`` of ``uedp-bounded``: of its units, where caps are enforced."""
    from redactory.training.accounting.mixtures import group_curve
    from redactory.training.uedp.bounded import points_affected

    size = points_affected(settings)
    if size is None or not isinstance(mechanism, PoissonGaussian):
        return nothing_told
    known: dict[int, float] = {}
    stride = math.ceil(steps / _UNIT_FIGURES)

    def told(done: int) -> str:
        # each figure takes a second: few are composed, and each bounds the numbers of steps below it
        count = min(steps, stride * math.ceil(done / stride))
        if count not in known:
            curve = group_curve(size, mechanism.sampling_rate, mechanism.noise_multiplier, count)
            known[count] = curve(settings.delta)
        return f", ε ≤ {upwards(known[count], 3)}"

    return told
