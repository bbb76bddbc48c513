"""Figures against numbers that were computed independently, and against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, optimize, special, stats

from redactory.foundation.errors import GuaranteeError
from redactory.foundation.intervals import upper_bound
from redactory.training.accounting import calibrate_noise, epsilon, group_epsilon
from redactory.training.guarantee.confidentiality import MissRates, bayesian_epsilon
from redactory.training.ledger import mechanism_from_json
from redactory.training.mechanism import PoissonGaussian, Relation
from redactory.training.settings import RecallMeasurement

COARSE = 1e-3
SUBSTITUTION, ADD_OR_REMOVE = Relation.SUBSTITUTION, Relation.ADD_OR_REMOVE


def mechanism(q: float, sigma: float) -> PoissonGaussian:
    return PoissonGaussian(q, sigma, 1.0, 1.0)


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "add_remove", "substitution"),
    [
        (0.01, 1.0, 1000, 1.83, 2.84),
        (0.01, 0.7, 1000, 4.62, 5.77),
        (0.05, 2.0, 200, 1.56, 2.95),
        (0.1, 1.0, 100, 7.05, 10.5),
        (0.1, 2.0, 100, 2.34, 4.37),
        (0.01, 2.0, 10_000, 2.17, 4.40),
    ],
)
def test_both_relations(q: float, sigma: float, steps: int, add_remove: float, substitution: float) -> None:
    own = mechanism(q, sigma)
    assert epsilon(own, steps, 1e-5, ADD_OR_REMOVE, COARSE) == pytest.approx(add_remove, rel=4e-3)
    assert epsilon(own, steps, 1e-5, SUBSTITUTION, COARSE) == pytest.approx(substitution, rel=4e-3)


def test_one_step_against_quadrature_of_the_proved_pair() -> None:
    q, sigma, delta = 0.2, 1.1, 1e-4

    x = np.linspace(-14.0, 14.0, 400_001)
    base = (1 - q) * stats.norm.pdf(x, 0, sigma)
    one, other = (base + q * stats.norm.pdf(x, mean, sigma) for mean in (1, -1))

    def curve(eps: float) -> float:
        return float(integrate.trapezoid(np.maximum(0.0, one - math.exp(eps) * other), x))

    exact = optimize.brentq(lambda eps: curve(eps) - delta, 0.0, 20.0, xtol=1e-8)
    found = epsilon(mechanism(q, sigma), 1, delta, SUBSTITUTION)
    assert found is not None
    assert exact - 1e-5 <= found <= exact + 1e-3


def test_full_batches_are_the_gaussian_mechanism_of_twice_the_sensitivity() -> None:
    steps, sigma, delta = 10, 4.0, 1e-5
    mu = 2.0 * math.sqrt(steps) / sigma

    def curve(eps: float) -> float:
        return float(special.ndtr(mu / 2 - eps / mu) - math.exp(eps) * special.ndtr(-mu / 2 - eps / mu))

    exact = optimize.brentq(lambda eps: curve(eps) - delta, 0.0, 50.0)
    assert epsilon(mechanism(1.0, sigma), steps, delta, SUBSTITUTION, COARSE) == pytest.approx(
        exact, abs=5e-3
    )
    everyone = group_epsilon(mechanism(1.0, sigma), steps, delta, 2)
    assert everyone is not None
    assert everyone > exact


def test_group_figures_grow_with_the_group_and_bound_what_is_known_from_below() -> None:
    own, steps, delta = mechanism(0.02, 2.0), 200, 1e-5
    single = epsilon(own, steps, delta, SUBSTITUTION, COARSE)
    groups = [group_epsilon(own, steps, delta, size) for size in (2, 4, 8)]
    assert single is not None
    assert single < groups[0] < groups[1] < groups[2]  # type: ignore[operator]
    assert groups[:2] == [pytest.approx(2.681, rel=0.01), pytest.approx(5.996, rel=0.01)]


def test_calibration_meets_the_target_and_wastes_little() -> None:
    sigma = calibrate_noise(1.0, 1e-5, 0.01, 1000)
    assert sigma == pytest.approx(2.3654, abs=0.01)
    own = epsilon(mechanism(0.01, sigma), 1000, 1e-5, SUBSTITUTION)
    assert own is not None
    assert 0.99 < own <= 1.0


def test_no_steps_cost_nothing() -> None:
    assert epsilon(mechanism(0.01, 1.0), 0, 1e-5, SUBSTITUTION) == 0.0
    assert group_epsilon(mechanism(0.01, 1.0), 0, 1e-5, 4) == 0.0


def test_too_little_noise_has_no_finite_group_figure_rather_than_a_number() -> None:
    assert group_epsilon(mechanism(0.5, 0.1), 200, 1e-5, 8) is None


def test_sensitivity_of_each_relation() -> None:
    own = PoissonGaussian(0.1, 1.0, 0.3, 8.0)
    assert own.sensitivity(SUBSTITUTION) == pytest.approx(0.6)
    assert own.sensitivity(ADD_OR_REMOVE) == pytest.approx(0.3)


@pytest.mark.parametrize(
    "change",
    [
        {"event": {"class": "GaussianDpEvent", "noise_multiplier": 1.0}},
        {"event": {"class": "SampledWithoutReplacementDpEvent", "sampling_probability": 0.1, "event": {}}},
        {"normaliser": {"kind": "realised batch size", "value": 8.0}},
        {"sensitivity": {"substitution": 0.3, "add_or_remove": 0.3}},
        {"extra": 1},
    ],
)
def test_an_unknown_mechanism_is_refused(change: dict[str, object]) -> None:
    own = PoissonGaussian(0.1, 1.0, 0.3, 8.0)
    assert mechanism_from_json(own.to_json()) == own
    with pytest.raises(GuaranteeError):
        mechanism_from_json({**own.to_json(), **change})


def test_confidentiality_of_the_crt_notebook_done_soundly() -> None:
    def curve(delta: float) -> float | None:
        return epsilon(mechanism(0.1, 2.4224), 100, delta, SUBSTITUTION, COARSE)

    assert curve(1e-4) == pytest.approx(3.02, abs=0.01)
    assert bayesian_epsilon(curve, 1e-5, 0.1, 0.0) == pytest.approx(1.08, abs=0.01)
    upper = upper_bound(20, 200, 0.95)
    assert upper == pytest.approx(0.142, abs=1e-3)
    assert bayesian_epsilon(curve, 1e-5, upper, 0.0) == pytest.approx(1.39, abs=0.01)


@pytest.mark.parametrize(
    ("labels", "bound"), [(200, 0.0149), (2995, 1e-3), (37_446, 8e-5), (299_572, 1e-5), (30_552, 9.8e-5)]
)
def test_zero_misses_support_only_so_much(labels: int, bound: float) -> None:
    assert upper_bound(0, labels, 0.95) == pytest.approx(bound, rel=5e-3)


@given(st.integers(1, 400), st.floats(0, 1), st.floats(0.5, 0.999))
def test_the_upper_bound_leaves_out_the_rest_of_the_binomial(
    labels: int, share: float, confidence: float
) -> None:
    misses = min(labels - 1, int(share * labels))
    upper = upper_bound(misses, labels, confidence)
    assert stats.binom.cdf(misses, labels, upper) == pytest.approx(1 - confidence, abs=1e-6)
    assert upper_bound(labels, labels, confidence) == 1.0


def plain_curve(delta: float) -> float:
    return 0.7 * math.log(1.0 / delta)


@given(st.floats(1e-6, 1.0), st.floats(0.0, 0.2), st.floats(1e-8, 0.1))
def test_bayesian_figure_is_null_zero_or_between(gamma: float, delta_2: float, delta: float) -> None:
    found = bayesian_epsilon(plain_curve, delta, gamma, delta_2)
    if delta <= delta_2:
        assert found is None
    elif (delta - delta_2) / gamma >= 1.0:
        assert found == 0.0
    else:
        assert found is not None
        inner = plain_curve((delta - delta_2) / gamma)
        assert 0.0 <= found <= inner + 1e-12
        assert found == pytest.approx(
            float(np.logaddexp(math.log1p(-min(gamma, 1 - 1e-16)), math.log(gamma) + inner))
        )


def test_without_misses_of_the_strict_policy_nothing_changes_for_gamma_one() -> None:
    assert bayesian_epsilon(plain_curve, 1e-5, 1.0, 0.0) == pytest.approx(plain_curve(1e-5))
    assert bayesian_epsilon(lambda _: 900.0, 1e-5, 0.5, 0.0) == pytest.approx(900.0 + math.log(0.5))
    assert bayesian_epsilon(lambda _: None, 1e-5, 0.5, 0.0) is None


def test_both_missed_is_never_bounded_above_missed() -> None:
    rates = MissRates.measured(RecallMeasurement(labels=200, missed_by_strict=20, missed_by_both=0))
    assert rates.gamma == pytest.approx(0.142, abs=1e-3)
    assert rates.delta_2 == pytest.approx(0.0149, abs=1e-4)
