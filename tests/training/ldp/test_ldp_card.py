"""A service's card: its figures, what it says is seen, and what it refuses to speak of."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting import Spending, Spendings
from redactory.training.ldp.accounting import FixedSends, HiddenSampling, VisibleSampling
from redactory.training.ldp.card import make_service_card
from redactory.training.ldp.settings import LdpSettings
from redactory.training.mechanisms.mechanism import PoissonGaussian

PUBLIC = {"kind": "public", "text_sha256": "1" * 64}
HIDDEN = HiddenSampling(kind="secret_bernoulli", rate=0.05, steps=20)
VISIBLE = VisibleSampling(kind="public_bernoulli", rate=0.05, steps=20)


def card(**settings: Any) -> dict[str, Any]:
    return card_of(PUBLIC, (), **{"noise_multiplier": 2.0, **settings})


def card_of(provenance: dict[str, Any], spendings: Spendings, **settings: Any) -> dict[str, Any]:
    encoder: Any = SimpleNamespace(provenance=provenance, digest="0" * 64, spendings=spendings)
    return make_service_card("s", LdpSettings(**settings), encoder)


@pytest.mark.parametrize(("sends", "epsilon"), [(1, 4.38), (3, 8.39), (10, 17.9)])
def test_the_figures_are_those_of_the_theory(sends: int, epsilon: float) -> None:
    found = card(sampling=FixedSends(sends=sends))
    assert found["epsilon_sound"] == found["epsilon"] == pytest.approx(epsilon, abs=0.05)
    assert found["epsilon_as_published"] < found["epsilon_sound"]
    assert found["as_published"]["note"] == "as published, not a guarantee"
    assert found["sensitivity"] == 2.0
    bounds = found["accountants"]["bounds"]["epsilon_sound"]
    assert bounds["lower"] <= found["epsilon_sound"] <= bounds["upper"]
    json.dumps(found, allow_nan=False)


def test_too_little_noise_guarantees_nothing() -> None:
    found = card(noise_multiplier=1e-4)
    assert (found["epsilon"], found["holds"]) == (None, False)
    assert "the noise is too small" in found["holds_reason"]


def test_a_pair_moves_further_and_costs_more() -> None:
    one, two = card(clip_norm=3.0), card(clip_norm=3.0, pairs=True)
    assert one["sensitivity"] == 6.0
    assert two["sensitivity"] == pytest.approx(6.0 * 2**0.5)
    assert two["unit"] == "one pair of sentences of a user"
    assert two["epsilon_sound"] > one["epsilon_sound"]
    assert "two noisy vectors" in two["server_sees"][0]


def test_what_the_server_sees_depends_on_the_coins() -> None:
    hidden, visible = card(sampling=HIDDEN), card(sampling=VISIBLE)
    assert hidden["epsilon_sound"] < visible["epsilon_sound"]
    assert hidden["epsilon_as_published"] == visible["epsilon_as_published"]
    assert "secret" in hidden["sampling"]["meaning"]
    assert any("which steps" in line for line in visible["server_sees"])
    assert not any("which steps" in line for line in hidden["server_sees"])
    assert (hidden["messages"]["mean"], visible["messages"]["mean"]) == (20.0, 1.0)
    for found in (hidden, visible):
        assert any("class" in line for line in found["server_sees"])
        assert any("class" in line for line in found["not_covered"])


def test_a_hidden_class_is_covered_and_a_question_of_its_own_way_has_figures_of_its_own() -> None:
    way = HIDDEN.model_copy(update={"classes": 2})
    found = card(sampling=way, classes=("no", "yes"))
    assert found["unit"] == "one sentence of a user, with its class"
    assert "with any class" in found["relation_meaning"]
    assert found["epsilon_sound"] > card(sampling=HIDDEN)["epsilon_sound"]
    assert found["event"]["event"]["class"] == "HiddenClassEvent"
    assert any("drawn" in line for line in found["server_sees"])
    assert not any("the class of a training sentence" in line for line in found["not_covered"])
    assert found["query"] is None
    asked = card(query={"sampling": HIDDEN, "noise_multiplier": 3.0})["query"]
    assert asked["epsilon_sound"] == card(sampling=HIDDEN, noise_multiplier=3.0)["epsilon_sound"]
    assert (asked["noise_multiplier"], asked["reasons"]) == (3.0, {})
    assert "secret" in asked["sampling"]["meaning"]
    told = card(query={"sampling": HIDDEN, "noise_multiplier": 3.0})["not_covered"]
    assert "its user alone knows" in told[-1]
    assert "the class of a training sentence" in told[0]


def test_no_figure_is_null_without_a_reason_and_a_seed_promises_nothing() -> None:
    found, seeded = card(noise_multiplier=0.001), card(seed=1)
    for name in ("epsilon", "epsilon_sound", "epsilon_as_published"):
        assert found[name] is None
        assert found["reasons"][name]
    assert (card()["reasons"], card()["holds"], seeded["holds"]) == ({}, True, False)
    assert "seed" in seeded["holds_reason"]


def test_the_encoder_s_own_training_is_composed() -> None:
    mechanism = PoissonGaussian(0.1, 2.0, 1.0, 1.0)
    dpsgd: dict[str, Any] = {"kind": "dpsgd"}
    own = (Spending(mechanism, 20),)
    found = card_of(dpsgd, own, noise_multiplier=4.0)
    assert found["epsilon_sound"] > card(noise_multiplier=4.0)["epsilon_sound"]
    assert found["event"]["class"] == "ComposedDpEvent"
    for made, spent in ((dpsgd, ()), ({"kind": "sgd"}, ()), (PUBLIC, own)):
        with pytest.raises(GuaranteeError, match="encoder"):
            card_of(made, spent, noise_multiplier=4.0)


def test_noise_is_found_for_a_target() -> None:
    found = card(noise_multiplier=None, epsilon=3.0, sampling=FixedSends(sends=2))
    assert 2.99 < found["epsilon_sound"] <= 3.0
