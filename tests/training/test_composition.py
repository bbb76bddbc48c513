"""Several models together, and the budget that refuses one too many."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import redactory
from redactory.flows.cli import app
from redactory.flows.model_commands import describe_composition
from redactory.flows.show import print_page
from redactory.foundation.bounds import format_upper
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError, RedactoryError, RunStateError
from redactory.foundation.records import RecordLog, read_records
from redactory.pipelines.curation.models import seal_result
from redactory.redaction import read_manifest
from redactory.redaction.folder import RunFolder
from redactory.training import RecallMeasurement, train_model
from redactory.training.accounting import Spending
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.budget import Budget, BudgetExceeded
from redactory.training.guarantee.compose import make_composed_card
from redactory.training.histogram import HISTOGRAM_FOLDER, Histogram
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation
from redactory.training.settings import TRAINERS, BudgetSettings
from tests.training.accounting.worlds import prove_epsilon
from tests.training.conftest import make_small_settings, write_run
from tests.training.tiny_folders import causal_folder

RECALL = RecallMeasurement(labels=1000, missed_by_strict=50, missed_by_both=0)
POLICIES = {"strict": {"hash": "a"}, "conservative": {"hash": "b"}}
NOISE = 3.0

UNIT = TRAINERS["crt"].privacy_unit


def unseeded(**changes: Any) -> Any:
    return make_small_settings(**{"seed": None, "noise_multiplier": NOISE, **changes})


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> list[RunFolder]:
    """Two runs of one corpus, a model each; the first has a second model and a baseline."""
    root = tmp_path_factory.mktemp("nights")
    runs = [write_run(root / name, policies=POLICIES) for name in ("monday", "tuesday")]
    for run in runs:
        train_model(run, unseeded(detector_recall_file=RECALL))
    train_model(runs[0], unseeded(name="again", noise_multiplier=4.0, group_sizes=(2,)))
    train_model(runs[0], unseeded(trainer="dpsgd"))
    train_model(runs[1], unseeded(trainer="sgd"))
    train_model(runs[1], make_small_settings(name="seeded"))
    return runs


def own(noise: float = NOISE) -> Spending:
    return Spending(PoissonGaussian(0.25, noise, 1.0, 256.0), 8)


def test_events_of_all_models_are_composed(nights: list[RunFolder]) -> None:
    monday, tuesday = nights
    card = make_composed_card([(monday, "crt"), (tuesday, "crt"), (monday, "again")])
    both = prove_epsilon((own(), own(), own(4.0)), 1e-5, Relation.SUBSTITUTION)
    assert card["epsilon"] == card["epsilon_substitution"] == pytest.approx(both)
    assert card["holds"]
    assert [one["model"] for one in card["models"]] == ["crt", "crt", "again"]
    assert card["event"]["class"] == "ComposedDpEvent"
    assert card["epsilon_group"]["2"] > card["epsilon"]
    assert card["epsilon_bayesian"] == pytest.approx(card["epsilon"])  # no recall was measured for one of them
    assert card["epsilon_confidentiality"] is None
    json.dumps(card, allow_nan=False)


def test_bounds_are_added_over_runs_and_not_over_models_of_one(tmp_path: Path) -> None:
    # one pair of policies says nothing: in each run a secret stands in another point
    runs = [write_run(tmp_path / name, policies=POLICIES) for name in ("first", "second")]
    for run, name in ((runs[0], "crt"), (runs[0], "again"), (runs[1], "crt")):
        train_model(run, unseeded(detector_recall_file=RECALL, name=name))
    together = make_composed_card([(runs[0], "crt"), (runs[0], "again")])
    alone = together["models"][0]["gamma_upper"]
    failure = together["models"][0]["delta_2_upper"]
    assert together["miss_rates"] == {"gamma_upper": alone, "delta_2_upper": failure}
    assert together["epsilon_bayesian"] < together["epsilon"]
    added = make_composed_card([(runs[0], "crt"), (runs[0], "again"), (runs[1], "crt")])
    assert added["miss_rates"]["gamma_upper"] == pytest.approx(2 * alone)
    assert added["coverage_failure"] == pytest.approx(2 * failure)


def _of_an_index(root: Path, name: str, earlier: list[str], **changes: Any) -> RunFolder:
    dedup = {"mode": "exact", "scope": "corpus", "rule": "S1", "group_size": 1}
    run = write_run(root / name, policies=POLICIES, dedup={**dedup, "index": {"id": "i", "runs": earlier}})
    train_model(run, unseeded(**changes))
    return run


def test_an_earlier_run_of_one_index_moves_a_row_of_a_later_one(tmp_path: Path) -> None:
    runs = [_of_an_index(tmp_path, name, names) for name, names in (("a", []), ("b", ["a"]), ("c", ["a", "b"]))]
    models = [(run, "crt") for run in runs]
    rows = tuple(Spending(own().mechanism, 8, number) for number in (1, 2, 3))
    card = make_composed_card(models)
    assert card["epsilon"] == pytest.approx(prove_epsilon(rows, 1e-5, Relation.SUBSTITUTION))
    assert card["epsilon_add_remove"] == card["epsilon"]
    assert WORDS["across_an_index"] in card["assumptions"]
    # one that is not composed moves nothing that is counted
    two = make_composed_card([models[0], models[2]])
    assert two["epsilon"] == pytest.approx(prove_epsilon(rows[:2], 1e-5, Relation.SUBSTITUTION))
    assert redactory.guarantee(runs[2].root, "crt")["epsilon"] == pytest.approx(
        prove_epsilon((own(),), 1e-5, Relation.SUBSTITUTION)
    )


def test_a_dropped_row_of_an_index_is_accounted_as_an_exchange(tmp_path: Path) -> None:
    runs = [_of_an_index(tmp_path, name, names, trainer="crt-drop") for name, names in (("a", []), ("b", ["a"]))]
    card = make_composed_card([(run, "crt-drop") for run in runs])
    rows = tuple(Spending(own().mechanism, 8, number) for number in (1, 2))
    assert card["epsilon"] == pytest.approx(prove_epsilon(rows, 1e-5, Relation.SUBSTITUTION))


def with_histogram(run: RunFolder, deviation: float) -> RunFolder:
    model = run.get_model_folder("crt")
    body = {"format": "redactory-evaluation/1", "evaluation": HISTOGRAM_FOLDER, "parent": file_sha256(model.manifest)}
    seal_result(model.get_result_folder(HISTOGRAM_FOLDER), Histogram(deviation, {"a": [1.0]}).to_json(), body)
    return run


def test_a_histogram_costs_every_row_that_one_point_moves(tmp_path: Path) -> None:
    """Folded duplicates, and runs of one index: of the counts as of the steps."""
    deviation = 20.0
    runs = [with_histogram(_of_an_index(tmp_path, name, names), deviation) for name, names in (("a", []), ("b", ["a"]))]
    gaussian = Histogram(deviation, {}).compute_spending(1).mechanism
    rows = [Spending(own().mechanism, 8, number) for number in (1, 2)]
    counts = [Spending(gaussian, 1, number) for number in (1, 2)]
    card = make_composed_card([(run, "crt") for run in runs])
    assert card["epsilon"] == pytest.approx(prove_epsilon((*rows, *counts), 1e-5, Relation.SUBSTITUTION))
    folded = write_run(tmp_path / "folded", policies=POLICIES, dedup={"rule": "S2", "group_size": 2})
    train_model(folded, unseeded())
    card = make_composed_card([(with_histogram(folded, deviation), "crt")])
    assert card["epsilon"] == pytest.approx(prove_epsilon((rows[1], counts[1]), 1e-5, Relation.SUBSTITUTION))


def test_what_points_of_several_runs_move_is_what_is_counted() -> None:
    # every three runs of one or two texts out of three, and every exchange of a point in each of them
    sides = [set(some) for size in (1, 2) for some in itertools.combinations("abc", size)]
    worst = [0, 0, 0]
    for runs in itertools.product(sides, repeat=3):
        for others in itertools.product(*(_exchanged(side) for side in runs)):
            for place in range(3):
                here, there = (world[place].difference(*world[:place]) for world in (list(runs), list(others)))
                worst[place] = max(worst[place], len(here - there), len(there - here))
    assert worst == [1, 2, 2]
    assert all(found <= 1 + place for place, found in enumerate(worst))


def _exchanged(side: set[str]) -> list[set[str]]:
    return [side, *((side - {old}) | {new} for old in side for new in "abc")]


def test_what_cannot_be_composed_is_refused(nights: list[RunFolder]) -> None:
    monday, tuesday = nights
    with pytest.raises(GuaranteeError, match="named twice"):
        make_composed_card([(monday, "crt"), (monday, "crt")])
    train_model(tuesday, unseeded(name="loose", delta=1e-4))
    with pytest.raises(ConfigurationError, match="delta"):
        make_composed_card([(monday, "crt"), (tuesday, "loose")])
    assert make_composed_card([(monday, "crt"), (tuesday, "loose")], 1e-4)["delta"] == 1e-4


def test_different_trainers_are_composed_for_one_exchanged_private_example(nights: list[RunFolder]) -> None:
    monday, tuesday = nights
    card = make_composed_card([(monday, "crt"), (monday, "dpsgd")])
    both = prove_epsilon((own(), own()), 1e-5, Relation.SUBSTITUTION)
    assert card["epsilon"] == card["epsilon_substitution"] == pytest.approx(both)
    assert card["unit"] == "one example (a sentence or a turn), in the private split"
    assert card["relation"] == "substitution"
    assert WORDS["different_trainers"] in card["assumptions"]
    # the policies decide nothing for one of them
    for name in ("epsilon_confidentiality", "epsilon_bayesian", "coverage_failure"):
        assert card[name] is None
        assert "policies" in card["reasons"][name]
    # a mask is no example that is gone, if one of the models is of crt
    train_model(tuesday, unseeded(trainer="crt-drop", name="drop", detector_recall_file=RECALL))
    dropped = make_composed_card([(tuesday, "drop"), (monday, "crt")])
    assert dropped["epsilon"] == pytest.approx(both)
    assert dropped["unit"] == UNIT
    assert dropped["epsilon_bayesian"] < dropped["epsilon"]


def test_one_model_without_a_guarantee_voids_all(nights: list[RunFolder], capsys: pytest.CaptureFixture[str]) -> None:
    monday, tuesday = nights
    card = make_composed_card([(monday, "crt"), (tuesday, "sgd")])
    assert (card["epsilon"], card["holds"]) == (None, False)
    assert "tuesday: sgd" in card["reasons"]["epsilon"]
    print_page(describe_composition(card))
    told = capsys.readouterr().out
    assert "All together have no guarantee" in told
    assert "tuesday: sgd: no noise" in told
    assert "epsilon " not in told
    seeded = make_composed_card([(monday, "crt"), (tuesday, "seeded")])
    assert seeded["epsilon"] is not None
    assert "seeded" in seeded["holds_reason"]


def test_a_broken_ledger_stops_the_composition(nights: list[RunFolder]) -> None:
    path = nights[1].get_model_folder("crt").ledger
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b'"step":3', b'"step":4', 1))
    try:
        with pytest.raises(GuaranteeError):
            make_composed_card([(run, "crt") for run in nights])
    finally:
        path.write_bytes(whole)


def test_guarantee_takes_every_model_or_named_ones(nights: list[RunFolder], capsys: pytest.CaptureFixture[str]) -> None:
    monday, tuesday = nights
    card = redactory.guarantee(monday.root, "crt", also=[tuesday.root])
    assert [one["run"] for one in card["models"]] == [str(monday.root), str(tuesday.root)]
    print_page(describe_composition(card))
    assert "published together" in capsys.readouterr().out
    assert len(redactory.guarantee(monday.root, [])["models"]) == 3
    with pytest.raises(ConfigurationError):
        redactory.guarantee(monday.root, "crt", delta=1e-3)
    for delta in (0.0, 1.0, float("nan")):
        with pytest.raises(ConfigurationError, match="between 0 and 1"):
            redactory.guarantee(monday.root, ["crt", "again"], delta=delta)


def test_the_command_composes_models_and_names_those_that_one_card_leaves_out(nights: list[RunFolder]) -> None:
    root = str(nights[0].root)

    def printed(*models: str) -> str:
        named = [part for model in models for part in ("--model", model)]
        done = CliRunner().invoke(app, ["guarantee", root, *named])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "For crt alone. Guarantee against somebody who also has again, dpsgd:" in printed("crt")
    assert "--model crt --model again --model dpsgd" in printed("crt")
    both, page = redactory.guarantee(root, ["crt", "again"]), printed("crt", "again")
    assert both["epsilon"] == make_composed_card([(nights[0], "crt"), (nights[0], "again")])["epsilon"]
    assert "published together" in page
    assert "alone" not in page
    assert format_upper(both["epsilon"]) in page


def settings(path: Path, epsilon: float) -> BudgetSettings:
    return BudgetSettings(path=path, epsilon=epsilon)


def test_a_training_that_cannot_be_built_is_not_booked_and_may_be_mended(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    path = tmp_path / "budget.jsonl"
    network = {"kind": "gpt2", "width": 8, "layers": 1, "heads": 1}
    # what pretrained weights can read is known once they are looked at
    folder = causal_folder(tmp_path / "weights", "gpt2", n_positions=16)
    plan = {"budget": {"path": path, "epsilon": 50.0}, "max_tokens": 32}
    with pytest.raises(ConfigurationError, match="max_tokens: the model reads 16 tokens"):
        train_model(run, unseeded(**plan, model={"folder": str(folder)}))
    assert not path.exists()
    train_model(run, unseeded(**plan, model={**network, "context": 64}))


def test_a_training_that_would_exceed_the_budget_is_refused_before_it_begins(tmp_path: Path) -> None:
    run, path = write_run(tmp_path / "run"), tmp_path / "spent.jsonl"
    one = prove_epsilon((own(),), 1e-5, Relation.SUBSTITUTION) or 0.0
    two = prove_epsilon((own(), own()), 1e-5, Relation.SUBSTITUTION) or 0.0
    budget = {"path": path, "epsilon": two + 0.01}
    for name in ("first", "second"):
        train_model(run, unseeded(name=name, budget=budget))
    with pytest.raises(BudgetExceeded, match="Nothing was trained") as refused:
        train_model(run, unseeded(name="third", budget=budget))
    assert "run/first, run/second" in str(refused.value)
    assert refused.value.exit_code == 1
    ledger = run.get_model_folder("third").ledger
    assert not ledger.exists() or not read_records(ledger)
    records = read_records(path)
    assert [record.type for record in records] == ["head", "reserved", "reserved"]
    assert [r.body["epsilon_after"] for r in records[1:]] == [pytest.approx(v, abs=1e-3) for v in (one, two)]
    train_model(run, unseeded(name="first", budget=budget))  # finished: nothing is booked again
    train_model(run, unseeded(name="third", budget={**budget, "epsilon": 3 * two}))
    assert len(read_records(path)) == 4


class Stopped(Exception):
    """Stands for an interrupt."""


def stop_at_noise(work: str, done: int, total: int | None, unit: str = "") -> None:
    if "with noise" in work:
        assert "ε ≤ " in unit
        raise Stopped


def test_an_interrupted_training_is_booked_once(tmp_path: Path) -> None:
    run, path = write_run(tmp_path / "run"), tmp_path / "spent.jsonl"
    plan = unseeded(budget={"path": path, "epsilon": 50.0})
    for _ in range(2):
        with pytest.raises(Stopped):
            train_model(run, plan, stop_at_noise)
    card = train_model(run, plan)["guarantee"]
    (reserved,) = read_records(path)[1:]
    assert reserved.body["epsilon_after"] == pytest.approx(card["epsilon"], abs=1e-3)


@pytest.mark.parametrize("other", [None, {"path": "other.jsonl"}, {"epsilon": 60.0}])
def test_an_interrupted_training_goes_on_under_its_own_budget(tmp_path: Path, other: dict[str, Any] | None) -> None:
    run = write_run(tmp_path / "run")
    begun = {"path": tmp_path / "spent.jsonl", "epsilon": 50.0}
    with pytest.raises(Stopped):
        train_model(run, unseeded(budget=begun), stop_at_noise)
    with pytest.raises(RunStateError, match="training here has other budget"):
        train_model(run, unseeded(budget=None if other is None else {**begun, **other}))
    train_model(run, unseeded(budget=begun))
    assert read_manifest(run.get_model_folder("crt"))["budget"]["path"] == str(tmp_path / "spent.jsonl")
    assert b"spent.jsonl" not in run.get_model_folder("crt").ledger.read_bytes()


def test_a_ledger_that_is_a_chain_but_not_the_sealed_one_gives_no_figure(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    train_model(run, unseeded())
    path = run.get_model_folder("crt").ledger
    records = read_records(path)
    path.unlink()
    with RecordLog(path) as log:
        for record in records:
            log.append(record.type, json.loads(json.dumps(record.body).replace(f": {NOISE}", ": 25.0")))
    for ask in (lambda: redactory.guarantee(run.root, "crt"), lambda: redactory.guarantee(run.root, ["crt"])):
        with pytest.raises(CheckFailed, match="changed after sealing"):
            ask()


def test_a_budget_is_of_one_unit_at_one_delta_and_a_chain(tmp_path: Path) -> None:
    path = tmp_path / "spent.jsonl"
    budget = Budget(settings(path, 50.0), UNIT)
    budget.reserve_spending("id", "one", own())
    loose = Budget(BudgetSettings(path=path, epsilon=50.0, delta=1e-2), UNIT)
    with pytest.raises(GuaranteeError, match=r"counts at delta 1e-05, but train\.budget\.delta is 0\.01"):
        loose.reserve_spending("other", "two", own())
    with pytest.raises(GuaranteeError, match="another privacy unit"):
        Budget(settings(path, 50.0), TRAINERS["dpsgd"].privacy_unit).require_available_budget("two", own())
    path.write_bytes(path.read_bytes().replace(b'"steps":8', b'"steps":1'))
    assert budget.summarize()["trainings"][0]["steps"] == 1  # the last line: no later one shows it
    budget.reserve_spending("other", "two", own())
    path.write_bytes(path.read_bytes().replace(b'"steps":1', b'"steps":2', 1))
    with pytest.raises(CheckFailed, match="chain of records breaks"):
        budget.summarize()


MINHASH = {"mode": "minhash", "scope": "corpus", "rule": "near-greedy", "group_size": None}


@pytest.mark.parametrize(
    ("manifest", "plan", "why"),
    [
        ({"dedup": MINHASH}, {}, "no finite epsilon: "),
        ({}, {"seed": 3}, "test mode: seed known"),
        ({}, {"trainer": "sgd"}, "no noise"),
    ],
)
def test_what_the_card_refuses_is_neither_booked_nor_shown(manifest: Any, plan: Any, why: str, tmp_path: Path) -> None:
    run, path = write_run(tmp_path / "run", **manifest), tmp_path / "spent.jsonl"
    limited = unseeded(**plan, budget={"path": path, "epsilon": 100.0})
    with pytest.raises(BudgetExceeded, match=f"cannot be trained under a budget: {why}"):
        train_model(run, limited)
    assert not path.exists()
    assert not run.get_model_folder(limited.model_name).root.exists()
    lines: list[str] = []
    card = train_model(run, unseeded(**plan), lambda *told: lines.append(str(told[-1])))["guarantee"]
    assert any(line.startswith("steps") for line in lines)
    assert not any("ε" in line for line in lines)
    assert not card["holds"]
    assert card["holds_reason"].startswith(why)


def test_an_error_before_the_first_step_costs_nothing(tmp_path: Path) -> None:
    run, held_out = write_run(tmp_path / "run"), tmp_path / "held.txt"
    limited = unseeded(held_out=held_out, budget={"path": tmp_path / "spent.jsonl", "epsilon": 100.0})
    with pytest.raises(RedactoryError, match=r"held\.txt"):
        train_model(run, limited)
    assert not limited.budget.path.exists()
    held_out.write_text("Good morning\n", encoding="utf-8")
    train_model(run, limited)
    assert len(read_records(limited.budget.path)) == 2


def test_a_budget_protects_what_all_its_trainings_protect(tmp_path: Path) -> None:
    """Of trainings whose vocabulary is public or not: the examples of the private split."""
    run, path = write_run(tmp_path / "run"), tmp_path / "spent.jsonl"
    for name, tokenizer in (("wide", "shipped"), ("narrow", "public")):
        plan = unseeded(trainer="dpsgd", name=name, tokenizer=tokenizer, budget={"path": path, "epsilon": 100.0})
        unit = train_model(run, plan)["guarantee"]["unit"]
        assert ("in the private split" in unit) is (name == "narrow")
        told = Budget.from_settings(plan)
        assert told is not None
        assert "in the private split" in told.summarize()["unit"]
    head, *rest = read_records(path)
    earlier = tmp_path / "earlier.jsonl"
    with RecordLog(earlier) as log:  # of the last version, whose head named the wide unit
        for record in (head, *rest):
            unit = record.body.get("unit", "").removesuffix(", in the private split")
            log.append(record.type, {**record.body, **({"unit": unit} if unit else {})})
    plan = unseeded(trainer="dpsgd", name="third", budget={"path": earlier, "epsilon": 100.0})
    train_model(run, plan)
    assert len(read_records(earlier)) == 4


def test_two_trainings_at_once_do_not_spend_the_same_room(tmp_path: Path) -> None:
    path = tmp_path / "spent.jsonl"
    one = prove_epsilon((own(),), 1e-5, Relation.SUBSTITUTION) or 0.0

    def book(number: int) -> str:
        try:
            Budget(settings(path, 1.2 * one), UNIT).reserve_spending(f"id {number}", f"model {number}", own())
        except BudgetExceeded:
            return "refused"
        return "booked"

    with ThreadPoolExecutor(4) as threads:
        assert sorted(threads.map(book, range(4))) == ["booked", "refused", "refused", "refused"]
    assert len(Budget(settings(path, 1.0), UNIT).summarize()["trainings"]) == 1


def test_what_is_spent_is_never_rounded_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    budget = Budget(settings(tmp_path / "spent.jsonl", 50.0), UNIT)
    for number, exact in enumerate((0.00001, 1.00001, 1.00004, 2.34561, 7.0)):
        monkeypatch.setattr(Budget, "compute_epsilon", lambda _budget, _spent, own=exact: own)
        budget.reserve_spending(f"id {number}", f"model {number}", own())
        told = budget.summarize()
        for stated in (told["spent"], told["trainings"][-1]["epsilon_after"]):
            assert exact <= stated < exact + 1.0001e-4


def test_the_command_says_what_is_spent_and_by_whom(tmp_path: Path) -> None:
    path = tmp_path / "spent.jsonl"
    named = {"path": str(path), "epsilon": 50.0}
    config: dict[str, Any] = {"input": {"path": "rows.jsonl"}, "train": {"budget": named}}
    nothing = redactory.budget(config)
    assert (nothing["spent"], nothing["trainings"]) == (0.0, [])
    for number in (1, 2):
        Budget(settings(path, 50.0), UNIT).reserve_spending(f"id {number}", f"run/model-{number}", own())
    told = redactory.budget(config)
    both = prove_epsilon((own(), own()), 1e-5, Relation.SUBSTITUTION)
    assert told["spent"] == told["trainings"][-1]["epsilon_after"] == pytest.approx(both, abs=1e-4)
    assert [one["training"] for one in told["trainings"]] == ["run/model-1", "run/model-2"]
    job = tmp_path / "job.yaml"
    for limit in (50, 0.5):
        named["epsilon"] = limit
        job.write_text(json.dumps(config))
        printed = CliRunner().invoke(app, ["budget", str(job)]).stdout
        assert f"{told['spent']:.4f} of {limit} spent{': over the budget' if limit < 1 else ','}" in printed
        assert "run/model-2" in printed
    with pytest.raises(ConfigurationError, match=r"train\.budget: the configuration has none"):
        redactory.budget({"input": {"path": "rows.jsonl"}})
