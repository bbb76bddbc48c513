"""Every number that the theory and the papers print, by the product's own code."""

from __future__ import annotations

import math

import pytest
from scipy import optimize

from redactory.foundation.intervals import upper_bound
from redactory.training.accounting import Spending, epsilon
from redactory.training.accounting.published import amplified, crt_bayesian, crt_group, renyi_epsilon
from redactory.training.guarantee.confidentiality import bayesian_epsilon
from redactory.training.mechanism import PoissonGaussian, Relation

GRID = 1e-3
SUBSTITUTION, ADD_OR_REMOVE = Relation.SUBSTITUTION, Relation.ADD_OR_REMOVE

TEN_EPOCHS = [
    # rate, noise, steps, one point there or not, one exchanged for another
    (0.01, 0.7, 1000, 4.619, 5.766),
    (0.01, 1.0, 1000, 1.828, 2.843),
    (0.01, 2.0, 1000, 0.622, 1.205),
    (0.05, 0.7, 200, 10.550, 13.397),
    (0.05, 1.0, 200, 4.766, 7.107),
    (0.05, 2.0, 200, 1.561, 2.949),
    (0.10, 0.7, 100, 14.592, 18.840),
    (0.10, 1.0, 100, 7.047, 10.516),
    (0.10, 2.0, 100, 2.337, 4.368),
]
HUNDRED_EPOCHS = [(0.01, 1.0, 10_000, 6.19, 10.88), (0.01, 2.0, 10_000, 2.17, 4.40)]
HALF_THE_NOISE = [(0.01, 1.0, 1000, 13.361), (0.01, 2.0, 1000, 1.829), (0.05, 2.0, 200, 4.766)]
# rate, steps, noise calibrated to 1.0 at 8e-5; published figure; substitution at 8e-5, at 8e-4; amplified
FIGURE_SIX = [
    (0.01, 1000, 1.371, 0.1153, 1.616, 1.293, 0.2345),
    (0.10, 100, 3.783, 0.1158, 1.838, 1.480, 0.2922),
    (0.0256, 390, 2.015, 0.1156, 1.741, 1.398, 0.2660),
    (0.05, 2000, 8.034, 0.1171, 1.954, 1.578, 0.3253),
    (0.10, 1000, 11.336, 0.1171, 1.959, 1.582, 0.3268),
]


def own(rate: float, noise: float) -> PoissonGaussian:
    return PoissonGaussian(rate, noise, 1.0, 1.0)


def spent(rate: float, noise: float, steps: int) -> tuple[Spending, ...]:
    return (Spending(own(rate, noise), steps),)


@pytest.mark.parametrize(("rate", "noise", "steps", "alone", "exchanged"), TEN_EPOCHS + HUNDRED_EPOCHS)
def test_d1_exchange_costs_more_than_removal(
    rate: float, noise: float, steps: int, alone: float, exchanged: float
) -> None:
    assert epsilon(own(rate, noise), steps, 1e-5, ADD_OR_REMOVE, GRID) == pytest.approx(alone, rel=4e-3)
    assert epsilon(own(rate, noise), steps, 1e-5, SUBSTITUTION, GRID) == pytest.approx(exchanged, rel=4e-3)


@pytest.mark.parametrize(("rate", "noise", "steps", "naive"), HALF_THE_NOISE)
def test_d1_half_the_noise_for_removal_is_far_too_much(
    rate: float, noise: float, steps: int, naive: float
) -> None:
    assert epsilon(own(rate, noise / 2), steps, 1e-5, ADD_OR_REMOVE, GRID) == pytest.approx(naive, rel=4e-3)


def test_d2_the_authors_notebook_as_published_and_soundly() -> None:
    def off_target(noise: float) -> float:
        return (renyi_epsilon(spent(0.1, noise, 100), 1e-5, ADD_OR_REMOVE) or math.inf) - 2.0

    noise = float(optimize.brentq(off_target, 2.3, 2.6, xtol=1e-4))
    assert noise == pytest.approx(2.4224, abs=1e-3)
    assert renyi_epsilon(spent(0.1, noise, 100), 1e-4, ADD_OR_REMOVE) == pytest.approx(1.7118, abs=1e-3)
    assert crt_bayesian(spent(0.1, noise, 100), 1e-5, 0.1) == pytest.approx(0.3742, abs=5e-4)
    assert amplified(2.0, 0.1) == pytest.approx(0.4940, abs=1e-4)
    for relation, at_5, at_4, ten_percent, upper in (
        (ADD_OR_REMOVE, 1.815, 1.522, 0.3060, 0.4329),
        (SUBSTITUTION, 3.502, 3.023, 1.0833, 1.3919),
    ):

        def curve(delta: float, own_relation: Relation = relation) -> float | None:
            return epsilon(own(0.1, noise), 100, delta, own_relation, GRID)

        assert curve(1e-5) == pytest.approx(at_5, abs=3e-3)
        assert curve(1e-4) == pytest.approx(at_4, abs=3e-3)
        assert bayesian_epsilon(curve, 1e-5, 0.1, 0.0) == pytest.approx(ten_percent, abs=2e-3)
        assert bayesian_epsilon(curve, 1e-5, 0.1425, 0.0) == pytest.approx(upper, abs=3e-3)


@pytest.mark.parametrize(("rate", "steps", "noise", "published", "at_delta", "at_ten", "sound"), FIGURE_SIX)
def test_d2_figure_six_of_the_paper_as_published_and_soundly(
    rate: float, steps: int, noise: float, published: float, at_delta: float, at_ten: float, sound: float
) -> None:
    assert renyi_epsilon(spent(rate, noise, steps), 8e-5, ADD_OR_REMOVE) == pytest.approx(1.0, abs=2e-3)
    assert crt_bayesian(spent(rate, noise, steps), 8e-5, 0.1) == pytest.approx(published, abs=3e-4)
    exchanged = own(rate, noise)
    assert epsilon(exchanged, steps, 8e-5, SUBSTITUTION, GRID) == pytest.approx(at_delta, abs=3e-3)
    assert epsilon(exchanged, steps, 8e-4, SUBSTITUTION, GRID) == pytest.approx(at_ten, abs=3e-3)
    found = bayesian_epsilon(lambda d: epsilon(exchanged, steps, d, SUBSTITUTION, GRID), 8e-5, 0.1, 0.0)
    assert found == pytest.approx(sound, abs=2e-3)
    assert amplified(1.0, 0.1) == pytest.approx(0.1586, abs=1e-4)


def test_d2_the_published_group_theorem_shrinks_with_what_is_missed() -> None:
    assert crt_group(2.0, 1e-5, 0.5, 4) == (4.0, pytest.approx(2 * math.exp(4.0) * 1e-5))
    assert crt_group(2.0, 1e-5, 0.0, 4)[0] == 0.0  # nothing is detected, and it promises everything
    assert crt_group(2.0, 1e-5, 1.0, 1000) == (2000.0, math.inf)


@pytest.mark.parametrize(
    ("labels", "bound"),
    [(200, 0.0149), (1000, 0.00299), (3000, 0.000998), (37_445, 8e-5), (300_000, 9.99e-6)],
)
def test_d4_zero_misses(labels: int, bound: float) -> None:
    assert upper_bound(0, labels, 0.95) == pytest.approx(bound, rel=5e-3)


@pytest.mark.parametrize(("rate", "labels"), [(1e-2, 299), (1e-3, 2995), (8e-5, 37_446), (1e-5, 299_572)])
def test_d4_labels_that_a_rate_needs(rate: float, labels: int) -> None:
    assert upper_bound(0, labels, 0.95) <= rate * (1 + 1e-9)
    assert upper_bound(0, labels - 1, 0.95) > rate


def test_d4_misses() -> None:
    assert upper_bound(20, 200, 0.95) == pytest.approx(0.1425, abs=1e-3)
