"""With a Prefect server: what its API shows of our flows, and a deployed job that a worker runs."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import zoneinfo
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.redaction import RunFolder, list_parts
from tests.flows.local_server import Server
from tests.flows.small_job import NAME, small_job

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_job(tmp_path_factory.mktemp("scenarios"), "steady")


@pytest.fixture(scope="module")
def results(server: Server, config: Path) -> dict[str, Any]:
    """What the runs of ``scenarios.py`` gave, by name and in order."""
    command = [sys.executable, "-m", "tests.flows.scenarios", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=server.environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "words of the corpus" not in done.stdout + done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    return value


@pytest.fixture(scope="module")
def flows(server: Server, config: Path, results: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the server shows of the same runs."""
    runs = server.ask("/flow_runs/filter", {"sort": "START_TIME_ASC"})
    ours = [run for run in runs if run["parameters"].get("config") == str(config)]
    return dict(zip(results, ours, strict=True))


def _data(run: Path) -> list[bytes]:
    return [part.read_bytes() for folder in RunFolder(run).data_folders for part in list_parts(folder)]


def test_an_unsteady_part_is_tried_again(server: Server, results: Any, flows: Any) -> None:
    assert results["unsteady"]["rows"] == 9
    assert flows["unsteady"]["state_type"] == "COMPLETED"
    tasks = server.tasks(flows["unsteady"], "segment_documents-1")
    assert [tasks[f"segment_documents-{n}"]["run_count"] for n in range(3)] == [1, 3, 1]
    assert all("redactory" in task["tags"] for name, task in tasks.items() if name.rpartition("-")[2].isdigit())


def test_no_more_parts_run_at_once_than_the_server_allows(results: Any) -> None:
    assert results["unsteady"]["most_at_once"] == [1, 2]


def test_a_part_that_keeps_failing_fails_the_run_without_a_word(server: Server, results: Any, flows: Any) -> None:
    assert results["hopeless"]["kind"] == "SealedError"
    assert flows["hopeless"]["state_type"] == "FAILED"
    assert "words of the corpus" not in json.dumps(flows["hopeless"])
    tasks = server.tasks(flows["hopeless"], "segment_documents-1")
    assert tasks["segment_documents-1"]["run_count"] == 3
    assert "words of the corpus" not in json.dumps(tasks)


def test_a_refusal_is_not_tried_again(server: Server, results: Any, flows: Any) -> None:
    assert "max_rejected_share" in results["refused"]["error"]
    found = server.ask("/task_runs/filter", {"flow_runs": {"id": {"any_": [flows["refused"]["id"]]}}})
    assert {run["run_count"] for run in found} <= {1}


def test_the_same_content_is_not_run_twice(server: Server, results: Any, flows: Any) -> None:
    assert results["same"]["run"] == results["unsteady"]["run"]
    found = server.ask("/task_runs/filter", {"flow_runs": {"id": {"any_": [flows["same"]["id"]]}}})
    assert not [run["name"] for run in found if "_part" in run["name"]]
    assert "unchanged input" in _artifacts(server, flows["same"])["examples-steady"]


def test_a_remembered_run_that_is_not_whole_is_made_again(results: Any, config: Path) -> None:
    assert results["gone"]["run"] != results["unsteady"]["run"]
    assert redactory.verify(results["gone"]["run"])["ok"]


def test_new_content_is_a_new_run_with_the_shards_of_a_plain_one(results: Any, config: Path, tmp_path: Path) -> None:
    assert results["new"]["rows"] == 10
    assert results["new"]["run"] not in {results[name].get("run") for name in ("unsteady", "gone")}
    rows = config.with_name("rows.jsonl").read_text().splitlines(keepends=True)
    plain = small_job(tmp_path, "plain")
    plain.with_name("rows.jsonl").write_text("".join(rows[:10]))
    redactory.curate(plain, output=tmp_path / "run")
    assert _data(tmp_path / "run") == _data(Path(results["new"]["run"]))


def test_the_interface_shows_the_flow_of_points_and_the_report(server: Server, results: Any, flows: Any) -> None:
    shown = _artifacts(server, flows["new"])
    summary = results["new"]
    for name in ("rows", "documents", "examples", "public", "private", "duplicate"):
        assert f"| {name} | {summary[name]} |" in shown["examples-steady"]
    assert Path(summary["report"]).as_uri() in shown["report-steady"]
    assert not any(NAME in content for content in shown.values())


def _artifacts(server: Server, flow: dict[str, Any]) -> dict[str, str]:
    found = server.ask("/artifacts/filter", {"flow_runs": {"id": {"any_": [flow["id"]]}}})
    return {artifact["key"]: artifact["data"] for artifact in found}


def test_a_deployed_job_is_scheduled_and_a_worker_runs_it(server: Server, tmp_path: Path) -> None:
    config = small_job(tmp_path, "nightly")
    deploy = ("schedule", "--deploy", config, "--timezone", "Europe/Berlin", "--workers", 1)
    told = server.redactory(*deploy, "--cron", "0 2 * * *", cwd=tmp_path)
    assert told["deployment"] == "curate/nightly"
    deployment = server.ask("/deployments/name/curate/nightly")
    assert deployment["entrypoint"] == "redactory.flows.prefect_flows.curate"
    assert deployment["parameters"]["config"] == str(config)
    assert deployment["job_variables"]["env"]["PREFECT_LOGGING_TO_API_ENABLED"] == "false"
    assert deployment["schedules"][0]["schedule"] == {"cron": "0 2 * * *", "timezone": "Europe/Berlin", "day_or": True}
    assert deployment["global_concurrency_limit"]["limit"] == 1
    _two_at_night(server, deployment["id"])

    started = server.ask(f"/deployments/{deployment['id']}/create_flow_run", {"state": {"type": "SCHEDULED"}})
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "redactory", "--run-once"]
    worker = subprocess.run(command, capture_output=True, text=True, check=False, env=server.environment, cwd=tmp_path)
    run = server.ask(f"/flow_runs/{started['id']}")
    assert run["state_type"] == "COMPLETED", worker.stdout + worker.stderr
    due = datetime.datetime.fromisoformat(run["expected_start_time"])
    folder = tmp_path / "runs" / due.strftime("%Y-%m-%dT%H%M%SZ")
    assert "curate nightly: 9 rows, " in worker.stderr
    assert str(folder) in worker.stderr
    redactory.curate(config, output=tmp_path / "plain")
    assert _data(folder) == _data(tmp_path / "plain")

    server.redactory(*deploy, "--limit", 50, cwd=tmp_path)
    assert server.ask("/concurrency_limits/tag/redactory")["concurrency_limit"] == 50
    assert not server.ask("/deployments/name/curate/nightly")["schedules"]


def _two_at_night(server: Server, deployment: str) -> None:
    """The server puts the next runs at two o'clock in the job's own time zone."""
    server.ask(f"/deployments/{deployment}/schedule", {"min_runs": 3})
    found = server.ask(
        "/flow_runs/filter", {"deployments": {"id": {"any_": [deployment]}}, "sort": "EXPECTED_START_TIME_ASC"}
    )
    times = [datetime.datetime.fromisoformat(run["expected_start_time"]).astimezone(BERLIN) for run in found]
    assert len(times) >= 3
    assert {(time.hour, time.minute) for time in times} == {(2, 0)}
