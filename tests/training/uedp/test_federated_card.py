"""Figures of Algorithm 1 and DP-FedAvg against the planning oracle, their noise, and what the card says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.training import guarantee_figures
from redactory.training.settings import TrainSettings
from redactory.training.uedp import algorithm1 as federated_figures
from redactory.training.uedp.algorithm1 import (
    as_published,
    confirmed_figure,
    figure_of,
    figures_of,
    noise_scale,
    spread_curve,
)
from redactory.training.uedp.card import federated_card
from redactory.training.uedp.federated import (
    calibrated,
    federated_mechanism,
    federated_steps_per_epoch,
    normaliser,
)
from redactory.training.units.federated_mechanism import EntitySampling, PoissonUsersGaussian
from redactory.training.units.settings import FederatedSettings, Protect, UnitSettings, federated_problem

DELTA, STEPS = 1e-5, 50
SHARE = 11_176 / 14_040
SAMPLING = EntitySampling(0.5, 1.0, "f_E+", "any", 20)
CONLL = PoissonUsersGaussian(50 / 946, 102.0, 0.1, 50.0, users=946, entities=SAMPLING)
"""CONLL-2003 as the paper trains it: z = 2, 50 of 946 users a step, so ζ = z(q_u|U| + 1) = 102."""
FEDAVG = replace(CONLL, entities=None)


def told(**changes: Any) -> FederatedSettings:
    return FederatedSettings(**{"users": 946, "user_rate": 50 / 946, **changes})


def training(trainer: str = "uedp-alg1", protect: str = "both", **changes: Any) -> TrainSettings:
    """Settings as the functions under test read them, without what other sections need."""
    own = changes.pop("federated", told())
    units = UnitSettings(protect=Protect(protect))
    return TrainSettings.model_construct(
        **{
            **TrainSettings(trainer="sgd").__dict__,
            "trainer": trainer,
            "units": units,
            "federated": own,
            "epochs": 2,
            **changes,
        }
    )


# --------------------------------------------------------------------------------------------- the figures


@pytest.mark.parametrize(
    ("cap", "expected"), [(1, 0.030), (5, 0.127), (20, 0.532), (100, 3.09), (None, 54.3)]
)
def test_algorithm_1_costs_what_the_oracle_says(cap: int | None, expected: float) -> None:
    own = replace(CONLL, entities=replace(SAMPLING, max_users_per_entity=cap))
    figure = figure_of(own, STEPS, DELTA, Protect.BOTH)
    assert figure.epsilon == pytest.approx(expected, rel=0.01, abs=6e-4)
    capped = "user-entity zero-out on a fixed graph"
    assert figure.relation == ("user-entity removal" if cap is None else capped)


def test_by_rule_all_the_extended_set_is_an_entity_too() -> None:
    """q_e hides an entity with 20 holders; a point of S has one holder, and q_s = 1 hides nothing of it."""
    own = replace(CONLL, entities=replace(SAMPLING, rule="all"))
    assert figure_of(own, STEPS, DELTA, Protect.BOTH).epsilon == pytest.approx(0.381, abs=2e-3)
    rare = replace(SAMPLING, rule="all", entity_rate=0.01, max_users_per_entity=1)
    found = figure_of(replace(CONLL, entities=rare), STEPS, DELTA, Protect.BOTH).epsilon
    alone = figure_of(
        replace(CONLL, entities=replace(rare, estimator="f_E")), STEPS, DELTA, Protect.BOTH
    ).epsilon
    one = figure_of(
        replace(CONLL, entities=replace(SAMPLING, max_users_per_entity=1)), STEPS, DELTA, Protect.BOTH
    ).epsilon
    assert found is not None
    assert alone is not None
    assert one is not None
    assert alone < 0.5 * found
    assert found == pytest.approx(one, rel=0.05)


@pytest.mark.parametrize("own", [FEDAVG, CONLL])
def test_a_user_alone_is_a_sampled_gaussian_that_two_accountants_agree_on(
    own: PoissonUsersGaussian, monkeypatch: pytest.MonkeyPatch
) -> None:
    figure = figure_of(own, STEPS, DELTA, Protect.USERS)
    assert figure.epsilon == pytest.approx(0.009, abs=6e-4)
    stated, second = confirmed_figure(own, STEPS, DELTA, Protect.USERS)
    assert second is not None
    assert stated == figure
    assert second.lower <= (figure.epsilon or 0.0) <= second.upper
    monkeypatch.setattr(federated_figures, "epsilon_of", lambda *told: 0.5)
    monkeypatch.setattr(guarantee_figures, "epsilon_of", lambda *told: 0.5)
    with pytest.raises(GuaranteeError, match="disagree"):
        confirmed_figure(own, STEPS, DELTA, Protect.USERS)


def test_dp_fedavg_hides_no_entity() -> None:
    assert figures_of(FEDAVG, STEPS, DELTA, Protect.BOTH).sound.epsilon is None
    assert figure_of(FEDAVG, STEPS, DELTA, Protect.USERS).relation == "user removal"


def test_the_curve_rises_to_the_figure() -> None:
    curve = spread_curve(CONLL, STEPS, DELTA, Protect.BOTH)
    assert list(curve) == [1, 4, 16, 20]
    values = [value or 0.0 for value in curve.values()]
    assert values == sorted(values)
    assert values[-1] == figure_of(CONLL, STEPS, DELTA, Protect.BOTH).epsilon
    users = spread_curve(FEDAVG, STEPS, DELTA, Protect.USERS)
    assert users[1] == pytest.approx(figure_of(FEDAVG, STEPS, DELTA, Protect.USERS).epsilon, abs=2e-3)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (CONLL, 0.52),
        (replace(CONLL, entities=replace(SAMPLING, estimator="f_E")), 0.62),
        (replace(FEDAVG, noise_multiplier=2.0), 1.18),
    ],
)
def test_the_papers_figures_come_out_under_their_label(own: PoissonUsersGaussian, expected: float) -> None:
    found = as_published(own, STEPS, DELTA, told(sensitive_share=SHARE)).value
    assert found is not None
    assert found["epsilon"] == pytest.approx(expected, abs=8e-3)
    assert found["note"] == "as published, not a guarantee"
    assert found["noise_scale"] == pytest.approx(2.0)


def test_a_share_that_was_not_declared_is_not_counted() -> None:
    found = as_published(CONLL, STEPS, DELTA, told())
    assert found.value is None
    assert "sensitive_share" in (found.reason or "")


# ------------------------------------------------------------------------------------------------ the noise


def test_noise_is_z_times_users_or_clips() -> None:
    assert federated_mechanism(training(federated=told(noise_scale=2.0))).noise_multiplier == pytest.approx(
        102
    )
    patent = federated_mechanism(training(federated=told(noise_scale=2.0, noise_form="patent")))
    assert patent.noise_multiplier == pytest.approx(2 * 947)
    assert noise_scale(patent, "patent") == pytest.approx(2.0)
    fedavg = federated_mechanism(training("user-level", federated=told(noise_scale=2.0)))
    assert fedavg.noise_multiplier == 2.0
    assert fedavg.entities is None
    assert federated_mechanism(training(noise_multiplier=7.0)).noise_multiplier == 7.0
    with pytest.raises(ConfigurationError, match="keep one"):
        federated_mechanism(training(noise_multiplier=7.0, federated=told(noise_scale=2.0)))
    with pytest.raises(ConfigurationError, match=r"train\.federated\.users"):
        federated_mechanism(training(federated=FederatedSettings()))


@pytest.mark.parametrize("target", [2.0, 8.0])
def test_calibrated_noise_reaches_the_target(target: float) -> None:
    quiet = replace(CONLL, noise_multiplier=1.0)
    ratio = calibrated(quiet, target, DELTA, STEPS, Protect.BOTH)
    found = figure_of(replace(quiet, noise_multiplier=ratio), STEPS, DELTA, Protect.BOTH).epsilon
    assert found is not None
    assert 0.98 * target < found <= target


def test_calibrated_noise_of_users_reaches_the_target() -> None:
    own = federated_mechanism(training("user-level", epsilon=2.0))
    steps = 2 * federated_steps_per_epoch(told())
    found = figure_of(own, steps, DELTA, Protect.USERS).epsilon
    assert found is not None
    assert 1.95 < found <= 2.0


def test_the_normaliser_is_a_public_constant() -> None:
    assert federated_steps_per_epoch(told()) == 19
    assert normaliser(told(), "uedp-alg1") == pytest.approx(50.0)
    weighed = told(total_entity_weight=3.0, total_extended_weight=5.0, extended_rate=0.6)
    assert normaliser(weighed, "uedp-alg1") == pytest.approx(50.0 * (0.5 * 3.0 + 0.6 * 5.0))
    assert normaliser(weighed, "user-level") == pytest.approx(50.0)
    naive = told(estimator="f_E", total_entity_weight=3.0)
    assert normaliser(naive, "uedp-alg1") == pytest.approx(75.0)
    for wrong in (
        {"total_entity_weight": 3.0},
        {"total_extended_weight": 3.0},
        {"max_users_per_entity": 947},
    ):
        with pytest.raises(ValidationError):
            told(**wrong)


def test_what_is_missing_is_named() -> None:
    assert federated_problem("dpsgd", FederatedSettings(), None) is None
    assert "federated.users" in (federated_problem("user-level", FederatedSettings(), None) or "")
    assert "noise_scale" in (federated_problem("uedp-alg1", told(noise_scale=1.0), 2.0) or "")
    capped = told(max_users_per_entity=3)
    assert "max_users_per_entity" in (federated_problem("user-level", capped, None) or "")
    assert federated_problem("uedp-alg1", capped, None) is None


# ------------------------------------------------------------------------------------------------- the card


def test_the_card_of_algorithm_1_names_relation_m_and_gaps() -> None:
    card, second, reasons = federated_card(training(), CONLL, STEPS)
    assert card["epsilon"] == card["epsilon_sound"] == figure_of(CONLL, STEPS, DELTA, Protect.BOTH).epsilon
    assert card["relation"] == "user-entity zero-out on a fixed graph"
    assert (card["M"], card["M_source"]) == (20, "a cap enforced on the fixed graph")
    assert card["curve"]["20"] == card["epsilon"]
    assert any("M = 20" in condition for condition in card["conditions"])
    assert any("hypergraph" in gap for gap in card["not_covered"])
    assert card["epsilon_as_published"] is None
    assert "epsilon_as_published" in reasons
    assert not second
    assert "second" in reasons


def test_the_card_without_a_cap_rests_on_the_declared_users() -> None:
    own = replace(CONLL, entities=replace(SAMPLING, max_users_per_entity=None))
    card, _, reasons = federated_card(training(federated=told(sensitive_share=SHARE)), own, STEPS)
    assert card["relation"] == "user-entity removal"
    assert card["M"] == 946
    assert card["epsilon"] > 50
    assert "epsilon" not in reasons
    assert card["epsilon_as_published"]["note"] == "as published, not a guarantee"


def test_a_card_without_a_figure_says_why() -> None:
    own = replace(CONLL, noise_multiplier=0.5, entities=replace(SAMPLING, max_users_per_entity=None))
    card, _, reasons = federated_card(training(), own, STEPS)
    assert card["epsilon"] is None
    assert card["epsilon_sound"] is None
    assert reasons["epsilon"] == reasons["epsilon_sound"] != ""
    assert reasons["curve"]
    loud = replace(FEDAVG, noise_multiplier=1e-3)
    card, second, reasons = federated_card(training("user-level"), loud, STEPS)
    assert card["epsilon"] is None
    assert "noise" in reasons["epsilon"]
    assert not second


def test_the_card_of_dp_fedavg_is_of_users_alone() -> None:
    card, second, reasons = federated_card(training("user-level"), FEDAVG, STEPS)
    assert card["relation"] == "user removal"
    assert card["unit"] == "one user with all of her points"
    assert card["M"] is None
    assert "epsilon" in second
    assert "second" not in reasons
    assert any("entities" in gap for gap in card["not_covered"])
    assert card["epsilon_as_published"]["estimator"] == "user-level"
