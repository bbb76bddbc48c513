"""``redactory predict --generate``: what a sealed model writes, with its guarantee beside it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import redactory
from redactory.flows.cli import app
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.files import read_json, write_json
from redactory.redaction import RunFolder
from redactory.training import load_model, train_model
from redactory.training.model import LanguageModel
from tests.training.conftest import small, write_run

PROMPTS = ("Hello, how", "")
GPT2 = {"kind": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 24}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with an LSTM and a GPT-2."""
    folder = write_run(tmp_path_factory.mktemp("generate") / "RUN")
    train_model(folder, small(minimum_plain_steps=30, learning_rate=0.05, group_sizes=()))
    train_model(folder, small(trainer="sgd", model=GPT2, name="gpt2", max_tokens=20, epochs=1))
    return folder


def _greedy(model: LanguageModel, prompt: str, tokens: int) -> str:
    """The likeliest token after the other, read one at a time."""
    state, ids, codec = model.network.initial_state(1), [], model.tokenizer
    reading = [codec.begin_id, *codec.encode(prompt)]
    while len(ids) < tokens:
        for number in reading:
            scores, state = model.network.step(torch.tensor([number]), state)
        reading = [int(scores[0, : codec.size].argmax())]
        if reading[0] == codec.end_id:
            break
        ids += reading
    return codec.decode(ids)


@pytest.mark.parametrize("name", ["crt", "gpt2"])
def test_the_likeliest_text_is_that_of_reading_one_token_at_a_time(run: RunFolder, name: str) -> None:
    folder = run.model(name)
    found = redactory.predict(folder.root, PROMPTS, write=2, tokens=9, temperature=0)
    model = load_model(folder)
    assert found["texts"] == [[_greedy(model, prompt, 9)] * 2 for prompt in PROMPTS]
    assert redactory.predict(folder.root, PROMPTS, write=2, tokens=9, top_k=1)["texts"] == found["texts"]
    assert found["guarantee"]["trainer"] == {"crt": "crt", "gpt2": "sgd"}[name]


def test_a_seed_writes_the_same_texts_and_without_one_it_is_told(run: RunFolder) -> None:
    folder = run.model("crt").root
    first = redactory.predict(folder, PROMPTS, write=3, tokens=12)
    again = redactory.predict(folder, PROMPTS, write=3, tokens=12, seed=first["seed"])
    other = redactory.predict(folder, PROMPTS, write=3, tokens=12)
    assert again == first
    assert other["seed"] != first["seed"]
    assert other["texts"] != first["texts"]
    assert [len(texts) for texts in first["texts"]] == [3, 3]
    assert len({text for texts in first["texts"] for text in texts}) > 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"texts": ()},
        {"write": 0},
        {"tokens": 0},
        {"temperature": -1.0},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"top_k": 0},
    ],
)
def test_arguments_out_of_range_are_refused(run: RunFolder, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="predict: give a top"):
        redactory.predict(run.model("crt").root, **{"write": 1, **wrong})


def test_more_tokens_than_a_context_holds_are_refused(run: RunFolder) -> None:
    with pytest.raises(ConfigurationError, match=r"context of 24, so ask for at most 23 \(--tokens 23\)"):
        redactory.predict(run.model("gpt2").root, tokens=24, write=1)


def test_what_apply_refuses_writes_nothing(run: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(RunStateError, match="no finished model"):
        redactory.predict(run.root / "models" / "absent")
    copy = Path(shutil.copytree(run.model("crt").root, tmp_path / "copy"))
    assert redactory.predict(copy, tokens=2, write=1)["model"] == "copy"
    card = read_json(copy / "guarantee.json")
    write_json(copy / "guarantee.json", {**card, "epsilon": 0.1, "holds": True})
    with pytest.raises(CheckFailed, match=r"guarantee\.json: sha256 differs"):
        redactory.predict(copy, tokens=2, write=1)
    (copy / "_SUCCESS").unlink()
    with pytest.raises(RunStateError, match="no finished model"):
        redactory.predict(copy, tokens=2, write=1)


def test_the_command_prints_texts_and_the_promise(run: RunFolder) -> None:
    folder = str(run.model("crt").root)
    asked = ["predict", folder, "--text", PROMPTS[0], "--generate", "2", "--tokens", "6", "--seed", "4"]
    expected = redactory.predict(folder, PROMPTS[:1], write=2, tokens=6, seed=4)
    shown = CliRunner().invoke(app, asked)
    assert shown.exit_code == 0, shown.output
    for text in expected["texts"][0]:
        assert (
            "".join(c if c.isprintable() or c in "\n\t" else "�" for c in PROMPTS[0] + text) in shown.stdout
        )
    assert "Seed: 4" in shown.stdout
    assert "no guarantee holds" in shown.stdout
    told = CliRunner().invoke(app, [*asked, "--json"])
    assert json.loads(told.stdout) == expected
    assert (
        CliRunner().invoke(app, ["predict", folder, "--generate", "1", "--temperature", "-1"]).exit_code == 2
    )
