"""A trained model in use: ``redactory predict``, and the error rate of a classifier."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import redactory
from redactory.evaluation.utility import accuracy
from redactory.flows.cli import app
from redactory.foundation.errors import CheckFailed, ConfigurationError, InputError, RunStateError
from redactory.foundation.files import read_json
from redactory.redaction import RunFolder
from redactory.training import load_model
from redactory.training.model import load_classifier
from tests.pipelines.support import DigitDetector, write_rows

CLASSES = ("money", "law")
SENTENCES = {
    "money": ("the rent is due", "payment is late", "pay the fee now"),
    "law": ("the law of the state applies", "governed by law", "the court decides"),
}
TEXTS = ["the rent is due today", "the court decides", ""]


def _row(number: int) -> dict[str, Any]:
    kind = CLASSES[number % 2]
    text = f"{SENTENCES[kind][number % 3]} number {number}\nthank you"
    return {"id": f"d{number}", "user_id": f"u{number % 5}", "text": text, "kind": kind}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with a classifier and a language model."""
    root = tmp_path_factory.mktemp("apply")
    rows = [_row(number) for number in range(24)]
    test = [*rows[:10], {**rows[10], "kind": None}, {**rows[11], "kind": "xyzzy"}]
    config: dict[str, Any] = {
        "input": {"path": str(write_rows(root / "rows.jsonl", rows)), "label": "kind"},
        "segment": {"mode": "line"},
        "detect": {"tagger": None, "patterns": None, "lists": {"deny": [{"words": ["nobody"]}]}},
        "evaluate": {"test": str(write_rows(root / "test.jsonl", test))},
    }
    train = {
        "model": {"embedding_size": 8, "hidden_size": 12},
        "epochs": 2,
        "minimum_plain_steps": 20,
        "public_batch_size": 8,
        "group_sizes": [],
        "seed": 1,
        "threads": 1,
    }
    redactory.curate(config, output=root / "run", detector=DigitDetector())
    told = {"trainer": "noiseless", "name": "classes", "task": "classify", "classes": list(CLASSES)}
    redactory.train({**config, "train": {**train, **told}}, output=root / "run")
    redactory.train({**config, "train": {**train, "trainer": "sgd", "name": "words"}}, output=root / "run")
    return RunFolder(root / "run")


def test_the_error_rate_is_that_of_every_point_by_itself(run: RunFolder) -> None:
    result = redactory.evaluate_model(run.root, "classes")
    model = load_classifier(run.model("classes"))
    points = [(line, _row(n)["kind"]) for n in range(10) for line in str(_row(n)["text"]).split("\n")]
    said = [CLASSES[int(model.log_probs([text])[0].argmax())] for text, _ in points]
    wrong = sum(answer != kind for answer, (_, kind) in zip(said, points, strict=True))
    assert (result["texts"], result["errors"], result["error_rate"]) == (20, wrong, wrong / 20)
    assert result["left_out"] == {"without_class": 2, "other_class": 2}
    assert result["majority_error_rate"] == 0.5
    assert read_json(run.model("classes").result("accuracy").root / "result.json") == result
    assert "xyzzy" not in json.dumps(result)
    assert "test errors" in run.report.read_text()
    verified = {check["name"]: check for check in redactory.verify(run.root)["checks"]}
    assert verified["model classes"]["ok"], verified["model classes"]
    assert verified["report"]["ok"]


class _Told:
    """A classifier whose answers are given: text i is answered with class ``answers[i]``."""

    def __init__(self, answers: list[int], classes: int) -> None:
        self.answers = answers
        self.classes = tuple(f"c{number}" for number in range(classes))

    def log_probs(self, texts: list[str], batch_size: int) -> Any:
        rows = [self.answers[int(text)] for text in texts]
        return np.log(np.full((len(rows), len(self.classes)), 0.1) + 0.5 * np.eye(len(self.classes))[rows])


@settings(max_examples=60)
@given(st.data(), st.integers(2, 5))
def test_confusion_counts_every_text_once(data: st.DataObject, classes: int) -> None:
    names = [f"c{number}" for number in range(classes)]
    given_: list[Any] = data.draw(st.lists(st.sampled_from([*names, None, "else"]), min_size=1, max_size=30))
    answers = data.draw(st.lists(st.integers(0, classes - 1), min_size=len(given_), max_size=len(given_)))
    model: Any = _Told(answers, classes)
    texts = [str(number) for number in range(len(given_))]
    if not set(names) & set(given_):
        with pytest.raises(InputError):
            accuracy(model, texts, given_)
        return
    result = accuracy(model, texts, given_)
    pairs = [(kind, names[answer]) for kind, answer in zip(given_, answers, strict=True) if kind in names]
    expected = [[pairs.count((true, said)) for said in names] for true in names]
    assert result["confusion"] == expected
    assert result["errors"] == sum(true != said for true, said in pairs)
    assert result["texts"] + sum(result["left_out"].values()) == len(given_)
    assert sum(one["texts"] for one in result["by_class"]) == sum(one["said"] for one in result["by_class"])
    most = max(sum(row) for row in expected)
    assert result["majority_error_rate"] == pytest.approx(1 - most / len(pairs))
    right = (0.6, 0.1)
    assert result["log_loss"] == pytest.approx(
        -np.mean([np.log(right[true != said]) for true, said in pairs])
    )


def test_classes_are_those_of_the_model_and_its_promise_stands_beside_them(run: RunFolder) -> None:
    result = redactory.predict(run.model("classes").root, TEXTS, top=1)
    scores = load_classifier(run.model("classes")).log_probs(TEXTS)
    assert [[one["class"] for one in answers] for answers in result["results"]] == [
        [CLASSES[int(row.argmax())]] for row in scores
    ]
    card = read_json(run.model("classes").guarantee)
    told = result["guarantee"]
    assert {key: told[key] for key in ("trainer", "unit", "relation", "epsilon", "delta", "holds")} == {
        key: card[key] for key in ("trainer", "unit", "relation", "epsilon", "delta", "holds")
    }
    assert told["epsilon"] is None
    assert told["reason"]


def _said(codec: Any, number: int) -> str:
    """What a person reads of an id: a lone octet of several is no text, and must not look like one."""
    octet, text = codec.pieces[number].removeprefix("<0x"), str(codec.decode([number]))
    return "\\x" + octet[:2].lower() if text == "\ufffd" else text


def test_next_words_are_the_likeliest_after_the_text(run: RunFolder) -> None:
    """Told by reading the text token by token; ids that read the same are one answer."""
    result = redactory.predict(run.model("words").root, TEXTS, top=1_000_000)
    model = load_model(run.model("words"))
    codec = model.tokenizer
    for text, answers in zip(TEXTS, result["results"], strict=True):
        state = model.network.initial_state(1)
        for number in [codec.begin_id, *codec.encode(text)]:
            scores, state = model.network.step(torch.tensor([number]), state)
        expected: Counter[str] = Counter()
        for number, score in enumerate(scores[0].double().exp().tolist()):
            if number not in (codec.pad_id, codec.begin_id):
                expected["<END>" if number == codec.end_id else _said(codec, number)] += score
        found = {one["token"]: one["probability"] for one in answers}
        assert found == pytest.approx(expected, rel=1e-4)
        assert list(found.values()) == sorted(found.values(), reverse=True)


def test_what_is_no_model_or_not_the_sealed_one_is_refused(run: RunFolder, tmp_path: Path) -> None:
    classes = run.model("classes").root
    with pytest.raises(ConfigurationError, match="writes nothing"):
        redactory.predict(classes, TEXTS, write=1)
    with pytest.raises(RunStateError, match="models/NAME"):
        redactory.predict(run.root, TEXTS)
    with pytest.raises(RunStateError, match="models/NAME"):
        redactory.predict(tmp_path / "nothing", TEXTS)
    copy = tmp_path / "copy"
    shutil.copytree(classes, copy)
    assert redactory.predict(copy, TEXTS) == redactory.predict(classes, TEXTS) | {"model": "copy"}
    card = read_json(copy / "guarantee.json")
    (copy / "guarantee.json").write_text(json.dumps({**card, "epsilon": 0.1, "holds": True}))
    with pytest.raises(CheckFailed, match="guarantee"):
        redactory.predict(copy, TEXTS)


def test_the_commands(run: RunFolder, tmp_path: Path) -> None:
    runner, classes = CliRunner(), str(run.model("classes").root)
    asked = runner.invoke(app, ["predict", classes, "--text", TEXTS[0], "--json"])
    assert asked.exit_code == 0, asked.output
    assert json.loads(asked.stdout) == redactory.predict(classes, TEXTS[:1])
    from_rows = write_rows(tmp_path / "texts.jsonl", [{"text": text} for text in TEXTS[:2]])
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:2]) + "\n\n")
    expected = redactory.predict(classes, TEXTS[:2])
    for given_ in ([str(from_rows)], [str(tmp_path / "texts.txt")], ["-"]):
        found = runner.invoke(app, ["predict", classes, *given_, "--json"], input="\n".join(TEXTS[:2]))
        assert json.loads(found.stdout) == expected, given_
    shown = runner.invoke(app, ["predict", str(run.model("words").root), "--text", "the rent"])
    assert shown.exit_code == 0, shown.output
    assert "no guarantee holds" in shown.stdout
    assert "Why: " in shown.stdout
    page = runner.invoke(app, ["evaluate", "model", str(run.root), "--model", "classes"])
    assert page.exit_code == 0, page.output
    assert "Taken for" in page.stdout
    for wrong in ([], ["-", "--text", "a"], [str(write_rows(tmp_path / "bad.jsonl", [{"text": 3}]))]):
        assert runner.invoke(app, ["predict", classes, *wrong]).exit_code != 0
