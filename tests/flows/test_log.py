"""JSON logs: every line one object, of every command, without a word of the corpus or of the arguments."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redactory.flows import log as json_log
from redactory.flows import show
from redactory.flows.cli import main
from redactory.foundation.errors import ConfigurationError
from tests.pipelines.support import write_rows

SECRET = "zelda.quibble@example.com"


@pytest.fixture(autouse=True)
def _closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    yield
    json_log.stop_log()


def _carried_out(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["redactory", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def _lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": f"write to {SECRET} soon"}])
    detect = {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}}
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps({"input": str(rows), "detect": detect}))
    return path


def test_a_command_in_a_file_of_lines(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    log, run = tmp_path / "log.jsonl", tmp_path / "run"
    asked = ("--log-json", str(log), "curate", str(config), "--out", str(run))
    assert _carried_out(monkeypatch, *asked) == 0
    assert _carried_out(monkeypatch, *asked) == 2
    lines = _lines(log.read_text())
    assert log.stat().st_mode & 0o777 == 0o600
    assert SECRET not in log.read_text()
    assert all({"time", "level", "event"} <= line.keys() for line in lines)
    assert {"ingest", "detect", "shard"} <= {line["stage"] for line in lines if line["event"] == "done"}
    [result] = [line for line in lines if line["event"] == "result"]
    assert (result["run"], result["counts"]["examples"]) == (str(run), 1)
    ends = [(line["level"], line["exit_code"]) for line in lines if line["event"] == "end"]
    assert ends == [("info", 0), ("error", 2)]
    assert "finished run" in lines[-1]["error"]
    # the terminal is told as ever
    assert "redactory: " in capfd.readouterr().err


def test_standard_error_holds_nothing_but_lines(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REDACTORY_LOG", "json")
    assert _carried_out(monkeypatch, "verify", str(tmp_path)) == 2
    told = capfd.readouterr()
    assert [line["event"] for line in _lines(told.err)] == ["begin", "end"]
    assert told.out == ""
    monkeypatch.setenv("REDACTORY_LOG", "xml")
    assert _carried_out(monkeypatch, "verify", str(tmp_path)) == 2
    assert "the only log format is 'json'" in capfd.readouterr().err


def test_arguments_are_not_logged(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    _carried_out(monkeypatch, "--log-json", "-", "predict", "no/such/model", "--text", f"{SECRET} said")
    assert SECRET not in capfd.readouterr().err


def test_progress_is_logged_seldom_and_ends_always(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log.jsonl"
    json_log.start_log(str(log), "train")
    now = [0.0]
    monkeypatch.setattr(show.time, "monotonic", lambda: now[0])
    show.report_progress.stop()
    for step in range(1, 101):
        now[0] += 0.2
        show.report_progress("train", step, 100, "steps, ε ≤ 1.2")
    lines = _lines(log.read_text())[1:]
    assert [line["event"] for line in lines] == ["progress"] * (len(lines) - 1) + ["done"]
    assert 3 <= len(lines) <= 5
    assert lines[-1]["unit"] == "steps"
    assert lines[-1]["seconds"] == pytest.approx(19.8)


def test_nights_are_told_one_by_one_and_strange_keys_not_at_all(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    json_log.start_log(str(log), "nightly")
    night = {"run": "job/a", "state": "held", "counts": {"examples": 3, "spans": {SECRET: 1}}, "text": SECRET}
    json_log.log_result({"job": "job", "nights": [night], "values": [SECRET]})
    lines = _lines(log.read_text())[1:]
    assert [line["event"] for line in lines] == ["result", "night"]
    assert lines[1]["counts"] == {"examples": 3}
    assert SECRET not in log.read_text()


def test_it_is_off_unless_somebody_asks_and_a_bad_place_is_named(tmp_path: Path) -> None:
    assert os.environ.get(json_log.LOG_VARIABLE) is None
    json_log.start_log(None, "curate")
    assert not json_log.is_enabled()
    json_log.log_event("nothing")
    with pytest.raises(ConfigurationError, match="cannot be written"):
        json_log.start_log(str(tmp_path / "no" / "folder"), "curate")
