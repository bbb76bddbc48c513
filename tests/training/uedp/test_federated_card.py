"""Figures of Algorithm 1 and DP-FedAvg against the planning oracle, their noise, and what the card says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting import comparisons
from redactory.training.guarantee.card import make_unit_level_card
from redactory.training.guarantee.spec import LedgerFacts
from redactory.training.mechanisms.users import EntitySampling, PoissonUsersGaussian
from redactory.training.settings import TRAINERS, TrainSettings
from redactory.training.uedp.federated_accounting import (
    compute_paper_noise_scale,
    confirm_epsilon_by_user_count,
    confirm_federated_epsilon,
    name_federated_relation,
)
from redactory.training.unit_settings import PrivacyUnit

DELTA, STEPS = 1e-5, 50
SAMPLING = EntitySampling(0.5, 1.0, 20)
CONLL = PoissonUsersGaussian(50 / 946, 102.0, 0.1, 50.0, users=946, entities=SAMPLING)
"""CONLL-2003 as the paper trains it: z = 2, 50 of 946 users a step, so ζ = z(q_u|U| + 1) = 102."""
FEDAVG = replace(CONLL, entities=None)


def training(trainer: str = "uedp-alg1", protect: str = "both", **changes: Any) -> TrainSettings:
    own = {"users": 946, "user_rate": 50 / 946, **changes.pop("federated", {})}
    changes = {"epochs": 2, "units": {"privacy_unit": protect}, "public_text": "donated.txt", **changes}
    return TrainSettings(trainer=trainer, federated=own, **changes)


def mechanism_of(trainer: str = "uedp-alg1", **changes: Any) -> PoissonUsersGaussian:
    found = TRAINERS[trainer].make_mechanism(training(trainer, **changes))
    assert isinstance(found, PoissonUsersGaussian)
    return found


def epsilon_of(mechanism: PoissonUsersGaussian, protect: PrivacyUnit = PrivacyUnit.BOTH) -> float | None:
    return confirm_federated_epsilon(mechanism, STEPS, DELTA, protect).value


def card_of(settings: TrainSettings, mechanism: PoissonUsersGaussian) -> dict[str, Any]:
    vocabulary = {"made_of": {"public_text": "a digest"}, "sha256": "another"}
    return make_unit_level_card("x", LedgerFacts(settings, mechanism, STEPS, False, "", {}, "", vocabulary, 0))


@pytest.mark.parametrize("own", [FEDAVG, CONLL])
def test_two_accountants_agree_on_a_user(own: PoissonUsersGaussian, monkeypatch: pytest.MonkeyPatch) -> None:
    found = confirm_federated_epsilon(own, STEPS, DELTA, PrivacyUnit.USERS)
    assert found.value == pytest.approx(0.009, abs=6e-4)
    assert not found.is_computed_once
    monkeypatch.setattr(comparisons.Comparison, "estimate_epsilon", lambda *told: 0.001)
    with pytest.raises(GuaranteeError, match="disagree"):
        confirm_federated_epsilon(own, STEPS, DELTA, PrivacyUnit.USERS)


def test_dp_fedavg_hides_no_entity() -> None:
    assert confirm_federated_epsilon(FEDAVG, STEPS, DELTA, PrivacyUnit.BOTH).value is None
    assert name_federated_relation(FEDAVG, PrivacyUnit.USERS) == "user removal"


@pytest.mark.slow
def test_the_curve_rises_to_the_figure() -> None:
    curve = confirm_epsilon_by_user_count(CONLL, STEPS, DELTA, PrivacyUnit.BOTH)
    assert list(curve) == [1, 4, 16, 20]
    values = [one.value or 0.0 for one in curve.values()]
    assert values == sorted(values)
    assert values[-1] == epsilon_of(CONLL)
    users = confirm_epsilon_by_user_count(FEDAVG, STEPS, DELTA, PrivacyUnit.USERS)
    assert users[1].value == pytest.approx(epsilon_of(FEDAVG, PrivacyUnit.USERS), abs=2e-3)


def test_noise_is_z_times_users_or_clips() -> None:
    given = mechanism_of(noise_multiplier=102.0)
    assert (given.noise_multiplier, compute_paper_noise_scale(given)) == (102.0, pytest.approx(2.0))
    fedavg = mechanism_of("user-level", noise_multiplier=2.0)
    assert (fedavg.noise_multiplier, compute_paper_noise_scale(fedavg), fedavg.entities) == (2.0, 2.0, None)


@pytest.mark.parametrize(
    ("trainer", "changes", "says"),
    [
        ("uedp-alg1", {"federated": {"users": None}}, r"train\.federated\.users"),
        ("user-level", {"federated": {"max_users_per_entity": 3}}, "max_users_per_entity"),
        ("uedp-alg1", {"federated": {"max_users_per_entity": 947}}, "at most users"),
        ("uedp-alg1", {"units": {"duplicates": "merge"}}, "one user each"),
    ],
)
def test_what_does_not_fit_is_named(trainer: str, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        training(trainer, **changes)


@pytest.mark.parametrize(("target", "protect"), [(2.0, "both"), (8.0, "both"), (2.0, "users")])
def test_calibrated_noise_reaches_the_target(target: float, protect: str) -> None:
    own = {"max_users_per_entity": 20}
    found = mechanism_of(epsilon=target, protect=protect, federated=own)
    steps = TRAINERS["uedp-alg1"].count_noisy_steps(training(federated=own))
    reached: Any = confirm_federated_epsilon(found, steps, DELTA, PrivacyUnit(protect)).value
    assert 0.975 * target < reached <= target


def test_the_normaliser_is_a_public_constant() -> None:
    assert TRAINERS["uedp-alg1"].count_noisy_steps(training()) == 2 * 19

    def normaliser(trainer: str = "uedp-alg1", **own: Any) -> float:
        return mechanism_of(trainer, noise_multiplier=1.0, federated=own).normaliser

    assert normaliser() == pytest.approx(50.0)
    assert normaliser("user-level") == pytest.approx(50.0)


def test_the_card_of_algorithm_1_names_relation_m_and_gaps() -> None:
    card = card_of(training(), CONLL)
    assert card["epsilon"] == card["epsilon_sound"] == epsilon_of(CONLL)
    assert card["relation"] == "user-entity zero-out on a fixed graph"
    assert (card["M"], card["M_source"]) == (20, "a cap enforced on the fixed graph")
    assert card["curve"]["20"] == card["epsilon"]
    assert any("M = 20" in condition["why"] for condition in card["conditions"])
    assert any("hypergraph" in gap for gap in card["not_covered"])
    assert card["epsilon_as_published"] is None
    assert "epsilon_as_published" in card["reasons"]
    assert not card["accountants"]["bounds"]
    assert "has no epsilon" in card["accountants"]["second"]


@pytest.mark.slow
def test_the_card_without_a_cap_rests_on_the_declared_users() -> None:
    own = replace(CONLL, entities=replace(SAMPLING, max_users_per_entity=None, related_entity_rate=0.0))
    card = card_of(training(federated={"related_entity_rate": 0.0}), own)
    assert (card["relation"], card["M"]) == ("user-entity removal", 946)
    assert card["epsilon"] > 50
    assert "epsilon" not in card["reasons"]
    assert card["epsilon_as_published"]["note"] == "as published, not a guarantee"


def test_a_card_without_a_figure_says_why() -> None:
    own = replace(CONLL, noise_multiplier=0.5, entities=replace(SAMPLING, max_users_per_entity=None))
    card = card_of(training(), own)
    assert card["epsilon"] is None
    assert card["reasons"]["epsilon"] == card["reasons"]["epsilon_sound"] != ""
    assert card["reasons"]["curve"]
    card = card_of(training("user-level"), replace(FEDAVG, noise_multiplier=1e-3))
    assert card["epsilon"] is None
    assert "noise" in card["reasons"]["epsilon"]
    assert not card["accountants"]["bounds"]


def test_the_card_of_dp_fedavg_is_of_users_alone() -> None:
    card = card_of(training("user-level"), FEDAVG)
    assert card["relation"] == "user removal"
    assert card["unit"] == "one user with all of their examples"
    assert card["M"] is None
    assert "epsilon_sound" in card["accountants"]["bounds"]
    assert any("entities" in gap for gap in card["not_covered"])
    assert card["epsilon_as_published"]["estimator"] == "user-level"
