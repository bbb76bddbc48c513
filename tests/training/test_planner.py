"""The planner: the card's figures without a training, noise from a target, and what would help."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

import redactory
from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.config import Config
from redactory.pipelines.plan import _of_config
from redactory.training.accounting import calibrate_noise, epsilon
from redactory.training.mechanism import PoissonGaussian, Relation
from redactory.training.planner import PlanRequest, plan_training
from redactory.training.trainers import steps_per_epoch

REQUEST = PlanRequest("crt", 0.01, 1000, 1e-5, noise=1.0, private_points=10_000, gamma=0.1, group_sizes=(2,))


@pytest.fixture(scope="module")
def planned() -> dict[str, Any]:
    return plan_training(REQUEST)


def test_the_plan_says_what_the_theory_says(planned: dict[str, Any]) -> None:
    assert planned["epsilon"] == planned["epsilon_substitution"] == pytest.approx(2.8434, abs=1e-3)
    assert planned["epsilon_add_remove"] == pytest.approx(1.8282, abs=1e-3)
    assert planned["epsilon_bayesian"] == pytest.approx(0.712, abs=2e-3)
    assert planned["epsilon_group"]["2"] == pytest.approx(9.33, rel=5e-3)
    assert planned["epsilon_confidentiality"] is None
    assert planned["coverage_failure"] is None
    assert "not measured" in planned["reasons"]["epsilon_confidentiality"]
    assert planned["as_published"]["note"] == "as published, not a guarantee"
    assert planned["as_published"]["epsilon"] == pytest.approx(2.1014, abs=1e-3)
    assert planned["as_published"]["epsilon_bayesian"] < planned["epsilon_bayesian"]
    assert planned["noise_to_batch"] == pytest.approx(0.01)
    json.dumps(planned, allow_nan=False)


def test_the_curve_rises_to_the_figures(planned: dict[str, Any]) -> None:
    values = [row["epsilon"] for row in planned["curve"]]
    assert values == sorted(values)
    assert planned["curve"][-1]["steps"] == 1000
    assert values[-1] == pytest.approx(planned["epsilon"], abs=5e-3)
    assert planned["curve"][-1]["epsilon_bayesian"] == pytest.approx(planned["epsilon_bayesian"], abs=5e-3)


def test_alternatives_keep_epsilon_and_change_the_ratio(planned: dict[str, Any]) -> None:
    found = planned["improve"]
    assert [entry["factor"] for entry in found] == sorted(entry["factor"] for entry in found)
    for entry in found:
        own = PoissonGaussian(entry["sampling_rate"], entry["noise_multiplier"], 1.0, 1.0)
        spent = epsilon(own, entry["steps"], 1e-5, Relation.SUBSTITUTION, 2e-3)
        assert spent == pytest.approx(planned["epsilon"], rel=5e-3)
        assert entry["noise_to_batch"] == pytest.approx(entry["factor"] * planned["noise_to_batch"], rel=2e-3)


@pytest.mark.parametrize("trainer", ["crt-drop", "dpsgd"])
def test_a_target_is_met_and_not_by_far(trainer: Any) -> None:
    result = plan_training(PlanRequest(trainer, 0.05, 100, 1e-5, target=3.0))
    assert result["noise_calibrated"]
    assert 2.97 < result["epsilon"] <= 3.0
    own = "epsilon_add_remove" if trainer == "crt-drop" else "epsilon_substitution"
    assert result["epsilon"] == result[own]


def test_a_bayesian_target_is_met() -> None:
    result = plan_training(PlanRequest("crt", 0.05, 100, 1e-5, target=0.5, bayesian=True, gamma=0.1))
    assert 0.49 < result["epsilon_bayesian"] <= 0.5
    assert result["epsilon"] > 1.5


def test_a_measured_delta_2_gives_every_secret_a_figure_above_it_only() -> None:
    small = PlanRequest("crt", 0.05, 20, 1e-5, noise=2.0, gamma=0.1, delta_2=1e-6)
    every = plan_training(small)
    assert every["coverage_failure"] == 1e-6
    assert every["epsilon_bayesian"] < every["epsilon_confidentiality"] < every["epsilon"]
    above = plan_training(replace(small, delta_2=1e-5))
    assert above["epsilon_confidentiality"] is None
    assert "not above" in above["reasons"]["epsilon_confidentiality"]


def test_dpsgd_has_no_figures_of_policies_and_a_truncated_sampler_its_own() -> None:
    result = plan_training(PlanRequest("dpsgd", 0.1, 20, 1e-5, noise=2.0))
    assert result["epsilon_bayesian"] is None
    assert "not used" in result["reasons"]["epsilon_bayesian"]
    cut = replace(PlanRequest("crt", 0.1, 20, 1e-5, noise=2.0), truncated_batch_size=12, dataset_size=100)
    assert plan_training(cut)["epsilon"] > result["epsilon"]
    noise = calibrate_noise(4.0, 1e-5, 0.1, 20, 1e-2, truncation=(12, 100), tolerance=1e-2)
    assert 3.5 < (plan_training(replace(cut, noise=noise))["epsilon"]) <= 4.0


@pytest.mark.parametrize(
    "change",
    [
        {"noise": None},
        {"target": 1.0},
        {"sampling_rate": 0.0},
        {"steps": 0},
        {"delta": 1.0},
        {"gamma": 1.5},
        {"delta_2": 0.5},
        {"noise": -1.0},
        {"group_sizes": (1,)},
        {"noise": None, "target": 1.0, "bayesian": True, "gamma": 0.0},
        {"private_points": 0},
    ],
)
def test_numbers_that_are_no_training_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        plan_training(replace(REQUEST, **change))


def test_a_configuration_is_planned_as_it_would_be_trained(tmp_path: Any) -> None:
    train = {"epochs": 2, "sampling_rate": 0.1, "noise_multiplier": 2.0, "group_sizes": []}
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"input": "absent.jsonl", "train": train}), encoding="utf-8")
    result = redactory.plan(path, plot=tmp_path / "plot.svg")
    assert (result["steps"], result["expected_batch"], result["private_points"]) == (20, 256.0, None)
    own = PoissonGaussian(0.1, 2.0, 1.0, 1.0)
    assert result["epsilon"] == epsilon(own, 20, 1e-5, Relation.SUBSTITUTION)
    assert (tmp_path / "plot.svg").read_text(encoding="utf-8").startswith("<svg")
    for section, says in (
        ({"train": {"trainer": "sgd"}}, "no privacy mechanism"),
        ({"dedup": {"mode": "bloom"}}, "no stability proof"),
    ):
        with pytest.raises(ConfigurationError, match=says):
            redactory.plan({"input": "absent.jsonl", **section})
    with pytest.raises(ConfigurationError, match="not both"):
        redactory.plan(path, steps=3)


def test_flagging_everything_leaves_nothing_uncovered() -> None:
    detect = {"conservative": {"flags_everything": True}}
    train = {"epochs": 1, "sampling_rate": 0.1, "noise_multiplier": 2.0, "group_sizes": []}
    result = redactory.plan({"input": "absent.jsonl", "detect": detect, "train": train})
    assert result["coverage_failure"] == 0.0
    assert result["epsilon_confidentiality"] == pytest.approx(result["epsilon"])


@pytest.mark.parametrize("points", [3, 14, 49, 107])
def test_a_plan_counts_the_steps_that_a_training_makes(points: int, tmp_path: Path) -> None:
    """At q = 1/14 it planned 45 steps in three epochs, and the trainer made 42."""
    train = {"trainer": "dpsgd", "sampling_rate": 1.0 / points, "epochs": 3, "noise_multiplier": 2.0}
    config = Config.model_validate({"input": {"path": "x"}, "output": str(tmp_path), "train": train})
    planned = _of_config(config).steps
    assert planned == 3 * steps_per_epoch(config.train.resolved()) == 3 * math.ceil(1.0 / (1.0 / points))
