"""The services of compose.yaml as processes of this machine, each with a home of its own: two nights of one job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

import redactory
from redactory.foundation.records import read_records
from redactory.redaction import RunFolder, list_parts, read_part
from redactory.redaction.folder import JobFolder
from tests.child_processes import start_child_process
from tests.conftest import KEY
from tests.flows.leak_search import Search
from tests.flows.local_server import COMMAND, LONGEST_SECONDS, Server, free_port
from tests.flows.small_job import NAME, small_job

pytestmark = pytest.mark.slow

COMPOSE = yaml.safe_load(Path(__file__).parents[2].joinpath("compose.yaml").read_text(encoding="utf-8"))
ENCRYPTION_KEY = "an encryption key of this test, of more than 32 bytes"
PROGRAMS = {"dask": [sys.executable, "-m", "dask"], "prefect": [sys.executable, "-m", "prefect"], "redactory": COMMAND}


class Services:
    """Commands and environments of ``compose.yaml``, with the addresses, secrets and folders of this machine."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder, self.server, self.port = folder, server, str(free_port())
        secrets = folder / "secrets"
        secrets.mkdir()
        certificate, key = secrets / "dask_certificate", secrets / "dask_key"
        made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=redactory"]
        subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
        (secrets / "redactory_key").write_text(KEY)
        (secrets / "redactory_encryption_key").write_text(ENCRYPTION_KEY)
        self.places = {
            "/srv/redactory/config/nightly.yaml": str(folder / "support.yaml"),
            "/srv/redactory/job": str(folder / "job"),
            "tls://scheduler:8786": f"tls://127.0.0.1:{self.port}",
            "8786": self.port,
            "/run/secrets/": f"{secrets}/",
            "http://server:4200/api": server.url,
        }

    def command(self, name: str) -> list[str]:
        """What the container of a service runs."""
        service = COMPOSE["services"][name]
        [program] = service.get("entrypoint", ["redactory"])
        words = (str(self._home(name)) if word == "/tmp" else self._here(word) for word in service["command"])
        return [*PROGRAMS[program], *words]

    def _home(self, name: str) -> Path:
        home = self.folder / f"home-{name}"
        home.mkdir(exist_ok=True)
        return home

    def environment(self, name: str) -> dict[str, str]:
        """What it runs with, and nothing of this process's keys."""
        kept = {k: v for k, v in self.server.environment.items() if not k.startswith(("REDACTORY_", "PREFECT_HOME"))}
        named = COMPOSE["services"][name]["environment"].items()
        told = {k: self._here(v) for k, v in named if k != "PREFECT_PROFILES_PATH"}
        own = {
            "HOME": str(self._home(name)),
            "TMPDIR": str(self._home(name)),
            "PREFECT_WORKER_WEBSERVER_PORT": str(free_port()),
        }
        # a task that has to wait asks once a second
        return {**kept, **told, **own, "PREFECT_WORKER_QUERY_SECONDS": "1"}

    def _here(self, word: str) -> str:
        for there, here in self.places.items():
            word = word.replace(there, here)
        return word

    def run(self, name: str, command: list[str]) -> str:
        """What a command prints in the home of a service."""
        options = {"env": self.environment(name), "cwd": self._home(name)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str, stack: ExitStack) -> subprocess.Popen[bytes]:
        """A service of its own home and working directory, until ``stack`` ends."""
        log = stack.enter_context((self._home(name) / "log").open("wb"))
        options = {"env": self.environment(name), "cwd": self._home(name), "stdout": log, "stderr": log}
        return stack.enter_context(start_child_process(self.command(name), patience=10.0, **options))

    def logs(self) -> str:
        """What all services have printed."""
        return "".join(log.read_text(errors="replace") for log in self.folder.glob("home-*/log"))


@pytest.fixture(scope="module")
def nights(server: Server, tmp_path_factory: pytest.TempPathFactory) -> tuple[Services, list[Any]]:
    """Two nights; before the second the corpus has grown, and one of the two Dask workers is killed."""
    folder = tmp_path_factory.mktemp("machines")
    services = Services(folder, server)
    config = small_job(folder, "support", nightly={"approve": "never", "partial_row_grace_minutes": 0})
    services.run("deploy", services.command("deploy"))
    deployment = server.ask("/deployments/name/nightly/support")
    assert deployment["entrypoint"] == "redactory.flows.prefect_flows.nightly"
    assert deployment["schedules"][0]["schedule"]["cron"] == "0 2 * * *"
    assert deployment["job_variables"]["env"]["PREFECT_LOGGING_TO_API_ENABLED"] == "false"
    assert deployment["global_concurrency_limit"]["limit"] == 1
    # at 2 o'clock (UTC) its schedule would add a third run
    server.ask(f"/deployments/{deployment['id']}/pause_deployment", {})
    assert server.ask("/deployments/name/nightly/support")["paused"]
    with ExitStack() as stack:
        services.start("scheduler", stack)
        killed, _ = (services.start(f"dask-worker-{number}", stack) for number in (1, 2))
        services.start("worker", stack)
        runs = [server.run_deployment("support")]
        # with the process that it watches over
        os.killpg(killed.pid, signal.SIGKILL)
        with config.with_name("rows.jsonl").open("a") as rows:
            rows.writelines(
                json.dumps({"id": f"later-{n}", "text": f"Later row {n} is about {NAME}.\nThank you."}) + "\n"
                for n in range(4)
            )
        runs.append(server.run_deployment("support"))
        # a run has ended before its worker has put away what it was started with: keys are in that
        end = time.monotonic() + LONGEST_SECONDS
        while list(folder.glob("home-*/prefect-workspace-attempt-*")) and time.monotonic() < end:
            time.sleep(0.1)
    return services, runs


def test_two_nights_on_two_workers_have_the_content_of_one_process(
    nights: tuple[Services, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, runs = nights
    assert [run["state_type"] for run in runs] == ["COMPLETED", "COMPLETED"], services.logs()
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", ENCRYPTION_KEY)
    job = JobFolder(services.folder / "job")
    released = [job.get_run_folder(r.body["run"]) for r in read_records(job.log) if r.type == "released"]
    assert len(released) == 2, services.logs()
    for run in released:
        checked = redactory.verify(run.root)
        assert checked["ok"], checked["checks"]
    small_job(tmp_path, "plain")
    redactory.curate(tmp_path / "plain.yaml", output=tmp_path / "run")
    assert _content(released[0]) == _content(RunFolder(tmp_path / "run"))
    # each part was a task, and a worker of Dask's wrote it
    names = {task["name"] for task in services.server.task_runs(runs[0])}
    assert {"detect_texts-0", "detect_texts-1", "detect_texts-2"} <= names


def _content(run: RunFolder) -> list[Any]:
    return [read_part(part).to_pylist() for folder in run.data_folders for part in list_parts(folder)]


def test_no_text_and_no_key_is_in_the_database_in_a_home_or_in_a_log(nights: tuple[Services, list[Any]]) -> None:
    services, _ = nights
    assert services.logs().count("nightly support: ") == 2
    search = Search([NAME, NAME.split()[1], KEY, ENCRYPTION_KEY])
    for home in (services.server.home, *services.folder.glob("home-*")):
        assert not search.below(home), home
    # what is searched is what was stored
    assert Search(["support.yaml"]).below(services.server.home)
