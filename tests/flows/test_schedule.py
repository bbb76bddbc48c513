"""Scheduled jobs without a server: where their runs go, what is refused, what is told of them."""

from __future__ import annotations

import asyncio
import datetime
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.server.schemas.schedules import CronSchedule
from prefect.states import Failed

from redactory.flows import prefect_flows, schedule
from redactory.flows.prefect_flows import log_flow_outcome
from redactory.flows.prefect_tasks import RETRY_SECONDS, make_task_decorator
from redactory.flows.schedule import FlowSchedule, deploy_schedule, plan_schedule, serve_schedule
from redactory.flows.server import expand_template
from redactory.foundation.errors import ConfigurationError, RedactoryError, SealedError
from redactory.foundation.progress import ignore_progress
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


def test_each_run_has_a_folder_named_after_when_it_was_due() -> None:
    assert expand_template("/a/{start}/b{c}", DUE, "UTC") == "/a/2026-10-24T233000Z/b{c}"
    assert expand_template("/a/{date}", DUE, "Europe/Berlin") == "/a/2026-10-25"


@pytest.mark.parametrize("work", ["curate", "run", "nightly"])
def test_a_plan_stands_wherever_a_worker_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: Any) -> None:
    small_job(tmp_path, "job")
    monkeypatch.chdir(tmp_path)
    planned = _plan(Path("job.yaml"), work=work)
    flow = getattr(prefect_flows, work)
    assert set(planned.parameters) <= set(flow.parameters.properties)
    assert planned.parameters["config"] == str(tmp_path / "job.yaml")
    runs = tmp_path / "runs"
    assert planned.parameters["output"] == str(runs if work == "nightly" else runs / "{start}")
    if work != "nightly":
        dated = _plan(Path("job.yaml"), work=work, out=Path("day-{date}"))
        assert dated.parameters["output"] == str(tmp_path / "day-{date}")
    # Prefect hands the flow to workers with each task
    cloudpickle.dumps(flow)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"timezone": "Europe/Atlantis"}, "--timezone: 'Europe/Atlantis'"),
        ({"timezone": "../../etc/passwd"}, "--timezone"),
        ({"name": "two words"}, "--name: 'two words'"),
        ({"work": "nightly", "out": Path("{date}")}, "names its runs itself"),
        ({"dask": "tcp://10.1.2.3:8786"}, "write tls://HOST:PORT"),
        *(({"cron": cron}, "five fields") for cron in ("", "0 2 * *", "61 2 * * *", "at night", "@reboot")),
        # a sixth field would be seconds, or a year
        *(({"cron": cron}, "got [67] fields") for cron in ("0 2 * * * *", "0 0 12 * * ? 2026")),
        *(({"cron": cron}, "never runs") for cron in ("0 0 31 2 *", "*/0 * * * *")),
        ({"cron": "\N{ARABIC-INDIC DIGIT TWO} 2 * * *"}, "five fields"),
    ],
)
def test_what_would_fail_at_night_is_refused_by_day(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        _plan(small_job(tmp_path, "nightly"), **changes).deployment_kwargs()


@pytest.mark.parametrize(
    ("cron", "times"),
    [
        (" 0  2 * *  * ", ["10-25T02:00", "10-26T02:00"]),
        ("@Midnight", ["10-25T00:00", "10-26T00:00"]),
        ("@weekly", ["10-25T00:00", "11-01T00:00"]),
        ("30 6 * * mon-fri", ["10-26T06:30", "10-27T06:30"]),
    ],
)
def test_a_schedule_is_due_when_cron_says(tmp_path: Path, cron: str, times: list[str]) -> None:
    planned = _plan(small_job(tmp_path, "nightly"), cron=cron)
    assert planned.deployment_kwargs()["schedule"].cron == planned.cron
    due = CronSchedule(cron=str(planned.cron), timezone="UTC").get_dates(2, start=DUE)
    assert [f"{when:%m-%dT%H:%M}" for when in asyncio.run(due)] == times


def test_without_a_server_there_is_no_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule, "find_server_address", lambda: None)
    monkeypatch.setattr(schedule, "configure_prefect", lambda: None)
    planned = _plan(small_job(tmp_path, "nightly"))
    for register in (lambda: deploy_schedule(planned, "pool"), lambda: serve_schedule(planned, print)):
        with pytest.raises(ConfigurationError, match=r"prefect server start.*PREFECT_API_URL"):
            register()


def test_a_flow_with_a_store_publishes_its_run_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setenv("REDACTORY_WORK", str(tmp_path))
    monkeypatch.setattr(schedule, "open_server", nullcontext)
    monkeypatch.setattr(schedule, "configure_prefect", lambda home: None)
    flows = SimpleNamespace(
        progress_listener=prefect_flows.progress_listener, curate=lambda *arguments, **_: given.append(arguments)
    )
    monkeypatch.setattr(schedule, "import_flows", lambda: flows)
    config = str(small_job(tmp_path, "job"))
    schedule.run_flow("curate", config, "s3://bucket/run", ignore_progress, dask=None, resume=False)
    assert given == [(config, "s3://bucket/run")]


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


def test_what_fails_before_there_is_a_run_folder_is_told_without_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("words of a list")

    monkeypatch.setattr(prefect_flows, "load_config", fails)
    with pytest.raises(SealedError, match="unexpected ValueError") as told:
        prefect_flows.curate.fn("nightly.yaml")
    assert "words" not in str(told.value)
    assert told.value.__context__ is None


def test_only_what_may_pass_by_itself_is_tried_again() -> None:
    """Our own refusals stay as they are, however often they are repeated."""
    kinds = {RedactoryError, SealedError}
    for kind in RedactoryError.__subclasses__():
        kinds |= {kind, *kind.__subclasses__()}
    assert len(kinds) >= 7
    made = make_task_decorator("work")(lambda: None)
    assert made.retries == len(RETRY_SECONDS) == 2
    for kind in kinds:
        state = Failed(data=kind.__new__(kind, "a file is wrong"))
        assert made.retry_condition_fn(made, None, state) is issubclass(kind, SealedError)
