"""The card of trainings that hide users and entities: its figures, its reasons, several models together."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import optimize, stats

from redactory.evaluation import report as model_report
from redactory.foundation.errors import GuaranteeError
from redactory.foundation.files import read_json
from redactory.redaction.folder import RunFolder
from redactory.training import make_guarantee_card, render_guarantee_page, train_model
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.budget import BudgetExceeded
from redactory.training.guarantee.card import make_unit_level_card
from redactory.training.guarantee.compose import make_composed_card
from redactory.training.guarantee.spec import TrainingSpec, read_ledger_facts
from tests.training.uedp.unit_runs import training, write_public, write_unit_run

SEEDLESS: dict[str, Any] = {"seed": None, "sampling_rate": 1.0, "epochs": 3, "noise_multiplier": 6.0}


@pytest.fixture(scope="module")
def public(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_public(tmp_path_factory.mktemp("public") / "donated.jsonl")


@pytest.fixture(scope="module")
def trained(public: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Models whose figures have a closed form: every point is in every step."""
    run = write_unit_run(tmp_path_factory.mktemp("trained") / "RUN")
    loc = {"rule": "r-loc", "k_user": 2, "k_entity": 1, "entities_per_point": 2}
    for name, changes in (
        ("both", {}),
        ("again", {}),
        ("users", {"units": {"privacy_unit": "users"}}),
        ("either", {"units": {"privacy_unit": "either"}}),
        ("r-loc", {"bounding": loc}),
        ("free", {"bounding": {"rule": "none"}}),
        ("seeded", {"seed": 3}),
        ("noiseless", {"trainer": "noiseless"}),
        ("alg1", {"trainer": "uedp-alg1", "federated": {"users": 9, "user_rate": 1.0}}),
        ("level", {"trainer": "user-level", "federated": {"users": 9, "user_rate": 1.0}}),
    ):
        train_model(run, training(public, name=name, **{**SEEDLESS, **changes}))
    return run


def unit_of(public: Path, units: dict[str, Any]) -> str:
    return TrainingSpec(training(public, units=units), None, 0).privacy_unit_description


def gaussian(points: int, sigma: float, steps: int, delta: float = 1e-5) -> float:
    """The exact epsilon of ``steps`` Gaussian releases that ``points`` clips lie between."""
    mu = points * math.sqrt(steps) / sigma

    def over(epsilon: float) -> float:
        high = stats.norm.cdf(mu / 2 - epsilon / mu)
        return float(high - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)) - delta

    return float(optimize.brentq(over, 0.0, 300.0))


@pytest.mark.parametrize(
    ("name", "size", "relation"),
    [
        ("both", 4, "user-entity zero-out on a fixed graph"),
        ("users", 2, "user zero-out on a fixed graph"),
        ("either", 2, "user-or-entity zero-out on a fixed graph"),
    ],
)
def test_the_figure_is_that_of_k_points(trained: RunFolder, name: str, size: int, relation: str) -> None:
    card = make_guarantee_card(trained, name)
    exact = gaussian(size, 6.0, 3)
    assert exact <= card["epsilon"] <= exact * 1.01
    assert card["epsilon"] == card["epsilon_sound"]
    assert (card["K"], card["relation"], card["holds"]) == (size, relation, True)
    bounds = card["accountants"]["bounds"]["epsilon_sound"]
    assert bounds["lower"] <= exact <= bounds["upper"]
    assert [one["item"] for one in card["conditions"]] == ["a", "b", "c", "d", "e", "sampler"]
    assert all(one["holds"] for one in card["conditions"])
    for count, value in card["curve"].items():
        assert gaussian(int(count), 6.0, 3) <= value <= gaussian(int(count), 6.0, 3) * 1.02
    assert card["adjacency_curve"] == "any units with at most K examples, zero-out on a fixed graph"
    json.dumps(card, allow_nan=False)


def test_every_null_has_its_reason_and_what_is_published_its_label(trained: RunFolder) -> None:
    for name in trained.list_model_names():
        card = read_json(trained.get_model_folder(name).guarantee)
        for key in ("epsilon", "epsilon_sound", "epsilon_user_removal", "epsilon_as_published"):
            assert (card[key] is None) == (key in card["reasons"])
        published = card["epsilon_as_published"]
        assert published is None or published["note"] == "as published, not a guarantee"
        page = render_guarantee_page(card)
        assert ("As published, not a guarantee" in page) == (published is not None)
        assert card["relation"] in page
        assert model_report.list_card_metrics(card)
        assert bool(model_report.list_promises(card)) == (card["epsilon"] is not None)


def test_r_loc_states_a_users_removal_and_pays_for_it(trained: RunFolder) -> None:
    card = make_guarantee_card(trained, "r-loc")
    assert card["adjacency_user_removal"] == "user removal and entity zero-out"
    assert card["epsilon_user_removal"] > gaussian(3, 6.0, 3) + gaussian(4, 6.0, 3) > card["epsilon_sound"]
    assert make_guarantee_card(trained, "both")["epsilon_user_removal"] is None


def test_without_a_selection_there_is_the_curve_and_no_figure_for_a_unit(trained: RunFolder) -> None:
    card = make_guarantee_card(trained, "free")
    assert card["epsilon"] is None
    assert "no cap bounds the examples" in card["reasons"]["epsilon"]
    assert card["adjacency_curve"] == "any units with at most K examples, zero-out on a fixed graph"
    assert card["curve"]["1"] == pytest.approx(gaussian(1, 6.0, 3), rel=0.01)


def test_test_mode_no_noise_and_a_vocabulary_of_unknown_origin_leave_no_figure(trained: RunFolder) -> None:
    assert "seed known" in make_guarantee_card(trained, "seeded")["holds_reason"]
    card = make_guarantee_card(trained, "noiseless")
    assert (card["holds"], card["epsilon"], card["steps"]) == (False, None, 0)
    assert "no noise" in card["reasons"]["epsilon"]
    for name in ("both", "level"):
        facts = read_ledger_facts(trained, trained.get_model_folder(name))
        private = {**facts.vocabulary, "made_of": {"public": None}}
        card = make_unit_level_card(name, replace(facts, public_text=None, base=None, vocabulary=private))
        assert card["epsilon"] is None
        assert "vocabulary" in card["reasons"]["epsilon"]


def test_a_place_of_the_curve_is_called_what_it_is(trained: RunFolder) -> None:
    for name, said, note in (
        ("both", "privacy units of at most 4 examples", "at most K of the examples"),
        ("level", "4 users at once", "that many users at once"),
        ("alg1", "an entity in the examples of at most 4 users", "belong to at most that many users"),
    ):
        card = make_guarantee_card(trained, name)
        assert said in [figure.title for figure in model_report.list_card_metrics(card)]
        assert note in card["notes"]["curve"]


def test_a_users_removal_rests_on_a_secret_key_and_on_caps_that_were_not_counted(trained: RunFolder) -> None:
    told = " ".join(make_guarantee_card(trained, "r-loc")["assumptions"])
    assert "caps were chosen without looking at the corpus" in told
    assert "digest key of the run, which is secret" in told
    assert "digest key" not in " ".join(make_guarantee_card(trained, "both")["assumptions"])


def test_other_hubs_aliases_or_copies_are_another_unit(tmp_path: Path, public: Path) -> None:
    (tmp_path / "list.txt").write_text("Ada\tBob\n")
    changes: list[dict[str, Any]] = [
        {},
        {"high_degree_entities": ("countries",)},
        {"high_degree_entities": ("countries", "months")},
        {"high_degree_entities": (str(tmp_path / "list.txt"),)},
        {"aliases": str(tmp_path / "list.txt")},
        {"duplicates": "merge"},
        {"labels": ("PERSON",)},
    ]
    assert len({unit_of(public, units) for units in changes}) == len(changes)
    assert "the values in countries, months are not entities" in unit_of(public, changes[2])


def test_lists_in_files_are_neither_composed_nor_booked(tmp_path: Path, public: Path) -> None:
    (tmp_path / "list.txt").write_text("Ada\n")
    run = write_unit_run(tmp_path / "RUN")
    for name in ("one", "two"):
        train_model(run, training(public, name=name, units={"high_degree_entities": (str(tmp_path / "list.txt"),)}))
    with pytest.raises(GuaranteeError, match="are not recorded"):
        make_composed_card([(run, "one"), (run, "two")])
    with pytest.raises(ValueError, match=r"units\.entities are not recorded"):
        training(
            public,
            units={"entities": str(tmp_path / "list.txt")},
            budget={"path": str(tmp_path / "budget.json"), "epsilon": 8.0},
        )


def test_a_ledger_of_another_trainer_is_refused(trained: RunFolder) -> None:
    ledger = trained.get_model_folder("both").ledger
    whole = ledger.read_text()
    try:
        ledger.write_text(whole.replace('"trainer":"uedp-bounded"', '"trainer":"user-level"'))
        with pytest.raises(GuaranteeError):
            make_guarantee_card(trained, "both")
    finally:
        ledger.write_text(whole)


def test_models_under_one_relation_compose_and_others_do_not(trained: RunFolder) -> None:
    both = make_composed_card([(trained, "both"), (trained, "again")])
    exact = gaussian(4, 6.0, 6)
    assert exact <= both["epsilon"] <= exact * 1.02
    assert both["holds"]
    assert model_report.list_card_metrics(both)
    two = make_composed_card([(trained, "both"), (trained, "noiseless")])
    assert two["epsilon"] is None
    assert "noiseless" in two["reasons"]["epsilon"]
    for first, second in (("both", "users"), ("both", "level"), ("either", "level")):
        with pytest.raises(GuaranteeError, match="cannot be composed"):
            make_composed_card([(trained, first), (trained, second)])
    with pytest.raises(GuaranteeError, match="uedp-alg1"):
        make_composed_card([(trained, "alg1"), (trained, "both")])


def test_trainers_that_hide_users_compose_for_a_null_user(trained: RunFolder) -> None:
    card = make_composed_card([(trained, "level"), (trained, "users")])
    # every user and example is in every step: two clips of a bounded user, and one of a whole update, three times each
    exact = gaussian(1, 6.0 / math.sqrt(2**2 + 1), 3)
    assert exact <= card["epsilon"] <= exact * 1.02
    assert card["relation"] == "user zero-out on a fixed graph"
    assert card["privacy_unit"] == "users"
    assert WORDS["units"]["different_trainers"] in card["assumptions"]


def test_a_budget_counts_k_points_and_ends(tmp_path: Path, public: Path) -> None:
    run = write_unit_run(tmp_path / "RUN")
    budget = {"path": str(tmp_path / "budget.jsonl"), "epsilon": gaussian(4, 6.0, 6) * 1.03}
    for name in ("first", "second"):
        train_model(run, training(public, name=name, budget=budget, **SEEDLESS))
    with pytest.raises(BudgetExceeded):
        train_model(run, training(public, name="third", budget=budget, **SEEDLESS))
    users = training(public, name="users", budget=budget, units={"privacy_unit": "users"}, **SEEDLESS)
    with pytest.raises(GuaranteeError, match="another privacy unit"):
        train_model(run, users)
