"""A plan: the card's figures without a training, for every trainer and for messages, and what would help."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import redactory
from redactory.flows.cli import app
from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.pipelines.modeling.train import _load_train_config
from redactory.training.accounting import Spending, verification
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation
from tests.training.accounting.worlds import estimate_epsilon, prove_epsilon

CONLL, SEC, AG = (946, 50), (1_592, 100), (7_536, 500)
NUMBERS = {"trainer": "crt", "sampling_rate": 0.05, "steps": 100, "group_sizes": []}


def planned(config: Any = None, **settings: Any) -> dict[str, Any]:
    """A plan, every null with its reason."""
    found: dict[str, Any] = json.loads(json.dumps(redactory.plan(config, **settings), allow_nan=False))
    figures = ("epsilon", "epsilon_sound", "epsilon_bayesian", "epsilon_as_published", "mu_total")
    assert all(found[name] is not None or found["reasons"][name] for name in figures if name in found)
    return found


def algorithm1(data: tuple[int, int], spread: int | None = None, **changes: Any) -> dict[str, Any]:
    users, a_step = data
    own = {"users": users, "user_rate": a_step / users, "max_users_per_entity": spread}
    inner = {key: changes.pop(key) for key in [*changes] if key == "related_entity_rate"}
    federated = {f"federated.{key}": value for key, value in {**own, **inner}.items()}
    if "epsilon" not in changes:
        # z = 2 of the paper, ζ = z·(q_u·|U| + 1); in the patent ζ = z·(|U| + 1)
        spread_over = users if changes.pop("patent", False) else a_step
        federated["noise_multiplier"] = changes.pop("noise_scale", 2.0) * (spread_over + 1)
    return planned(trainer="uedp-alg1", **{"steps": 50, **federated, **changes})


def bounded(points: int, batch: int, users: int, k: int, **changes: Any) -> dict[str, Any]:
    caps = {"bounding.k_user": k, "bounding.k_entity": k, "noise_multiplier": 8.0, "steps": 500}
    rate = batch / min(points, k * users)
    given = {"sampling_rate": rate, "users": users, "points": points, **caps, **changes}
    return planned(trainer="uedp-bounded", **given)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return planned(
        trainer="crt", sampling_rate=0.01, steps=1000, noise_multiplier=1.0, points=10_000, gamma=0.1,
        group_sizes=[2],
    )  # fmt: skip


def test_epsilons_of_groups_are_computed_for_sizes_that_are_set(tmp_path: Path) -> None:
    config = tmp_path / "plan.yaml"
    config.write_text("input: a.jsonl\noutput: run\ntrain: {sampling_rate: 0.05, epochs: 5, noise_multiplier: 8.0}\n")
    assert planned(config)["epsilon_group"] == {}
    assert planned(config, group_sizes=[2])["epsilon_group"].keys() == {"2"}
    config.write_text(config.read_text().replace("epochs: 5,", "epochs: 5, group_sizes: [2],"))
    with_groups = planned(config)
    assert with_groups["epsilon_group"] == planned(config, group_sizes=[2])["epsilon_group"]
    shown = CliRunner().invoke(app, ["plan", str(config)]).stdout
    assert "epsilon_group, 2" in shown
    assert "--set 'group_sizes" not in shown


def test_an_epsilon_that_two_metrics_share_is_confirmed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    prove = verification._ComposedLoss.bound_epsilon
    monkeypatch.setattr(
        verification._ComposedLoss, "bound_epsilon", lambda *given: calls.append(given) or prove(*given)
    )
    found = planned(**NUMBERS, noise_multiplier=4.02)
    # the Bayesian epsilon without a measured recall is that of an exchange; a removal has two orders
    assert len(calls) == 3
    assert found["epsilon_bayesian"] == pytest.approx(found["epsilon_substitution"])
    calls.clear()
    planned(**NUMBERS, noise_multiplier=4.02, gamma=0.5)
    assert len(calls) == 1


def test_a_plan_is_made_without_torch() -> None:
    numbers = {**NUMBERS, "noise_multiplier": 4.0, "task": "classify", "classes": ["a", "b"], "model.kind": "encoder"}
    code = f"""if True:
        import sys, redactory
        print(redactory.plan(**{NUMBERS | {"noise_multiplier": 4.0}})["parameters"])
        print(redactory.plan(**{numbers | {"trainer": "dpsgd"}})["parameters"], "torch" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2069158", "2306", "False"]


def test_the_sweep_of_targets_keeps_rate_and_steps_and_is_drawn(tmp_path: Path) -> None:
    classifier = {"trainer": "dpsgd", "task": "classify", "classes": ["a", "b"], "model.kind": "encoder"}
    own = {**NUMBERS, **classifier, "epsilon": 2.0, "points": 4_000}
    result = planned(**own, sweep="epsilon", plot=tmp_path / "sweep.svg")
    rows = {row["epsilon"]: row for row in result["epsilon_sweep"]}
    assert [*rows] == [0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0]
    assert [epsilon for epsilon, row in rows.items() if row["planned"]] == [2.0]
    for epsilon, row in rows.items():
        spent = Spending(PoissonGaussian(0.05, row["noise_multiplier"], 1.0, 1.0), 100)
        assert estimate_epsilon((spent,), 1e-5, Relation.SUBSTITUTION) == pytest.approx(epsilon, rel=0.01)
        ratio = row["noise_multiplier"] * math.sqrt(result["parameters"] / 100) / result["expected_batch"]
        assert row["noise_to_signal"] == pytest.approx(ratio)
    shares = [row["retained_share"] for row in rows.values()]
    assert shares == sorted(shares)
    assert rows[2.0]["retained_share"] == result["accuracy"]["retained_share"]
    assert "target epsilon" not in (tmp_path / "sweep.svg").read_text(encoding="utf-8")
    with pytest.raises(ConfigurationError, match="only epsilon"):
        redactory.plan(**NUMBERS, sweep="noise")


@pytest.mark.parametrize(
    ("points", "noise", "verdict"),
    [(200, 4.0, "learn nothing"), (1_000, 2.0, "learn little"), (50_000, 1.0, "can learn")],
)
def test_a_plan_says_whether_noisy_steps_will_teach_anything(points: int, noise: float, verdict: str) -> None:
    result = planned(**NUMBERS, points=points, noise_multiplier=noise)
    assert verdict in result["verdict"]
    assert (verdict == "learn nothing") == any("next to nothing" in remark for remark in result["remarks"])
    page = CliRunner().invoke(app, ["plan", *(f"--set={key}={value}" for key, value in NUMBERS.items()),
                                    f"--set=points={points}", f"--set=noise_multiplier={noise}"])  # fmt: skip
    assert verdict in page.stdout.splitlines()[2]


def test_other_networks_feel_less_or_more_noise() -> None:
    rows = planned(**NUMBERS, points=5_000, noise_multiplier=2.0)["networks"]
    assert [row["network"] for row in rows if row["planned"]] == ["lstm 200"]
    assert len({row["parameters"] for row in rows}) == len(rows) == 4
    for one, other in itertools.combinations(rows, 2):
        assert (one["parameters"] < other["parameters"]) == (one["error"] < other["error"])


def test_the_parameters_of_a_folder_follow_from_its_configuration(tmp_path: Path) -> None:
    config = {"model_type": "gpt2", "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    result = planned(**NUMBERS, noise_multiplier=2.0, model={"folder": str(tmp_path)})
    assert result["parameters"] == 16 * (100 + 32) + 2 * (12 * 256 + 13 * 16) + 2 * 16
    assert any(row["best"] for row in result["sweep"])
    assert "learn" in result["verdict"]
    (tmp_path / "config.json").write_text('{"model_type": "vit"}', encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"model\.folder"):
        redactory.plan(**NUMBERS, noise_multiplier=2.0, model={"folder": str(tmp_path)})


@pytest.mark.slow
def test_the_plan_says_what_the_theory_says(found: dict[str, Any]) -> None:
    # proved bounds lie just above the values
    for name, value in {
        "epsilon_substitution": 2.8434,
        "epsilon_add_remove": 1.8282,
        "epsilon_bayesian": 0.712,
    }.items():
        assert value <= found[name] <= 1.01 * value
    assert found["epsilon"] == found["epsilon_substitution"]
    assert found["epsilon_group"]["2"] == pytest.approx(9.33, rel=5e-3)
    assert (found["epsilon_confidentiality"], found["coverage_failure"]) == (None, None)
    assert "not measured" in found["reasons"]["epsilon_confidentiality"]
    assert found["as_published"]["note"] == "as published, not a guarantee"
    assert found["as_published"]["epsilon"] == pytest.approx(2.1014, abs=1e-3)
    assert found["as_published"]["epsilon_bayesian"] < found["epsilon_bayesian"]
    assert found["noise_to_batch"] == pytest.approx(0.01)


def test_the_sweep_keeps_epsilon_and_marks_the_least_error(found: dict[str, Any]) -> None:
    rows = found["sweep"]
    (plan,), (best,) = ([row for row in rows if row[mark]] for mark in ("planned", "best"))
    assert (plan["sampling_rate"], plan["steps"], plan["noise_multiplier"]) == (0.01, 1000, 1.0)
    assert {row["steps"] * row["sampling_rate"] for row in rows} == {5.0, 10.0, 20.0, 40.0, 80.0, 160.0}
    for row in rows:
        own = PoissonGaussian(row["sampling_rate"], row["noise_multiplier"], 1.0, 1.0)
        spent = estimate_epsilon((Spending(own, row["steps"]),), 1e-5, Relation.SUBSTITUTION)
        assert spent == pytest.approx(found["epsilon"], rel=0.05)
        batch, root = 10_000 * row["sampling_rate"], math.sqrt(found["parameters"])
        assert row["cost"] == pytest.approx(batch * row["steps"])
        noise = root * row["noise_multiplier"] / batch
        assert row["noise_to_signal"] == pytest.approx(noise / math.sqrt(row["steps"]))
        assert row["error"] == pytest.approx(math.hypot(row["steps"] ** -0.5, row["noise_to_signal"] / 3))
        assert row["computation"] == pytest.approx(row["cost"] / plan["cost"])
        assert row["learning_rate"] == pytest.approx(0.01 * math.sqrt(1000 / row["steps"]))
        affordable = row["cost"] <= 1.05 * plan["cost"]
        assert not affordable or best["error"] <= 1.05 * row["error"]
        assert not affordable or best["steps"] >= row["steps"] or row["error"] > best["error"]
    assert best["cost"] <= plan["cost"]
    for cost in (0.5, 1.0, 2.0, 4.0, 8.0, 16.0):
        group = [row for row in rows if row["computation"] == cost]
        assert min(group, key=lambda row: row["error"])["selected"]
    assert sum(row["selected"] for row in rows) <= 8


def test_where_nothing_is_known_of_the_model_no_pair_is_best(tmp_path: Path) -> None:
    model = {"folder": str(tmp_path)}
    own = {**NUMBERS, "steps": 8, "sampling_rate": 0.4, "noise_multiplier": 2.0}
    rows = planned(**own, model=model)["sweep"]
    assert [row["sampling_rate"] for row in rows] == [0.1, 0.2, 0.4, 0.8] * 6
    assert not any(row["best"] or row["error"] for row in rows)
    units = {"trainer": "uedp-bounded", "users": 100, "points": 1000, "steps": 4, "sampling_rate": 0.5}
    caps = planned(**units, noise_multiplier=8.0)
    assert [row["steps"] for row in caps["sweep"] if row["best"]]


@pytest.mark.parametrize("trainer", ["crt-drop", "dpsgd"])
def test_a_target_is_met_and_not_by_far(trainer: str) -> None:
    result = planned(**{**NUMBERS, "trainer": trainer, "epsilon": 3.0})
    assert result["noise_calibrated"]
    assert 2.97 < result["epsilon"] <= 3.0
    own = "epsilon_add_remove" if trainer == "crt-drop" else "epsilon_substitution"
    assert result["epsilon"] == result[own]
    assert trainer != "dpsgd" or "do not decide" in result["reasons"]["epsilon_bayesian"]


def test_a_measured_delta_2_gives_every_secret_a_figure_above_it_only() -> None:
    small = {**NUMBERS, "steps": 20, "noise_multiplier": 2.0, "gamma": 0.1}
    every = planned(**small, delta_2=1e-6)
    assert every["coverage_failure"] == 1e-6
    assert every["epsilon_bayesian"] < every["epsilon_confidentiality"] < every["epsilon"]
    above = planned(**small, delta_2=1e-5)
    assert above["epsilon_confidentiality"] is None
    assert "not above" in above["reasons"]["epsilon_confidentiality"]


@pytest.mark.parametrize("gamma", [pytest.param(1e-6, marks=pytest.mark.slow), 1e-5])
def test_a_miss_rate_that_delta_covers_makes_the_bayesian_figure_0(gamma: float) -> None:
    given = {**NUMBERS, "delta": 1e-5, "gamma": gamma}
    assert planned(**given, noise_multiplier=1.0)["epsilon_bayesian"] == 0.0
    # any noise will do
    assert planned(**given, bayesian=True, epsilon=1.0)["epsilon_bayesian"] == 0.0


REFUSED = [
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"steps": 0}, "at least one step"),
        ({"steps": "many"}, "expected a number"),
        ({"delta": 1.0}, "delta"),
        ({"gamma": 1.5}, "gamma"),
        ({"delta_2": 0.5, "gamma": 0.1}, "at most gamma"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
        ({"group_sizes": [1]}, "group_sizes"),
        ({"bayesian": True, "gamma": 0.0}, "gamma 0"),
        ({"bayesian": True, "trainer": "dpsgd"}, "no Bayesian"),
        ({"points": 0}, "at least one example"),
        ({"trainer": "sgd"}, "no privacy mechanism"),
        ({"dedup.mode": "bloom"}, "without a stability proof.*; dedup.mode exact has a proof"),
        ({"trainer": "crt", "chat.loss_on": "assistant"}, "need dedup.mode none$"),
        ({"trainer": "uedp-bounded"}, "k_user"),
        ({"trainer": "uedp-bounded", "units.privacy_unit": "entities"}, "k_entity"),
        ({"trainer": "uedp-bounded", "bounding.k_user": 1, "bounding.rule": "shortest"}, "rule"),
        ({"trainer": "uedp-bounded", "bounding.k_user": 1, "bounding.entities_per_point": 2}, "r-loc"),
        ({"trainer": "uedp-alg1"}, "public bound on the number of users"),
        ({"trainer": "uedp-alg1", "federated.users": 9, "federated.max_users_per_entity": 10}, "at most us"),
        ({"trainer": "user-level", "federated.users": 9, "federated.max_users_per_entity": 2}, "entities"),
]  # fmt: skip
REFUSED_MESSAGES = [
    ({"noise_multiplier": -1.0}, "noise_multiplier"),
    ({"published.true_share": 1.5}, r"published\.true_share"),
    ({"published.share": 1.5}, r"published\.share"),
    ({"published.true_share": 0.5}, "rate of its queries"),
    ({"delta": 1.0}, "delta"),
    ({"plot": "plan.svg"}, "plot"),
]


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        *(({**NUMBERS, **change}, message) for change, message in REFUSED),
        *(({"trainer": "ldp", "noise_multiplier": 2.0, **change}, message) for change, message in REFUSED_MESSAGES),
    ],
)
def test_numbers_that_make_no_plan_are_refused(numbers: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        redactory.plan(**numbers)


def test_a_configuration_is_planned_as_it_would_be_trained(tmp_path: Path) -> None:
    train = {"epochs": 2, "sampling_rate": 0.1, "noise_multiplier": 2.0, "group_sizes": []}
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"input": "absent.jsonl", "train": train}), encoding="utf-8")
    result = redactory.plan(path, plot=tmp_path / "plot.svg")
    assert (result["steps"], result["expected_batch"], result["private_examples"]) == (20, 256.0, None)
    own = PoissonGaussian(0.1, 2.0, 1.0, 1.0)
    assert result["epsilon"] == prove_epsilon((Spending(own, 20),), 1e-5, Relation.SUBSTITUTION)
    assert (tmp_path / "plot.svg").read_text(encoding="utf-8").startswith("<svg")
    changed = redactory.plan(path, noise_multiplier=4.0, **{"train.epochs": 1})
    assert (changed["steps"], changed["noise_multiplier"]) == (10, 4.0)


def test_flagging_everything_leaves_nothing_uncovered() -> None:
    detect = {"conservative": {"flags_everything": True}}
    train = {"epochs": 1, "sampling_rate": 0.1, "noise_multiplier": 2.0, "group_sizes": []}
    result = planned({"input": "absent.jsonl", "detect": detect, "train": train})
    assert result["coverage_failure"] == 0.0
    assert result["epsilon_confidentiality"] == pytest.approx(result["epsilon"])


@pytest.mark.parametrize("points", [14, 49])
def test_a_plan_counts_the_steps_that_a_training_makes(points: int) -> None:
    """At q = 1/14 it planned 45 steps in three epochs, and the trainer made 42."""
    own = {"trainer": "dpsgd", "sampling_rate": 1 / points, "epochs": 3, "noise_multiplier": 2.0}
    assert planned(**own, group_sizes=[])["steps"] == 3 * math.ceil(1.0 / (1.0 / points))


# Users and entities: every figure of the theory that a plan can state.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("data", "spread", "changes", "sound"),
    [
        (CONLL, 1, {}, 0.0306),
        (CONLL, 20, {}, 0.532),
        (SEC, None, {}, 54.32),
        (AG, 20, {}, 0.056),
        (AG, None, {"patent": True}, 1.857),
        (SEC, 100, {"steps": 500}, 6.49),
        (CONLL, 20, {"steps": 2_634}, 4.85),
        (AG, None, {"units.privacy_unit": "users"}, 0.0009),
    ],
)
def test_algorithm_1_has_the_figures_of_the_theory(
    data: tuple[int, int], spread: int | None, changes: dict[str, Any], sound: float
) -> None:
    found = algorithm1(data, spread, **changes)
    assert found["epsilon_sound"] == found["epsilon"] == pytest.approx(sound, rel=4e-3, abs=5e-4)


@pytest.mark.parametrize(("data", "published"), [(CONLL, (0.62, 1.18)), (SEC, (0.71, 1.40))])
def test_what_the_paper_prints_has_its_own_label(data: tuple[int, int], published: tuple[float, float]) -> None:
    """At an enforced M, so that the sound figure is quick; the published one does not know of M."""
    found = algorithm1(data, 1)
    plain = algorithm1(data, 1, related_entity_rate=0)
    printed = plain["as_published"]
    assert printed["note"] == "as published, not a guarantee"
    assert printed["all"]["f_E"] == plain["epsilon_as_published"] == pytest.approx(published[0], abs=0.008)
    assert printed["all"]["user-level"] == pytest.approx(published[1], abs=0.008)
    assert found["epsilon_as_published"] is None
    assert "share" in found["reasons"]["epsilon_as_published"]


@pytest.mark.parametrize(
    ("points", "batch", "users", "at_8"),
    [(14_000, 256, 1_000, {1: 6.75, 4: 6.78, 16: 7.96}), (100_000, 512, 10_000, {1: 1.09, 4: 1.09, 16: 1.84})],
)
def test_bounded_contributions_match_the_theory(points: int, batch: int, users: int, at_8: dict[int, float]) -> None:
    """The plan's own figure is that of k = 4; the others stand in its list of choices."""
    found = bounded(points, batch, users, 4)
    assert found["K"] == 8
    assert found["expected_batch"] == pytest.approx(batch)
    assert found["epsilon_sound"] == found["epsilon"]
    figures = {entry["k"]: entry["epsilon"] for entry in found["choices"]} | {4: found["epsilon"]}
    assert {k: figures[k] for k in at_8} == pytest.approx(at_8, abs=0.013)
    second = found["second"]["epsilon_sound"]
    assert second["lower"] <= found["epsilon"] <= second["upper"]


@pytest.mark.slow
def test_the_curve_over_points_needs_no_cap() -> None:
    rule = {"bounding.rule": "none"}
    found = planned(trainer="uedp-bounded", sampling_rate=256 / 14000, noise_multiplier=2.0, steps=500, **rule)
    assert [found["curve"][k] for k in ("1", "2", "4", "8", "16")] == pytest.approx(
        [0.84, 1.80, 3.94, 8.93, 21.53], rel=5e-3
    )
    assert found["adjacency_curve"] == "any units with at most K examples, zero-out on a fixed graph"
    assert found["K"] is None
    assert found["epsilon_sound"] is None
    assert "no cap bounds the examples" in found["reasons"]["epsilon_sound"]


@pytest.mark.slow
def test_each_relation_goes_by_its_name() -> None:
    names = {"users": "user", "entities": "entity", "both": "user-entity", "either": "user-or-entity"}
    for unit, name in names.items():
        found = algorithm1(CONLL, 1, **{"units.privacy_unit": unit})
        assert found["adjacency"] == f"{name} zero-out on a fixed graph"
    whole = algorithm1(CONLL)
    assert (whole["adjacency"], whole["M"]) == ("user-entity removal", 946)
    assert whole["M_source"] == "the public number of users"
    assert bounded(1_000, 64, 500, 2, steps=10)["adjacency"] == "user-entity zero-out on a fixed graph"


def test_the_cap_that_is_suggested_keeps_most_for_nothing() -> None:
    found = planned(
        trainer="uedp-bounded", sampling_rate=0.02, noise_multiplier=8.0, steps=100, users=1_000, points=8_000
    )
    assert (found["k_user"], found["k_entity"], found["K"], found["kept_at_most"]) == (8, 8, 16, 8_000)
    assert found["noise_to_batch"] == pytest.approx(8.0 / 160)
    by_cap = {entry["k"]: entry for entry in found["choices"]}
    assert list(by_cap) == [1, 2, 4, 8, 16]
    assert [entry["kept_at_most"] for entry in by_cap.values()] == [1_000, 2_000, 4_000, 8_000, 8_000]
    assert by_cap[8]["suggested"]
    assert by_cap[8]["epsilon"] == pytest.approx(found["epsilon"])
    assert by_cap[8]["epsilon"] < 1.02 * by_cap[1]["epsilon"] < 0.6 * by_cap[16]["epsilon"]


def test_user_level_has_a_figure_of_its_own() -> None:
    """DP-FedAvg: the Poisson-sampled Gaussian over users; the papers' accountant gives more, not less."""
    own = {"trainer": "user-level", "federated.users": 946, "federated.user_rate": 50 / 946}
    found = planned(**own, noise_multiplier=2.0, steps=50)
    assert found["adjacency"] == "user removal"
    assert found["epsilon_sound"] == pytest.approx(0.831, abs=2e-3)
    assert found["epsilon_as_published"] == pytest.approx(1.176, abs=2e-3)
    assert found["noise_to_batch"] == pytest.approx(0.04)
    assert found["second"]["epsilon_sound"]["lower"] <= found["epsilon"]
    reached = planned(**{**own, "federated.user_rate": 0.1}, epsilon=2.0, steps=100)
    assert 1.98 < reached["epsilon"] <= 2.0


@pytest.mark.parametrize("trainer", ["uedp-bounded", "user-level"])
def test_a_plan_of_units_has_a_picture(trainer: str, tmp_path: Path) -> None:
    own = {"sampling_rate": 0.05, "bounding.k_user": 2, "bounding.k_entity": 2}
    if trainer != "uedp-bounded":
        own = {"federated.users": 40, "federated.user_rate": 0.1}
    found = planned(trainer=trainer, plot=tmp_path / "plan.svg", noise_multiplier=4.0, steps=16, **own)
    rows = found["steps_curve"]
    assert rows[-1]["steps"] == 16
    assert rows[-1]["epsilon"] == pytest.approx(found["epsilon"])
    assert [row["epsilon"] for row in rows] == sorted(row["epsilon"] for row in rows)
    picture = (tmp_path / "plan.svg").read_text(encoding="utf-8")
    assert picture.startswith("<svg")
    assert ("as published, not a guarantee" in picture) == (trainer == "user-level")


def test_too_little_noise_has_a_reason() -> None:
    found = planned(
        trainer="uedp-bounded", sampling_rate=0.5, noise_multiplier=1e-3, steps=5,
        **{"bounding.k_user": 1, "bounding.k_entity": 1},
    )  # fmt: skip
    assert found["epsilon_sound"] is None
    assert "noise is too small" in found["reasons"]["epsilon_sound"]
    with pytest.raises(ConfigurationError, match="no epsilon to calibrate to"):
        redactory.plan(trainer="uedp-bounded", **{"bounding.rule": "none"})


@pytest.mark.slow
@pytest.mark.parametrize("noise", [5e-324, 1e-200, 2e-3])
@pytest.mark.parametrize(
    ("trainer", "more"),
    [
        ("crt", {"group_sizes": (2,), "gamma": 0.1, "delta_2": 1e-7}),
        ("crt-drop", {"group_sizes": ()}),
        ("dpsgd", {"group_sizes": (2,), "sampling_rate": 1.0}),
        ("uedp-bounded", {"users": 100, "points": 1000}),
        ("user-level", {"federated.users": 100}),
        ("uedp-alg1", {"federated.users": 100}),
    ],
)
@pytest.mark.filterwarnings("error")
def test_noise_that_protects_nothing_is_planned_with_a_reason(trainer: str, more: dict[str, Any], noise: float) -> None:
    """Of an overflow no figure was made, nor a reason."""
    common = {"sampling_rate": 0.01, "steps": 100, "delta": 1e-6, "noise_multiplier": noise}
    own = redactory.plan(trainer=trainer, **{**common, **more})
    name = "epsilon_sound" if "epsilon_sound" in own else "epsilon"
    assert own[name] is None
    assert "noise" in own["reasons"][name]


def test_a_configuration_of_units_is_planned_as_it_would_be_trained() -> None:
    train = {"public_text": "public.jsonl", "epochs": 2, "sampling_rate": 0.1, "noise_multiplier": 4.0}
    caps = {"bounding": {"k_user": 2, "k_entity": 3}}
    config = {"input": "absent.jsonl", "train": {**train, "trainer": "uedp-bounded", **caps}}
    assert redactory.plan(config)["K"] == 5
    own = {"users": 50, "user_rate": 0.2, "max_users_per_entity": 5}
    found = redactory.plan({**config, "train": {**train, "trainer": "uedp-alg1", "federated": own}})
    assert (found["steps"], found["noise_multiplier"], found["M"]) == (10, 4.0, 5)
    assert found["noise"] == pytest.approx(4.0 / 11)


COINS = {"sampling.rate": 0.05, "sampling.steps": 200, "delta": 1 / 872}


def messages(**settings: Any) -> dict[str, Any]:
    return planned(trainer="ldp", **settings)


def test_three_sends() -> None:
    found = messages(noise_multiplier=2.0, **{"sampling.sends": 3, "sampling.kind": "fixed"})
    assert round(found["epsilon_sound"], 2) == 8.39
    assert (found["sensitivity"], found["mu"]) == (2.0, 1.0)
    assert found["mu_total"] == pytest.approx(3**0.5)
    bounds = found["second"]["epsilon_sound"]
    assert bounds["lower"] <= found["epsilon_sound"] <= bounds["upper"]
    assert found["epsilon_as_published"] == pytest.approx(3.71, abs=0.01)
    assert set(found["as_published"]["why_not"]) == {"sensitivity"}
    assert any("send once" in line for line in found["notes"])
    pair = messages(noise_multiplier=2.0, pairs=True)
    assert pair["sensitivity"] == pytest.approx(2.828, abs=1e-3)


@pytest.mark.parametrize("kind", ["public_bernoulli", "secret_bernoulli"])
def test_a_target_is_met_in_every_way_to_take_part(kind: str) -> None:
    found = messages(epsilon=3.0, **{"sampling.kind": kind, "sampling.rate": 0.1, "sampling.steps": 30})
    assert 2.98 < found["epsilon_sound"] <= 3.0
    assert found["noise_source"] == "calibrated to the target epsilon"
    assert found["epsilon_sound"] in [entry["epsilon"] for entry in found["compared"]]


def test_a_query_of_its_own_way_and_a_hidden_class_have_figures() -> None:
    way = {"kind": "secret_bernoulli", "rate": 0.2, "steps": 10}
    found = messages(epsilon=3.0, **{"query.sampling": way})
    assert 2.98 < found["query"]["epsilon_sound"] <= 3.0
    assert found["query"]["noise_multiplier"] != found["noise_multiplier"]
    assert messages(epsilon=3.0)["query"] is None
    seen = {**COINS, "sampling.kind": "public_bernoulli"}
    published = messages(**seen, **{"published.epsilon": 0.8, "query.sampling": way})
    assert 0.98 * published["epsilon_sound"] < published["query"]["epsilon_sound"] <= published["epsilon_sound"]
    covered = messages(noise_multiplier=2.0, sampling={**way, "classes": 5})
    assert covered["unit"] == "one sentence of a user, with its class"
    assert covered["compared"][-1]["epsilon"] == covered["epsilon_sound"]
    assert covered["epsilon_sound"] > messages(noise_multiplier=2.0, sampling=way)["epsilon_sound"]
    assert not any("label of a message is sent in clear" in line for line in covered["conditions"])


def test_what_up_sampling_claims_and_what_it_is_worth() -> None:
    seen = {**COINS, "sampling.kind": "public_bernoulli"}
    found = messages(**seen, **{"published.epsilon": 0.8, "published.true_share": 0.1})
    assert found["epsilon_as_published"] == pytest.approx(0.8, rel=1e-6)
    single, _, seen_epsilon, unseen = (entry["epsilon"] for entry in found["compared"])
    assert seen_epsilon == pytest.approx(140.0, abs=0.1)
    assert unseen == pytest.approx(15.3, abs=0.05)
    assert single == pytest.approx(16.3, abs=0.05)
    assert found["epsilon_sound"] == seen_epsilon
    assert "fictitious" in found["as_published"]["why_not"]
    assert any("large" in line for line in found["notes"])
    # the same noise with another share of true queries: the claim moves, the sound figure does not
    noise = found["noise_multiplier"]
    less = messages(**seen, noise_multiplier=noise, **{"published.true_share": 0.05})
    assert less["epsilon_as_published"] < 0.5
    assert less["epsilon_sound"] == found["epsilon_sound"]


def test_a_target_that_no_noise_reaches_is_refused() -> None:
    with pytest.raises(GuaranteeError, match="10000"):
        redactory.plan(trainer="dpsgd", epsilon=1e-7, steps=100, sampling_rate=1.0)


MEASURED = [
    (2, 6_735, 0.5, 0.835, 0.814),
    (2, 6_735, 8.0, 0.835, 0.834),
    (2, 1_000, 1.0, 0.802, 0.791),
    (4, 6_738, 0.5, 0.908, 0.839),
    (4, 6_738, 8.0, 0.908, 0.897),
    (4, 1_000, 1.0, 0.891, 0.718),
    (4, 2_000, 1.0, 0.904, 0.805),
]
"""Classes, examples, epsilon, accuracy without noise and with it: SST-2 and AG News, to which nothing was fitted."""


@pytest.mark.parametrize(("classes", "points", "epsilon", "without_noise", "measured"), MEASURED)
def test_the_expected_accuracy_of_a_classifier_is_near_the_measured_one(
    classes: int, points: int, epsilon: float, without_noise: float, measured: float
) -> None:
    names = [f"c{number}" for number in range(classes)]
    asked = {"trainer": "dpsgd", "task": "classify", "classes": names, "points": points, "epsilon": epsilon}
    found = planned(**asked, accuracy=without_noise, group_sizes=[])["accuracy"]
    assert found["expected"] == pytest.approx(measured, abs=0.03)
    assert found["without_noise"] == without_noise
    unknown = planned(**asked, group_sizes=[])["accuracy"]
    assert unknown == {"retained_share": found["retained_share"], "without_noise": None, "expected": None}


def test_no_accuracy_is_expected_where_none_was_measured() -> None:
    classes = {"task": "classify", "classes": ["a", "b"], "points": 500, "group_sizes": []}
    assert planned(trainer="crt", **classes)["accuracy"] is None
    assert planned(trainer="dpsgd", **{**classes, "model.kind": "bag"})["accuracy"] is None
    assert planned(trainer="dpsgd", points=500, group_sizes=[])["accuracy"] is None
    with pytest.raises(ConfigurationError, match="accuracy must be between 0 and 1"):
        planned(trainer="dpsgd", **classes, accuracy=83)


def test_changes_of_a_training_are_keys_of_its_section() -> None:
    config = {"input": "absent.jsonl", "train": {"model": {"kind": "gpt2", "layers": 1, "width": 16}}}
    found = _load_train_config(config, None, {"model.width": 32, "train.epochs": 3}).train
    assert (found.model.width, found.model.layers, found.epochs) == (32, 1, 3)
    with pytest.raises(ConfigurationError, match=r"train\.dedup: unknown key"):
        _load_train_config(config, None, {"dedup.mode": "exact"})
