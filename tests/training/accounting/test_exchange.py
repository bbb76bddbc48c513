"""The curves of one step, over an array of losses, are those of dp_accounting, one loss after the other."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

from redactory.training.accounting import distributions, exchange
from redactory.training.accounting.distributions import RELATIONS, _step
from redactory.training.accounting.mixtures import Shifts
from redactory.training.mechanism import PoissonGaussian, Relation

STEPS = [
    (1.0, 0.01, 1e-3),
    (3.0, 0.25, 1e-3),
    (0.5, 0.1, 1e-2),
    (8.0, 1.0, 1e-3),
    (0.3, 0.5, 1e-2),
    (5.0, 0.9, 1e-3),
]
"""Deviation in clips, sampling rate, width of the grid."""


def _off(relation: Relation, deviation: float, rate: float, grid: float) -> float:
    """The largest difference of a curve's delta, over losses of either sign."""
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        deviation,
        sampling_prob=rate,
        value_discretization_interval=grid,
        neighboring_relation=RELATIONS[relation],
    )
    epsilons = np.arange(-2.0, 12.0, 0.37)
    _step.cache_clear()
    ours = _step(PoissonGaussian(rate, deviation, 1.0, 1.0), relation, grid)
    deltas = [np.asarray(one.get_delta_for_epsilon(epsilons)) for one in (ours, theirs)]
    return float(np.abs(deltas[0] - deltas[1]).max())


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("deviation", "rate", "grid"), STEPS)
def test_the_distribution_is_dp_accountings(
    relation: Relation, deviation: float, rate: float, grid: float
) -> None:
    assert _off(relation, deviation, rate, grid) < 1e-10


def test_another_place_of_a_loss_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = exchange._places
    monkeypatch.setattr(exchange, "_places", lambda e, s, q: real(e, s, q) + 0.1)
    assert _off(Relation.SUBSTITUTION, 1.0, 0.25, 1e-3) > 1e-6


def test_another_weight_of_a_point_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def fewer(sizes: tuple[float, ...], weights: tuple[float, ...]) -> Shifts:
        return Shifts(sizes, (1.0 - 0.9 * weights[1], 0.9 * weights[1]))

    monkeypatch.setattr(distributions, "Shifts", fewer)
    assert _off(Relation.ADD_OR_REMOVE, 1.0, 0.25, 1e-3) > 1e-6
