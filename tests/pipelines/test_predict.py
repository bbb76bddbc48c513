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
from redactory.evaluation.utility import measure_accuracy
from redactory.flows.cli import app
from redactory.foundation.errors import CheckFailed, ConfigurationError, InputError, RunStateError
from redactory.foundation.files import read_json
from redactory.redaction import RunFolder
from redactory.training import load_model
from redactory.training.model import LanguageModel, load_classifier
from redactory.training.tokenizer import _FIXED_VOCABULARY
from tests.pipelines.support import DigitDetector, list_failed_checks, write_rows

CLASSES = ("money", "law")
SENTENCES = {
    "money": ("the rent is due", "payment is late", "pay the fee now"),
    "law": ("the law of the state applies", "governed by law", "the court decides"),
}
TEXTS = ["the rent is due today", "the court decides", ""]
GPT2 = {"kind": "gpt2", "layers": 1, "width": 8, "heads": 2, "context": 64}
MODELS: dict[str, dict[str, Any]] = {
    "classes": {"trainer": "noiseless", "task": "classify", "classes": list(CLASSES)},
    "words": {"trainer": "sgd", "learning_rate": 0.05},
    "gpt2": {"trainer": "sgd", "model": GPT2, "max_tokens": 20},
}


def _row(number: int) -> dict[str, Any]:
    kind = CLASSES[number % 2]
    text = f"{SENTENCES[kind][number % 3]} number {number}\nthank you"
    return {"id": f"d{number}", "user_id": f"u{number % 5}", "text": text, "kind": kind}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with a classifier, an LSTM and a GPT-2."""
    root = tmp_path_factory.mktemp("predict")
    rows = [_row(number) for number in range(24)]
    test = [*rows[:10], {**rows[10], "kind": None}, {**rows[11], "kind": "xyzzy"}]
    config: dict[str, Any] = {
        "input": {"path": str(write_rows(root / "rows.jsonl", rows)), "label": "kind"},
        "segment": {"mode": "line"},
        "detect": {"tagger": None, "patterns": None, "lists": {"deny": [{"words": ["nobody"]}]}},
        "evaluate": {"test": str(write_rows(root / "test.jsonl", test))},
    }
    steps = {"epochs": 2, "min_public_steps": 20, "public_batch_size": 8, "group_sizes": [], "seed": 1, "threads": 1}
    train = {"model": {"embedding_size": 8, "hidden_size": 12}, **steps}
    redactory.curate(config, output=root / "run", detector=DigitDetector())
    for name, own in MODELS.items():
        redactory.train({**config, "train": {**train, "name": name, **own}}, output=root / "run")
    return RunFolder(root / "run")


def test_the_error_rate_is_that_of_every_point_by_itself(run: RunFolder) -> None:
    result = redactory.evaluate_model(run.root, "classes")
    model = load_classifier(run.get_model_folder("classes"))
    points = [(line, _row(n)["kind"]) for n in range(10) for line in str(_row(n)["text"]).split("\n")]
    said = [CLASSES[int(model.compute_class_log_probs([text])[0].argmax())] for text, _ in points]
    wrong = sum(answer != kind for answer, (_, kind) in zip(said, points, strict=True))
    assert (result["texts"], result["errors"], result["error_rate"]) == (20, wrong, wrong / 20)
    assert result["left_out"] == {"without_class": 2, "other_class": 2}
    assert result["majority_error_rate"] == 0.5
    assert read_json(run.get_model_folder("classes").get_result_folder("accuracy").root / "result.json") == result
    assert "xyzzy" not in json.dumps(result)
    assert "test errors" in run.report.read_text()
    assert not {"model classes", "report"} & list_failed_checks(run.root)


class _Answers:
    """A classifier whose answers are given: text i is answered with class ``answers[i]``."""

    def __init__(self, answers: list[int], classes: int) -> None:
        self.answers = answers
        self.classes = tuple(f"c{number}" for number in range(classes))

    def compute_class_log_probs(self, texts: list[str]) -> Any:
        rows = [self.answers[int(text)] for text in texts]
        return np.log(np.full((len(rows), len(self.classes)), 0.1) + 0.5 * np.eye(len(self.classes))[rows])


@settings(max_examples=60)
@given(st.data(), st.integers(2, 5))
def test_confusion_counts_every_text_once(data: st.DataObject, classes: int) -> None:
    names = [f"c{number}" for number in range(classes)]
    given_: list[Any] = data.draw(st.lists(st.sampled_from([*names, None, "else"]), min_size=1, max_size=30))
    answers = data.draw(st.lists(st.integers(0, classes - 1), min_size=len(given_), max_size=len(given_)))
    model: Any = _Answers(answers, classes)
    texts = [str(number) for number in range(len(given_))]
    if not set(names) & set(given_):
        with pytest.raises(InputError):
            measure_accuracy(model, texts, given_)
        return
    result = measure_accuracy(model, texts, given_)
    pairs = [(kind, names[answer]) for kind, answer in zip(given_, answers, strict=True) if kind in names]
    expected = [[pairs.count((true, said)) for said in names] for true in names]
    assert result["confusion"] == expected
    assert result["errors"] == sum(true != said for true, said in pairs)
    assert result["texts"] + sum(result["left_out"].values()) == len(given_)
    assert sum(one["texts"] for one in result["by_class"]) == sum(one["predicted"] for one in result["by_class"])
    most = max(sum(row) for row in expected)
    assert result["majority_error_rate"] == pytest.approx(1 - most / len(pairs))
    losses = [np.log((0.6, 0.1)[true != said]) for true, said in pairs]
    assert result["log_loss"] == pytest.approx(-np.mean(losses))
    # by their definitions: F1 from counts, AUC as the share of ordered pairs, a tie counting half
    for name, row in zip(names, result["by_class"], strict=True):
        hits = pairs.count((name, name))
        assert row["f1"] == (pytest.approx(2 * hits / (row["texts"] + row["predicted"])) if row["texts"] else None)
        ups, downs = (
            [predicted == name for true, predicted in pairs if (true == name) is is_class] for is_class in (True, False)
        )
        wins = [0.5 + 0.5 * (int(up) - int(down)) for up in ups for down in downs]
        assert row["auc"] == (pytest.approx(np.mean(wins)) if wins else None)
    for key in ("f1", "auc"):
        values = [row[key] for row in result["by_class"] if row[key] is not None]
        assert result[key] == (pytest.approx(np.mean(values)) if values else None)


def test_classes_are_those_of_the_model_and_its_promise_stands_beside_them(run: RunFolder) -> None:
    result = redactory.predict(run.get_model_folder("classes").root, TEXTS, top=1)
    scores = load_classifier(run.get_model_folder("classes")).compute_class_log_probs(TEXTS)
    assert [[one["class"] for one in answers] for answers in result["results"]] == [
        [CLASSES[int(row.argmax())]] for row in scores
    ]
    card, promise = read_json(run.get_model_folder("classes").guarantee), result["guarantee"]
    for key in ("trainer", "unit", "relation", "epsilon", "delta", "holds"):
        assert promise[key] == card[key]
    assert promise["epsilon"] is None
    assert promise["reason"]


def _said(codec: Any, number: int) -> str:
    """What a person reads of an id: a lone octet of several is no text, and must not look like one."""
    # behind a digit: at the start of a text a word's space is left out
    text = str(codec.decode([*codec.encode("1"), number]))[1:]
    return f"\\x{number - _FIXED_VOCABULARY.index('<0x00>'):02x}" if text == "\ufffd" else text


def test_next_words_are_the_likeliest_after_the_text(run: RunFolder) -> None:
    """By reading the text token by token; ids that read the same are one answer."""
    result = redactory.predict(run.get_model_folder("words").root, TEXTS, top=1_000_000)
    model = load_model(run.get_model_folder("words"))
    codec = model.tokenizer
    for text, answers in zip(TEXTS, result["results"], strict=True):
        state = model.network.make_initial_state(1)
        for number in [codec.begin_id, *codec.encode(text)]:
            scores, state = model.network.step(torch.tensor([number]), state)
        expected: Counter[str] = Counter()
        for number, score in enumerate(scores[0].double().exp().tolist()):
            if number not in (codec.pad_id, codec.begin_id):
                expected["<END>" if number == codec.end_id else _said(codec, number)] += score
        found = {one["token"]: one["probability"] for one in answers}
        assert found == pytest.approx(expected, rel=1e-4)
        assert list(found.values()) == sorted(found.values(), reverse=True)


def _greedy(model: LanguageModel, prompt: str, tokens: int) -> str:
    """The likeliest token after the other, read one at a time."""
    state, ids, codec = model.network.make_initial_state(1), [], model.tokenizer
    reading = [codec.begin_id, *codec.encode(prompt)]
    while len(ids) < tokens:
        for number in reading:
            scores, state = model.network.step(torch.tensor([number]), state)
        reading = [int(scores[0, : codec.size].argmax())]
        if reading[0] == codec.end_id:
            break
        ids += reading
    head = codec.encode(prompt)
    return codec.decode([*head, *ids])[len(codec.decode(head)) :]


@pytest.mark.parametrize("name", ["words", "gpt2"])
def test_the_likeliest_text_is_that_of_reading_one_token_at_a_time(run: RunFolder, name: str) -> None:
    folder = run.get_model_folder(name)
    found = redactory.predict(folder.root, TEXTS, write=2, tokens=9, temperature=0)
    assert found["texts"] == [[_greedy(load_model(folder), prompt, 9)] * 2 for prompt in TEXTS]
    assert redactory.predict(folder.root, TEXTS, write=2, tokens=9, top_k=1)["texts"] == found["texts"]
    assert found["guarantee"]["trainer"] == "sgd"


def test_a_seed_writes_the_same_texts_and_without_one_it_is_drawn(run: RunFolder) -> None:
    folder = run.get_model_folder("words").root
    first = redactory.predict(folder, TEXTS, write=3, tokens=12)
    other = redactory.predict(folder, TEXTS, write=3, tokens=12)
    assert redactory.predict(folder, TEXTS, write=3, tokens=12, seed=first["seed"]) == first
    assert other["seed"] != first["seed"]
    assert other["texts"] != first["texts"]
    assert [len(texts) for texts in first["texts"]] == [3, 3, 3]
    assert len({text for texts in first["texts"] for text in texts}) > 1


@pytest.mark.parametrize(
    ("name", "wrong", "says"),
    [
        *(("words", own, "predict: top, number of texts") for own in (
            {"texts": ()}, {"write": 0}, {"tokens": 0}, {"top_k": 0}, {"top": 0},
            {"temperature": -1.0}, {"temperature": float("nan")}, {"temperature": float("inf")},
        )),
        ("classes", {}, "cannot generate text"),
        ("gpt2", {"tokens": 64}, r"context of 64; use at most 63 \(--tokens 63\)"),
    ],
)  # fmt: skip
def test_arguments_out_of_range_are_refused(run: RunFolder, name: str, wrong: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        redactory.predict(run.get_model_folder(name).root, **{"write": 1, **wrong})


def test_what_is_no_model_or_not_the_sealed_one_is_refused(run: RunFolder, tmp_path: Path) -> None:
    classes, copy = run.get_model_folder("classes").root, tmp_path / "copy"
    for wrong in (run.root, tmp_path / "nothing"):
        with pytest.raises(RunStateError, match="models/NAME"):
            redactory.predict(wrong, TEXTS)
    shutil.copytree(classes, copy)
    assert redactory.predict(copy, TEXTS) == redactory.predict(classes, TEXTS) | {"model": "copy"}
    card = read_json(copy / "guarantee.json")
    (copy / "guarantee.json").write_text(json.dumps({**card, "epsilon": 0.1, "holds": True}))
    with pytest.raises(CheckFailed, match=r"guarantee\.json: sha256 differs"):
        redactory.predict(copy, TEXTS)
    (copy / "_SUCCESS").unlink()
    with pytest.raises(RunStateError, match="is not a finished model"):
        redactory.predict(copy, TEXTS)


def test_the_command_reads_rows_lines_and_standard_input(run: RunFolder, tmp_path: Path) -> None:
    runner, classes = CliRunner(), str(run.get_model_folder("classes").root)
    from_rows = write_rows(tmp_path / "texts.jsonl", [{"text": text} for text in TEXTS[:2]])
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS[:2]) + "\n\n")
    expected = redactory.predict(classes, TEXTS[:2])
    for given_ in (str(from_rows), str(tmp_path / "texts.txt"), "-"):
        found = runner.invoke(app, ["predict", classes, given_, "--json"], input="\n".join(TEXTS[:2]))
        assert json.loads(found.stdout) == expected, given_
    words = str(run.get_model_folder("words").root)
    shown = runner.invoke(
        app, ["predict", words, "--text", TEXTS[0], "--generate", "2", "--tokens", "6", "--seed", "4"]
    )
    for text in redactory.predict(words, TEXTS[:1], write=2, tokens=6, seed=4)["texts"][0]:
        readable = (c if c.isprintable() or c in "\n\t" else "�" for c in TEXTS[0] + text)
        assert "".join(readable).rstrip() in shown.stdout
    for wrong in ([], ["-", "--text", "a"], [str(write_rows(tmp_path / "bad.jsonl", [{"text": 3}]))]):
        assert runner.invoke(app, ["predict", classes, *wrong]).exit_code != 0
