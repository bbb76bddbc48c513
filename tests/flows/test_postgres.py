"""Prefect on PostgreSQL: a work pool, a worker, and two scheduled nights of one job, end to end."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.foundation.records import read_records
from redactory.redaction import read_manifest
from redactory.redaction.folder import JobFolder
from tests.child_processes import start_child_process
from tests.conftest import KEY
from tests.flows import local_postgres
from tests.flows.leak_search import Search
from tests.flows.local_postgres import Postgres
from tests.flows.local_server import Server
from tests.flows.small_job import NAME, small_job

pytestmark = pytest.mark.slow

LONGEST_SECONDS = 240.0
SOON = datetime.timedelta(seconds=2)
EVERY_DAY = 86_400
ENCRYPTION_KEY = "an encryption key of this test, of more than 32 bytes"


@contextmanager
def _worker(server: Server, folder: Path) -> Iterator[None]:
    """A worker of the pool until the context ends; it is not told of the database."""
    keys = {"REDACTORY_KEY": KEY, "REDACTORY_ENCRYPTION_KEY": ENCRYPTION_KEY}
    environment = {**server.environment, **keys, "PREFECT_WORKER_QUERY_SECONDS": "1"}
    command = [sys.executable, "-m", "prefect", "worker", "start", "--pool", "redactory"]
    with (
        (server.home / "worker.log").open("wb") as log,
        # one that is told to end while it looks for work may wait for ever
        start_child_process(command, patience=10.0, env=environment, cwd=folder, stdout=log, stderr=log),
    ):
        yield


def _scheduled_run(server: Server, deployment: str, known: set[str]) -> dict[str, Any]:
    """Give the deployment one more schedule, due at once and then daily; its first run, once it has ended."""
    due = datetime.datetime.now(datetime.UTC) + SOON
    schedule = {"interval": EVERY_DAY, "anchor_date": due.isoformat(), "timezone": "UTC"}
    server.ask(f"/deployments/{deployment}/schedules", [{"schedule": schedule, "active": True}])
    end = time.monotonic() + LONGEST_SECONDS
    found: list[dict[str, Any]] = []
    while time.monotonic() < end:
        asked = {"deployments": {"id": {"any_": [deployment]}}, "sort": "EXPECTED_START_TIME_ASC"}
        found = server.ask("/flow_runs/filter", asked)
        ended = [run for run in found if run["end_time"] and run["id"] not in known]
        if ended:
            known.add(ended[0]["id"])
            return ended[0]
        time.sleep(1.0)
    raise AssertionError(f"no run has ended: {[run['state_name'] for run in found]}")


@pytest.fixture(scope="module")
def nights(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[JobFolder, list[dict[str, Any]]]:
    """The job, and Prefect's record of its two nights; between them the corpus has grown."""
    folder = tmp_path_factory.mktemp("job")
    config = small_job(folder, "support", partition={"documents": 9}, nightly={"partial_row_grace_minutes": 0})
    # each is verified below
    deploy = ("schedule", "--deploy", config, "--work", "nightly", "--cron", "0 2 * * *", "--no-verify")
    server.redactory(*deploy, cwd=folder)
    deployment = server.ask("/deployments/name/nightly/support")["id"]
    known: set[str] = set()
    with _worker(server, folder):
        first = _scheduled_run(server, deployment, known)
        with config.with_name("rows.jsonl").open("a") as rows:
            rows.writelines(
                json.dumps({"id": f"later-{n}", "text": f"Later row {n} is about {NAME}.\nThank you."}) + "\n"
                for n in range(4)
            )
        second = _scheduled_run(server, deployment, known)
        # a run has ended before its worker has put away what it was started with: keys are in that
        end = time.monotonic() + LONGEST_SECONDS
        while list(server.home.glob("prefect-workspace-attempt-*")) and time.monotonic() < end:
            time.sleep(0.1)
    return JobFolder(folder / "runs"), [first, second]


def test_two_scheduled_nights_are_finished_and_verify(
    nights: tuple[JobFolder, list[dict[str, Any]]], server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, runs = nights
    told = (server.home / "worker.log").read_text()
    assert [run["state_type"] for run in runs] == ["COMPLETED", "COMPLETED"], told
    # made by the scheduler, not asked for
    assert all(run["auto_scheduled"] for run in runs)
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", ENCRYPTION_KEY)
    released = [r.body["run"] for r in read_records(job.log) if r.type == "released"]
    assert len(released) == 2, told
    manifests = [read_manifest(job.get_run_folder(name)) for name in released]
    # the second night read what was new
    assert [manifest["counts"]["rows"] for manifest in manifests] == [9, 4]
    assert all(manifest["encrypted"] for manifest in manifests)
    for name in released:
        found = redactory.verify(job.get_run_folder(name).root)
        assert found["ok"], found["checks"]


@pytest.mark.usefixtures("nights")
def test_everything_that_prefect_keeps_is_in_postgresql(database: Postgres, server: Server) -> None:
    of_nights = "FROM flow_run JOIN deployment ON deployment_id = deployment.id WHERE deployment.name = 'support'"
    assert database.ask(f"SELECT count(*) {of_nights} AND state_type = 'COMPLETED'") == ["2"]
    tasks = f"SELECT count(*) FROM task_run WHERE flow_run_id IN (SELECT flow_run.id {of_nights})"
    assert int(database.ask(f"{tasks} AND state_type = 'COMPLETED'")[0]) > 10
    assert database.ask("SELECT name, type FROM work_pool") == ["redactory|process"]
    assert not list(server.home.rglob("*.db"))


@pytest.mark.usefixtures("nights")
def test_no_text_no_key_and_no_password_is_in_it_nor_in_any_log(database: Postgres, server: Server) -> None:
    search = Search([NAME, NAME.split()[1], KEY, ENCRYPTION_KEY, database.password])
    dump, log = database.dump(), database.log
    # what is searched is what was stored and asked
    for data in (dump, log):
        assert b"support.yaml" in data
        assert not search.in_bytes(data)
    assert not search.below(server.home)
    assert (server.home / "worker.log").read_text().count("nightly support: ") == 2
    # and a name in any cell would be found
    database.ask(f'CREATE TABLE planted AS SELECT 1 AS id, \'{{"told": "{NAME}"}}\'::jsonb AS state')
    assert search.in_bytes(database.dump())
    assert search.in_bytes(database.log)
    database.ask("DROP TABLE planted")


def test_a_machine_without_postgresql_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_postgres, "DEBIAN", Path(os.devnull))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(AssertionError, match="apt-get install postgresql"):
        local_postgres.binary("initdb")
