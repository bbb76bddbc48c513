"""Choosing what to label next: where the engines doubt, each text once, and never to measure on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from redactory.detectors.tagger import train_tagger
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.pipelines.measure.evaluate_detection import evaluate_detect
from redactory.pipelines.measure.fit import fit_tagger
from redactory.pipelines.measure.fit_policy import fit_policy
from redactory.pipelines.measure.label import label_active, select_most_uncertain
from tests.detectors.support import SMALL_FIT, labelled_texts
from tests.pipelines.support import write_rows

KNOWN = [{"id": str(n), "text": row.text} for n, row in enumerate(labelled_texts(60, seed=1))]
STRANGE = [
    {"id": f"s{n}", "text": f"{one} Vandermolen of Ouagadougou wrote XK-{n}"}
    for n, one in enumerate(("Zoltan", "Ngozi", "Xiulan"))
]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Texts like those that a small tagger learnt, each twice, three that are not, and that tagger."""
    folder = tmp_path_factory.mktemp("choose")
    train_tagger(labelled_texts(300, seed=1), SMALL_FIT).to_disk(folder / "tagger")
    write_rows(folder / "corpus.jsonl", [*KNOWN, *STRANGE, *KNOWN])
    detect = {"patterns": None, "tagger": {"models": [str(folder / "tagger")]}}
    return {"input": str(folder / "corpus.jsonl"), "output": "run", "detect": detect}


def chosen(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "chosen.jsonl").read_text().splitlines()]


def test_doubt_that_is_new_counts_most_and_every_fourth_document_is_random() -> None:
    doubts: list[dict[str, float]] = [{}, {"a": 1.0, "b": 0.9}, {"a": 1.0, "b": 0.8}, {"c": 0.95}, {"d": 0.1}]
    taken = select_most_uncertain(doubts, [1] * 5, 5)
    # the third has nothing that the second has not: it comes after the one with another word
    assert taken == [(1, "doubt"), (3, "doubt"), (2, "doubt"), (0, "random"), (4, "doubt")]
    # of the same doubt, less work
    assert select_most_uncertain([{"a": 0.5}, {"b": 0.5}], [400, 100], 1) == [(1, "doubt")]


def test_texts_unlike_those_that_were_learnt_are_chosen_each_once(corpus: dict[str, Any], tmp_path: Path) -> None:
    result = label_active(corpus, tmp_path / "a", 8)
    rows = chosen(tmp_path / "a")
    texts = [row["text"] for row in rows]
    assert len(set(texts)) == len(texts) == 8
    assert {row["text"] for row in STRANGE} <= set(texts)
    assert result["looked_at"] == len(KNOWN) + len(STRANGE), "a copy was looked at twice"
    assert result["chosen"]["random"] >= 2
    tasks = json.loads((tmp_path / "a" / "label-studio.json").read_text())
    assert [task["data"]["text"] for task in tasks] == texts
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "a").iterdir()} == {0o600}
    assert not any(text in json.dumps(result) for text in texts)
    label_active({**corpus, "input": [corpus["input"]]}, tmp_path / "again", 8)
    assert chosen(tmp_path / "again") == rows


def test_what_is_labelled_is_not_chosen_again(corpus: dict[str, Any], tmp_path: Path) -> None:
    label_active(corpus, tmp_path / "first", 60)
    label_active(corpus, tmp_path / "next", 60, labelled=[tmp_path / "first" / "chosen.jsonl"])
    first, then = ({row["text"] for row in chosen(tmp_path / name)} for name in ("first", "next"))
    assert (len(first), len(then), first & then) == (60, 3, set())
    both = [tmp_path / name / "chosen.jsonl" for name in ("first", "next")]
    with pytest.raises(InputError, match="the input has no document with text that is not already labelled"):
        label_active(corpus, tmp_path / "none", labelled=both)
    assert not (tmp_path / "none").exists()
    with pytest.raises(ConfigurationError, match="already exists"):
        label_active(corpus, tmp_path / "first")


def test_without_an_engine_that_doubts_the_choice_is_random(corpus: dict[str, Any], tmp_path: Path) -> None:
    blind = {**corpus, "detect": {"tagger": None}}
    assert label_active(blind, tmp_path / "a", 8)["chosen"] == {"random": 8}
    label_active(blind, tmp_path / "b", 8, seed=1)
    assert {row["text"] for row in chosen(tmp_path / "a")} != {row["text"] for row in chosen(tmp_path / "b")}


def test_chosen_rows_fit_a_tagger_and_nothing_is_measured_on_them(corpus: dict[str, Any], tmp_path: Path) -> None:
    label_active(corpus, tmp_path / "a", 40)
    rows = chosen(tmp_path / "a")
    for row in rows:
        row["spans"] = [{"start": 0, "end": 4, "label": "PERSON"}]
    labelled = write_rows(tmp_path / "labelled.jsonl", rows)
    # as Label Studio gives its tasks back
    tasks = json.loads((tmp_path / "a" / "label-studio.json").read_text())
    for task in tasks:
        task["annotations"] = [{"result": task.pop("predictions")[0]["result"]}]
    exported = tmp_path / "export.json"
    exported.write_text(json.dumps(tasks))
    for file in (labelled, exported):
        with pytest.raises(InputError, match=r"row 1: its rows were chosen by redactory label active.*label random"):
            evaluate_detect(file, corpus)
        with pytest.raises(InputError, match="not at random"):
            fit_policy(file, out=tmp_path / "policy.yaml", config=corpus, miss_rate=0.2)
    assert not (tmp_path / "policy.yaml").exists()
    assert fit_tagger([labelled], tmp_path / "tagger", {**SMALL_FIT.model_dump(), "epochs": 1})["rows"] == 36
