"""Explain: who marked what in one text, and what came of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import redactory
from redactory.pipelines.curation.curate import curate
from redactory.pipelines.modeling.describe import explain
from redactory.redaction import RunFolder, read_column
from tests.pipelines.support import read_rows, write_rows

LISTS = {"deny": [{"words": ["Zaphod"], "label": "CLIENT"}], "allow": [{"words": ["Oslo"]}]}
RULES = {"rules": ["digit", "symbol", "capital", "name"]}
OFF: dict[str, Any] = {"spacy": None, "tagger": None, "patterns": None}
CONFIG: dict[str, Any] = {"input": "-", "detect": {**OFF, "lists": LISTS, "max_chars": 60, "conservative": RULES}}


def test_every_mark_is_shown_with_what_it_does() -> None:
    text = "we saw Zaphod and Anna in Oslo"
    told = explain(text, CONFIG)
    assert told["text"] == text
    assert (told["split"], told["masked"], told["failure"]) == ("private", "we saw <MASK> and Anna in Oslo", None)
    assert told["reasons"] == ["list:CLIENT", "rule:CAPITAL", "rule:NAME"]
    marks = [(m["value"], m["label"], m["detector"], m["masks"]) for m in told["marks"]]
    assert marks[:2] == [("Zaphod", "CAPITAL", "rule", False), ("Zaphod", "CLIENT", "list", True)]
    assert marks[2:] == [("Anna", "CAPITAL", "rule", False), ("Anna", "NAME", "rule", False)]
    assert all(m["makes_private"] for m in told["marks"])
    assert all(text[m["start"] : m["end"]] == m["value"] and 0 <= m["score"] <= 1 for m in told["marks"])


def test_a_hit_that_no_policy_heeds_is_shown_too() -> None:
    lists = {"deny": [{"words": ["Zaphod"]}], "allow": [{"words": ["Oslo", "Zaphod in Oslo"]}]}
    patterns = {"recognizers": [], "custom": [{"name": "Own", "label": "CITY", "patterns": {"Oslo": 0.6}}]}
    config = {**CONFIG, "detect": {**CONFIG["detect"], "lists": lists, "patterns": patterns}}
    told = explain("all of Oslo", config)
    assert told["split"] == "public"
    [mark] = told["marks"]
    assert (mark["value"], mark["label"], mark["masks"], mark["makes_private"]) == ("Oslo", "CITY", False, False)


def test_a_public_or_quarantined_text_has_no_marks() -> None:
    told = {"text": "all is well", "split": "public", "masked": "all is well", "failure": None}
    assert explain("all is well", CONFIG) == {**told, "reasons": [], "marks": []}
    told = explain("Zaphod " * 10, CONFIG)
    assert (told["split"], told["failure"], told["masked"], told["marks"]) == ("quarantined", "too_long", "", [])


def test_a_run_does_what_explain_says(tmp_path: Path) -> None:
    turns = ["all is well", "we saw Zaphod in Oslo", "call 555", "Zaphod " * 10]
    rows = [{"id": "1", "text": "".join(f"A: {turn}\n" for turn in turns)}]
    config = {**CONFIG, "input": str(write_rows(tmp_path / "rows.jsonl", rows)), "segment": {"mode": "turn"}}
    curate(config, output=tmp_path / "run")
    told = [explain(turn, config) for turn in turns]
    expected = [(t["split"], t["masked"], t["reasons"]) for t in told]
    assert [side for side, _, _ in expected].count("private") == 2
    run = RunFolder(tmp_path / "run")
    got = [("public", row["text"], []) for row in read_rows(run.public)]
    got += [("private", row["text"], row["reasons"]) for row in read_rows(run.private)]
    assert read_column(run.quarantine, "reason") == ["too_long"]
    assert sorted([*got, ("quarantined", "", [])], key=str) == sorted(expected, key=str)


def test_a_list_that_changed_between_two_runs_of_a_process_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "the bluebird flies at dawn"}\n')
    names = tmp_path / "names.txt"
    lists = {"deny": [{"label": "PROJECT", "file": str(names)}]}
    detect = {**OFF, "lists": lists, "conservative": {"rules": ["digit"]}}
    config = {"input": str(tmp_path / "rows.jsonl"), "detect": detect}
    for run, (name, side) in {"a": ("redbird", "public"), "b": ("bluebird", "private")}.items():
        names.write_text(f"{name}\n")
        assert curate(config, output=tmp_path / run)[side] == 1


def test_without_a_configuration_the_default_detection_explains() -> None:
    told = explain("Write to Anna at anna.smith@example.org")
    mails = {(m["value"], m["masks"]) for m in told["marks"] if m["label"] == "EMAIL_ADDRESS"}
    assert mails == {("anna.smith@example.org", True)}
    assert told["split"] == "private"
    assert "smith" not in told["masked"]


def test_a_trial_says_what_would_be_public_and_why(tmp_path: Path) -> None:
    texts = ["Hello there, how are you?", "Write to ann.kovacs@example.org.", "Hello there. Call 555-013-4477."]
    (tmp_path / "rows.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    job = {"input": str(tmp_path / "rows.jsonl"), "output": str(tmp_path / "run"), "detect": {"tagger": None}}
    described = redactory.describe(job)
    trial = described["trial"]
    assert (trial["documents"], trial["examples"], trial["public"], trial["private"]) == (3, 4, 2, 2)
    assert trial["masked"]["EMAIL_ADDRESS"] == trial["reasons"]["presidio:EMAIL_ADDRESS"] == 1
    assert "kovacs" not in json.dumps(described)
    redactory.curate(job)
    counts = json.loads((tmp_path / "run" / "manifest.json").read_text())["counts"]
    assert counts["private"] == trial["private"]
