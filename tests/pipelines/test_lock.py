"""One run at a time in an output folder, whoever crashes; and a run is what it was begun as."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import file_lock
from redactory.foundation.records import read_records
from redactory.pipelines.curation import curate as curating
from redactory.pipelines.curation import stage_context
from redactory.pipelines.curation.journal import describe_difference
from tests.pipelines import faults
from tests.pipelines.faults import CONFIG, KILLED, REFUSED, Fault, asked_of, curated, rows_file, said, state_of
from tests.pipelines.support import DigitDetector, write_rows
from tests.pipelines.test_kills import OnceOnly


def _wait_for(happened: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _files(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def _holds_nobody(path: Path) -> bool:
    with file_lock(path, "the folder"):
        return True


def test_a_second_run_is_refused_naming_the_first(rows: Path, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    run, marker = tmp_path / "run", tmp_path / "at-work"
    first = faults.start(rows, run, detector=OnceOnly(marker, "wait"))
    _wait_for(lambda: marker.exists() and marker.read_text(encoding="utf-8") != "")
    before = _files(run)
    assert curated(rows, run) == REFUSED
    assert f"is being written by process {first.pid} on {socket.gethostname()} since 20" in said(run)
    assert "wait for it, or stop it" in said(run)
    assert curated(rows, run, resume=False) == REFUSED
    assert _files(run) == before
    first.kill()
    assert faults.outcome(first) == KILLED
    # the lock's file is still there, with the name of the dead in it
    assert json.loads((run / "state" / "lock").read_bytes())["process"]
    assert curated(rows, run) == 0
    assert state_of(run) == undisturbed


def test_without_resume_no_finished_run_is_reused(rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have looked at the empty folder; the first comes to its end before the second has the lock."""
    run, real = tmp_path / "run", curating.find_sources

    def slow(*arguments: Any) -> Any:
        assert curated(rows, run) == 0
        return real(*arguments)

    monkeypatch.setattr(curating, "find_sources", slow)
    with pytest.raises(RunStateError, match="finished run"):
        redactory.curate(asked_of(rows), output=run, detector=DigitDetector())
    manifest = (run / "manifest.json").read_bytes()
    shutil.move(run, tmp_path / "other")
    summary = redactory.curate(asked_of(rows), output=run, resume=True, detector=DigitDetector())
    assert summary["examples"] == json.loads(manifest)["counts"]["examples"]


def test_the_lock_is_gone_when_it_is_given_back_and_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with file_lock(path, "the folder"):
        holder = json.loads(path.read_bytes())
        assert holder["process"] == os.getpid()
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(RunStateError, match=f"the folder is being written by process {os.getpid()} on"):
            _holds_nobody(path)
    assert not path.exists()
    with pytest.raises(KeyError), file_lock(path, "the folder"):
        raise KeyError
    assert not path.exists()
    for left in (b"", b"not json", b'{"process": 1}', b"[]"):
        path.write_bytes(left)
        assert _holds_nobody(path)
    # who has not written a name yet is another process
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(RunStateError, match="by another process"):
            _holds_nobody(path)


def test_a_file_system_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(*_: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(RunStateError, match=r"No locks available.*a file system that supports locks"):
        _holds_nobody(tmp_path / "lock")


@pytest.fixture(scope="module")
def begun(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed amid its work."""
    run = tmp_path_factory.mktemp("begun") / "run"
    assert curated(rows, run, Fault("after", "journal part detect")) == KILLED
    return run


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"segment": {"mode": "document"}}, "configuration (segment.mode)"),
        ({"detect": {**CONFIG["detect"], "max_chars": 9}}, "configuration (detect.max_chars)"),
        ({"dedup": {"scope": "user"}}, "configuration (dedup.scope)"),
        (
            {"segment": {"mode": "turn", "speaker": "x"}, "partition": {"documents": 4}},
            "configuration (partition.documents, segment.mode, segment.speaker)",
        ),
    ],
)
def test_changed_keys_are_named(rows: Path, begun: Path, tmp_path: Path, change: dict[str, Any], named: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(begun, run)
    assert curated(rows, run, config=change) == REFUSED
    assert f"this run was started with another {named}; resume it with the same" in said(run)


def test_another_input_is_refused_by_the_names_of_its_files(rows: Path, tmp_path: Path) -> None:
    run, paths = tmp_path / "run", {name: str(tmp_path / f"{name}.jsonl") for name in "abcd"}

    def curated_from(names: str, fault: Fault | None = None) -> int:
        return curated(rows, run, fault, config={"input": {"path": [paths[name] for name in names]}})

    for path in paths.values():
        shutil.copy(rows, path)
    assert curated_from("abc", Fault("after", "journal part detect")) == KILLED
    assert curated_from("bac") == REFUSED
    assert "another input (the order of the files changed)" in said(run)
    with open(paths["b"], "ab") as file:
        file.write(b"\n")
    assert curated_from("abc") == REFUSED
    assert "another input (b.jsonl has changed); resume" in said(run)
    shutil.copy(rows, paths["b"])
    assert curated_from("abd") == REFUSED
    assert "another input (c.jsonl is missing, d.jsonl is new); resume" in said(run)
    assert curated_from("abc") == 0


@pytest.mark.slow
def test_another_key_or_version_is_refused_by_name(begun: Path, rows: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(begun, run)
    head = read_records(run / "state" / "journal.jsonl")[0].body
    versions = {**head["versions"], "packages": {**head["versions"]["packages"], "pyarrow": "0"}}
    assert describe_difference(head, {**head, "versions": versions}) == "versions (packages.pyarrow)"
    assert describe_difference(head, {**head, "key": "00000000"}) == "key"
    assert describe_difference(head, head) is None
    assert describe_difference(head, {**head, "encryption": "local"}) == "encryption"
    # a value is never shown
    deny = {"deny": [{"label": "LISTED", "words": ["Rosalind"]}]}
    configuration = {**head["configuration"], "detect": {**head["configuration"]["detect"], "lists": deny}}
    named = describe_difference(head, {**head, "configuration": configuration})
    assert named == "configuration (detect.lists.deny)"
    changed = {**head, "policies": {**head["policies"], "strict": {str(i): i for i in range(99)}}}
    assert str(describe_difference(head, changed)).count(",") == 8
    # speed may differ
    assert curated(rows, run, config={"workers": 2}) == 0


def test_what_was_read_of_a_file_that_grew_is_never_counted(
    rows: Path, undisturbed: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt that is refused leaves a partition more than the run has."""
    copy, run = tmp_path / "rows.jsonl", tmp_path / "run"
    shutil.copy(rows, copy)

    def grow(work: str, *_: object) -> None:
        if work == "ingest" and copy.stat().st_size == rows.stat().st_size:
            with copy.open("ab") as file:
                file.writelines(b'{"text": "more"}\n' for _ in range(9))

    config = asked_of(copy)
    # as many hash ranges as the processes have that go on with it
    monkeypatch.setattr(stage_context, "MIN_RANGES", faults.FEW)
    with pytest.raises(RunStateError, match="has changed"):
        redactory.curate(config, output=run, detector=DigitDetector(), progress=grow)
    assert len([*(run / "state" / "work" / "documents").iterdir()]) == 4
    shutil.copy(rows, copy)
    assert curated(copy, run, Fault("after", "journal stage ingest")) == KILLED
    assert curated(copy, run) == 0
    assert state_of(run) == undisturbed


def test_a_run_folder_inside_its_input_is_refused(tmp_path: Path) -> None:
    rows_file(tmp_path / "rows.jsonl")
    config = {**CONFIG, "input": str(tmp_path)}
    for inside in ("run", "deep/run"):
        with pytest.raises(ConfigurationError, match="is inside the input"):
            redactory.curate(config, output=tmp_path / inside, detector=DigitDetector(), resume=True)
    for passed_over in ("_runs/run", ".runs/run"):
        assert curated(tmp_path, tmp_path / passed_over) == 0
        # the first one's files are no input of the second
        assert state_of(tmp_path / passed_over)["counts"]["rows"] == 25


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of an input, and a finished run of it."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "in").mkdir()
    rows_file(folder / "in" / "a.jsonl")
    write_rows(folder / "in" / "b.jsonl", [{"text": "hello"}])
    assert curated(folder / "in", folder / "run") == 0
    return folder / "in", folder / "run"


def test_a_finished_run_of_something_else_is_no_answer(made: tuple[Path, Path]) -> None:
    folder, run = made
    before = _files(run)
    assert curated(folder, run, config={"segment": {"mode": "document"}}) == REFUSED
    assert "a finished run with another configuration (segment.mode): give another output folder" in said(run)
    late = write_rows(folder / "c.jsonl", [{"text": "tonight's rows"}])
    assert curated(folder, run) == REFUSED
    assert "a finished run with another input (c.jsonl is new)" in said(run)
    late.unlink()
    content = (folder / "b.jsonl").read_bytes()
    (folder / "b.jsonl").write_bytes(content * 2)
    assert curated(folder, run) == REFUSED
    assert "a finished run with another input (b.jsonl has changed)" in said(run)
    (folder / "b.jsonl").write_bytes(content)
    assert _files(run) == before
    # it needs neither its input nor the same speed
    assert curated(folder, run, config={"workers": 2, "train": {"epochs": 9}}) == 0
    shutil.rmtree(folder)
    assert curated(folder, run) == 0
