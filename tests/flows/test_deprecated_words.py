"""What a user of an old word or an old key sees: the result, and one line on standard error."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from redactory.flows import cli, deprecated_words
from redactory.foundation.deprecation import Deprecated
from redactory.pipelines import loading

CHEAP = "detect: {tagger: null, patterns: null, conservative: {rules: [digit]}}\n"


def given(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["redactory", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


@pytest.fixture(autouse=True)
def _tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    keys = {"segment.cut": Deprecated("segment.mode", "0.3.0", "0.5.0", "write segment.mode")}
    words = {
        "look": Deprecated("scan", "0.3.0", "0.5.0", "write redactory scan"),
        "scan --words": Deprecated("scan --text", "0.3.0", "0.5.0", "write --text"),
    }
    monkeypatch.setattr(loading, "DEPRECATED_KEYS", keys)
    monkeypatch.setattr(deprecated_words, "DEPRECATED_WORDS", words)


def told(err: str) -> list[str]:
    lines = [line for line in err.splitlines() if "deprecated" in line]
    return [line.split(" is deprecated since 0.3.0 and goes with 0.5.0: write ")[0] for line in lines]


def test_old_words_and_old_keys_work_and_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("old.yaml").write_text("segment: {cut: line}\n" + CHEAP)
    assert given(monkeypatch, "look", "--words", "seven", "--config", "old.yaml", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["clean"]
    assert told(err) == [
        "redactory: redactory look",
        "redactory: redactory scan --words",
        "redactory: old.yaml: segment.cut",
    ]


def test_a_log_has_each_use_and_no_other_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("old.yaml").write_text("segment: {cut: line}\n" + CHEAP)
    words = ("--log-json", "-", "look", "--text", "seven", "--config", "old.yaml")
    assert given(monkeypatch, *words) == 0
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    uses = [event["told"].split(" is deprecated")[0] for event in events if event["event"] == "deprecated"]
    assert uses == ["redactory look", "old.yaml: segment.cut"]


def test_a_key_that_is_read_twice_is_told_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("rows.jsonl").write_text('{"text": "all is well"}\n')
    Path("old.yaml").write_text("input: rows.jsonl\nsegment: {cut: line}\n" + CHEAP)
    assert given(monkeypatch, "describe", "old.yaml", "--against", "old.yaml") == 0
    out, err = capsys.readouterr()
    assert "into points by line" in out
    assert told(err) == ["redactory: old.yaml: segment.cut"]


def test_what_no_table_has_is_refused_as_ever(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("new.yaml").write_text("segment: {cutt: line}\n" + CHEAP)
    assert given(monkeypatch, "scan", "--text", "seven", "--config", "new.yaml") == 2
    assert "segment.cutt: no such key; known here: mode, speaker" in capsys.readouterr().err
    assert given(monkeypatch, "scan", "--wordss", "seven") == 2
    assert "No such option: --wordss" in capsys.readouterr().err
    assert given(monkeypatch, "lok", "seven") == 2
    assert "No such command 'lok'" in capsys.readouterr().err
