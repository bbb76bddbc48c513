"""The gate: which runs it compares with, what it keeps, what the report then shows; the metrics file."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from redactory.evaluation.report import render_report
from redactory.flows.job_commands import describe_nights
from redactory.foundation.files import read_json
from redactory.pipelines.curation.config import NightlySettings
from redactory.pipelines.curation.release_log import Event, append_event, describe_record, read_log
from redactory.pipelines.operations.gate import (
    approve_release,
    find_earlier_runs,
    reject_release,
    release_or_hold,
    render_metrics,
    run_pending_actions,
    write_metrics,
)
from redactory.redaction import list_broken_files
from redactory.redaction.folder import JobFolder, RunFolder
from tests.pipelines.nightly.made_job import MadeJob

SETTINGS = NightlySettings()
NOW = datetime.datetime(2026, 3, 9, 2, 0, tzinfo=datetime.UTC)


@pytest.fixture
def steady(tmp_path: Path) -> MadeJob:
    made = MadeJob(tmp_path)
    made.nights(10)
    return made


def read_report(run: RunFolder) -> str:
    return run.report.read_text(encoding="utf-8")


def test_a_run_like_the_others_is_released(steady: MadeJob) -> None:
    run = steady.add("like-them", None)
    body = json.loads(run.manifest.read_text())
    body["policies"]["strict"]["hash"] = "f" * 64
    run.manifest.write_text(json.dumps(body))
    ended = release_or_hold(steady.job, run, SETTINGS)
    assert (ended["state"], ended["findings"], ended["counts"]["public"]) == ("released", [], 4_000)
    kept = read_json(run.gate.root / "result.json")
    assert (kept["unjudged"], len(kept["runs"])) == (None, 10)
    assert list_broken_files(run.gate) == []
    assert "Every metric is within its limits" in read_report(run)
    assert "unlike earlier runs" not in read_report(run)
    assert "10 of these runs were made with other policies" in read_report(run)


def test_a_poisoned_run_is_held_and_its_report_shows_why(steady: MadeJob) -> None:
    run = steady.add("poisoned", None, public=8_000, numbers=0, rejected=3_000)
    ended = release_or_hold(steady.job, run, SETTINGS)
    found = {(f["metric"], f["label"]) for f in ended["findings"]}
    hits = {("spans/strict/label", "NUMBER"), ("spans/strict/detector", "digits")}
    assert (ended["state"], found) == ("held", {("public", ""), ("rejected", ""), *hits})
    page = read_report(run)
    assert "Held: unlike earlier runs" in page
    assert page.count('<div class="control"') == 4
    assert page == render_report(run)
    [rejected] = (f for f in ended["findings"] if f["metric"] == "rejected")
    assert (rejected["value"], rejected["expected"], len(rejected["history"])) == (0.3, 0.0, 10)
    assert read_log(steady.job)[-1].body["findings"] == json.loads(json.dumps(ended["findings"]))
    # asked again, after it was held, it says the same; what is ignored holds nothing
    assert {(f["metric"], f["label"]) for f in release_or_hold(steady.job, run, SETTINGS)["findings"]} == found
    assert read_report(run) == page
    ignoring = NightlySettings.model_validate({"drift": {"ignore": ["public", "rejected", "NUMBER", "digits"]}})
    assert release_or_hold(steady.job, run, ignoring)["state"] == "released"


@pytest.mark.parametrize("approve", ["always", "drift", "never"])
@pytest.mark.parametrize("count", [0, 4, 5, 9])
@pytest.mark.parametrize("public", [4_000, 500])
def test_a_person_approves_what_the_configuration_says(tmp_path: Path, approve: str, count: int, public: int) -> None:
    """With too few earlier runs no drift can be judged: that is not agreement, so the run waits."""
    made = MadeJob(tmp_path)
    made.nights(count)
    run = made.add("next", None, public=public)
    assert 'id="drift"' not in render_report(run)
    ended = release_or_hold(made.job, run, NightlySettings.model_validate({"approve": approve}))
    is_like_them = count >= 5 and public == 4_000
    assert ended["state"] == {"always": "held", "drift": "released" if is_like_them else "held"}.get(
        approve, "released"
    )
    night = {"run": str(run.root), "date": "", **ended, "resumed": False}
    told = {"nights": [night], "latest": None, "held": [], "job": "job"}
    page = "\n".join(str(line) for line in describe_nights(told) if line)
    for text in (ended["unjudged"] or "", describe_record(read_log(made.job)[-1]), page, read_report(run)):
        assert ("not compared with earlier runs" in text) == (count < 5)
    assert ("so a person decides (nightly.approve is drift)" in page) == (approve == "drift" and count < 5)
    assert ("waits for approval: nightly.approve is always" in page) == (approve == "always")
    # what is unlike the others is shown, also where nobody has to approve it
    assert ("in the shards: 5.6 %; expected" in page) == (count >= 5 and public == 500)


@pytest.mark.parametrize("approve", ["always", "drift", "never"])
def test_a_run_without_an_example_waits_whoever_approves(steady: MadeJob, approve: str) -> None:
    run = steady.add("empty", None, public=0)
    body = json.loads(run.manifest.read_text())
    body["counts"] |= {"private": 0}
    run.manifest.write_text(json.dumps(body))
    assert release_or_hold(steady.job, run, NightlySettings.model_validate({"approve": approve}))["state"] == "held"
    assert "it holds no example" in read_report(run)


@pytest.mark.parametrize("approve", ["drift", "always"])
def test_the_report_says_how_the_log_says_the_run_ended(steady: MadeJob, approve: str) -> None:
    run = steady.add("like-them", None)
    release_or_hold(steady.job, run, NightlySettings.model_validate({"approve": approve}))
    record = read_log(steady.job)[-1]
    moment = record.body["time"][:16].replace("T", " ")
    state = {"drift": "Released on {} (UTC) by the gate.", "always": "Held on {} (UTC) until a person approves"}
    page = read_report(run)
    assert state[approve].format(moment) in page
    assert (">No.<" in page, "The public split may be exported." in page) == (approve == "always", approve == "drift")
    if approve == "always":
        assert "a person decides about it" in page
        approve_release(run.root, "Ann", "read it")
    # a released run can be rejected later
    reject_release(run.root, "Bob", "wrong feed")
    page = read_report(run)
    assert "by Bob: wrong feed" in page
    assert "Released" not in page
    assert ">No.<" in page
    # a process that died between the log and the report: the next command completes it
    before = run.report.read_bytes()
    result = read_json(run.gate.root / "result.json")
    (run.gate.root / "result.json").write_text(json.dumps({**result, "decision": None}))
    run.report.write_text("older")
    run_pending_actions(steady.job)
    assert run.report.read_bytes() == before


@pytest.mark.parametrize("decision", [approve_release, reject_release])
def test_the_report_of_a_held_run_says_what_was_decided(steady: MadeJob, decision: Any) -> None:
    run = steady.add("odd", None, public=1)
    assert release_or_hold(steady.job, run, SETTINGS)["state"] == "held"
    assert "is held back until" in read_report(run)
    decision(run.root, "Ann <b>", "looked & fine")
    page = read_report(run)
    assert "held back" not in page
    assert "Held:" not in page
    assert "Unlike earlier runs" in page
    moment = read_log(steady.job)[-1].body["time"][:16].replace("T", " ")
    told = "Released on {} (UTC): Ann &lt;b&gt; approved it: looked &amp; fine"
    if decision is reject_release:
        told = "Rejected on {} (UTC) by Ann &lt;b&gt;: looked &amp; fine"
    assert page.count(told.format(moment)) == 2
    assert page == render_report(run)


def test_held_rejected_and_later_runs_are_not_compared_with(tmp_path: Path) -> None:
    made = MadeJob(tmp_path)
    made.add("a")
    made.add("b", Event.HELD)
    append_event(made.add("c", Event.HELD), Event.APPROVED, by="me", reason="new source")
    append_event(made.add("d", Event.HELD), Event.REJECTED, by="me", reason="broken")
    made.add("e")
    run = made.add("f", Event.HELD)
    made.add("g")
    (made.job.root / "a" / "_SUCCESS").unlink()
    assert [one.root.name for one in find_earlier_runs(made.job, run)] == ["c", "e"]


def _metrics(job: JobFolder) -> dict[tuple[str, tuple[str, ...]], float]:
    """Each sample, by Prometheus' own parser: its name and its labels' values, without the folder's."""
    found = {}
    for family in text_string_to_metric_families(render_metrics(job, NOW)):
        assert family.documentation
        for sample in family.samples:
            labels = dict(sample.labels)
            assert labels.pop("folder") == str(job.root.resolve())
            key = sample.name.removeprefix("redactory_"), tuple(labels[name] for name in sorted(labels))
            assert key not in found
            found[key] = sample.value
    return found


def test_the_metrics_of_a_job(tmp_path: Path) -> None:
    made = MadeJob(tmp_path / 'a "job"\\with\nsigns')
    assert _metrics(made.job)["nights_since_release", ()] == 0
    made.add("a", earlier=100)
    held = made.add("b", Event.HELD, rejected=7, earlier=250)
    append_event(made.job.get_run_folder("c"), Event.STARTED, plan={})
    append_event(made.job.get_run_folder("c"), Event.FAILED, error="a word nobody should see")
    assert "nobody" not in render_metrics(made.job, NOW)
    found = _metrics(made.job)
    due = {
        ("nights_total", ("released",)): 1,
        ("nights_total", ("failed",)): 1,
        ("last_night_state", ("failed",)): 1,
        ("last_night_state", ("released",)): 0,
        ("nights_since_release", ()): 2,
        ("held_runs", ()): 1,
        # of b, which is finished
        ("examples", ("public",)): 4_000,
        ("rejected_rows", ("broken_json",)): 7,
        ("duplicate_examples", ("earlier",)): 250,
        ("duplicate_examples", ("run",)): 750,
        ("spans", ("digits", "NUMBER", "strict")): 1_000,
        ("input_bytes", ()): 9_120_331,
    }
    assert {key: found.get(key) for key in due} == due
    assert found["last_check_timestamp_seconds", ()] == NOW.timestamp()
    assert found["last_night_duration_seconds", ()] >= 0
    # an approval begins the count anew; of a run that is gone nothing is said
    append_event(held, Event.APPROVED, by="me", reason="fine")
    held.success.unlink()
    found = _metrics(made.job)
    assert (found["nights_since_release", ()], found["held_runs", ()]) == (0, 0)
    assert found["last_release_timestamp_seconds", ()] > 0
    assert ("examples", ("public",)) not in found
    write_metrics(made.job)
    assert made.job.metrics.stat().st_mode & 0o777 == 0o644
    assert made.job.state.stat().st_mode & 0o777 == 0o700
