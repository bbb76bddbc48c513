"""A step's law is dp_accounting's: its pair of worlds, discretised by the same rule."""

from __future__ import annotations

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution

from redactory.training.accounting import mixtures
from redactory.training.accounting.mixtures import Shifts, composed_deltas, exchange, removal
from redactory.training.mechanism import Relation

THEIRS = {
    Relation.SUBSTITUTION: NeighboringRelation.REPLACE_ONE,
    Relation.ADD_OR_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
}
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
        neighboring_relation=THEIRS[relation],
    )
    epsilons = np.arange(-2.0, 12.0, 0.37)
    mixtures.step_laws.cache_clear()
    worlds = (exchange if relation is Relation.SUBSTITUTION else removal)(rate, deviation)
    ours = composed_deltas(((((1.0, worlds),), 1),), grid, epsilons + 1e-9)
    return float(np.abs(ours - np.asarray(theirs.get_delta_for_epsilon(epsilons))).max())


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("deviation", "rate", "grid"), STEPS)
def test_the_distribution_is_dp_accountings(
    relation: Relation, deviation: float, rate: float, grid: float
) -> None:
    assert _off(relation, deviation, rate, grid) < 1e-8


def test_another_place_of_a_loss_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = mixtures._places
    monkeypatch.setattr(mixtures, "_places", lambda worlds, losses: real(worlds, losses) + 0.1)
    assert _off(Relation.SUBSTITUTION, 1.0, 0.25, 1e-3) > 1e-6


def test_another_weight_of_a_point_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def fewer(rate: float, points: int) -> Shifts:
        return Shifts((0.0, 1.0), (1.0 - 0.9 * rate, 0.9 * rate))

    monkeypatch.setattr(mixtures, "group_shifts", fewer)
    assert _off(Relation.ADD_OR_REMOVE, 1.0, 0.25, 1e-3) > 1e-6
