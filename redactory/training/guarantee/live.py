"""Epsilon while a training runs: looked up on a curve that is composed before its steps are."""

from __future__ import annotations

import math
from collections.abc import Callable

from redactory.foundation.errors import upwards
from redactory.training.accounting.curve import epsilon_curve
from redactory.training.accounting.mixtures import group_curve
from redactory.training.guarantee.spec import TrainingSpec
from redactory.training.mechanism import Relation
from redactory.training.units.federated_mechanism import PoissonUsersGaussian

Remark = Callable[[int], str]
"""From the number of noisy steps that were made to what the progress line says of them."""
_UNIT_FIGURES = 8


def no_remark(steps: int) -> str:
    """For a training without noise."""
    return ""


def live_epsilon(spec: TrainingSpec) -> Remark:
    """An upper bound of what was spent so far, for one secret or unit; the card's figure is the exact one."""
    spending, delta = spec.spending, spec.delta
    if spending is None:
        return no_remark
    if spec.trainer.hides_units and not isinstance(spec.mechanism, PoissonUsersGaussian):
        return _of_units(spec) if spec.settings.bounding.rule != "none" else no_remark
    curve = epsilon_curve(spending, delta, spec.relation if spending.rows == 1 else Relation.SUBSTITUTION)
    return lambda steps: f", ε ≤ {upwards(curve.at(steps), 3)}"


def _of_units(spec: TrainingSpec) -> Remark:
    """Of K points: each figure takes a second, so few are composed, and each bounds the steps below it."""
    assert spec.mechanism is not None
    steps, known = spec.steps, dict[int, float]()
    rate, noise, stride = (
        spec.mechanism.sampling_rate,
        spec.mechanism.noise_multiplier,
        math.ceil(spec.steps / _UNIT_FIGURES),
    )

    def remark(done: int) -> str:
        count = min(steps, stride * math.ceil(done / stride))
        if count not in known:
            known[count] = group_curve(spec.rows, rate, noise, count)(spec.delta)
        return f", ε ≤ {upwards(known[count], 3)}"

    return remark
