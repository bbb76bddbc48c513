"""The metrics file, read by Prometheus' own parser."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from redactory.foundation.records import RecordLog
from redactory.pipelines.gate import render_metrics as render
from redactory.pipelines.gate import write_metrics
from redactory.pipelines.release_log import Event, enter
from redactory.redaction.folder import JobFolder
from tests.pipelines.nightly.made_job import MadeJob

NOW = datetime.datetime(2026, 3, 9, 2, 0, tzinfo=datetime.UTC)


def _read(job: JobFolder, text: str | None = None) -> dict[tuple[str, tuple[str, ...]], float]:
    """Each sample by its name and its labels' values, without the folder's."""
    found = {}
    for family in text_string_to_metric_families(render(job, NOW) if text is None else text):
        assert family.documentation
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("folder") == str(job.root.resolve())
            key = sample.name, tuple(labels.values())
            assert key not in found
            found[key] = sample.value
    return found


def test_a_job_of_some_nights(tmp_path: Path) -> None:
    made = MadeJob(tmp_path / 'a "job"\\with\nsigns')
    made.add("a", earlier=100)
    made.add("b", Event.HELD, rejected=7, earlier=250)
    enter(made.job.run("c"), Event.BEGUN, plan={})
    enter(made.job.run("c"), Event.FAILED, error="the disk is full")
    found = _read(made.job)
    assert found["redactory_last_check_timestamp_seconds", ()] == NOW.timestamp()
    assert found["redactory_nights_total", ("released",)] == 1
    assert found["redactory_nights_total", ("failed",)] == 1
    assert found["redactory_last_night_state", ("failed",)] == 1
    assert found["redactory_last_night_state", ("released",)] == 0
    assert found["redactory_nights_since_release", ()] == 2
    assert found["redactory_held_runs", ()] == 1
    # of b, which is finished
    assert found["redactory_points", ("public",)] == 4_000
    assert found["redactory_rejected_rows", ("broken_json",)] == 7
    assert found["redactory_duplicate_points", ("earlier",)] == 250
    assert found["redactory_duplicate_points", ("run",)] == 750
    assert found["redactory_hits", ("digits", "NUMBER", "strict")] == 1_000
    assert found["redactory_input_bytes", ()] == 9_120_331
    assert found["redactory_last_night_duration_seconds", ()] >= 0


def test_a_release_and_an_approval_begin_the_count_anew(tmp_path: Path) -> None:
    made = MadeJob(tmp_path)
    held = made.add("a", Event.HELD)
    assert ("redactory_last_release_timestamp_seconds", ()) not in _read(made.job)
    enter(held, Event.APPROVED, by="me", reason="fine")
    found = _read(made.job)
    assert found["redactory_nights_since_release", ()] == 0
    assert found["redactory_held_runs", ()] == 0
    assert found["redactory_last_release_timestamp_seconds", ()] > 0


def test_before_the_first_night_and_without_the_run_folder(tmp_path: Path) -> None:
    made = MadeJob(tmp_path)
    assert _read(made.job)["redactory_nights_since_release", ()] == 0
    run = made.add("a")
    run.success.unlink()
    assert ("redactory_points", ("public",)) not in _read(made.job)


def test_the_file_is_whole_or_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeJob(tmp_path)
    made.add("a")
    write_metrics(made.job)
    first = made.job.metrics.read_text()
    assert _read(made.job, first)["redactory_rows", ()] == 10_000
    assert made.job.metrics.stat().st_mode & 0o777 == 0o644
    assert made.job.own.stat().st_mode & 0o777 == 0o700

    def full(*_: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr("redactory.foundation.files.sync", full)
    with pytest.raises(OSError, match="full"):
        write_metrics(made.job)
    assert made.job.metrics.read_text() == first
    assert list(made.job.own.glob(".tmp-*")) == []


def test_no_word_of_the_log_but_what_is_counted_gets_in(tmp_path: Path) -> None:
    made = MadeJob(tmp_path)
    with RecordLog(made.job.log) as log:
        body = {"run": "a", "time": NOW.isoformat(), "error": "a word nobody should see"}
        log.append(Event.FAILED.value, body)
    assert "nobody" not in render(made.job, NOW)
