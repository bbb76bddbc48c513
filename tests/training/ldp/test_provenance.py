"""Which encoders are refused, and why: what was updated on private text without noise never serves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError
from redactory.redaction.folder import RunFolder
from redactory.training import train_model
from redactory.training.data import PublicText
from redactory.training.guarantee.spec import read_ledger_facts
from redactory.training.ldp.encoder import SentenceEncoder, pretrain_encoder
from redactory.training.mechanisms.mechanism import Relation
from tests.training.accounting.worlds import prove_epsilon
from tests.training.ldp.ldp_sides import small
from tests.training.tiny_folders import write_bert_folder
from tests.training.uedp.unit_runs import PUBLIC_ROWS, training, write_public, write_unit_run

CLASSES: dict[str, Any] = {
    "task": "classify",
    "classes": ("meeting", "letter"),
    "model": {"kind": "bilstm", "embedding_size": 6, "hidden_size": 5, "bottleneck": 3},
    "group_sizes": (),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """One model by DP-SGD without a seed, and models that may not serve."""
    folder = tmp_path_factory.mktemp("labelled")
    run, public = write_unit_run(folder / "RUN", classes=True), write_public(folder / "donated.jsonl")
    bounds: dict[str, Any] = {"bounding": {}}
    train_model(run, training(None, trainer="dpsgd", seed=None, **bounds, **CLASSES))
    train_model(run, training(None, trainer="dpsgd", name="seeded", epochs=1, group_sizes=(), **bounds))
    train_model(run, training(None, trainer="sgd", epochs=1, **bounds))
    train_model(run, training(public, trainer="noiseless", epochs=1, **bounds, **CLASSES))
    train_model(run, training(public, epochs=1, **CLASSES))
    return run


def _folder(run: RunFolder, name: str) -> Path:
    return run.get_model_folder(name).root


def test_a_classifier_by_dp_sgd_serves_and_its_mechanism_is_composed(run: RunFolder) -> None:
    encoder = SentenceEncoder.load(_folder(run, "dpsgd"))
    facts = read_ledger_facts(run, run.get_model_folder("dpsgd"))
    (spent,) = encoder.spendings
    assert (spent.mechanism, spent.steps, spent.rows) == (facts.mechanism, 4, 1)
    told = encoder.provenance
    assert (told["kind"], told["relation"], told["ledger"]) == ("dpsgd", "substitution", facts.chain_head)
    assert told["epsilon"] == pytest.approx(prove_epsilon(encoder.spendings, told["delta"], Relation.SUBSTITUTION))
    assert (encoder.get_shape("latent"), encoder.network.classes) == ((3,), CLASSES["classes"])
    assert encoder.represent(PUBLIC_ROWS[:2]).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sgd", "every later message by 2C"),
        ("noiseless", "every later message by 2C"),
        ("uedp-bounded", "another privacy unit"),
        ("seeded", "seed"),
    ],
)
def test_models_of_private_text_without_noise_are_refused(run: RunFolder, name: str, reason: str) -> None:
    with pytest.raises(GuaranteeError, match=rf"{name}: .*{reason}"):
        SentenceEncoder.load(_folder(run, name), declared_public=True)


def test_a_model_is_checked_against_its_run_and_its_seal(run: RunFolder, tmp_path: Path) -> None:
    shutil.copytree(_folder(run, "dpsgd"), tmp_path / "dpsgd")
    with pytest.raises(GuaranteeError, match="RUN/models/NAME"):
        SentenceEncoder.load(tmp_path / "dpsgd", declared_public=True)
    copy = RunFolder(tmp_path / "RUN")
    shutil.copytree(run.root, copy.root)
    card = json.loads(copy.get_model_folder("dpsgd").guarantee.read_text())
    copy.get_model_folder("dpsgd").guarantee.write_text(json.dumps({**card, "epsilon_substitution": 0.1}))
    with pytest.raises(GuaranteeError, match="changed after sealing"):
        SentenceEncoder.load(_folder(copy, "dpsgd"))


@pytest.mark.parametrize("named", ["ledger.jsonl", "guarantee.json", "fit.json", "_SUCCESS"])
def test_no_declaration_outweighs_what_a_folder_says_of_itself(named: str, tmp_path: Path) -> None:
    folder = write_bert_folder(tmp_path / "bert", positions=40)
    (folder / named).write_text("{}\n")
    with pytest.raises(CheckFailed):
        SentenceEncoder.load(folder, declared_public=True)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a b", "label": "x"}\n{"text": "c d", "label": "y"}\n')
    with pytest.raises(CheckFailed, match="trained on a corpus"):
        pretrain_encoder(PublicText(rows), small(model={"kind": "folder", "folder": folder}), tmp_path / "out")


def test_a_folder_of_unknown_training_must_be_declared_and_be_an_encoder(run: RunFolder, tmp_path: Path) -> None:
    folder = write_bert_folder(tmp_path / "bert", positions=40)
    with pytest.raises(ConfigurationError, match="Declare it public"):
        SentenceEncoder.load(folder)
    encoder = SentenceEncoder.load(folder, declared_public=True, dimension=5)
    assert (encoder.provenance["kind"], encoder.spendings) == ("declared public", ())
    assert encoder.get_shape("latent") == (5,)
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(_folder(run, "sgd") / name, bare / name)
    with pytest.raises(ConfigurationError, match="no encoder"):
        SentenceEncoder.load(bare, declared_public=True)
