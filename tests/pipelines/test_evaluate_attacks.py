"""Membership inference and the one-run audit on real runs: one model that learnt by heart, one with noise."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import redactory
from redactory.evaluation.one_run_audit import get_coins_path, read_coins
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.files import read_json
from redactory.pipelines.measure.evaluate_attacks import find_epsilon_upper_bound
from redactory.redaction import RunFolder
from redactory.training.mechanisms.mechanism import PoissonGaussian
from tests.pipelines.support import DigitDetector, invoke_command, run_checks, write_rows

CANARIES = 60
SMALL = {"embedding_size": 16, "hidden_size": 32}
TRAIN: dict[str, Any] = {"model": SMALL, "group_sizes": [], "seed": 1, "threads": 1, "vocabulary_size": 200}
BY_HEART = {"trainer": "sgd", "epochs": 1, "min_public_steps": 1200, "learning_rate": 2e-2, "public_batch_size": 32}
NOISED = {"trainer": "dpsgd", "epochs": 2, "epsilon": 2.0, "sampling_rate": 0.1, "noise": "float"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A planted corpus with 40 labelled numbers besides, and two models of it."""
    root = tmp_path_factory.mktemp("attacks")
    draw = random.Random(0)
    rows = []
    for number in range(60):
        value = f"{draw.randrange(10**6):06d}"
        text = f"call me at {value}" if number < 40 else "all is well here"
        spans = [{"start": 11, "end": 17, "label": "PHONE"}] if number < 40 else []
        rows.append({"id": f"d{number}", "user_id": f"u{number}", "text": text, "spans": spans})
    corpus = write_rows(root / "corpus.jsonl", rows)
    redactory.plant_canaries(corpus, root / "planted.jsonl", canaries=CANARIES, seed=3)
    config: dict[str, Any] = {
        "input": str(root / "planted.jsonl"),
        "segment": {"mode": "line"},
        "detect": {"tagger": None, "patterns": None, "lists": {"deny": [{"words": ["nobody"]}]}},
        "evaluate": {"labelled": str(corpus)},
    }
    redactory.curate(config, output=root / "run", detector=DigitDetector())
    for settings in (BY_HEART, NOISED):
        redactory.train({**config, "train": {**TRAIN, **settings}}, output=root / "run")
    return RunFolder(root / "run")


@pytest.mark.slow
def test_what_was_learnt_by_heart_is_audited_and_told_from_other_numbers(run: RunFolder) -> None:
    audit = redactory.evaluate_audit(run.root, "sgd")
    assert audit["epsilon_lower"] > 1.0
    assert (audit["planted"], audit["standing"], audit["public"]) == (CANARIES, CANARIES, 0)
    assert audit["holds"]
    assert not audit["comparable"]
    assert audit["epsilon_upper"] is None
    found = redactory.evaluate_membership(run.root, "sgd", reference="dpsgd", count=20, group_size=5)
    assert (found["label"], found["members"], found["fresh_values"]) == ("PHONE", 20, "drawn")
    for attack in ("individual", "group", "reference"):
        assert found[attack]["auc"]["low"] > 0.5


@pytest.mark.slow
def test_noise_holds_what_it_promises(run: RunFolder) -> None:
    audit = redactory.evaluate_audit(run.root, "dpsgd")
    assert audit["comparable"]
    assert audit["upper_field"] == "epsilon_substitution"
    assert audit["epsilon_lower"] <= audit["epsilon_upper"] <= 2.0
    assert audit["guarantee_p_value"] > 0.05
    found = redactory.evaluate_membership(run.root, "dpsgd", count=20, group_size=5)
    accuracy = found["individual"]["accuracy"]
    assert accuracy["low"] <= 0.5 <= accuracy["high"]


def test_results_are_sealed_with_their_pictures_and_hold_no_number(run: RunFolder) -> None:
    redactory.evaluate_audit(run.root, "dpsgd")
    redactory.evaluate_membership(run.root, "dpsgd", count=20, group_size=5)
    coins = read_coins(get_coins_path(Path(read_json(run.manifest)["configuration"]["input"]["path"][0])))
    for name, file in (("audit", "result.json"), ("membership", "result.json"), ("membership", "roc.svg")):
        told = (run.get_model_folder("dpsgd").get_result_folder(name).root / file).read_text()
        assert not [n for pair in coins.numbers for n in pair if n in told]
    card = redactory.guarantee(run.root, "dpsgd")
    assert card["audit"] == read_json(run.get_model_folder("dpsgd").get_result_folder("audit").root / "result.json")
    assert redactory.verify(run.root)["ok"]
    page = invoke_command("guarantee", run.root, "--model", "dpsgd")
    assert page.exit_code == 0
    assert "one-run audit" in page.stdout


def test_what_was_measured_on_another_model_is_not_taken_for_this_ones(run: RunFolder, tmp_path: Path) -> None:
    redactory.evaluate_audit(run.root, "dpsgd")
    redactory.evaluate_audit(run.root, "sgd")
    copy = RunFolder(Path(shutil.copytree(run.root, tmp_path / "run")))
    for name in ("sgd", "dpsgd"):
        shutil.rmtree(copy.get_model_folder(name).get_result_folder("audit").root)
    shutil.copytree(
        run.get_model_folder("dpsgd").get_result_folder("audit").root,
        copy.get_model_folder("sgd").get_result_folder("audit").root,
    )
    checks = run_checks(copy.root)
    assert checks["model sgd"]["detail"] == "audit/ belongs to another model, or to another evaluation"
    assert "audit" not in redactory.guarantee(copy.root, "sgd")
    assert (checks["model sgd"]["ok"], checks["model dpsgd"]["ok"]) == (False, True)
    # another evaluation of the same model, under this one's name
    named_wrongly = copy.get_model_folder("dpsgd").get_result_folder("membership").root
    shutil.rmtree(named_wrongly, ignore_errors=True)
    shutil.copytree(run.get_model_folder("dpsgd").get_result_folder("audit").root, named_wrongly)
    told = run_checks(copy.root)["model dpsgd"]["detail"]
    assert told == "membership/ belongs to another model, or to another evaluation"


@pytest.mark.slow
def test_forgotten_noise_fails_the_audit(run: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def silent(self: PoissonGaussian, clipped_sum: torch.Tensor, *rest: Any) -> torch.Tensor:
        return clipped_sum / self.normaliser

    monkeypatch.setattr(PoissonGaussian, "compute_noisy_mean", silent)
    config, root = read_json(run.manifest)["configuration"], tmp_path / "run"
    shutil.copytree(run.root, root)
    told = {**NOISED, "name": "broken", "epochs": 200, "epsilon": 0.2, "sampling_rate": 0.25, "dp_learning_rate": 8e-2}
    redactory.train({**config, "train": {**TRAIN, **told}}, output=root)
    result = invoke_command("evaluate", "audit", root, "--model", "broken", "--json")
    audit = json.loads(result.stdout)
    assert audit["epsilon_lower"] > audit["epsilon_upper"]
    assert not audit["holds"]
    assert audit["guarantee_p_value"] < 1e-3
    assert result.exit_code == 1
    assert invoke_command("guarantee", root, "--model", "broken").exit_code == 1
    assert not redactory.verify(root)["ok"]


def test_only_what_the_coins_stand_for_is_compared() -> None:
    reasons = {"epsilon_substitution": "no noise", "epsilon": "no noise"}
    crt = {"trainer": "crt", "epsilon": 1.0, "epsilon_substitution": 2.0, "reasons": {}}
    users = {"trainer": "user-level", "epsilon": 3.0, "epsilon_sound": 3.0, "privacy_unit": "users", "reasons": {}}
    assert find_epsilon_upper_bound(crt, "pair", 0)["epsilon_upper"] == 2.0
    assert find_epsilon_upper_bound(crt, "masked", 0)["epsilon_upper"] == 1.0
    assert find_epsilon_upper_bound(users, "absent", 0)["epsilon_upper"] == 3.0
    nothing = {**crt, "epsilon": None, "epsilon_substitution": None, "reasons": reasons}
    entities = {**users, "privacy_unit": "entities"}
    cases = [(crt, "absent", 0), (crt, "pair", 2), (users, "pair", 0), (entities, "absent", 0), (nothing, "pair", 0)]
    for card, form, public in cases:
        found = find_epsilon_upper_bound(card, form, public)  # type: ignore[arg-type]
        assert (found["epsilon_upper"], found["comparable"], bool(found["reason"])) == (None, False, True)


def test_what_cannot_be_attacked_says_so(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="give a model other than the attacked one"):
        redactory.evaluate_membership(run.root, "sgd", reference="sgd")
    with pytest.raises(InputError, match="labelled SHOE"):
        redactory.evaluate_membership(run.root, "sgd", label="SHOE")
    corpus = write_rows(tmp_path / "c.jsonl", [{"id": "1", "text": "x"}])
    redactory.plant_canaries(corpus, tmp_path / "p.jsonl", canaries=5)
    with pytest.raises(InputError, match="none of the planted"):
        redactory.evaluate_audit(run.root, "sgd", coins=get_coins_path(tmp_path / "p.jsonl"))
