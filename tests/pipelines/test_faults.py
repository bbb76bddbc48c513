"""At every moment at which a run commits something it is killed or its disk fails; then it is resumed."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import redactory
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.progress import StageReport
from redactory.foundation.records import RecordLog, read_records
from redactory.pipelines.curation.journal import RunJournal
from redactory.pipelines.curation.output_folder import finalize_run
from redactory.redaction import RunFolder
from tests.pipelines.faults import KILLED, KINDS, REFUSED, Fault, curated, said, state_of, survives


@pytest.mark.slow
def test_the_moments_are_all_there_is_to_commit(moments: list[str]) -> None:
    expected = {"journal run", "journal stage ingest", "journal part shard"}
    expected |= {f"{folder}/part-#.parquet" for folder in ("public", "private", "vault", "quarantine")}
    expected |= {"audit/examples/part-#.parquet", "audit/spans/part-#.parquet", "manifest.json", "report.html"}
    assert expected <= set(moments)
    assert moments[-1] == "_SUCCESS"
    assert len(moments) >= 30


@pytest.mark.slow
def test_faults_at_every_moment(rows: Path, moments: list[str], undisturbed: dict[str, Any], tmp_path: Path) -> None:
    """One run, failed and resumed at each moment; every kind at every moment is for ``make soak``."""
    chain = [Fault(KINDS[number % len(KINDS)], moment) for number, moment in enumerate(moments)]
    assert survives(rows, tmp_path / "run", chain, undisturbed) == len(moments)


def test_killed_after_success_a_run_is_finished(rows: Path, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert curated(rows, run, Fault("after", "_SUCCESS")) == KILLED
    assert (run / "state" / "lock").exists()
    assert curated(rows, run) == 0
    assert state_of(run) == undisturbed


@pytest.mark.parametrize("size", [200, 1500, 9000])
def test_a_disk_that_fills_up(rows: Path, undisturbed: dict[str, Any], tmp_path: Path, size: int) -> None:
    run = tmp_path / "run"
    assert curated(rows, run, largest_file=size) == REFUSED
    assert "File too large" in said(run)
    assert not (run / "_SUCCESS").exists()
    assert curated(rows, run) == 0
    assert state_of(run) == undisturbed


def test_a_journal_that_cannot_grow_stays_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real, room = tmp_path / "journal.jsonl", os.write, 150

    def write(descriptor: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(28, "No space left on device")
        written = real(descriptor, data[:room])
        room -= written
        return written

    with RecordLog(path) as log:
        log.append("first", {"a": 1})
        before = path.read_bytes()
        monkeypatch.setattr(os, "write", write)
        with pytest.raises(OSError, match="No space"):
            log.append("second", {"text": "x" * 200})
        assert path.read_bytes() == before
        monkeypatch.undo()
        log.append("second", {"a": 2})
    assert [record.type for record in read_records(path)] == ["first", "second"]


def test_what_is_left_to_do_is_what_the_journal_does_not_have(tmp_path: Path) -> None:
    def spread(task: Any, numbers: Any) -> Any:
        return ((number, task(number)) for number in numbers)

    done: list[int] = []

    def task(number: int) -> StageReport:
        done.append(number)
        return StageReport("stage", seconds=float(number))

    for asked in ((0, 1), (0, 1, 2), (2, 1, 0)):
        with RecordLog(tmp_path / "journal.jsonl") as log:
            journal = RunJournal(log)
            journal.record_or_check_identity({"configuration": {}})
            reports = sorted(report.seconds for report in journal.run_stage("stage", task, asked, spread))
        assert reports == [float(number) for number in sorted(asked)]
    assert done == [0, 1, 2]


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from(["dedup", "dedup public", "shard"]), st.sets(st.integers(0, 11))), max_size=6),
    st.permutations(range(12)),
)
def test_whatever_parts_are_done_exactly_the_rest_is_left(
    unsynced: None, tmp_path: Path, earlier: list[tuple[str, set[int]]], order: list[int]
) -> None:
    """Each element is a process that finished some parts of a stage, and was killed."""

    def nothing_is_left(task: Any, numbers: Any) -> Any:
        assert not list(numbers)
        return iter(())

    path = tmp_path / "journal.jsonl"
    path.unlink(missing_ok=True)
    finished: dict[str, dict[int, float]] = {"dedup": {}, "dedup public": {}, "shard": {}}
    for attempt, (stage, parts) in enumerate(earlier):
        with RecordLog(path) as log:
            journal = RunJournal(log)
            for number in sorted(parts):
                finished[stage][number] = attempt + number / 100
                journal.record_part(stage, number, StageReport(stage, seconds=finished[stage][number]))
    with RecordLog(path) as log:
        journal = RunJournal(log)
        for stage, done in finished.items():
            run: list[int] = []

            def work(task: Any, numbers: Any, run: list[int] = run) -> Any:
                run.extend(numbers)
                return ((number, StageReport("", seconds=-1.0 - number)) for number in numbers)

            reports = [report.seconds for report in journal.run_stage(stage, None, order, work)]  # type: ignore[arg-type]
            assert run == [number for number in order if number not in done]
            assert Counter(reports) == Counter(done.get(n, -1.0 - n) for n in range(12))
    with RecordLog(path) as log:
        journal = RunJournal(log)
        for stage in finished:
            reports = journal.run_stage(stage, None, range(12), nothing_is_left)  # type: ignore[arg-type]
            assert len(list(reports)) == 12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["public/part-00009.parquet", "private/notes.txt", "vault/part-00000.parquet.bak"])
def test_no_foreign_file_gets_into_a_release(
    rows: Path, undisturbed: dict[str, Any], tmp_path: Path, name: str
) -> None:
    run = tmp_path / "run"
    assert curated(rows, run, Fault("before", "manifest.json")) == KILLED
    (run / name).write_bytes(b"PAR1")
    assert curated(rows, run) == REFUSED
    assert f"{name} does not belong to this run" in said(run)
    (run / name).unlink()
    assert curated(rows, run) == 0
    assert state_of(run) == undisturbed


def test_a_part_that_has_gone_is_missed(rows: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert curated(rows, run, Fault("before", "README.md")) == KILLED
    (run / "vault" / "part-00001.parquet").unlink()
    with pytest.raises(CheckFailed, match=r"vault/part-00001\.parquet is missing"):
        finalize_run(RunFolder(run), 3)


def test_resuming_into_a_folder_of_other_files_is_refused_and_leaves_them_alone(rows: Path, tmp_path: Path) -> None:
    for name in ("notes.txt", "public/part-00000.parquet", "deep/er/file"):
        run = tmp_path / name.replace("/", "-") / "run"
        (run / name).parent.mkdir(parents=True)
        (run / name).write_bytes(b"mine")
        run.chmod(0o755)
        assert curated(rows, run) == REFUSED
        assert "but no run" in said(run)
        assert (run / name).read_bytes() == b"mine"
        assert run.stat().st_mode & 0o777 == 0o755
        shutil.rmtree(run)


def test_killed_before_any_record_a_run_restarts(rows: Path, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert curated(rows, run, Fault("torn", "journal run")) == KILLED
    journal = (run / "state" / "journal.jsonl").read_bytes()
    assert journal
    assert b"\n" not in journal
    assert curated(rows, run) == 0
    assert state_of(run) == undisturbed


def test_nothing_reads_a_run_that_is_not_finished(rows: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert curated(rows, run, Fault("before", "_SUCCESS")) == KILLED
    assert (run / "manifest.json").exists()
    config = {"input": str(rows), "output": str(run), "train": {}}
    readers: list[Any] = [
        *(redactory.verify, redactory.guarantee, redactory.evaluate_model, redactory.evaluate_canary),
        *(lambda _: redactory.train(config), lambda _: redactory.label_random(run, 5)),
        lambda _: redactory.label_score(run, rows),
    ]
    for reader in readers:
        with pytest.raises(RunStateError):
            reader(run)
