"""Quarantine triage: what is listed, what a terminal is shown, and the export of what failed."""

from __future__ import annotations

import gzip
import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.pipelines.curation.release_log import Event, append_event
from redactory.pipelines.operations.quarantine import (
    escape_for_terminal,
    read_quarantine_entries,
    read_quarantine_entry,
)
from redactory.redaction import RunFolder, read_column
from redactory.redaction.folder import JobFolder
from redactory.redaction.shards import read_values
from tests.pipelines.support import LINE_CONFIG, DigitDetector, invoke_command, write_rows

STEER = "broken \x1b]0;owned\x07\x1b[2J \u202egnp.exe"
SECRET = "zelda.quibble@example.com"
pytestmark = pytest.mark.usefixtures("unsynced", "unreported")


class Mended(DigitDetector):
    """What could not be processed can be today."""

    def detect(self, texts: Any) -> Iterator[Any]:
        return super().detect(text.replace("broken", "mended") for text in texts)


def _run(folder: Path, rows: list[dict[str, Any]], **columns: Any) -> RunFolder:
    """A finished run of these rows of JSON lines, in ``folder/job/run``."""
    path = write_rows(folder / "rows.jsonl", rows)
    config = {**LINE_CONFIG, "input": {"path": str(path), **columns}}
    redactory.curate(config, output=folder / "job" / "run", detector=DigitDetector())
    return RunFolder(folder / "job" / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("triage")
    (folder / "in").mkdir()
    rows: list[dict[str, Any]] = [
        {"id": "a", "user_id": "anna", "text": "one fine line\nthis is broken\nthis one is broken too"},
        {"id": "b", "user_id": "anna", "text": "all of it broken"},
        {"id": "c", "text": "broken, by nobody"},
        {"id": "d", "user_id": "dora", "text": "dora wrote this alone and broken"},
        {"id": "e", "user_id": "eve", "text": f"{STEER} {SECRET}"},
        {"id": "e2", "user_id": "eve", "text": "eve is fine"},
    ]
    with write_rows(folder / "in" / "rows.jsonl", rows).open("a") as file:
        file.write('{"id": "f", "text": 17}\n{"id": "g", "user_id": "gil", "text": "cut off\n')
        file.write('{"id": "a", "text": "the same id again"}\n')
        file.write(json.dumps({"id": "long", "text": "x" * 70_000}) + "\n")
    (folder / "in" / "table.csv").write_text('id,user_id,text\nh,hal,"hal is here"\ni,ina\nj,jo,"a quotation\n')
    (folder / "in" / "note.txt").write_bytes(b"a note of \xff\n")
    (folder / "in" / "short.txt").write_text(" ")
    config = {**LINE_CONFIG, "input": {"path": str(folder / "in"), "max_chars": 60_000}}
    config["partition"] = {"documents": 4}
    redactory.curate(config, output=folder / "run", detector=DigitDetector())
    return folder / "run"


def test_what_is_listed_has_no_text_and_no_documents_id(run: Path) -> None:
    [listed] = redactory.quarantine_list(run)["runs"]
    counts = {(r["reason"], r["kind"]): r["count"] for r in listed["reasons"]}
    assert (counts["engine_error", "example"], counts["duplicate_id", "row"]) == (6, 1)
    assert listed["entries"] == sum(counts.values()) == len(listed["listed"])
    for text in ("broken,", "dora", "anna", "quotation", SECRET, "again"):
        assert text not in json.dumps(listed)
    assert all("source" not in e for e in listed["listed"] if e["kind"] == "example")
    assert any(e.get("source") == "rows.jsonl" and e["row"] == 7 for e in listed["listed"])
    assert len(redactory.quarantine_list(run, limit=2)["runs"][0]["listed"]) == 2
    for entry in listed["listed"]:
        assert len(read_quarantine_entry(run, entry["id"])) == entry["bytes"]
    [cut] = (e["id"] for e in read_quarantine_entries(RunFolder(run), ["reason"]) if e["reason"] == "broken_json")
    assert read_quarantine_entry(run, cut).startswith(b'{"id": "g"')
    for strange in ("0-999", "99-0", "../../vault-1", "", "0"):
        with pytest.raises(ConfigurationError, match="has no quarantine entry with that id"):
            read_quarantine_entry(run, strange)
    with pytest.raises(ConfigurationError, match="neither a run nor a job"):
        redactory.quarantine_list(run.parent / "in")


def test_a_hostile_text_cannot_steer_the_terminal() -> None:
    assert escape_for_terminal(STEER.encode()) == r"broken \x1b]0;owned\x07\x1b[2J \u202egnp.exe"
    assert escape_for_terminal("é\n\t\r\x9b31m".encode()) == "é\n\t\\r\\x9b31m"
    assert escape_for_terminal(b"\xff\x1b") == r"\xff\x1b"


def test_an_entry_is_shown_on_a_terminal_and_nowhere_else(run: Path) -> None:
    [entry] = (e["id"] for e in read_quarantine_entries(RunFolder(run), ["content"]) if SECRET.encode() in e["content"])
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    code = "from redactory.flows.cli import main; main()"
    command = [sys.executable, "-c", code, "quarantine", "list", str(run), entry]
    ours, theirs = pty.openpty()
    try:
        assert subprocess.run(command, stdout=theirs, check=False).returncode == 0
        shown = os.read(ours, 10_000)
    finally:
        os.close(theirs)
        os.close(ours)
    assert SECRET.encode() in shown
    assert b"\x1b" not in shown
    piped = subprocess.run(command, capture_output=True, check=False)
    assert (piped.returncode, piped.stdout) == (2, b"")
    assert b"only on a terminal" in piped.stderr
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


def test_examples_and_rows_that_can_be_processed_today_are(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        # whose an example is stands beside it: no key is needed
        patch.delenv("REDACTORY_KEY")
        exported = redactory.quarantine_export(run)
    assert exported["out"] == str(run / "state" / "quarantine.jsonl")
    assert exported["left"] == {
        "their document's id occurs twice": 1,
        "only their first 64 KiB were kept": 1,
        "they are rows of a table: fix the file, and curate it in a new run": 2,
        "they are not UTF-8": 1,
    }
    assert exported["entries"] == exported["exported"] + sum(exported["left"].values())
    config = {**LINE_CONFIG, "input": {"path": exported["out"], "max_chars": 60_000, "max_rejected_share": 1.0}}
    redactory.curate(config, output=run.parent / "again", detector=Mended())
    new = RunFolder(run.parent / "again")
    assert {*read_values(new.vault, "doc_id", "user_id", "text")} == {
        ("a", "anna", "this is broken"),
        ("a", "anna", "this one is broken too"),
        ("b", "anna", "all of it broken"),
        ("c", None, "broken, by nobody"),
        ("d", "dora", "dora wrote this alone and broken"),
        ("e", "eve", f"{STEER} {SECRET}"),
    }
    reasons = {e["reason"] for e in redactory.quarantine_list(new.root)["runs"][0]["reasons"]}
    assert reasons == {"text_not_string", "broken_json", "empty_text"}
    # the same people have the same keyed ids in both runs
    for column in ("user", "document"):
        assert set(read_column(new.examples, column)) <= set(read_column(RunFolder(run).examples, column))


def test_an_erasure_keeps_whose_the_others_are_and_removes_what_was_exported(tmp_path: Path) -> None:
    rows = [{"id": name, "user_id": f"user {name}", "text": f"{name} broken", "kind": "bug"} for name in "ab"]
    run = _run(tmp_path, [*rows, {"id": "c", "text": "fine"}], label="kind")
    out = Path(redactory.quarantine_export(run.root)["out"])
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows
    assert out.stat().st_mode & 0o777 == 0o600
    [strays] = [c for c in redactory.verify(run.root)["checks"] if c["name"] == "no stray files"]
    assert strays["made"]
    assert "rows exported from the quarantine" in strays["detail"]
    redactory.erase([run.root], doc_ids=["a"])
    assert not out.exists()
    redactory.quarantine_export(run.root)
    assert [json.loads(line) for line in out.read_text().splitlines()] == rows[1:]
    redactory.purge(run.root, ["quarantine"])
    assert not out.exists()


def test_of_an_encrypted_run_and_a_compressed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", "an encryption key of the tests, long enough")
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"id": "a", "text": f"broken {SECRET}"}).encode()))
    redactory.curate({**LINE_CONFIG, "input": str(path)}, output=tmp_path / "run", detector=DigitDetector())
    with pytest.raises(ConfigurationError, match="pass --unencrypted"):
        redactory.quarantine_export(tmp_path / "run")
    plain = [file for file in (tmp_path / "run").rglob("*") if file.is_file() and SECRET.encode() in file.read_bytes()]
    assert plain == []
    out = redactory.quarantine_export(tmp_path / "run", unencrypted=True)["out"]
    assert json.loads(Path(out).read_text()) == {"id": "a", "text": f"broken {SECRET}"}


def test_an_unfinished_and_a_held_run_are_not_exported(tmp_path: Path) -> None:
    JobFolder(tmp_path / "job").state.mkdir(parents=True)
    run = _run(tmp_path, [{"id": "a", "text": "it is broken"}])
    append_event(run, Event.HELD, manifest="0" * 64, counts={})
    with pytest.raises(RunStateError, match="is held"):
        redactory.quarantine_export(run.root)
    run.success.unlink()
    for ask in (redactory.quarantine_export, redactory.quarantine_list):
        with pytest.raises(RunStateError, match="not a finished folder"):
            ask(run.root)


def test_nothing_to_export_leaves_nothing_behind(tmp_path: Path) -> None:
    run = _run(tmp_path, [{"id": "a", "text": "fine"}, {"id": "a", "text": "the same id"}])
    result = redactory.quarantine_export(run.root)
    assert (result["out"], result["entries"], result["exported"]) == (None, 1, 0)
    assert not run.exported.exists()


def test_a_mail_is_exported_with_its_sender_and_a_file_that_says_nothing_is_not(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.eml").write_text(f"From: Zelda <{SECRET}>\nSubject: x\n\n{'a line that is too long ' * 9}\n")
    (tmp_path / "in" / "b.eml").write_text("no header at all")
    write_rows(tmp_path / "in" / "rows.jsonl", [{"id": "a", "text": "fine"}])
    config = {**LINE_CONFIG, "input": {"path": str(tmp_path / "in"), "max_chars": 50}}
    redactory.curate(config, output=tmp_path / "run", detector=DigitDetector())
    run = RunFolder(tmp_path / "run")
    result = redactory.quarantine_export(run.root)
    assert (result["exported"], result["left"]) == (1, {"nothing of them could be read": 1})
    row = json.loads(run.exported.read_text())
    assert (row["id"], row["user_id"], row["text"][:9]) == ("a.eml", SECRET, "x\n\na line")


def test_the_page_of_a_curation_begins_with_rejected_rows(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "fine"}, {"id": "b", "text": 5}, {"id": "c", "text": ""}]
    result = invoke_command("curate", write_rows(tmp_path / "rows.jsonl", rows), "--out", tmp_path / "run")
    shown, _, _ = result.stdout.partition("\nRows")
    assert re.search(r"2 of 3 rows rejected \((empty_text 1|, |text_not_string 1){3}\)", shown)
    assert "input.max_rejected_share" in shown


def test_a_row_over_several_lines_is_exported_as_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"id": "a", "text": "hello"}, {"id": "b", "text": 5}], indent=2), encoding="utf-8")
    run = tmp_path / "run"
    redactory.curate({"input": {"path": str(path), "id": "id"}}, output=run)
    exported = Path(redactory.quarantine_export(run)["out"])
    [line] = exported.read_text(encoding="utf-8").splitlines()
    assert json.loads(line) == {"id": "b", "text": 5}
