"""Approximate epsilons are near the proved ones, for exchanges, removals and groups; and exact where a formula is."""

from __future__ import annotations

import math

import pytest

from redactory.training.accounting import Comparison, compare_examples, compare_units, find_noise
from redactory.training.accounting.bounds import compute_gaussian_epsilon
from redactory.training.accounting.calibration import NoiseSearch
from redactory.training.mechanisms.mechanism import Relation
from tests.training.accounting.worlds import spend

SETTINGS = [(0.01, 0.62, 1000, 1e-5), (0.05, 10.0, 60, 1e-5), (0.4, 3.0, 100, 1e-6), (0.02, 8.0, 500, 1e-3)]


@pytest.mark.parametrize(("rate", "noise", "steps", "delta"), SETTINGS)
def test_an_approximate_epsilon_is_within_3_percent(rate: float, noise: float, steps: int, delta: float) -> None:
    spent = spend(rate, noise, steps)
    for worlds in (*(compare_examples(spent, relation) for relation in Relation), compare_units(spent, 4)):
        bounds = worlds.bound_epsilon(delta)
        assert worlds.approximate_epsilon(delta) == pytest.approx((bounds.lower + bounds.upper) / 2, rel=0.03)


@pytest.mark.parametrize("noise", [0.5, 2.0, 30.0])
def test_one_unsampled_step_is_the_gaussian_mechanism(noise: float) -> None:
    worlds = compare_examples(spend(1.0, noise, 1), Relation.ADD_OR_REMOVE)
    assert worlds.approximate_epsilon(1e-6) == pytest.approx(compute_gaussian_epsilon(1.0 / noise, 1e-6), rel=0.005)


def test_a_chain_has_both_transitions() -> None:
    spent = spend(0.05, 4.0, 100)
    both, one = compare_units(spent, 2, 2), compare_units(spent, 2)
    assert both.approximate_epsilon(1e-5) == pytest.approx(both.estimate_epsilon(1e-5), rel=0.03)
    assert both.approximate_epsilon(1e-5) > 1.9 * one.approximate_epsilon(1e-5)
    assert compare_units(spend(0.05, 0.1, 10), 4).approximate_epsilon(1e-5) == math.inf  # too little noise for a group
    assert compare_units((), 1).approximate_epsilon(1e-5) == 0.0


def test_approximate_noise_is_near_the_proved_one() -> None:
    def compare(noise: float) -> Comparison:
        return compare_examples(spend(0.02, noise, 200), Relation.SUBSTITUTION)

    proved, approximate = (
        find_noise(compare, 3.0, 1e-5, NoiseSearch(1.0, 0.1, 1e4, 1e-4, 1e4), is_proved) for is_proved in (True, False)
    )
    assert approximate == pytest.approx(proved, rel=0.01)
    assert 2.997 < compare(proved).bound_epsilon(1e-5).upper <= 3.0
    assert 2.997 < compare(approximate).approximate_epsilon(1e-5) <= 3.0
