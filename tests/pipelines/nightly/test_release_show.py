"""``release show``: the decision on a run in sentences, and its comparison with the previous released run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import redactory
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.pipelines.curation.config import NightlySettings
from redactory.pipelines.curation.release_log import Event, append_event
from redactory.pipelines.operations.gate import approve_release, reject_release, release_or_hold
from redactory.redaction.folder import RunFolder
from tests.pipelines.nightly.made_job import MadeJob
from tests.pipelines.nightly.test_nightly_commands import SETTINGS
from tests.pipelines.support import invoke_command, write_rows


@pytest.fixture
def steady(tmp_path: Path) -> MadeJob:
    made = MadeJob(tmp_path / "a job")
    made.nights(10)
    return made


def show(run: RunFolder, code: int = 0) -> str:
    done = invoke_command("release", "show", run.root)
    assert done.exit_code == code, done.output
    return str(done.stdout)


def add_held(made: MadeJob) -> RunFolder:
    run = made.add("poisoned", None, public=8_000, numbers=0, rejected=3_000)
    assert release_or_hold(made.job, run, NightlySettings())["state"] == "held"
    return run


def get_changes(run: RunFolder) -> dict[tuple[str, str], tuple[Any, Any]]:
    changes = redactory.show_release(run.root)["changes"]
    return {(c["metric"], c["label"]): (c["before"], c["now"]) for c in changes}


def test_a_held_run_says_why_and_how_to_decide(steady: MadeJob) -> None:
    run = add_held(steady)
    page = show(run)
    assert re.match(
        r"poisoned is held since 20\d\d-\d\d-\d\d \d\d:\d\d UTC, until somebody approves or rejects it\.", page
    )
    # 8,000 of the 9,000 examples in the shards; 3,000 of 10,000 rows
    assert "Reason: public examples, of those in the shards: 88.9 %; expected 41.3 to 47.4 %." in page
    assert "Reason: rejected rows: 30.0 %; expected 0.0 to 1.0 %." in page
    assert "The latest release is 2026-03-10." in page
    assert re.search(r"rejected: broken_json +0 +3,000 +\+3,000", page)
    for action in ("approve", "reject"):
        assert f"redactory release {action} '{run.root}' --by NAME --reason WHY" in page
    assert f"redactory quarantine list '{run.root}'" in page
    assert json.loads(invoke_command("release", "show", run.root, "--json").stdout)["state"] == "held"


def test_changes_compare_with_the_last_run_that_was_released_before(steady: MadeJob) -> None:
    run, first = add_held(steady), RunFolder(steady.job.root / "2026-03-01")
    assert "No release before it" in show(first)
    append_event(steady.add("z-later", public=1), Event.REJECTED, by="me", reason="no")
    steady.add("z-released", public=2)
    r = redactory.show_release(run.root)
    assert r["previous"] == "2026-03-10"
    previous = json.loads((steady.job.root / "2026-03-10" / "manifest.json").read_text())
    assert get_changes(run) == {
        ("rows", ""): (10_000, 10_000),
        ("examples", ""): (10_000, 10_000),
        ("public", ""): (previous["counts"]["public"] / 9_000, 8_000 / 9_000),
        ("quarantined", ""): (0, 0),
        ("rejected", ""): (0, 0.3),
        ("duplicate", ""): (0.1, 0.1),
        ("spans/strict/label", "NUMBER"): (previous["spans"][0]["count"] / 10, 0),
        ("spans/strict/label", "NAME"): (50, 50),
        ("rejected", "broken_json"): (0, 3_000),
    }
    assert redactory.show_release(first.root)["previous"] is None
    assert {before for before, _ in get_changes(first).values()} == {None}


def test_a_decided_run_says_who_decided(steady: MadeJob) -> None:
    run = add_held(steady)
    approve_release(run.root, "Ann", "new source")
    page = show(run)
    assert re.match(r"poisoned is released: approved by Ann on \S+ \S+ UTC: new source\.", page)
    assert "The gate had held it: rejected rows" in page
    assert "The latest release is this one." in page
    assert "redactory release approve" not in page
    reject_release(run.root, "Bob", "wrong feed")
    page = show(run)
    assert re.match(r"poisoned is rejected by Bob on \S+ \S+ UTC: wrong feed\. The next scheduled run reads", page)
    assert "redactory release reject" not in page
    by_gate = steady.add("usual", None)
    release_or_hold(steady.job, by_gate, NightlySettings())
    assert re.match(
        r"usual is released: the gate released it on \S+ \S+ UTC\.\nThe latest release is this", show(by_gate)
    )


def test_a_first_run_says_that_nothing_was_compared_and_a_failed_one_why(tmp_path: Path) -> None:
    made = MadeJob(tmp_path / "job")
    run = made.add("first", None)
    release_or_hold(made.job, run, NightlySettings())
    assert "It was not compared with earlier runs: 0 released runs before it" in show(run)
    failed = RunFolder(made.job.root / "second")
    append_event(failed, Event.STARTED, plan={"slices": []})
    assert re.match(r"second began on \S+ \S+ UTC and is not finished\. The next", show(failed))
    append_event(failed, Event.FAILED, error="a file is missing")
    assert re.match(r"second failed on \S+ \S+ UTC: a file is missing\. The next", show(failed))


def test_a_run_that_must_not_be_shared_cannot_be_approved(tmp_path: Path) -> None:
    made = MadeJob(tmp_path / "job")
    run = made.add("blind", None)
    body = json.loads(run.manifest.read_text())
    body["uncovered"]["kinds"] = {"PERSON": ["en"]}
    run.manifest.write_text(json.dumps(body))
    release_or_hold(made.job, run, NightlySettings())
    page = show(run)
    assert re.search(
        r"^Reason: uncovered: .*allow_uncovered_kinds: \[PERSON\]\.\nIt must not be shared", page, re.MULTILINE
    )
    assert "redactory release approve" not in page
    assert "redactory release reject" in page


def test_another_folder_and_a_shortened_log_are_refused(steady: MadeJob, tmp_path: Path) -> None:
    run = add_held(steady)
    with pytest.raises(RunStateError, match="does not belong to a job"):
        redactory.show_release(tmp_path / "nowhere")
    with pytest.raises(RunStateError, match="has no run other"):
        redactory.show_release(steady.job.root / "other")
    steady.job.latest.unlink()
    steady.job.latest.symlink_to("poisoned")
    assert "Warning: latest points to poisoned, but according to the log it is 2026-03-10" in show(run, code=1)
    lines = steady.job.log.read_bytes().splitlines(keepends=True)
    steady.job.log.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    with pytest.raises(CheckFailed):
        redactory.show_release(run.root)


def test_a_real_run_is_shown_without_its_text(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [{"text": "zanzibar is far"}, {"text": ""}, {"text": "so it is"}])
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(SETTINGS))
    assert invoke_command("nightly", tmp_path / "job.yaml").exit_code == 0
    page = invoke_command("release", "show", tmp_path / "job" / "latest").stdout
    assert "is released: the gate released it on" in page
    assert re.search(r"rows +3\n", page)
    assert re.search(r"rejected: empty_text +1\n", page)
    assert "zanzibar" not in page + invoke_command("release", "show", tmp_path / "job" / "latest", "--json").stdout
