"""The plan of messages: its keys, reasons, refusals, and what fictitious queries are worth."""

from __future__ import annotations

import json
from typing import Any

import pytest

from redactory.foundation.errors import ConfigurationError
from redactory.training.ldp.forecast import LdpRequest, forecast_ldp


def planned(**numbers: Any) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(json.dumps(forecast_ldp(LdpRequest(**numbers)), allow_nan=False))
    nulls = {key for key in ("epsilon_sound", "epsilon_as_published", "mu_total") if result[key] is None}
    assert nulls == set(result["reasons"])
    return result


def test_three_sends() -> None:
    found = planned(noise=2.0, sends=3)
    assert round(found["epsilon_sound"], 2) == 8.39
    assert (found["sensitivity"], found["mu"]) == (2.0, 1.0)
    assert found["mu_total"] == pytest.approx(3**0.5)
    bounds = found["second"]["epsilon_sound"]
    assert bounds["lower"] <= found["epsilon_sound"] <= bounds["upper"]
    assert found["epsilon_as_published"] == pytest.approx(3.71, abs=0.01)
    assert set(found["as_published"]["why_not"]) == {"sensitivity"}
    assert any("send once" in line for line in found["notes"])
    pair = planned(noise=2.0, sends=3, pairs=True)
    assert pair["sensitivity"] == pytest.approx(2.828, abs=1e-3)
    assert pair["epsilon_sound"] > found["epsilon_sound"]


def test_a_target_is_met_in_every_way_to_take_part() -> None:
    for how in ({"sends": 4}, {"visible_rate": 0.1, "steps": 30}, {"hidden_rate": 0.1, "steps": 30}):
        found = planned(target=3.0, **how)
        assert 2.98 < found["epsilon_sound"] <= 3.0
        assert found["noise_source"] == "found for the target"
        ways = {entry["participation"]: entry["epsilon"] for entry in found["compared"]}
        assert found["epsilon_sound"] in ways.values()


def test_what_up_sampling_claims_and_what_it_is_worth() -> None:
    told: dict[str, Any] = {"published_target": 0.8, "visible_rate": 0.05, "steps": 200, "delta": 1 / 872}
    found = planned(true_share=0.1, **told)
    figures = found["inference"]
    assert figures["epsilon_claimed"] == pytest.approx(0.8, rel=1e-6)
    assert figures["epsilon_visible"] == pytest.approx(140.0, abs=0.1)
    assert figures["epsilon_hidden"] == pytest.approx(15.3, abs=0.05)
    assert figures["epsilon_one_send"] == pytest.approx(16.3, abs=0.05)
    assert found["epsilon_sound"] == figures["epsilon_visible"]
    assert "fictitious" in found["as_published"]["why_not"]
    assert any("large" in line for line in found["notes"])
    # the same noise with another share of true queries: the claim moves, the sound figure does not
    noise = found["noise_multiplier"]
    less = planned(noise=noise, visible_rate=0.05, steps=200, delta=1 / 872, true_share=0.05)
    assert less["epsilon_as_published"] < 0.5
    assert less["epsilon_sound"] == found["epsilon_sound"]


def test_as_published_for_sends_and_for_another_rate() -> None:
    sent = planned(published_target=4.0, sends=5)
    assert sent["epsilon_as_published"] == pytest.approx(4.0, rel=1e-6)
    assert sent["epsilon_sound"] > 8.0
    other = planned(noise=5.8, sends=50, published_rate=0.05, steps=1000)
    assert other["as_published"]["formula"] == "equation 8"
    assert other["as_published"]["rate"] == 0.05
    assert "sampling" in other["as_published"]["why_not"]
    assert "sampling" not in planned(noise=5.8, hidden_rate=0.05, steps=9)["as_published"]["why_not"]


def test_no_epsilon_has_its_reason() -> None:
    found = planned(noise=0.01)
    assert found["epsilon_sound"] is None
    assert "4096" in found["reasons"]["epsilon_sound"]


@pytest.mark.parametrize(
    ("numbers", "says"),
    [
        ({}, "one of the noise"),
        ({"noise": 1.0, "target": 2.0}, "one of the noise"),
        ({"noise": -1.0}, "positive"),
        ({"noise": 1.0, "visible_rate": 0.1}, "belong together"),
        ({"noise": 1.0, "steps": 5}, "belong together"),
        ({"noise": 1.0, "visible_rate": 1.5, "steps": 5}, "rate or share"),
        ({"noise": 1.0, "visible_rate": 0.1, "hidden_rate": 0.1, "steps": 5}, "one of the two"),
        ({"noise": 1.0, "hidden_rate": 0.1, "steps": 5, "sends": 2}, "leave out sends"),
        ({"noise": 1.0, "hidden_rate": 0.1, "steps": 0}, "at least one step"),
        ({"noise": 1.0, "sends": 0}, "at least once"),
        ({"noise": 1.0, "true_share": 0.5}, "rate of its queries"),
        ({"noise": 1.0, "delta": 1.0}, "delta lies"),
    ],
)
def test_numbers_of_no_messages_are_refused(numbers: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        forecast_ldp(LdpRequest(**numbers))
