"""Chance's own exposures are recognised as chance, and higher ones are not."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from redactory.evaluation.canary import canary_exposure, exposure_against_chance, highest_quantile
from redactory.evaluation.plots import exposure_plot
from redactory.foundation.errors import InputError
from redactory.foundation.stream import RandomStream
from tests.evaluation.small_model import SmallModel


def _by_chance(seed: int, count: int) -> list[float]:
    ranks = np.ceil(RandomStream.from_seed(seed).uniform("ranks", 0, count) * 1e6)
    return [float(bits) for bits in np.log2(1e6 / ranks)]


def test_the_law_of_ten_canaries_is_the_known_one() -> None:
    chance = exposure_against_chance(_by_chance(0, 10), _by_chance(1, 10))["chance"]
    assert chance["highest_expected"] == pytest.approx(4.23, abs=0.005)
    assert chance["highest_95"] == pytest.approx(7.61, abs=0.005)
    assert chance["mean_expected"] == pytest.approx(1.4427, abs=1e-4)
    assert highest_quantile(1, 0.5) == 1.0


def test_p_values_of_chance_are_uniform_and_those_of_a_leak_small() -> None:
    found = [exposure_against_chance(_by_chance(seed, 10), ())["chance"] for seed in range(2, 402)]
    for name in ("highest_p_value", "mean_p_value"):
        values = np.sort([chance[name] for chance in found])
        gaps = np.abs(values - (np.arange(400) + 0.5) / 400)
        # Kolmogorov's bound at 400 draws, one in a thousand
        assert gaps.max() < 1.95 / np.sqrt(400)
    leak = exposure_against_chance([19.9, *_by_chance(1, 9)], ())["chance"]
    assert leak["highest_p_value"] < 1e-4
    assert leak["mean_p_value"] < 0.01


def test_intervals_hold_no_difference_for_chance_and_show_a_leak() -> None:
    held = 0
    for seed in range(40):
        intervals = exposure_against_chance(_by_chance(seed, 10), _by_chance(1000 + seed, 10))["intervals"]
        difference = intervals["mean_difference"]
        held += difference["low"] <= 0.0 <= difference["high"]
    assert held >= 33
    leak = exposure_against_chance([6.0 + bits for bits in _by_chance(1, 10)], _by_chance(2, 10))["intervals"]
    assert leak["mean_difference"]["low"] > 2.0
    assert leak["mean_difference"]["value"] == pytest.approx(
        leak["mean_exposure"]["value"] - leak["control_mean_exposure"]["value"]
    )


def test_a_figure_over_nothing_is_null() -> None:
    empty = exposure_against_chance((), (1.0, 2.0))
    assert set(empty["chance"].values()) == {None}
    assert empty["intervals"]["mean_difference"] == {"value": None, "low": None, "high": None}
    assert empty["intervals"]["control_mean_exposure"]["value"] == 1.5


def test_several_templates_and_missed_canaries(model: SmallModel, known_by_heart: str) -> None:
    sets = [
        {
            "template": "My ID is: {digits}",
            "inserted": [known_by_heart, "501"],
            "control": ["862", "113"],
            "copies": 4,
            "missed": [0],
        },
        {"template": "Call {digits}", "inserted": ["77"], "control": ["31"], "copies": 4},
    ]
    result = canary_exposure(model, {"sets": sets}, copies_left=[4, 1, 0])  # type: ignore[arg-type]
    assert result["candidates"] is None
    assert result["missed"] == 1
    assert result["highest_exposure_missed"] == result["highest_exposure"] > result["highest_exposure_caught"]
    rows = [(row["set"], row["index"], row["inserted"]) for row in result["canaries"]]
    assert rows == [(0, 0, True), (0, 1, True), (0, 0, False), (0, 1, False), (1, 0, True), (1, 0, False)]
    assert [row.get("copies_left") for row in result["canaries"]] == [4, 1, None, None, 0, None]
    fact = canary_exposure(model, {"sets": sets}, missed=[False, True, True])  # type: ignore[arg-type]
    assert (fact["missed"], fact["highest_exposure_caught"]) == (2, result["highest_exposure"])
    for picture in (exposure_plot(result), exposure_plot(canary_exposure(model, sets[1]))):  # type: ignore[arg-type]
        ElementTree.fromstring(picture)
        assert known_by_heart not in picture
    with pytest.raises(InputError, match="missed"):
        canary_exposure(model, {**sets[0], "missed": [2]})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="missed"):
        canary_exposure(model, sets[0], missed=[True])  # type: ignore[arg-type]
    with pytest.raises(InputError):
        canary_exposure(model, {"sets": []})
