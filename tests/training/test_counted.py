"""A training on a run that is public by count: one composition, no detector, each selection once."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from jsonschema import Draft202012Validator
from scipy import special

import redactory
from redactory.foundation.bounds import TEMPLATE_FILTERS
from redactory.foundation.errors import GuaranteeError
from redactory.pipelines.measure.evaluate_attacks import compute_audit_p_value
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.sealing import read_manifest, seal_folder
from redactory.redaction.shards import COUNTED, list_parts, write_part
from redactory.training import train_model
from redactory.training.accounting import Spending
from redactory.training.accounting.bounds import compute_gaussian_epsilon
from redactory.training.count_selection import CountSelection, compute_threshold_failure_delta, plan_count_selection
from redactory.training.data import count_public_occurrences, read_public_texts
from redactory.training.guarantee.budget import Budget
from redactory.training.guarantee.card import make_guarantee_card, render_guarantee_page
from redactory.training.guarantee.compose import make_composed_card
from redactory.training.guarantee.metrics import Metrics, add_user_epsilon_with_public_texts
from redactory.training.guarantee.spec import TrainingSpec
from redactory.training.ldp.encoder import SentenceEncoder
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation, parse_mechanism_json
from redactory.training.settings import BudgetSettings
from redactory.training.uedp.units import read_unit_incidence
from redactory.training.unit_settings import UnitSettings
from tests.training.accounting.worlds import prove_epsilon, prove_group_epsilon
from tests.training.conftest import PUBLIC_TEXTS, make_small_settings, write_run
from tests.training.uedp.unit_runs import ROWS, write_public, write_unit_run
from tests.training.uedp.unit_runs import training as unit_training

OWN = CountSelection.calibrate(1.0, 1e-6, 4)
ROUTE: dict[str, Any] = {"strategy": "count", "epsilon": 1.0, "delta": 1e-6, "texts_per_user": 4}
TEXTS = [*PUBLIC_TEXTS[:10], f"my name is {MASK}"]


def counted_run(root: Path, name: str) -> RunFolder:
    """A run whose public side was counted, with a mask in one text."""
    route = {**ROUTE, **OWN.to_json(), "id": name.encode().hex().zfill(32)}
    run = write_run(
        root / name, public=TEXTS, policies={"strict": {"hash": "a"}, "conservative": {"hash": "b"}}, route=route
    )
    columns = {
        "example_id": [f"p{n}" for n in range(len(TEXTS))],
        "text": TEXTS,
        "users": [70 + n for n in range(len(TEXTS))],
    }
    write_part(run.public / "part-00000.parquet", pa.table(columns, schema=COUNTED))
    body = {name: value for name, value in read_manifest(run).items() if name != "files"}
    seal_folder(run, body, [path for folder in (run.public, run.private, run.vault) for path in list_parts(folder)])
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """With two models, the second under a budget."""
    made = counted_run(tmp_path_factory.mktemp("counted"), "monday")
    train_model(made, unseeded(public_weighting="count"))
    return made


def unseeded(**changes: Any) -> Any:
    return make_small_settings(**{"seed": None, "group_sizes": (2,), **changes})


def test_selection_and_training_are_one_composition() -> None:
    """Against dp_accounting: the Gaussians of both together, at what the threshold leaves of delta."""
    training = Spending(PoissonGaussian(0.01, 1.0, 1.0, 256.0), 200)
    found = prove_epsilon((training, OWN.compute_example_spending()), 1e-5, Relation.SUBSTITUTION)
    accountant = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    accountant.compose(dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 200)
    accountant.compose(dp_event.GaussianDpEvent(math.sqrt(2.0) * OWN.deviation))
    d = compute_threshold_failure_delta(OWN.deviation, OWN.threshold, 1)
    assert found == pytest.approx(accountant.get_epsilon(1e-5 - d) - math.log1p(-d), rel=0.01)
    # less than the sum of both, more than either
    alone: Any = prove_epsilon((training,), 1e-5, Relation.SUBSTITUTION)
    assert alone < found < alone + OWN.compute_user_epsilon(1e-6)


def test_what_is_not_proved_of_a_selection_is_refused() -> None:
    for wrong in (
        lambda: prove_epsilon((OWN.compute_example_spending(),), 1e-5, Relation.ADD_OR_REMOVE),
        lambda: prove_group_epsilon((OWN.compute_example_spending(),), 1e-5, 2),
        lambda: parse_mechanism_json({**OWN.compute_example_spending().mechanism.to_json(), "clip_norm": 2}),
    ):
        with pytest.raises(GuaranteeError):
            wrong()
    for one in (OWN.compute_example_spending(), OWN.compute_user_spending()):
        assert parse_mechanism_json(one.mechanism.to_json()) == one.mechanism


def test_the_card_has_a_figure_for_every_secret_and_no_detector(run: RunFolder) -> None:
    card = make_guarantee_card(run, "crt")
    spent = (Spending(PoissonGaussian(0.25, 1.0, 1.0, 256.0), 8), OWN.compute_example_spending())
    assert card["epsilon_confidentiality"] == prove_epsilon(spent, 1e-5, Relation.SUBSTITUTION)
    assert (card["holds"], card["coverage_failure"], card["epsilon_group"]) == (True, 0.0, {"2": None})
    assert {card[name] for name in ("epsilon", "epsilon_substitution", "epsilon_bayesian")} == {
        card["epsilon_confidentiality"]
    }
    assert "both policies missed them" not in " ".join(card["not_covered"])
    page = render_guarantee_page(card)
    assert "A public text is one that enough users wrote, whatever the policies found" in page
    most = TEMPLATE_FILTERS["guess"](card["epsilon_confidentiality"], card["delta"])
    assert f"guesses it in at most {most} of all cases" in page
    # for somebody whom no detector helps, in words
    assert "What this person alone wrote is public with a probability of at most 1e-06" in page
    assert "are the same in both worlds" not in page
    assert compute_audit_p_value(run, "crt", {"canaries": 9, "by_share": []}, "epsilon") is None


@pytest.fixture(scope="module")
def of_units(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Models that hide users or entities, every point or user in each of three steps, on a counted run."""
    folder = tmp_path_factory.mktemp("units")
    route = {**ROUTE, **OWN.to_json(), "id": "7" * 32}
    made, public = write_unit_run(folder / "RUN", route=route), write_public(folder / "donated.jsonl")
    federated = {"federated": {"users": 9, "user_rate": 1.0}}
    for name, changes in (
        ("level", {"trainer": "user-level", **federated}),
        ("again", {"trainer": "user-level", **federated}),
        ("bounded", {"units": {"privacy_unit": "users"}}),
        ("merged", {"units": {"privacy_unit": "users", "duplicates": "merge"}}),
        ("both", {}),
        ("alg1", {"trainer": "uedp-alg1", "units": {"privacy_unit": "users"}, **federated}),
    ):
        settings = {"seed": None, "sampling_rate": 1.0, "epochs": 3, "noise_multiplier": 6.0, "name": name}
        train_model(made, unit_training(public, **{**settings, **changes}))
    return made


@pytest.mark.parametrize(("name", "points"), [("level", 1), ("bounded", 2)])
def test_one_user_of_a_model_and_of_the_public_texts(of_units: RunFolder, name: str, points: int) -> None:
    """In closed form: a Gaussian of the steps and one of k counts, at what the threshold leaves of delta."""
    card = make_guarantee_card(of_units, name)
    d = compute_threshold_failure_delta(OWN.deviation, OWN.threshold, OWN.texts_per_user)
    alone, shift = (points * math.sqrt(3.0) / 6.0, math.hypot(points * math.sqrt(3.0) / 6.0, 2.0 / OWN.deviation))
    due = compute_gaussian_epsilon(shift, 1e-5 - d) - math.log1p(-d)
    assert due <= card["epsilon_with_public"] <= due * 1.01
    assert card["epsilon"] < compute_gaussian_epsilon(alone, 1e-5) * 1.01 < card["epsilon_with_public"]
    assert card["selection"]["threshold"] == OWN.threshold
    assert "every user gave at most 4 texts" in " ".join(card["assumptions"])
    assert "The model and the public texts together (epsilon_with_public)" in render_guarantee_page(card)
    Draft202012Validator(redactory.schema("unit-guarantee")).validate(card)


@pytest.mark.parametrize(
    ("name", "why"), [("both", "hide no entity"), ("alg1", "no dominating pair"), ("merged", "keep the copies")]
)
def test_what_counts_of_users_do_not_hide_has_no_figure_with_them(of_units: RunFolder, name: str, why: str) -> None:
    card = make_guarantee_card(of_units, name)
    assert card["epsilon"] is not None
    assert card["epsilon_with_public"] is None
    assert why in card["reasons"]["epsilon_with_public"]


def test_two_models_that_hide_users_spend_the_selection_of_their_run_once(of_units: RunFolder) -> None:
    both = make_composed_card([(of_units, "level"), (of_units, "again")])
    d = compute_threshold_failure_delta(OWN.deviation, OWN.threshold, OWN.texts_per_user)
    due = compute_gaussian_epsilon(math.hypot(math.sqrt(6.0) / 6.0, 2.0 / OWN.deviation), 1e-5 - d) - math.log1p(-d)
    assert due <= both["epsilon_with_public"] <= due * 1.01


def test_which_points_a_cap_keeps_does_not_follow_from_their_texts(tmp_path: Path) -> None:
    """What is public by count is named by its text: an order by that name would break condition (b)."""
    route = {**ROUTE, **OWN.to_json(), "id": "7" * 32}
    words = [row._replace(text=f"{row.text} Again.") for row in ROWS]
    first, other = (
        read_unit_incidence(write_unit_run(tmp_path / name, rows, route=route), UnitSettings())
        for name, rows in (("one", ROWS), ("other", words))
    )
    assert first.priorities.tolist() == other.priorities.tolist()
    assert len(set(first.priorities.tolist())) == len(ROWS)
    mixed = write_unit_run(tmp_path / "mixed", route=route)
    body = read_manifest(mixed)
    body["dedup"]["splits"] = {"public": {"rule": "S1"}, "private": {"rule": "none"}}
    seal_folder(
        mixed, body, [p for f in (mixed.vault, mixed.examples, mixed.spans, mixed.public) for p in list_parts(f)]
    )
    with pytest.raises(GuaranteeError, match="depends on the selection"):
        read_unit_incidence(mixed, UnitSettings(duplicates="merge"))


def test_noise_is_found_for_both_together(tmp_path: Path) -> None:
    made = counted_run(tmp_path, "wednesday")
    card = train_model(made, unseeded(noise_multiplier=None, epsilon=3.0))["guarantee"]
    assert 2.97 < card["epsilon_confidentiality"] <= 3.0


def test_no_encoder_of_messages_comes_from_a_counted_run(tmp_path: Path) -> None:
    made = counted_run(tmp_path, "thursday")
    assert "selection" in train_model(made, unseeded(trainer="dpsgd", epochs=1))["guarantee"]
    with pytest.raises(GuaranteeError, match="public by count, and the epsilon of that"):
        SentenceEncoder.load(made.get_model_folder("dpsgd").root)


def test_what_trains_publicly_is_the_text_and_its_noisy_number(run: RunFolder) -> None:
    assert list(read_public_texts(run)) == TEXTS
    assert count_public_occurrences(run).tolist() == [70 + n for n in range(len(TEXTS))]


def test_each_selection_is_composed_once_and_booked_once(run: RunFolder, tmp_path: Path) -> None:
    budget = BudgetSettings(path=tmp_path / "budget", epsilon=50.0)
    train_model(run, unseeded(name="again", budget=budget))
    train_model(run, unseeded(name="third", budget=budget))
    known: Any = Budget.from_settings(unseeded(budget=budget))
    assert [one["training"] for one in known.summarize()["trainings"]] == [
        "monday/public by count",
        "monday/again",
        "monday/third",
    ]
    own = Spending(PoissonGaussian(0.25, 1.0, 1.0, 256.0), 8)
    both = make_composed_card([(run, "crt"), (run, "again")])
    due = prove_epsilon((own, own, OWN.compute_example_spending()), 1e-5, Relation.SUBSTITUTION)
    assert both["epsilon_confidentiality"] == pytest.approx(due, rel=1e-6)
    by_policy = write_run(tmp_path / "tuesday", policies={"strict": {"hash": "a"}, "conservative": {"hash": "b"}})
    train_model(by_policy, unseeded())
    with pytest.raises(GuaranteeError, match="ways to decide what is public"):
        make_composed_card([(run, "crt"), (by_policy, "crt")])


@pytest.mark.parametrize("texts", [1, 4])
@pytest.mark.parametrize(
    ("unit", "moved", "alone"),  # in L2, by k texts; and how many of them nobody else gives
    [("examples", lambda k: math.sqrt(2), lambda k: 1), ("users", math.sqrt, lambda k: k)],
)
def test_a_budget_books_a_selection_as_it_moves_the_budget_s_unit(
    tmp_path: Path, texts: int, unit: str, moved: Any, alone: Any
) -> None:
    selection = CountSelection(8.0, 48, texts, "one")
    budget = Budget(BudgetSettings(path=tmp_path / "spent", epsilon=50.0), unit, unit == "users")
    budget.reserve_selection(selection, "run")
    d = 1.0 - special.ndtr((48 - 0.5 - 1.0) / 8.0) ** alone(texts)
    due = compute_gaussian_epsilon(moved(texts) / 8.0, 1e-5 - d) - math.log1p(-d)
    assert due < budget.summarize()["spent"] < 1.002 * due


@pytest.mark.parametrize("unit", ["examples", "users"])
@pytest.mark.parametrize("times", [1, 2, 5])
def test_delta_at_the_epsilon_of_several_selections_is_no_more_than_asked_for(unit: str, times: int) -> None:
    """Each threshold may fail: of n selections delta has n such chances, not one."""
    texts, deviation, threshold, delta = 3, 5.0, 22, 1e-3
    own = CountSelection(deviation, threshold, texts)
    one, relation = own.compute_example_spending(), Relation.SUBSTITUTION
    shift, alone = math.sqrt(2) / deviation, 1
    if unit == "users":
        one, shift, alone = own.compute_user_spending(), math.sqrt(texts) / deviation, texts
    d = 1.0 - float(special.ndtr((threshold - 1.5) / deviation)) ** alone
    assert 0.02 * delta < d < 0.15 * delta  # one chance more or less can be told

    def delta_at(epsilon: float, loss: float, mu: float) -> float:
        inner, mu = epsilon + times * math.log1p(-loss), mu * math.sqrt(times)
        gauss = special.ndtr(mu / 2 - inner / mu) - math.exp(inner) * special.ndtr(-mu / 2 - inner / mu)
        return float(gauss) + times * loss

    spent = (one,) * times
    value = prove_epsilon(spent, delta, relation) if unit == "examples" else prove_group_epsilon(spent, delta, 1)
    assert 0.9 * delta <= delta_at(value, d, shift) <= delta
    # the same of a user exchanged in each, by the selection's own word
    every = 1.0 - special.ndtr((threshold - 1.5) / deviation) ** texts
    own_word = delta_at(own.compute_user_epsilon(delta, times), every, math.sqrt(2 * texts) / deviation)
    assert 0.999 * delta <= own_word <= delta * (1 + 1e-9)


def test_several_counted_runs_compose_to_what_all_their_events_cost(tmp_path: Path) -> None:
    runs = [counted_run(tmp_path, name) for name in ("monday", "tuesday")]
    for made in runs:
        train_model(made, unseeded())
    training = Spending(PoissonGaussian(0.25, 1.0, 1.0, 256.0), 8)
    both = make_composed_card([(made, "crt") for made in runs])
    due = (training, OWN.compute_example_spending()) * 2
    assert both["epsilon"] == pytest.approx(prove_epsilon(due, 1e-5, Relation.SUBSTITUTION))
    assert sum(one["event"]["class"] == "CountedTextsEvent" for one in both["event"]["events"]) == 2


@pytest.mark.parametrize("names", [("a",), ("a", "a"), ("a", "b"), ("a", "b", "b", "c")])
def test_users_have_every_selection_once_and_every_training(tmp_path: Path, names: tuple[str, ...]) -> None:
    settings = unit_training(
        write_public(tmp_path / "donated.jsonl"), seed=None, noise_multiplier=6.0, units={"privacy_unit": "users"}
    )
    specs = [
        TrainingSpec.from_settings(settings, None, 4, selection=replace(OWN, id=name), seeded=False) for name in names
    ]
    found = Metrics({"epsilon_sound": 1.0})
    add_user_epsilon_with_public_texts(found, specs, 1e-5)
    assert specs[0].spending is not None
    due = (*(one.spending for one in specs if one.spending), *(OWN.compute_user_spending(),) * len(set(names)))
    assert found.values["epsilon_with_public"] == prove_group_epsilon(due, 1e-5, 1)


@pytest.mark.parametrize(("epsilon", "delta", "texts"), [(1.0, 0.05, 4), (1.0, 0.09, 1), (50.0, 0.09, 1)])
def test_a_plan_of_a_large_delta_lists_no_delta_above_one(epsilon: float, delta: float, texts: int) -> None:
    rows = plan_count_selection(epsilon, delta, texts)["year"]
    assert rows
    assert all(row["delta"] < 1.0 for row in rows)
