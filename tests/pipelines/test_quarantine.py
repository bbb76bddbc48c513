"""Quarantine triage: what is listed, what a terminal is shown, and another try at what failed."""

from __future__ import annotations

import gzip
import json
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.pipelines import quarantine as retrying
from redactory.pipelines import release
from redactory.pipelines.nightly import unfinished
from redactory.pipelines.quarantine import content_of_entry, entries, harmless
from redactory.pipelines.release_log import Event, enter, history, read_log
from redactory.redaction import RunFolder, read_batches, read_column, read_manifest
from redactory.redaction.folder import JobFolder
from tests.pipelines.support import LINES, DigitDetector, release_state, write_rows

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
    config = {**LINES, "input": {"path": str(path), **columns}}
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
    (folder / "in" / "table.csv").write_text(
        'id,user_id,text\nh,hal,"hal is here"\ni,ina\nj,jo,"a quotation\n'
    )
    (folder / "in" / "note.txt").write_bytes(b"a note of \xff\n")
    (folder / "in" / "short.txt").write_text(" ")
    config = {**LINES, "input": {"path": str(folder / "in"), "max_chars": 60_000}}
    config["partition"] = {"documents": 4}
    redactory.curate(config, output=folder / "run", detector=DigitDetector())
    return folder / "run"


def test_what_is_listed_has_no_text_and_no_documents_id(run: Path) -> None:
    [listed] = redactory.quarantine_list(run)["runs"]
    counts = {(r["reason"], r["kind"]): r["count"] for r in listed["reasons"]}
    assert (counts["engine_error", "point"], counts["duplicate_id", "row"]) == (6, 1)
    assert listed["entries"] == sum(counts.values()) == len(listed["listed"])
    for text in ("broken,", "dora", "anna", "quotation", SECRET, "again"):
        assert text not in json.dumps(listed)
    assert all("source" not in e for e in listed["listed"] if e["kind"] == "point")
    assert any(e.get("source") == "rows.jsonl" and e["row"] == 7 for e in listed["listed"])
    assert len(redactory.quarantine_list(run, limit=2)["runs"][0]["listed"]) == 2
    for entry in listed["listed"]:
        assert len(content_of_entry(run, entry["id"])) == entry["bytes"]
    [cut] = (e["id"] for e in entries(RunFolder(run), ["reason"]) if e["reason"] == "broken_json")
    assert content_of_entry(run, cut).startswith(b'{"id": "g"')
    for strange in ("0-999", "99-0", "../../vault-1", "", "0"):
        with pytest.raises(ConfigurationError, match="no entry of that id"):
            content_of_entry(run, strange)
    with pytest.raises(RunStateError):
        redactory.quarantine_list(run.parent / "in")


def test_a_hostile_text_cannot_steer_the_terminal() -> None:
    assert harmless(STEER.encode()) == r"broken \x1b]0;owned\x07\x1b[2J \u202egnp.exe"
    assert harmless("é\n\t\r\x9b31m".encode()) == "é\n\t\\r\\x9b31m"
    assert harmless(b"\xff\x1b") == r"\xff\x1b"


def test_an_entry_is_shown_on_a_terminal_and_nowhere_else(run: Path) -> None:
    [entry] = (e["id"] for e in entries(RunFolder(run), ["content"]) if SECRET.encode() in e["content"])
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
    assert b"a terminal alone" in piped.stderr
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before


@pytest.fixture(scope="module")
def again(run: Path) -> dict[str, Any]:
    return redactory.quarantine_retry(run, detector=Mended())


def test_points_and_rows_that_can_be_processed_today_are(run: Path, again: dict[str, Any]) -> None:
    assert again["run"] == str(run.parent / "run-retry")
    assert again["left"] == {
        "their document's id occurs twice": 1,
        "only their first 64 KiB were kept": 1,
        "their user is not known any more": 1,
        "they are rows of a table: mend the file, and give it to a new run": 2,
        "they are not UTF-8": 1,
    }
    assert again["entries"] == again["retried"] + sum(again["left"].values())
    new = RunFolder(Path(again["run"]))
    rows = [
        row for batch in read_batches(new.vault, ["doc_id", "user_id", "text"]) for row in batch.to_pylist()
    ]
    # dora wrote nothing else: whose it is cannot be known, and she must not become another person
    assert {tuple(row.values()) for row in rows} == {
        ("a", "anna", "this is broken"),
        ("a", "anna", "this one is broken too"),
        ("b", "anna", "all of it broken"),
        ("c", None, "broken, by nobody"),
        ("e", "eve", f"{STEER} {SECRET}"),
    }
    reasons = {e["reason"] for e in redactory.quarantine_list(new.root)["runs"][0]["reasons"]}
    assert reasons == {"text_not_string", "broken_json", "empty_text"}
    # the same people have the same keyed ids in both runs
    for column in ("user", "document"):
        assert set(read_column(new.points, column)) <= set(read_column(RunFolder(run).points, column))


def test_nothing_of_it_lies_outside_of_the_new_run_and_the_log_says_so(
    run: Path, again: dict[str, Any]
) -> None:
    import fsspec

    new = RunFolder(Path(again["run"]))
    [record] = [r for r in history(RunFolder(run)) if r.type == Event.RETRIED]
    assert (record.body["into"], record.body["retried"]) == ("run-retry", again["retried"])
    assert not [p for p in new.state.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]
    assert [entry["path"] for entry in read_manifest(new)["inputs"]] == ["run-retry.jsonl"]
    assert not [name for name in fsspec.filesystem("memory").find("/") if "redactory-" in name]


def test_what_was_tried_is_not_tried_again_but_what_failed_once_more_is(
    run: Path, again: dict[str, Any]
) -> None:
    with pytest.raises(RunStateError, match="tried again in run-retry"):
        redactory.quarantine_retry(run, detector=Mended())
    config = {**LINES, "input": str(run.parent / "in"), "segment": {"mode": "document"}}
    second = redactory.quarantine_retry(again["run"], config)
    assert second["run"] == str(run.parent / "run-retry-2")
    assert second["counts"]["rejected"] == second["retried"] == 3
    assert redactory.quarantine_retry(second["run"])["run"] == str(run.parent / "run-retry-3")


def test_another_key_and_an_unfinished_run_are_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunStateError, match="not a finished folder"):
        redactory.quarantine_retry(run.parent)
    monkeypatch.setenv("REDACTORY_KEY", "another key of the tests")
    with pytest.raises(RunStateError, match="another key"):
        redactory.quarantine_retry(run)
    monkeypatch.delenv("REDACTORY_KEY")
    with pytest.raises(RunStateError, match="made with a key, and none is set: set REDACTORY_KEY"):
        redactory.quarantine_retry(run)


def test_an_encrypted_run_is_tried_again_into_an_encrypted_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", "an encryption key of the tests, long enough")
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"id": "a", "text": f"broken {SECRET}"}).encode()))
    redactory.curate({**LINES, "input": str(path)}, output=tmp_path / "run", detector=DigitDetector())
    again = redactory.quarantine_retry(tmp_path / "run", detector=DigitDetector())
    assert again["counts"]["quarantined"] == 1
    new = RunFolder(Path(again["run"]))
    assert read_manifest(new)["encrypted"]
    assert not [p for p in new.root.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]
    # opened with the key, it is there
    assert SECRET.encode() in content_of_entry(new.root, "0-0")


@pytest.fixture
def own(tmp_path: Path) -> RunFolder:
    """The released run of a job, with a point in quarantine."""
    JobFolder(tmp_path / "job").own.mkdir(parents=True)
    run = _run(tmp_path, [{"id": "a", "text": "it is broken"}])
    enter(run, Event.RELEASED, manifest="0" * 64, counts={})
    return run


def test_in_a_job_it_is_held_until_somebody_approves_it(own: RunFolder) -> None:
    again = redactory.quarantine_retry(own.root, detector=Mended())
    new, job = RunFolder(Path(again["run"])), JobFolder(own.root.parent)
    assert (again["state"], release_state(new)) == ("held", "held")
    assert [r.type for r in read_log(job)][-2:] == [Event.HELD, Event.RETRIED]
    # held material is triaged once it is decided about
    with pytest.raises(RunStateError, match="is held"):
        redactory.quarantine_retry(new.root)
    listed = redactory.quarantine_list(job.root)["runs"]
    assert [(Path(r["run"]).name, r["entries"]) for r in listed] == [("run", 1), ("run-retry", 0)]
    enter(new, Event.REJECTED, by="me", reason="not mended")
    assert redactory.quarantine_retry(own.root, detector=Mended())["run"].endswith("-retry-2")


def test_a_retry_that_dies_anywhere_goes_on_when_it_is_asked_again(
    own: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new, job = RunFolder(own.root.with_name("run-retry")), JobFolder(own.root.parent)

    def stopped(*_: object) -> None:
        raise CheckFailed("stopped")

    with monkeypatch.context() as patch:
        patch.setattr(release, "check_conservation", stopped)
        with pytest.raises(CheckFailed, match="stopped"):
            redactory.quarantine_retry(own.root, detector=Mended())
    assert not new.success.exists()
    for stopped_before in (Event.HELD, Event.RETRIED):

        def stop(run: RunFolder, event: Event, /, _at: Event = stopped_before, **body: Any) -> Any:
            return stopped() if event is _at else enter(run, event, **body)

        with monkeypatch.context() as patch:
            patch.setattr(retrying, "enter", stop)
            with pytest.raises(CheckFailed, match="stopped"):
                redactory.quarantine_retry(own.root, detector=Mended())
        # finished, and at no moment free to leave; no scheduled run takes it for one of its own
        assert new.success.exists()
        with pytest.raises(RunStateError, match=r"was cut off|is held"):
            redactory.export(new.root, tmp_path / "export")
        assert unfinished(read_log(job)) == []
    assert redactory.quarantine_retry(own.root, detector=Mended())["run"] == str(new.root)
    assert [r.type for r in read_log(job)] == [Event.RELEASED, Event.BEGUN, Event.HELD, Event.RETRIED]


def test_nothing_to_try_leaves_nothing_behind(tmp_path: Path) -> None:
    run = _run(tmp_path, [{"id": "a", "text": "fine"}, {"id": "a", "text": "the same id"}])
    again = redactory.quarantine_retry(run.root)
    assert (again["run"], again["entries"], again["retried"]) == (None, 1, 0)
    assert not (tmp_path / "run-retry").exists()


@pytest.mark.parametrize("named", [True, False])
def test_a_row_without_an_id_needs_one_only_where_it_did(tmp_path: Path, named: bool) -> None:
    rows = [{"text": "so long that it is rejected"}, {"text": "fine"}, {"id": 1, "text": "good"}]
    run = _run(tmp_path, rows, max_chars=10, **({"id": "id"} if named else {}))
    again = redactory.quarantine_retry(run.root, detector=DigitDetector())
    reasons = {r["reason"] for r in redactory.quarantine_list(again["run"])["runs"][0]["reasons"]}
    assert reasons == ({"too_long", "missing_id"} if named else {"too_long"})
