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
from tests.pipelines.support import BARE, BLIND_ACCEPTED, DigitDetector, release_state, write_rows

STEER = "broken \x1b]0;owned\x07\x1b[2J \u202egnp.exe"
SECRET = "zelda.quibble@example.com"


class Mended(DigitDetector):
    """What could not be processed can be today."""

    def detect(self, texts: Any) -> Iterator[Any]:
        return super().detect(text.replace("broken", "mended") for text in texts)


pytestmark = pytest.mark.usefixtures("unsynced", "unreported")


def _input(folder: Path) -> Path:
    folder.mkdir()
    rows: list[dict[str, Any]] = [
        {"id": "a", "user_id": "anna", "text": "one fine line\nthis is broken\nthis one is broken too"},
        {"id": "b", "user_id": "anna", "text": "all of it broken"},
        {"id": "c", "text": "broken, by nobody"},
        {"id": "d", "user_id": "dora", "text": "dora wrote this alone and broken"},
        {"id": "e", "user_id": "eve", "text": f"{STEER} {SECRET}"},
        {"id": "e2", "user_id": "eve", "text": "eve is fine"},
    ]
    path = write_rows(folder / "rows.jsonl", rows)
    with path.open("a") as file:
        file.write('{"id": "f", "text": 17}\n')
        file.write('{"id": "g", "user_id": "gil", "text": "cut off\n')
        file.write('{"id": "a", "text": "the same id again"}\n')
        file.write(json.dumps({"id": "long", "text": "x" * 70_000}) + "\n")
    (folder / "table.csv").write_text(
        'id,user_id,text,more\nh,hal,"hal is here",1\ni,ina\nj,jo,"a quotation\n'
    )
    (folder / "note.txt").write_bytes(b"a note of \xff\n")
    (folder / "short.txt").write_text(" ")
    return folder


def _config(folder: Path, **more: Any) -> dict[str, Any]:
    return {
        "input": {"path": str(folder / "in"), "max_chars": 60_000},
        "segment": {"mode": "line"},
        "detect": BARE,
        "release": BLIND_ACCEPTED,
        "partition": {"documents": 4},
        **more,
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("triage")
    _input(folder / "in")
    redactory.curate(_config(folder), output=folder / "run", detector=DigitDetector())
    return folder / "run"


def _ids(run: Path, **wanted: Any) -> list[str]:
    found = entries(RunFolder(run), ["kind", "reason", "source", "row", "point_id"])
    return [entry["id"] for entry in found if wanted.items() <= entry.items()]


def test_what_is_listed_has_no_text_and_no_documents_id(run: Path) -> None:
    [listed] = redactory.quarantine_list(run)["runs"]
    counts = {(r["reason"], r["kind"]): r["count"] for r in listed["reasons"]}
    assert counts["engine_error", "point"] == 6
    assert counts["duplicate_id", "row"] == 1
    assert listed["entries"] == sum(counts.values()) == len(listed["listed"])
    told = json.dumps(listed)
    for text in ("broken,", "dora", "anna", "quotation", SECRET, "again"):
        assert text not in told
    assert all("source" not in e for e in listed["listed"] if e["kind"] == "point")
    assert any(e.get("source") == "rows.jsonl" and e["row"] == 7 for e in listed["listed"])
    assert len(redactory.quarantine_list(run, limit=2)["runs"][0]["listed"]) == 2
    with pytest.raises(RunStateError):
        redactory.quarantine_list(run.parent / "in")


def test_one_entry_is_read_by_its_id(run: Path) -> None:
    for entry in redactory.quarantine_list(run)["runs"][0]["listed"]:
        assert len(content_of_entry(run, entry["id"])) == entry["bytes"]
    [cut] = _ids(run, reason="broken_json")
    assert content_of_entry(run, cut).startswith(b'{"id": "g"')
    for strange in ("0-999", "99-0", "../../vault-1", "", "0"):
        with pytest.raises(ConfigurationError, match="no entry of that id"):
            content_of_entry(run, strange)


def test_a_hostile_text_cannot_steer_the_terminal() -> None:
    assert harmless(STEER.encode()) == r"broken \x1b]0;owned\x07\x1b[2J \u202egnp.exe"
    assert harmless("é\n\t\r\x9b31m".encode()) == "é\n\t\\r\\x9b31m"
    assert harmless(b"\xff\x1b") == r"\xff\x1b"


def _show(run: Path, entry: str, output: int) -> subprocess.CompletedProcess[bytes]:
    code = "from redactory.flows.cli import main; main()"
    command = [sys.executable, "-c", code, "quarantine", "list", str(run), entry]
    return subprocess.run(command, stdout=output, stderr=subprocess.PIPE, check=False)


def test_show_writes_to_a_terminal_and_to_nothing_else(run: Path) -> None:
    [entry] = [i for i in _ids(run, kind="point") if SECRET.encode() in content_of_entry(run, i)]
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    ours, theirs = pty.openpty()
    try:
        assert _show(run, entry, theirs).returncode == 0
        shown = os.read(ours, 10_000)
    finally:
        os.close(theirs)
        os.close(ours)
    assert SECRET.encode() in shown
    assert b"\x1b" not in shown
    piped = _show(run, entry, subprocess.PIPE)
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
    found = {(row["doc_id"], row["user_id"], row["text"]) for row in rows}
    assert found == {
        ("a", "anna", "this is broken"),
        ("a", "anna", "this one is broken too"),
        ("b", "anna", "all of it broken"),
        ("c", None, "broken, by nobody"),
        ("e", "eve", f"{STEER} {SECRET}"),
    }
    # dora wrote nothing else: whose it is cannot be told, and she must not become another person
    assert not [row for row in rows if row["doc_id"] == "d"]
    assert {e["reason"] for e in redactory.quarantine_list(new.root)["runs"][0]["reasons"]} == {
        "text_not_string",
        "broken_json",
        "empty_text",
    }


def test_the_same_people_have_the_same_keyed_ids_in_both_runs(run: Path, again: dict[str, Any]) -> None:
    users = [set(read_column(RunFolder(Path(r)).points, "user")) for r in (run, again["run"])]
    documents = [set(read_column(RunFolder(Path(r)).points, "document")) for r in (run, again["run"])]
    assert users[1] <= users[0]
    assert documents[1] <= documents[0]


def test_nothing_of_it_lies_outside_of_the_new_run_and_the_log_says_so(
    run: Path, again: dict[str, Any]
) -> None:
    new = RunFolder(Path(again["run"]))
    [record] = [r for r in history(RunFolder(run)) if r.type == Event.RETRIED]
    assert (record.body["into"], record.body["retried"]) == ("run-retry", again["retried"])
    open_files = [p for p in new.state.rglob("*") if p.is_file()]
    assert not [p for p in open_files if SECRET.encode() in p.read_bytes()]
    [entry] = read_manifest(new)["inputs"]
    assert entry["path"] == "run-retry.jsonl"
    import fsspec

    assert not [name for name in fsspec.filesystem("memory").find("/") if "redactory-" in name]


def test_what_was_tried_is_not_tried_again_but_what_failed_once_more_is(
    run: Path, again: dict[str, Any]
) -> None:
    with pytest.raises(RunStateError, match="tried again in run-retry"):
        redactory.quarantine_retry(run, detector=Mended())
    second = redactory.quarantine_retry(
        again["run"], {**_config(run.parent), "segment": {"mode": "document"}}
    )
    assert second["run"] == str(run.parent / "run-retry-2")
    assert second["counts"]["rejected"] == second["retried"] == 3
    third = redactory.quarantine_retry(second["run"])
    assert third["run"] == str(run.parent / "run-retry-3")


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
    rows = [{"id": "a", "text": f"broken {SECRET}"}]
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    config = {**_config(tmp_path), "input": str(path)}
    redactory.curate(config, output=tmp_path / "run", detector=DigitDetector())
    again = redactory.quarantine_retry(tmp_path / "run", detector=DigitDetector())
    assert again["counts"]["quarantined"] == 1
    new = RunFolder(Path(again["run"]))
    assert read_manifest(new)["encrypted"]
    assert not [p for p in new.root.rglob("*") if p.is_file() and SECRET.encode() in p.read_bytes()]
    # opened with the key, it is there
    assert SECRET.encode() in content_of_entry(new.root, "0-0")


class _Job:
    """A job of one released run with a point in quarantine."""

    def __init__(self, folder: Path) -> None:
        self.job = JobFolder(folder / "job")
        self.job.own.mkdir(parents=True)
        path = write_rows(folder / "rows.jsonl", [{"id": "a", "text": "it is broken"}])
        self.run = self.job.run("2026-03-01")
        config = {**_config(folder), "input": str(path)}
        redactory.curate(config, output=self.run.root, detector=DigitDetector())
        enter(self.run, Event.RELEASED, manifest="0" * 64, counts={})


def test_in_a_job_it_is_held_until_somebody_approves_it(tmp_path: Path) -> None:
    made = _Job(tmp_path)
    again = redactory.quarantine_retry(made.run.root, detector=Mended())
    new = RunFolder(Path(again["run"]))
    assert (again["state"], release_state(new)) == ("held", "held")
    assert [r.type for r in read_log(made.job)][-2:] == [Event.HELD, Event.RETRIED]
    # held material is triaged once it is decided about
    with pytest.raises(RunStateError, match="is held"):
        redactory.quarantine_retry(new.root)
    listed = redactory.quarantine_list(made.job.root)["runs"]
    assert [(Path(r["run"]).name, r["entries"]) for r in listed] == [
        ("2026-03-01", 1),
        ("2026-03-01-retry", 0),
    ]
    enter(new, Event.REJECTED, by="me", reason="not mended")
    assert redactory.quarantine_retry(made.run.root, detector=Mended())["run"].endswith("-retry-2")


def test_a_retry_that_dies_anywhere_goes_on_when_it_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _Job(tmp_path)
    new = made.job.run("2026-03-01-retry")
    with monkeypatch.context() as patch:
        patch.setattr(release, "check_conservation", _fail)
        with pytest.raises(CheckFailed, match="stopped"):
            redactory.quarantine_retry(made.run.root, detector=Mended())
    assert not new.success.exists()
    real = retrying.enter
    for stopped_before in (Event.HELD, Event.RETRIED):

        def stop(run: RunFolder, event: Event, /, _at: Event = stopped_before, **body: Any) -> Any:
            if event is _at:
                raise CheckFailed("stopped")
            return real(run, event, **body)

        with monkeypatch.context() as patch:
            patch.setattr(retrying, "enter", stop)
            with pytest.raises(CheckFailed, match="stopped"):
                redactory.quarantine_retry(made.run.root, detector=Mended())
        # finished, and at no moment free to leave; no night takes it for one of its own
        assert new.success.exists()
        with pytest.raises(RunStateError, match=r"was cut off|is held"):
            redactory.export(new.root, tmp_path / "export")
        assert unfinished(read_log(made.job)) == []
    again = redactory.quarantine_retry(made.run.root, detector=Mended())
    assert again["run"] == str(new.root)
    assert [r.type for r in read_log(made.job)] == [Event.RELEASED, Event.BEGUN, Event.HELD, Event.RETRIED]


def _fail(*_: object) -> None:
    raise CheckFailed("stopped")


def test_nothing_to_try_leaves_nothing_behind(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "fine"}, {"id": "a", "text": "the same id"}]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    config = {**_config(tmp_path), "input": str(path)}
    redactory.curate(config, output=tmp_path / "run", detector=DigitDetector())
    again = redactory.quarantine_retry(tmp_path / "run")
    assert (again["run"], again["entries"], again["retried"]) == (None, 1, 0)
    assert not (tmp_path / "run-retry").exists()


@pytest.mark.parametrize("named", [True, False])
def test_a_row_without_an_id_needs_one_only_where_it_did(tmp_path: Path, named: bool) -> None:
    path = write_rows(
        tmp_path / "rows.jsonl",
        [{"text": "so long that it is rejected"}, {"text": "fine"}, {"id": 1, "text": "good"}],
    )
    columns = {"path": str(path), "max_chars": 10, **({"id": "id"} if named else {})}
    redactory.curate(
        {**_config(tmp_path), "input": columns}, output=tmp_path / "run", detector=DigitDetector()
    )
    again = redactory.quarantine_retry(tmp_path / "run", detector=DigitDetector())
    reasons = {r["reason"] for r in redactory.quarantine_list(again["run"])["runs"][0]["reasons"]}
    assert reasons == ({"too_long", "missing_id"} if named else {"too_long"})
