"""Plans of trainings that hide users and entities: every figure of the theory that a plan can state."""

from __future__ import annotations

import json
from typing import Any

import pytest

import redactory
from redactory.foundation.errors import ConfigurationError, GuaranteeError

CONLL, SEC, AG = (946, 50), (1_592, 100), (7_536, 500)
CONLL_SHARE = 11_176 / 14_040


def algorithm1(data: tuple[int, int], spread: int | None = None, **changes: Any) -> dict[str, Any]:
    users, a_step = data
    numbers: dict[str, Any] = {"noise": 2.0, "steps": 50, "max_users_per_entity": spread, **changes}
    return redactory.plan(trainer="uedp-alg1", users=users, user_rate=a_step / users, **numbers)


def bounded(points: int, batch: int, users: int, k: int, **changes: Any) -> dict[str, Any]:
    numbers: dict[str, Any] = {"noise": 8.0, "steps": 500, "users": users, "points": points, **changes}
    rate = batch / min(points, k * users)
    return redactory.plan(trainer="uedp-bounded", sampling_rate=rate, k_user=k, k_entity=k, **numbers)


@pytest.mark.parametrize(
    ("data", "spread", "changes", "sound"),
    [
        (CONLL, 1, {}, 0.0306),
        (CONLL, 5, {}, 0.127),
        (CONLL, 20, {}, 0.532),
        (CONLL, 100, {}, 3.09),
        (CONLL, None, {}, 54.25),
        (SEC, 20, {}, 0.305),
        (SEC, None, {}, 54.32),
        (AG, 20, {}, 0.056),
        (AG, None, {}, 54.37),
        (CONLL, None, {"noise_form": "patent"}, 1.442),
        (SEC, None, {"noise_form": "patent"}, 1.747),
        (AG, None, {"noise_form": "patent"}, 1.857),
        (SEC, 20, {"steps": 500}, 1.071),
        (SEC, 100, {"steps": 500}, 6.49),
        (SEC, None, {"steps": 500}, 342.2),
        (CONLL, 20, {"steps": 2_634}, 4.85),
        (CONLL, 5, {"selection": "all"}, 0.127),
        (CONLL, 20, {"selection": "all"}, 0.381),
        (CONLL, 100, {"selection": "all"}, 1.707),
        (CONLL, None, {"selection": "all"}, 27.4),
        (CONLL, None, {"protect": "users"}, 0.0088),
        (SEC, None, {"protect": "users"}, 0.0049),
        (AG, None, {"protect": "users"}, 0.0009),
    ],
)
def test_algorithm_1_has_the_figures_of_the_theory(
    data: tuple[int, int], spread: int | None, changes: dict[str, Any], sound: float
) -> None:
    found = algorithm1(data, spread, **changes)
    assert found["epsilon_sound"] == found["epsilon"] == pytest.approx(sound, rel=4e-3, abs=5e-4)


@pytest.mark.parametrize(
    ("data", "share", "published"),
    [
        (CONLL, CONLL_SHARE, (0.52, 0.62, 1.18)),
        (AG, None, (None, 0.75, 1.48)),
        (SEC, None, (None, 0.71, 1.40)),
    ],
)
def test_what_the_paper_prints_stands_beside_it_under_its_label(
    data: tuple[int, int], share: float | None, published: tuple[float | None, float, float]
) -> None:
    """At an enforced M, so that the sound figure is quick; the published one does not know of M."""
    found = algorithm1(data, 1, sensitive_share=share)
    plain = algorithm1(data, 1, sensitive_share=share, estimator="f_E")
    told = plain["as_published"]
    assert told["note"] == "as published, not a guarantee"
    assert told["all"]["f_E"] == plain["epsilon_as_published"] == pytest.approx(published[1], abs=0.008)
    assert told["all"]["user-level"] == pytest.approx(published[2], abs=0.008)
    if published[0] is None:
        assert found["epsilon_as_published"] is None
        assert "share" in found["reasons"]["epsilon_as_published"]
    else:
        assert found["epsilon_as_published"] == pytest.approx(published[0], abs=0.008)
        patent = algorithm1(data, 1, sensitive_share=share, noise_form="patent")
        assert patent["epsilon_as_published"] == pytest.approx(found["epsilon_as_published"])


@pytest.mark.parametrize(("spread", "per_batch"), [(1, 0.0464), (4, 0.1302), (16, 0.470)])
def test_algorithm_1_needs_this_much_noise_for_eight(spread: int, per_batch: float) -> None:
    found = algorithm1(CONLL, spread, noise=None, target=8.0, steps=500)
    assert found["noise_calibrated"]
    assert 7.9 < found["epsilon_sound"] <= 8.0
    assert found["noise_to_batch"] == pytest.approx(per_batch, rel=1.5e-2)


def test_algorithm_1_without_a_cap_needs_a_thousand_times_the_noise_of_bounded_contributions() -> None:
    found = algorithm1(CONLL, noise=26.8 * 50 / 51, steps=500)
    assert found["noise_to_batch"] == pytest.approx(26.8)
    assert found["epsilon_sound"] == pytest.approx(8.0, abs=0.15)


@pytest.mark.parametrize(
    ("points", "batch", "users", "at_8"),
    [
        (14_000, 256, 1_000, {1: 6.75, 4: 6.78, 16: 7.96}),
        (14_000, 256, 3_000, {1: 1.92, 4: 1.92}),
        (14_000, 256, 10_000, {1: 0.51, 4: 1.62}),
        (100_000, 512, 1_000, {4: 15.96, 16: 15.99}),
        (100_000, 512, 3_000, {1: 4.20, 4: 4.21, 16: 4.22}),
        (100_000, 512, 10_000, {1: 1.09, 4: 1.09, 16: 1.84}),
    ],
)
def test_bounded_contributions_have_the_figures_of_the_theory(
    points: int, batch: int, users: int, at_8: dict[int, float]
) -> None:
    """The plan's own figure is that of k = 4; the others stand in its list of choices."""
    found = bounded(points, batch, users, 4)
    assert found["K"] == 8
    assert found["expected_batch"] == pytest.approx(batch)
    assert found["epsilon_sound"] == found["epsilon"]
    figures = {entry["k"]: entry["epsilon"] for entry in found["choices"]} | {4: found["epsilon"]}
    assert {k: figures[k] for k in at_8} == pytest.approx(at_8, abs=0.011)
    second = found["second"]["epsilon_sound"]
    assert second["lower"] <= found["epsilon"] <= second["upper"] * 1.02


@pytest.mark.parametrize(
    ("points", "batch", "users", "k", "target", "sigma"),
    [
        (14_000, 256, 1_000, 4, 2.0, 22.90),
        (14_000, 256, 1_000, 16, 8.0, 7.97),
        (100_000, 512, 10_000, 1, 8.0, 1.59),
        (100_000, 512, 10_000, 16, 2.0, 7.42),
    ],
)
def test_bounded_contributions_need_this_noise(
    points: int, batch: int, users: int, k: int, target: float, sigma: float
) -> None:
    found = bounded(points, batch, users, k, noise=None, target=target)
    assert found["noise_multiplier"] == pytest.approx(sigma, rel=6e-3)
    assert 0.98 * target < found["epsilon_sound"] <= target


def test_the_curve_over_points_needs_no_cap() -> None:
    found = redactory.plan(
        trainer="uedp-bounded",
        sampling_rate=256 / 14_000,
        noise=2.0,
        steps=500,
        rule="none",
        public_constants=True,
    )
    assert [found["curve"][k] for k in ("1", "2", "4", "8", "16")] == pytest.approx(
        [0.84, 1.80, 3.94, 8.93, 21.53], abs=0.011
    )
    assert found["adjacency_curve"] == "any units with at most K points, removal"
    assert found["K"] is None
    assert found["epsilon_sound"] is None
    assert "no selection enforces a cap" in found["reasons"]["epsilon_sound"]


@pytest.mark.parametrize(("k", "one_sided", "both"), [(1, 0.39, 1.07), (4, 1.79, 5.07), (16, 8.88, 29.09)])
def test_a_user_who_vanishes_costs_about_three_times_as_much(k: int, one_sided: float, both: float) -> None:
    numbers: dict[str, Any] = {
        "sampling_rate": 0.02,
        "noise": 8.0,
        "steps": 500,
        "k_user": k,
        "rule": "r-loc",
    }
    found = redactory.plan(trainer="uedp-bounded", entities_per_point=3, public_constants=True, **numbers)
    assert found["k_entity"] == k
    assert found["epsilon_sound"] == pytest.approx(one_sided, abs=0.006)
    assert found["epsilon_user_removal"] == pytest.approx(both, rel=8e-3)
    assert found["adjacency_user_removal"] == "user removal and entity zero-out"


def test_a_user_who_vanishes_needs_constants_that_saw_no_corpus() -> None:
    numbers: dict[str, Any] = {"sampling_rate": 0.02, "noise": 8.0, "steps": 50, "k_user": 1}
    from_counts = redactory.plan(trainer="uedp-bounded", rule="r-loc", entities_per_point=3, **numbers)
    assert from_counts["epsilon_user_removal"] is None
    assert "follow the data" in from_counts["reasons"]["epsilon_user_removal"]


def test_each_relation_goes_by_its_name() -> None:
    names = {
        protect: algorithm1(CONLL, 1, protect=protect)["adjacency"]
        for protect in ("users", "entities", "both", "either")
    }
    assert names == {
        "users": "user zero-out on a fixed graph",
        "entities": "entity zero-out on a fixed graph",
        "both": "user-entity zero-out on a fixed graph",
        "either": "user-or-entity zero-out on a fixed graph",
    }
    whole = algorithm1(CONLL)
    assert (whole["adjacency"], whole["M"]) == ("user-entity removal", 946)
    assert whole["M_source"] == "the public number of users"
    assert bounded(1_000, 64, 500, 2, steps=10)["adjacency"] == "user-entity zero-out on a fixed graph"


def test_the_cap_that_is_suggested_keeps_most_for_nothing() -> None:
    found = redactory.plan(
        trainer="uedp-bounded", sampling_rate=0.02, noise=8.0, steps=100, users=1_000, points=8_000
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
    found = redactory.plan(trainer="user-level", user_rate=50 / 946, users=946, noise=2.0, steps=50)
    assert found["adjacency"] == "user removal"
    assert found["epsilon_sound"] == pytest.approx(0.831, abs=2e-3)
    assert found["epsilon_as_published"] == pytest.approx(1.176, abs=2e-3)
    assert found["noise_to_batch"] == pytest.approx(0.04)
    assert found["second"]["epsilon_sound"]["lower"] <= found["epsilon"]
    reached = redactory.plan(trainer="user-level", user_rate=0.1, target=2.0, steps=100)
    assert 1.98 < reached["epsilon"] <= 2.0
    assert reached["noise_to_batch"] is None


@pytest.mark.parametrize("trainer", ["uedp-bounded", "uedp-alg1", "user-level"])
def test_a_plan_is_one_json_object_and_a_picture(trainer: str, tmp_path: Any) -> None:
    numbers: dict[str, Any] = {"noise": 4.0, "steps": 16}
    if trainer == "uedp-bounded":
        numbers |= {"sampling_rate": 0.05, "k_user": 2}
    else:
        numbers |= {"users": 40, "user_rate": 0.1}
    found = redactory.plan(trainer=trainer, plot=tmp_path / "plan.svg", **numbers)
    json.dumps(found, allow_nan=False)
    rows = found["steps_curve"]
    assert rows[-1]["steps"] == 16
    assert rows[-1]["epsilon"] == pytest.approx(found["epsilon"])
    assert [row["epsilon"] for row in rows] == sorted(row["epsilon"] for row in rows)
    assert (tmp_path / "plan.svg").read_text(encoding="utf-8").startswith("<svg")
    for name in ("epsilon_sound", "epsilon_as_published"):
        assert found[name] is not None or found["reasons"][name]


@pytest.mark.parametrize(
    ("trainer", "numbers", "says"),
    [
        ("uedp-bounded", {"sampling_rate": 0.1}, "k-user"),
        ("uedp-bounded", {"sampling_rate": 0.1, "protect": "entities"}, "k-entity"),
        ("uedp-bounded", {"sampling_rate": 0.1, "k_user": 1, "rule": "shortest"}, "rule"),
        ("uedp-bounded", {"sampling_rate": 0.1, "k_user": 1, "entities_per_point": 2}, "r-loc"),
        ("uedp-bounded", {"sampling_rate": 0.0, "k_user": 1}, "sampling rate"),
        ("uedp-bounded", {"sampling_rate": 0.1, "k_user": 1, "target": 1.0}, "either"),
        ("uedp-alg1", {"user_rate": 0.1}, "public number of users"),
        ("uedp-alg1", {"user_rate": 0.1, "users": 9, "max_users_per_entity": 10}, "max users"),
        ("user-level", {"user_rate": 0.1, "protect": "both"}, "users alone"),
        ("user-level", {"user_rate": 0.1, "max_users_per_entity": 2}, "entities"),
    ],
)
def test_numbers_that_are_no_training_are_refused(trainer: str, numbers: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        redactory.plan(trainer=trainer, noise=2.0, steps=5, **numbers)


def test_too_little_noise_has_a_reason_and_no_target_without_a_cap() -> None:
    found = redactory.plan(trainer="uedp-bounded", sampling_rate=0.5, noise=1e-3, steps=5, k_user=1)
    assert found["epsilon_sound"] is None
    assert "little noise" in found["reasons"]["epsilon_sound"]
    with pytest.raises(GuaranteeError, match="enforces a cap"):
        redactory.plan(trainer="uedp-bounded", sampling_rate=0.5, target=1.0, steps=5, rule="none")


def _train(trainer: str, **changes: Any) -> dict[str, Any]:
    train = {"trainer": trainer, "public_text": "public.jsonl", "epochs": 2, "sampling_rate": 0.1}
    return {"input": "absent.jsonl", "train": {**train, "noise_multiplier": 4.0, **changes}}


def test_a_configuration_is_planned_as_it_would_be_trained() -> None:
    caps: dict[str, Any] = {"k_user": 2, "k_entity": 3}
    found = redactory.plan(_train("uedp-bounded", bounding=caps, units={"missed_mentions": 1}))
    same = redactory.plan(
        trainer="uedp-bounded", sampling_rate=0.1, steps=20, noise=4.0, missed_mentions=1, batch=256.0, **caps
    )
    assert found == same
    assert found["K"] == 6
    own = {"users": 50, "user_rate": 0.2, "max_users_per_entity": 5, "rule": "all"}
    found = redactory.plan(_train("uedp-alg1", federated=own))
    assert (found["steps"], found["noise_multiplier"], found["M"]) == (10, 4.0, 5)
    assert found["noise"] == pytest.approx(4.0 / 11)
    found = redactory.plan(_train("user-level", federated={"users": 50, "user_rate": 0.2}))
    same = redactory.plan(trainer="user-level", users=50, user_rate=0.2, steps=10, noise=4.0)
    assert found == same
    with pytest.raises(ConfigurationError, match="no privacy mechanism"):
        redactory.plan(_train("noiseless", noise_multiplier=None))
