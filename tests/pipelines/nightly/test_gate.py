"""The gate: which runs it compares with, what it keeps, and what the report then shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from redactory.evaluation import render_report
from redactory.evaluation.drift import DriftSettings
from redactory.foundation.files import read_json
from redactory.pipelines.gate import earlier_runs, judge
from redactory.pipelines.release_log import Event, enter
from redactory.redaction import broken_files
from redactory.redaction.folder import RunFolder
from tests.pipelines.nightly.made_job import MadeJob

SETTINGS = DriftSettings()


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> MadeJob:
    made = MadeJob(tmp_path_factory.mktemp("job"))
    made.nights(10)
    return made


def _page(run: RunFolder) -> str:
    return run.report.read_text(encoding="utf-8")


def test_a_night_like_the_others_is_within_the_limits(steady: MadeJob) -> None:
    run = steady.add("like-them", None)
    assert judge(steady.job, run, SETTINGS) == []
    kept = read_json(run.gate.root / "result.json")
    assert (kept["verdict"], len(kept["runs"])) == ("within", 10)
    assert broken_files(run.gate) == []
    assert "Every figure lies within its limits" in _page(run)
    assert "unlike earlier runs" not in _page(run)


def test_a_poisoned_night_is_found_and_its_report_shows_why(steady: MadeJob) -> None:
    run = steady.add("poisoned", None, public=8_000, numbers=0, rejected=3_000)
    found = {(f.metric, f.label) for f in judge(steady.job, run, SETTINGS)}
    assert found == {
        ("public", ""),
        ("rejected", ""),
        ("hits/strict/label", "NUMBER"),
        ("hits/strict/detector", "digits"),
    }
    page = _page(run)
    assert "Held: unlike earlier runs" in page
    assert page.count('<div class="control"') == 4
    assert page == render_report(run)
    # asked again, after it was held, it says the same
    enter(run, Event.HELD, manifest="0" * 64, counts={}, findings=[])
    assert {(f.metric, f.label) for f in judge(steady.job, run, SETTINGS)} == found
    assert _page(run) == page


def test_the_findings_are_json_without_their_history(steady: MadeJob) -> None:
    run = steady.add("as-json", None, rejected=5_000)
    [found] = judge(steady.job, run, SETTINGS)
    told = json.loads(json.dumps(found.to_json()))
    assert (told["metric"], told["value"], told["expected"], told["runs"]) == ("rejected", 0.5, 0.0, 10)
    assert "history" not in told


def test_the_first_nights_are_not_judged(tmp_path: Path) -> None:
    made = MadeJob(tmp_path)
    made.nights(4)
    run = made.add("fifth", None, public=8_000)
    assert judge(made.job, run, SETTINGS) == []
    kept = read_json(run.gate.root / "result.json")
    assert kept["verdict"] == "too few"
    assert "4 earlier runs so far, and limits are drawn from 5 on" in _page(run)


def test_held_rejected_retried_and_later_runs_are_not_compared_with(tmp_path: Path) -> None:
    made = MadeJob(tmp_path)
    made.add("a")
    made.add("b", Event.HELD)
    approved = made.add("c", Event.HELD)
    enter(approved, Event.APPROVED, by="me", reason="new source")
    enter(made.add("d", Event.HELD), Event.REJECTED, by="me", reason="broken")
    enter(made.add("e"), Event.RETRIED, into="e-retry", entries=1)
    made.add("e-retry")
    run = made.add("f", Event.HELD)
    made.add("g")
    (made.job.root / "a" / "_SUCCESS").unlink()
    assert [one.root.name for one in earlier_runs(made.job, run)] == ["c", "e"]


def test_a_change_of_the_policies_is_told(steady: MadeJob) -> None:
    run = steady.add("other-policies", None)
    body = json.loads(run.manifest.read_text())
    body["policies"]["strict"]["hash"] = "f" * 64
    run.manifest.write_text(json.dumps(body))
    judge(steady.job, run, SETTINGS)
    assert "10 of these runs were made with other policies" in _page(run)


def test_a_run_that_was_never_judged_shows_nothing_of_it(tmp_path: Path) -> None:
    run = MadeJob(tmp_path).add("alone")
    assert not run.gate.root.exists()
    assert 'id="drift"' not in render_report(run)
