"""The paper's formulas: solved both ways, reproduced, and shown to be below the truth."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting import Spending
from redactory.training.accounting.bounds import compute_gaussian_epsilon
from redactory.training.accounting.published_epsilons import (
    compute_published_gaussian_epsilon,
    compute_published_ldp_epsilon,
    compute_published_ldp_noise,
    compute_total_mu,
    solve_step_mu,
    solve_total_mu,
)
from redactory.training.ldp.accounting import FixedSends, compare_message_worlds, make_message_mechanism
from redactory.training.mechanisms.mechanism import Relation
from tests.training.accounting.worlds import estimate_epsilon

SST = 67_349
MUS = [  # p, T, epsilon of the CLT, mu of a step
    (256 / SST, 790, 1.0, 1.425),
    (256 / SST, 790, 12.0, 2.487),
    (256 / SST, 2630, 2.3, 1.513),
    (32 / SST, 6300, 3.5, 2.492),
    (0.05, 1000, 1.0, 0.172),
]


@pytest.mark.parametrize(("rate", "steps", "epsilon", "mu"), MUS)
def test_algorithm_2_reaches_its_own_epsilon(rate: float, steps: int, epsilon: float, mu: float) -> None:
    noise = compute_published_ldp_noise(epsilon, rate, steps, 1 / SST)
    assert 1 / noise == pytest.approx(mu, abs=6e-4)
    assert compute_published_ldp_epsilon(noise, rate, steps, 1 / SST) == pytest.approx(epsilon, rel=1e-6)
    pair = compute_published_ldp_noise(epsilon, rate, steps, 1 / SST, sentences=2)
    assert pair == pytest.approx(2 * noise)
    assert compute_published_ldp_epsilon(pair, rate, steps, 1 / SST, sentences=2) == pytest.approx(epsilon, rel=1e-6)


def test_algorithm_3_is_algorithm_2_at_a_smaller_rate() -> None:
    assert 1 / compute_published_ldp_noise(0.8, 0.1 / 872, 8720, 1 / 872) == pytest.approx(2.62, abs=6e-3)
    assert 1 / compute_published_ldp_noise(2.25, 0.1 * 0.05, 200, 1 / 872) == pytest.approx(2.19, abs=6e-3)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 4.0), st.floats(1e-4, 1.0), st.integers(1, 10_000))
def test_equation_8_is_solved(mu: float, rate: float, steps: int) -> None:
    assert solve_step_mu(compute_total_mu(mu, rate, steps), rate, steps) == pytest.approx(mu, rel=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 300.0), st.floats(1e-9, 0.1))
def test_equation_5_is_solved(epsilon: float, delta: float) -> None:
    assert compute_gaussian_epsilon(solve_total_mu(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize(
    ("rate", "steps", "claimed", "exact"),
    [
        (256 / SST, 790, 1.0, 1.77),
        (256 / SST, 790, 2.3, 4.57),
        (256 / SST, 790, 3.5, 6.33),
        (32 / SST, 6300, 1.0, 2.86),
        (0.05, 1000, 1.0, 1.01),
    ],
)
def test_the_limit_theorem_is_below_the_truth(rate: float, steps: int, claimed: float, exact: float) -> None:
    """Equation 8 against the exact figure of the same mechanism in its own relation."""
    noise = compute_published_ldp_noise(claimed, rate, steps, 1 / SST)
    spent = (Spending(make_message_mechanism(noise, 1, rate), steps),)
    assert estimate_epsilon(spent, 1 / SST, Relation.ADD_OR_REMOVE) == pytest.approx(exact, abs=0.012)


def test_half_the_sensitivity_halves_mu() -> None:
    true = compare_message_worlds(4.0, 1, FixedSends(sends=3)).bound_epsilon(1e-5)
    assert true.lower < compute_published_gaussian_epsilon(2.0, 3, 1e-5) < true.upper
    # a pair by equation 7 moves by 2C, in truth by 2√2·C
    true = compare_message_worlds(2.0 * math.sqrt(2), 2, FixedSends()).bound_epsilon(1e-5)
    assert true.lower < compute_published_gaussian_epsilon(2.0, 1, 1e-5, sentences=2) < true.upper


def test_what_is_no_number_is_refused_or_none() -> None:
    assert compute_total_mu(50.0, 0.1, 10) == math.inf
    assert compute_published_ldp_epsilon(0.01, 0.1, 10, 1e-5) is None
    assert compute_published_gaussian_epsilon(1e-3, 10, 1e-5) is None
    with pytest.raises(ConfigurationError, match="epsilon"):
        solve_total_mu(0.0, 1e-5)
