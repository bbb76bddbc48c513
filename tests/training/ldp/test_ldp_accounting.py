"""Messages accounted soundly: the numbers of the design, oracles, an attack, and the way to a target."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, stats

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.training.accounting import Spending
from redactory.training.accounting.bounds import compute_gaussian_epsilon
from redactory.training.accounting.published_epsilons import compute_published_ldp_noise
from redactory.training.accounting.verification import EpsilonBounds
from redactory.training.guarantee.budget import Budget, BudgetExceeded
from redactory.training.ldp import accounting as second
from redactory.training.ldp.accounting import (
    FixedSends,
    HiddenSampling,
    Participation,
    VisibleSampling,
    calibrate_message_noise,
    compare_message_worlds,
    compute_sensitivity,
    confirm_message_epsilon,
    make_message_mechanism,
    make_message_spending,
)
from redactory.training.ldp.settings import LdpSettings
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation, parse_mechanism_json
from redactory.training.settings import BudgetSettings
from tests.training.accounting.worlds import prove_epsilon, state
from tests.training.conftest import read_spendings

SST, QUERIES = 67_349, 872
ENCODER = (Spending(PoissonGaussian(0.02, 1.2, 1.0, 1.0), 50),)
SENDS = {
    (2, 1): 4.38, (2, 3): 8.39, (2, 10): 17.86, (4, 1): 1.99, (4, 3): 3.71, (4, 10): 7.51,
    (8, 1): 0.93, (8, 3): 1.70, (8, 10): 3.34,
}  # fmt: skip
# p, T, epsilon by the CLT, visible, fixed J = pT, hidden (None: a larger distribution, left to the benchmark)
TRAINING: list[tuple[float, int, float, float, float, float | None]] = [
    (256 / SST, 790, 1.0, 63.40, 32.08, 1.98),
    (256 / SST, 790, 2.3, 99.58, 46.52, None),
    (256 / SST, 790, 12.0, 170.28, 72.31, None),
    (256 / SST, 2630, 1.0, 71.90, 48.71, None),
    (256 / SST, 2630, 12.0, 276.13, 157.76, None),
    (32 / SST, 6300, 1.0, 114.34, 51.97, None),
    (32 / SST, 6300, 3.5, 171.00, 72.35, None),
    (0.05, 1000, 1.0, 13.39, 12.57, 2.14),
    (0.05, 1000, 2.3, 36.24, 32.91, 4.90),
    (0.05, 1000, 3.5, 60.35, 53.48, 7.33),
    (0.05, 1000, 12.0, 219.48, 179.45, None),
]


def epsilon_of(*told: Any) -> Any:
    """The epsilon that is printed of the messages of one sentence."""
    return confirm_message_epsilon(*told).value


def visible(rate: float, steps: int) -> VisibleSampling:
    return VisibleSampling(kind="public_bernoulli", rate=rate, steps=steps)


def hidden(rate: float, steps: int, classes: int | None = None) -> HiddenSampling:
    return HiddenSampling(kind="secret_bernoulli", rate=rate, steps=steps, classes=classes)


@pytest.mark.parametrize(("case", "epsilon"), SENDS.items())
def test_the_table_of_sends(case: tuple[int, int], epsilon: float) -> None:
    noise, sends = case
    assert epsilon_of(noise, 1, FixedSends(sends=sends), 1e-5) == pytest.approx(epsilon, abs=6e-3)


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "steps", "claimed", "seen", "sent", "unseen"), TRAINING)
def test_the_paper_s_training_settings(
    rate: float, steps: int, claimed: float, seen: float, sent: float, unseen: float | None
) -> None:
    delta = 1 / SST
    noise = compute_published_ldp_noise(claimed, rate, steps, delta)
    assert epsilon_of(noise, 1, visible(rate, steps), delta) == pytest.approx(seen, rel=2e-3)
    # J = pT need be no whole number in the table
    often = 2.0 * math.sqrt(rate * steps) / noise
    assert compute_gaussian_epsilon(often, delta) == pytest.approx(sent, abs=0.01)
    if unseen is not None:
        assert epsilon_of(noise, 1, hidden(rate, steps), delta) == pytest.approx(unseen, abs=0.02)


@pytest.mark.parametrize(
    ("rate", "steps", "claimed", "seen", "unseen", "one"),
    [
        pytest.param(1 / QUERIES, 8720, 0.8, 299.2, 11.7, 28.8, marks=pytest.mark.slow),
        (1 / QUERIES, 8720, 2.25, 371.2, None, 34.1),
        (0.05, 200, 0.8, 140.0, None, 16.3),
        (0.05, 200, 2.25, 209.6, 26.2, 22.2),
    ],  # hidden at 0.05, 200, 0.8: in the tests of the forecast
)
def test_the_paper_s_queries(
    rate: float, steps: int, claimed: float, seen: float, unseen: float | None, one: float
) -> None:
    delta = 1 / QUERIES
    noise = compute_published_ldp_noise(claimed, 0.1 * rate, steps, delta)
    assert epsilon_of(noise, 1, visible(rate, steps), delta) == pytest.approx(seen, abs=0.1)
    assert epsilon_of(noise, 1, FixedSends(), delta) == pytest.approx(one, abs=0.06)
    if unseen is not None:
        assert epsilon_of(noise, 1, hidden(rate, steps), delta) == pytest.approx(unseen, abs=0.06)


@pytest.mark.parametrize("vectors", [1, 2])
def test_hidden_coins_are_the_exact_pair(vectors: int) -> None:
    """One step by numerical integration: (1-p)N(0) + pN(±√v·C), at noise zC."""
    rate, noise, reach = 0.3, 1.3, math.sqrt(vectors)
    epsilon: Any = epsilon_of(noise, vectors, hidden(rate, 1), 1e-3)

    def over(x: float) -> float:
        def density(mean: float) -> float:
            other = float(stats.norm.pdf(x, 0.0, noise))
            return (1 - rate) * other + rate * float(stats.norm.pdf(x, mean, noise))

        return max(density(reach) - math.exp(epsilon) * density(-reach), 0.0)

    found = integrate.quad(over, -12, 14, limit=400)[0]
    assert found == pytest.approx(1e-3, rel=1e-2)
    assert found <= 1e-3


def _cells(rate: float, noise: float, classes: int, mean: float, own: int, cells: int = 800) -> NDArray[np.float64]:
    """The law of one message as masses [class, cell], for a vector at ``mean`` (in C) of class ``own``."""
    edges = np.concatenate([[-np.inf], np.linspace(-1 - 9 * noise, 1 + 9 * noise, cells + 1), [np.inf]])

    def mass(at: float) -> NDArray[np.float64]:
        return np.diff(stats.norm.cdf(edges, at, noise))

    found = np.tile((1 - rate) / classes * mass(0.0), (classes, 1))
    found[own] += rate * mass(mean)
    return found


@pytest.mark.parametrize(
    ("rate", "noise", "classes", "steps", "delta"), [(0.5, 1.5, 12, 4, 1e-5), (0.3, 1.2, 2, 6, 1e-4)]
)
def test_hidden_classes_by_dp_accounting(rate: float, noise: float, classes: int, steps: int, delta: float) -> None:
    """dp_accounting, on the cells of a message's law themselves."""
    ours = epsilon_of(noise, 1, hidden(rate, steps, classes), delta)
    here, there = (_cells(rate, noise, classes, 1.0, own).ravel() for own in (0, 1))
    kept = np.flatnonzero(here + there > 1e-17)
    one, other = (
        dict(zip(kept.tolist(), np.log(np.maximum(law[kept], 1e-300)).tolist(), strict=True)) for law in (here, there)
    )
    theirs = privacy_loss_distribution.from_two_probability_mass_functions(
        one, other, value_discretization_interval=2e-3
    ).self_compose(steps)
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=0.01)
    assert ours > 1.05 * (epsilon_of(noise, 1, hidden(rate, steps), delta) or 0.0)
    bounds = compare_message_worlds(noise, 1, hidden(rate, steps, classes)).bound_epsilon(delta)
    assert bounds.lower <= ours <= bounds.upper


@settings(max_examples=40, deadline=None)
@example((0.0, 0.0), (0, 0), 0.3877594883463527, 1.703966420063205, 2.8828125)
@given(
    st.tuples(st.floats(-1.0, 1.0), st.floats(-1.0, 1.0)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.floats(0.05, 0.95),
    st.floats(0.3, 4.0),
    st.floats(0.0, 4.0),
)
def test_no_two_sentences_of_any_classes_are_further_apart_than_the_pair(
    means: tuple[float, float], own: tuple[int, int], rate: float, noise: float, epsilon: float
) -> None:
    """H of two messages, by their cells, against p·H_β(N(1), N(0)) with β = (e^ε − 1)(1 − p)/(Kp)."""
    one, other = (_cells(rate, noise, 3, at, label, 8_000) for at, label in zip(means, own, strict=True))
    beta = math.expm1(epsilon) * (1 - rate) / (3 * rate)
    mu = 1.0 / noise
    most = (
        rate
        if beta == 0.0
        else rate
        * float(stats.norm.cdf(mu / 2 - math.log(beta) / mu) - beta * stats.norm.cdf(-mu / 2 - math.log(beta) / mu))
    )
    for p, q in ((one, other), (other, one)):
        assert np.maximum(p - math.exp(epsilon) * q, 0.0).sum() <= most + 1e-9
    ends = (_cells(rate, noise, 3, 1.0, label, 8_000) for label in (0, 2))
    assert np.maximum(next(ends) - math.exp(epsilon) * next(ends), 0.0).sum() == pytest.approx(most, rel=1e-3, abs=1e-9)


def test_a_hidden_class_is_randomised_response_where_vectors_say_nothing() -> None:
    found = epsilon_of(5000.0, 1, hidden(0.5, 1, 12), 1e-9)
    assert found == pytest.approx(math.log(1 + 0.5 * 12 / 0.5), rel=2e-3)
    spent = make_message_spending(4.0, 2, hidden(0.5, 3, 12))
    assert parse_mechanism_json(spent.mechanism.to_json()) == spent.mechanism
    with pytest.raises(GuaranteeError, match="no dominating pair"):
        prove_epsilon((spent,), 1e-5, Relation.ADD_OR_REMOVE)
    with pytest.raises(ValueError, match="every message reveals its class"):
        hidden(1.0, 3, 12)


def test_pairs_are_one_vector_of_twice_the_square() -> None:
    assert compute_sensitivity(1) == 2.0
    assert compute_sensitivity(2) == pytest.approx(2 * math.sqrt(2))
    for told in (FixedSends(sends=2), visible(0.2, 30), hidden(0.2, 30)):
        pair = epsilon_of(3.0, 2, told, 1e-5)
        assert pair == pytest.approx(epsilon_of(3.0 / math.sqrt(2), 1, told, 1e-5), rel=1e-6)
    with pytest.raises(ConfigurationError, match="pairs"):
        compute_sensitivity(3)
    with pytest.raises(ConfigurationError, match="noise_multiplier"):
        make_message_mechanism(0.0, 1)


@settings(max_examples=20, deadline=None)
@given(st.floats(1.0, 20.0), st.integers(1, 40), st.sampled_from([1, 2]))
def test_several_sends_are_worth_one_of_less_noise(noise: float, sends: int, vectors: int) -> None:
    several = epsilon_of(noise, vectors, FixedSends(sends=sends), 1e-6)
    one = epsilon_of(noise / math.sqrt(sends), vectors, FixedSends(), 1e-6)
    assert several == pytest.approx(one, rel=1e-6, abs=1e-6)


@settings(max_examples=8, deadline=None)
@given(st.floats(0.05, 0.95), st.integers(1, 30), st.floats(3.0, 8.0))
def test_hidden_is_less_than_seen_is_less_than_always(rate: float, steps: int, noise: float) -> None:
    unseen: Any = epsilon_of(noise, 1, hidden(rate, steps), 1e-5)
    seen: Any = epsilon_of(noise, 1, visible(rate, steps), 1e-5)
    always = compute_gaussian_epsilon(2.0 * math.sqrt(steps) / noise, 1e-5)
    assert unseen <= seen * 1.005 <= always * 1.01


def test_an_attack_reaches_the_sound_epsilon_and_breaks_half_the_sensitivity() -> None:
    """Antipodal sentences, three messages each: how often a test tells them apart, by simulation."""
    noise, sends, delta, draws = 2.0, 3, 0.02, 200_000
    source = np.random.default_rng(7)
    # both worlds' messages, summed over a message's direction of difference (x = +C against -C)
    one = source.normal(1.0, noise, (draws, sends)).mean(axis=1)
    other = source.normal(-1.0, noise, (draws, sends)).mean(axis=1)

    def lower_bound(epsilon: float) -> float:
        """Of delta, by the likelihood ratio's threshold, with four standard errors taken off."""
        loss = 2.0 * sends / noise**2
        p, q = np.mean(one * loss > epsilon), np.mean(other * loss > epsilon)
        error = 4.0 * math.sqrt((p * (1 - p) + math.exp(2 * epsilon) * q * (1 - q)) / draws)
        return float(p - math.exp(epsilon) * q - error)

    sound: Any = epsilon_of(noise, 1, FixedSends(sends=sends), delta)
    assert lower_bound(sound) <= delta
    assert lower_bound(0.9 * sound) > delta
    assert lower_bound(compute_gaussian_epsilon(math.sqrt(sends) / noise, delta)) > 5 * delta


@pytest.mark.parametrize(
    ("told", "encoder"), [(FixedSends(sends=3), ()), (hidden(0.1, 20), ()), (visible(0.1, 20), ENCODER)]
)
def test_calibrated_noise_meets_the_target_closely(told: Participation, encoder: tuple[Spending, ...]) -> None:
    noise = calibrate_message_noise(4.0, 1, told, 1e-5, encoder)
    found: Any = epsilon_of(noise, 1, told, 1e-5, encoder)
    less: Any = epsilon_of(0.99 * noise, 1, told, 1e-5, encoder)
    assert 3.97 < found <= 4.0 < less


def test_a_target_that_cannot_be_met_is_refused() -> None:
    with pytest.raises(GuaranteeError, match="encoder"):
        calibrate_message_noise(0.01, 1, FixedSends(), 1e-5, ENCODER)
    with pytest.raises(GuaranteeError, match="hidden classes alone"):
        calibrate_message_noise(8.0, 1, hidden(0.5, 4, 12), 1e-5)
    with pytest.raises(GuaranteeError, match="10000"):
        calibrate_message_noise(1e-3, 1, FixedSends(sends=10_000), 1e-9)
    assert epsilon_of(0.01, 1, FixedSends(), 1e-5) is None
    assert epsilon_of(0.01, 1, visible(0.9, 100), 1e-5) is None


@pytest.mark.parametrize("told", [FixedSends(sends=3), visible(0.1, 20), hidden(0.1, 20)])
def test_an_encoder_s_steps_compose_and_both_accountants_agree(told: Participation) -> None:
    found = confirm_message_epsilon(3.0, 1, told, 1e-5, ENCODER)
    both, bounds = found.value, found.bounds
    encoder, messages = (prove_epsilon(ENCODER, 1e-5, Relation.SUBSTITUTION), epsilon_of(3.0, 1, told, 1e-5))
    assert bounds.upper - bounds.lower < 0.05
    assert bounds.lower < both == bounds.upper
    assert not found.is_computed_once
    assert max(encoder or 0.0, messages or 0.0) < both < (encoder or 0.0) + (messages or 0.0)


def test_a_figure_that_the_second_accountant_does_not_hold_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(second, "compare_message_worlds", lambda *told: state(4.4, EpsilonBounds(4.5, 4.6)))
    with pytest.raises(GuaranteeError, match="disagree"):
        confirm_message_epsilon(2.0, 1, FixedSends(), 1e-5)


def test_what_is_composed_goes_through_the_budget_file(tmp_path: Path) -> None:
    once = make_message_spending(4.0, 2, FixedSends())
    assert parse_mechanism_json(once.mechanism.to_json()) == once.mechanism
    assert once.mechanism.get_sensitivity(Relation.SUBSTITUTION) == pytest.approx(2 * math.sqrt(2))
    assert make_message_spending(4.0, 1, visible(0.1, 9)) == Spending(make_message_mechanism(4.0, 1), 9)
    assert make_message_spending(4.0, 1, hidden(0.1, 9)) == Spending(make_message_mechanism(4.0, 1, 0.1), 9)
    budget = Budget(BudgetSettings(path=tmp_path / "user.jsonl", epsilon=5.0), "a user's sentence")
    budget.reserve_spending("first", "training", once)
    assert prove_epsilon(read_spendings(tmp_path / "user.jsonl"), 1e-5, Relation.SUBSTITUTION) == pytest.approx(
        epsilon_of(4.0, 2, FixedSends(), 1e-5), rel=1e-3
    )
    with pytest.raises(BudgetExceeded):
        budget.reserve_spending("second", "queries", make_message_spending(4.0, 2, FixedSends(sends=9)))


def test_a_question_costs_what_a_sentence_does_however_it_is_sent() -> None:
    way = {"kind": "secret_bernoulli", "rate": 0.5, "steps": 4}
    told = LdpSettings.model_validate({"epsilon": 4.0, "query": {"sampling": way}})
    own, asked = told.resolve_all_noise(), told.make_query_settings()
    assert own.make_query_settings() == own.resolve_all_noise().make_query_settings() == asked
    assert (asked.resolve_noise(), asked.sampling) == (own.query.noise_multiplier, hidden(0.5, 4))
    found: Any = epsilon_of(asked.resolve_noise(), 1, asked.sampling, 1e-5)
    assert 3.97 < found <= 4.0
    # a question of a service that hides classes has none to hide
    classes = LdpSettings(noise_multiplier=2.0, sampling=hidden(0.5, 4, 12)).make_query_settings()
    assert classes.sampling == hidden(0.5, 4)
    with pytest.raises(GuaranteeError, match=r"query\.noise_multiplier"):
        LdpSettings.model_validate({"noise_multiplier": 0.01, "query": {"sampling": way}}).resolve_all_noise()


def test_settings_know_their_noise_and_refuse_what_is_not_meant() -> None:
    given_noise = LdpSettings(noise_multiplier=2.0, pairs=True)
    assert (given_noise.resolve_noise(), given_noise.vectors) == (2.0, 2)
    told = LdpSettings.model_validate({"epsilon": 4.0, "sampling": {"kind": "fixed", "sends": 3}})
    assert told.resolve_noise() == calibrate_message_noise(4.0, 1, FixedSends(sends=3), 1e-5)
    classes = {"kind": "secret_bernoulli", "rate": 0.5, "steps": 3, "classes": 3}
    for wrong in (
        {"sampling": {"kind": "secret_bernoulli", "rate": 0.0, "steps": 3}},
        {"sampling": classes, "classes": ["a", "b"]},
        {"query": {"sampling": classes}},
        {"sampling": {"kind": "secret"}},
        {"sampling": {"kind": "public_bernoulli", "rate": 0.5}},
        {"pairs": True, "represent": "token"},
        {"classes": ["a", "a"]},
        {"delta": 1.0},
        {"noise": 2.0},
    ):
        with pytest.raises(ValueError, match="validation error"):
            LdpSettings.model_validate(wrong)
