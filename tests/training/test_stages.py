"""A training that starts from a model of its own run: the guarantee is of both, or there is none."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator

import redactory
from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.foundation.files import read_json
from redactory.foundation.records import read_records
from redactory.pipelines.measure.evaluate_attacks import compute_audit_p_value
from redactory.redaction.folder import RunFolder
from redactory.training import RecallMeasurement, load_model, train_model
from redactory.training.accounting import Spending
from redactory.training.guarantee.budget import BudgetExceeded
from redactory.training.guarantee.compose import make_composed_card
from redactory.training.ldp.encoder import _read_trained_model_provenance
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation
from tests.training.accounting.worlds import prove_epsilon
from tests.training.conftest import make_small_settings, write_run

NOISE = (3.0, 4.0)
FRESH = {"kind": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 64}
SPENT = tuple(Spending(PoissonGaussian(0.25, noise, 1.0, 256.0), 8) for noise in NOISE)
BOTH = prove_epsilon(SPENT, 1e-5, Relation.SUBSTITUTION)


def unseeded(noise: float, model: Any, **changes: Any) -> Any:
    return make_small_settings(**{"seed": None, "noise_multiplier": noise, "model": model, "max_tokens": 40, **changes})


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with a model ``first``, and ``second``: adapters that were trained upon it."""
    counts = {"examples": 64, "quarantined": 0, "public": 32, "private": 32, "private_duplicate": 0}
    run = write_run(tmp_path_factory.mktemp("staged") / "run", counts=counts)
    recall = RecallMeasurement(labels=1000, missed_by_strict=50, missed_by_both=0)
    train_model(run, unseeded(NOISE[0], FRESH, name="first", detector_recall_file=recall))
    upon = {"folder": run.get_model_folder("first").root, "lora": {"rank": 2}}
    train_model(run, unseeded(NOISE[1], upon, name="second", detector_recall_file=recall))
    return run


def test_the_card_adds_up_every_stage_and_nothing_twice(staged: RunFolder) -> None:
    card = redactory.guarantee(staged.root, "second")
    assert card["epsilon"] == pytest.approx(BOTH)
    assert card["holds"]
    assert card["base"]["start"] == "first"
    assert card["base"]["ledger"] == redactory.guarantee(staged.root, "first")["ledger"]["head"]
    assert card["event"]["class"] == "ComposedDpEvent"
    assert "model `first` of the same run" in staged.get_model_folder("second").card.read_text()
    Draft202012Validator(redactory.schema("guarantee")).validate(read_json(staged.get_model_folder("second").guarantee))
    for names in (["second"], ["first", "second"], ["second", "first"]):
        together = make_composed_card([(staged, name) for name in names])
        assert together["epsilon"] == pytest.approx(BOTH)
        assert {one["model"] for one in together["models"]} == {"first", "second"}


def test_a_plan_and_an_audit_know_of_the_first_stage(staged: RunFolder, tmp_path: Path) -> None:
    train = unseeded(NOISE[1], {"folder": staged.get_model_folder("first").root}, name="third")
    config = {"input": "rows.jsonl", "train": train.model_dump(mode="json", exclude_unset=True)}
    plan = redactory.plan(config, output=staged.root)
    assert plan["epsilon"] == pytest.approx(BOTH)
    assert plan["sweep"] == plan["curve"] == []
    with pytest.raises(ConfigurationError, match="first is a model of another run"):
        redactory.plan(config, output=tmp_path / "elsewhere")
    found = {"canaries": 10, "by_share": [{"guesses": 10, "correct": 5}]}
    levels = [compute_audit_p_value(staged, name, found, "epsilon") for name in ("first", "second")]
    assert levels == [pytest.approx(1.0), None]


def test_adapters_are_saved_by_themselves_and_say_what_the_merged_weights_say(staged: RunFolder) -> None:
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    folder, ids = staged.get_model_folder("second"), torch.arange(3, 20)[None]
    library: Any = AutoModelForCausalLM
    base = library.from_pretrained(staged.get_model_folder("first").root, local_files_only=True)
    adapted = PeftModel.from_pretrained(base, folder.root / "adapter")
    merged = library.from_pretrained(folder.root, local_files_only=True)
    with torch.no_grad():
        torch.testing.assert_close(adapted(ids).logits, merged(ids).logits, rtol=1e-4, atol=1e-5)
    assert b'"base_model_name_or_path": "first"' in (folder.root / "adapter/adapter_config.json").read_bytes()
    assert load_model(folder).compute_token_log_probs(["Hello"])[0].dtype == "float64"


def test_a_start_that_is_gone_or_another_leaves_no_figure(staged: RunFolder, tmp_path: Path) -> None:
    run = RunFolder(shutil.copytree(staged.root, tmp_path / "run"))
    assert redactory.guarantee(run.root, "second")["epsilon"] == pytest.approx(BOTH)
    first = run.get_model_folder("first").root
    shutil.move(first, tmp_path / "away")
    with pytest.raises(GuaranteeError, match="models/first has no ledger"):
        redactory.guarantee(run.root, "second")
    train_model(run, unseeded(NOISE[0], FRESH, name="first"))
    with pytest.raises(GuaranteeError, match="starts from another models/first"):
        redactory.guarantee(run.root, "second")


def test_an_encoder_of_messages_is_not_one_of_several_stages(staged: RunFolder) -> None:
    with pytest.raises(GuaranteeError, match="started from another model"):
        _read_trained_model_provenance(staged.get_model_folder("second"))


def test_what_cannot_be_added_up_is_no_start(staged: RunFolder, tmp_path: Path) -> None:
    def refused(words: str, folder: Path, run: RunFolder = staged, **changes: Any) -> None:
        with pytest.raises(ConfigurationError, match=words):
            train_model(run, unseeded(NOISE[1], {"folder": folder}, name="third", **changes))
        assert not run.get_model_folder("third").root.exists()

    first = staged.get_model_folder("first").root
    other = write_run(tmp_path / "other")
    refused("first is a model of another run", first, other)
    refused("copy is a model of another run", Path(shutil.copytree(first, tmp_path / "copy")))
    refused("whose epsilons are about another privacy unit", first, trainer="dpsgd")
    train_model(other, unseeded(1.0, FRESH, name="bare", trainer="sgd", noise_multiplier=None))
    refused("which has no guarantee", other.get_model_folder("bare").root, other)
    train_model(other, make_small_settings(model=FRESH, max_tokens=40, name="seeded"))
    refused("which has no guarantee", other.get_model_folder("seeded").root, other)


def test_a_budget_must_know_the_start(staged: RunFolder, tmp_path: Path) -> None:
    run, path = write_run(tmp_path / "run"), tmp_path / "spent.jsonl"
    budget = {"path": path, "epsilon": 50.0}
    train_model(run, unseeded(NOISE[0], FRESH, name="first"))
    upon = {"folder": run.get_model_folder("first").root}
    with pytest.raises(BudgetExceeded, match=r"run/first is not recorded in it"):
        train_model(run, unseeded(NOISE[1], upon, name="second", budget=budget))
    train_model(run, unseeded(NOISE[0], FRESH, name="counted", budget=budget))
    train_model(run, unseeded(NOISE[1], {"folder": run.get_model_folder("counted").root}, name="third", budget=budget))
    assert read_records(path)[-1].body["epsilon_after"] == pytest.approx(BOTH, abs=1e-3)
