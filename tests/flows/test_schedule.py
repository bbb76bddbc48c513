"""Scheduled jobs without a server: where their runs go, which run stands for another, what is refused."""

from __future__ import annotations

import asyncio
import datetime
import json
import shutil
import subprocess
import threading
import urllib.request
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.server.schemas.schedules import CronSchedule
from prefect.states import Failed

import redactory
from redactory.flows import prefect_flows
from redactory.flows.prefect_flows import find_reusable_run, log_flow_outcome
from redactory.flows.prefect_tasks import RETRY_SECONDS, make_task_decorator, open_worker_processes
from redactory.flows.schedule import FlowSchedule, deploy_schedule, plan_schedule
from redactory.flows.schedule import import_flows as flows_of
from redactory.flows.server import add_start_placeholder, expand_template, extract_runs_folder
from redactory.foundation.errors import ConfigurationError, RedactoryError, SealedError
from redactory.foundation.progress import StageReport
from redactory.pipelines.curation.loading import load_config
from redactory.redaction import RunFolder
from tests.child_processes import end_with_parent
from tests.flows import dying_part
from tests.flows.small_job import small_job

DUE = datetime.datetime(2026, 10, 24, 23, 30, tzinfo=datetime.UTC)


def _plan(config: Path, **changes: Any) -> FlowSchedule:
    return plan_schedule(str(config), **{"cron": "0 2 * * *", **changes})


@given(st.integers(0, 3600 * 24 * 400), st.integers(1, 3600 * 24), st.sampled_from(["UTC", "Europe/Berlin"]))
def test_runs_due_at_different_seconds_have_different_folders(first: int, later: int, zone: str) -> None:
    # also in the hour that the clocks are put back
    one = DUE + datetime.timedelta(seconds=first)
    other = one + datetime.timedelta(seconds=later)
    assert expand_template("{start}", one, zone) != expand_template("{start}", other, zone)


def test_each_run_has_a_folder_of_its_own_named_after_when_it_was_due() -> None:
    assert expand_template("/a/{start}/b{c}", DUE, "UTC") == "/a/2026-10-24T233000Z/b{c}"
    assert expand_template("/a/{date}", DUE, "Europe/Berlin") == "/a/2026-10-25"
    assert add_start_placeholder("/srv/runs/") == "/srv/runs/{start}"
    assert add_start_placeholder("/srv/{date}/run") == "/srv/{date}/run"
    assert extract_runs_folder("/srv/runs/day-{date}/x") == "/srv/runs"
    assert extract_runs_folder("{start}") == "."


def test_a_plan_stands_wherever_a_worker_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_job(tmp_path, "nightly")
    monkeypatch.chdir(tmp_path)
    planned = _plan(Path("nightly.yaml"))
    assert planned.full_name == "curate/nightly"
    assert planned.parameters["config"] == str(tmp_path / "nightly.yaml")
    assert planned.parameters["output"] == str(tmp_path / "runs" / "{start}")
    assert planned.runs_folder == tmp_path / "runs"
    assert planned.parameters["resume"] is True


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"timezone": "Europe/Atlantis"}, "--timezone: 'Europe/Atlantis'"),
        ({"timezone": "../../etc/passwd"}, "--timezone"),
        ({"name": "two words"}, "--name: 'two words'"),
        ({"work": "nightly", "out": Path("{date}")}, "names its runs itself"),
        *(({"cron": cron}, "five fields") for cron in ("", "0 2 * *", "61 2 * * *", "at night", "@reboot")),
        # a sixth field would be seconds, or a year
        *(({"cron": cron}, "got [67] fields") for cron in ("0 2 * * * *", "* * * * * *", "0 0 12 * * ? 2026")),
        *(({"cron": cron}, "never runs") for cron in ("0 0 31 2 *", "0 0 31 4,6 *", "*/0 * * * *")),
        ({"cron": "\N{ARABIC-INDIC DIGIT TWO} 2 * * *"}, "five fields"),
    ],
)
def test_what_would_fail_at_night_is_refused_by_day(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        _plan(small_job(tmp_path, "nightly"), **changes).check_cron()


@pytest.mark.parametrize(
    ("cron", "times"),
    [
        ("0 2 * * *", ["10-25T02:00", "10-26T02:00"]),
        (" 0  2 * *  * ", ["10-25T02:00", "10-26T02:00"]),
        ("@hourly", ["10-25T00:00", "10-25T01:00"]),
        ("@daily", ["10-25T00:00", "10-26T00:00"]),
        ("@Midnight", ["10-25T00:00", "10-26T00:00"]),
        ("@weekly", ["10-25T00:00", "11-01T00:00"]),
        ("@monthly", ["11-01T00:00", "12-01T00:00"]),
        ("@yearly", ["01-01T00:00", "01-01T00:00"]),
        ("@annually", ["01-01T00:00", "01-01T00:00"]),
        ("30 6 * * mon-fri", ["10-26T06:30", "10-27T06:30"]),
    ],
)
def test_a_schedule_is_due_when_cron_says(tmp_path: Path, cron: str, times: list[str]) -> None:
    planned = _plan(small_job(tmp_path, "nightly"), cron=cron)
    planned.check_cron()
    assert planned.cron is not None
    due = CronSchedule(cron=planned.cron, timezone="UTC").get_dates(2, start=DUE)
    assert [f"{when:%m-%dT%H:%M}" for when in asyncio.run(due)] == times


def test_a_run_of_the_same_content_is_found(tmp_path: Path) -> None:
    config = small_job(tmp_path, "nightly")
    run, template = tmp_path / "runs" / "first", str(tmp_path / "runs" / "{start}")
    assert find_reusable_run(load_config(config), template) is None
    redactory.curate(config, output=run)
    for same in (load_config(config), load_config(config, workers=2)):
        assert find_reusable_run(same, template) == RunFolder(run)
    other = load_config(small_job(tmp_path, "other", partition={"documents": 4}))
    indexed = load_config(small_job(tmp_path, "indexed", dedup={"index": {"path": "index"}}))
    for settings, place in ((other, template), (indexed, template), (load_config(config), str(run))):
        assert find_reusable_run(settings, place) is None
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write("\n")
    assert find_reusable_run(load_config(config), template) is None


@pytest.mark.parametrize("harm", ["no folder", "no _SUCCESS", "a shard is gone", "a byte is another"])
def test_a_kept_run_is_looked_at(harm: str, tmp_path: Path, plain: tuple[Path, Path]) -> None:
    config, made = plain
    run = Path(shutil.copytree(made, tmp_path / "run"))
    settings, template = load_config(config), str(tmp_path / "{start}")
    assert find_reusable_run(settings, template) == RunFolder(run)
    shard = next((run / "public").iterdir())
    if harm == "no folder":
        shutil.rmtree(run)
    elif harm == "no _SUCCESS":
        (run / "_SUCCESS").unlink()
    elif harm == "a shard is gone":
        shard.unlink()
    else:
        data = bytearray(shard.read_bytes())
        data[len(data) // 2] ^= 1
        shard.write_bytes(bytes(data))
    assert find_reusable_run(settings, template) is None


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A configuration and a finished run of it."""
    folder = tmp_path_factory.mktemp("plain")
    config = small_job(folder, "nightly")
    redactory.curate(config, output=folder / "run")
    return config, folder / "run"


def test_a_key_of_this_process_alone_finds_nothing(
    tmp_path: Path, plain: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REDACTORY_KEY")
    assert find_reusable_run(load_config(plain[0]), str(plain[1].parent / "{start}")) is None


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ConfigurationError("job.yaml: no such key"), "failed: job.yaml: no such key"),
        (ValueError("words of the corpus"), "failed"),
    ],
)
def test_the_line_of_a_run_quotes_no_words_but_ours(
    error: Exception, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = {"config": "/a/nightly.yaml", "output": "/a/{start}", "timezone": "UTC"}
    run = SimpleNamespace(deployment_id="d", expected_start_time=DUE, parameters=asked)
    log_flow_outcome(SimpleNamespace(name="curate"), run, Failed(data=error))
    assert capsys.readouterr().err == f"2026-10-24T23:30:00Z curate nightly: {told}\n"
    run.deployment_id = None
    log_flow_outcome(SimpleNamespace(name="curate"), run, Failed(data=error))
    assert capsys.readouterr().err == ""


def test_what_fails_before_there_is_a_run_folder_is_told_without_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("words of a list")

    monkeypatch.setattr(prefect_flows, "load_config", fails)
    with pytest.raises(SealedError, match="unexpected ValueError") as told:
        prefect_flows.curate.fn("nightly.yaml")
    assert "words" not in str(told.value)
    assert told.value.__context__ is None


def test_only_what_may_pass_by_itself_is_tried_again() -> None:
    """Our own refusals stay as they are, however often they but needs."""
    kinds = {SealedError}
    for kind in kinds.copy() | {RedactoryError}:
        kinds |= {kind, *kind.__subclasses__(), *(c for one in kind.__subclasses__() for c in one.__subclasses__())}
    assert len(kinds) >= 7
    made = make_task_decorator("work")(lambda: None)
    assert made.retries == len(RETRY_SECONDS) == 2
    for kind in kinds:
        state = Failed(data=kind.__new__(kind, "a file is wrong"))
        assert made.retry_condition_fn(made, None, state) is issubclass(kind, SealedError)


@pytest.mark.slow
def test_a_lost_process_is_replaced(tmp_path: Path) -> None:
    task = partial(dying_part.dies_once, tmp_path / "died")
    with open_worker_processes(1) as call:
        with pytest.raises(BrokenProcessPool):
            call(task, 7)
        assert call(task, 7).counts == StageReport("part", dying_part.COUNTS).counts


@pytest.mark.slow
def test_a_server_that_is_named_by_nothing_is_none(tmp_path: Path) -> None:
    """``PREFECT_API_URL=`` (set and empty) is what a template leaves whose value was never filled in."""
    from tests.flows.local_server import COMMAND, clean_environment, free_port

    config = small_job(tmp_path, "nightly")
    empty = clean_environment(tmp_path) | dict.fromkeys(("PREFECT_API_URL", "PREFECT_HOME"), "")
    command = [*COMMAND, "schedule", str(config), "--port", str(free_port()), "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=empty, start_new_session=True
    )
    guard = threading.Timer(200, process.kill)
    guard.start()
    with process, end_with_parent(group=process.pid):
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        with urllib.request.urlopen(f"{told['server']}/health", timeout=60) as answer:
            assert answer.status == 200
        process.terminate()
    guard.cancel()
    assert told["server"].startswith("http://127.0.0.1:")


def test_without_a_server_nothing_is_deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("redactory.flows.schedule.find_server_address", lambda: None)
    with pytest.raises(ConfigurationError, match="--deploy: set PREFECT_API_URL to your Prefect server"):
        deploy_schedule(_plan(small_job(tmp_path, "nightly")), "pool", 4)


@pytest.mark.parametrize("work", ["curate", "run", "nightly"])
def test_a_plan_names_a_flow_that_takes_its_parameters(work: Any, tmp_path: Path) -> None:
    planned = _plan(small_job(tmp_path, "job"), work=work)
    assert set(planned.parameters) <= set(getattr(flows_of(), work).parameters.properties)
    assert planned.runs_folder == tmp_path / "runs"
    assert ("resume" in planned.parameters) == (work != "nightly")
