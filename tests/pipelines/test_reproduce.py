"""The figures of the CRT paper, small: what is planted is learnt without noise, and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

import redactory
from redactory.evaluation.crt_trends import highest_by_chance
from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.reproduction.corpus import Corpus
from redactory.pipelines.reproduction.plan import Plan, checked
from redactory.pipelines.reproduction.training import trainings
from redactory.redaction import MASK, RunFolder, read_column

SMALL: dict[str, Any] = {
    "rows": 24,
    "label": "ORDER_NUMBER",
    "members": 8,
    "group_size": 2,
    "seeds": 1,
    "width": 24,
    "canaries": 3,
    "copies": 40,
    "constants": {"epochs": 3, "sampling_rate": 0.2, "minimum_plain_steps": 40},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduced")


AXIS: dict[str, Any] = {"gammas": (0.0, 0.5), "trainers": ("redact-only",), **SMALL}


@pytest.fixture(scope="module")
def exposed(folder: Path) -> dict[str, Any]:
    return redactory.reproduce_crt(3, folder, **AXIS)


def test_what_pi_misses_is_learnt_without_noise(exposed: dict[str, Any]) -> None:
    low, high = (row["highest"]["value"] for row in exposed["table"])
    assert high > max(highest_by_chance(3), low)
    assert exposed["published"]["source"] == "CRT, Figure 3 and section 5.3"
    rises = [o for o in exposed["ours"] if o["trainer"] == "redact-only" and "rises" in o["claim"]]
    assert [one["holds"] for one in rises] == [True]


def test_a_figure_is_a_picture_and_numbers_without_text(exposed: dict[str, Any], folder: Path) -> None:
    ElementTree.parse(folder / "figure-3.svg")
    page = (folder / "figure-3.json").read_text(encoding="utf-8")
    assert json.loads(page)["table"] == exposed["table"]
    for number in Corpus.of(checked(Plan(3, folder, **SMALL))).canaries["inserted"]:
        assert number not in page


def test_what_is_done_is_not_done_again(exposed: dict[str, Any], folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    again = redactory.reproduce_crt(3, folder, **AXIS)
    assert again["table"] == exposed["table"]
    assert again["ours"] == exposed["ours"]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    with pytest.raises(ConfigurationError, match="other rows"):
        redactory.reproduce_crt(3, folder, **{**SMALL, "rows": 25})


def test_and_not_with_it(exposed: dict[str, Any], folder: Path) -> None:
    guarded = redactory.reproduce_crt(3, folder, gammas=(0.5,), trainers=("crt",), **SMALL)
    (row,) = guarded["table"]
    assert row["highest"]["value"] < exposed["table"][1]["highest"]["value"]
    assert row["highest"]["value"] < highest_by_chance(3, 0.999)


def test_membership_is_inferred_of_the_same_models(exposed: dict[str, Any], folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")}
    found = redactory.reproduce_crt(5, folder, **AXIS)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.safetensors")} == before
    for row in found["table"]:
        (interval,) = row["intervals"]
        assert 0.0 <= interval[0] <= row["accuracy"]["value"] <= interval[1] <= 1.0
        assert row["confidence"] == pytest.approx(1 - 0.05 / 2)
        assert 0.0 <= row["single"] <= 1.0
    ElementTree.parse(folder / "figure-5.svg")


def test_canaries_are_missed_by_construction(folder: Path, exposed: dict[str, Any]) -> None:
    for gamma, missed in ((0.0, 0), (0.5, 1)):
        run = RunFolder(folder / f"gamma-{gamma:g}" / "run")
        own = [text for text in read_column(run.private, "text") if text.startswith("My ID is")]
        assert len(own) == 3 * 40
        assert sum(MASK not in text for text in own) == missed * 40
    sides = exposed["facts"]["runs"]
    assert sides["0"]["public"] == sides["0.5"]["public"]


def test_perplexity_and_epsilon_of_figure_2(folder: Path, exposed: dict[str, Any]) -> None:
    found = redactory.reproduce_crt(
        2, folder, gammas=(0.5,), epsilons=(4.0,), trainers=("crt", "redact-only"), **SMALL
    )
    at = {row["trainer"]: row for row in found["table"]}
    assert at["crt"]["epsilon"] == pytest.approx(4.0, rel=0.01)
    assert at["crt"]["epsilon_named"] > 4.0
    assert at["redact-only"]["epsilon"] is None
    assert 1.0 < at["redact-only"]["perplexity"]["value"] < at["crt"]["perplexity"]["value"]


def test_figure_6_is_the_published_number_and_the_sound_one(tmp_path: Path) -> None:
    found = redactory.reproduce_crt(6, tmp_path, gammas=(0.1,), epsilons=(1.0,))
    (row,) = found["table"]
    assert 0.115 <= row["as_published"] <= 0.117
    assert 0.23 <= row["sound"] <= 0.33
    assert all(one["holds"] for one in found["ours"])
    ElementTree.parse(tmp_path / "figure-6.svg")


def test_trainers_that_do_not_ask_pi_are_trained_once(tmp_path: Path) -> None:
    plan = checked(Plan(3, tmp_path, seeds=2))
    counts = {name: sum(one.trainer == name for one in trainings(plan)) for name in plan.trainers}
    assert counts == {"sgd": 2, "redact-only": 10, "sdp": 10, "dpsgd": 2, "crt": 10, "crt-drop": 10}
    assert len({one.key for one in trainings(plan)}) == sum(counts.values())


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"figure": 7}, "figure"),
        ({"data": "rows.jsonl"}, "data and test"),
        ({"trainers": ("magic",)}, "trainers"),
        ({"gammas": (1.5,)}, "gammas"),
        ({"figure": 2, "gammas": (0.0,)}, "Figure 2"),
        ({"epsilons": (1.0, 2.0)}, "epsilons"),
        ({"seeds": 0}, "seeds"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_what_cannot_be_reproduced_is_refused(wrong: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=told):
        redactory.reproduce_crt(**{"figure": 3, "out": tmp_path / "none", **wrong})
    assert not (tmp_path / "none").exists()
