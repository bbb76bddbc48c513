"""A real Prefect server for tests, on the loopback address, and its API."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.child_processes import start_child_process

COMMAND = [sys.executable, "-c", "from redactory.flows.cli import main; main()"]
LONGEST_SECONDS = 240.0


@dataclass(frozen=True)
class Server:
    """A running server: where its files lie, the environment of its clients, and requests to its API."""

    home: Path
    url: str
    environment: dict[str, str]

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer to a GET, or with a ``body`` to a POST."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.url}{path}", data, {"Content-Type": "application/json"}, method="POST" if data else "GET"
        )
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    return json.loads(answer.read() or b"null")
            except urllib.error.HTTPError as error:
                # its database is locked for a moment: Prefect's own clients ask again, too
                if error.code != 503:
                    raise
                time.sleep(0.5)

    def flow_runs(self, config: Path) -> list[dict[str, Any]]:
        """The runs of the flows of a configuration, in the order of their start."""
        runs = self.ask("/flow_runs/filter", {"sort": "START_TIME_ASC"})
        return [run for run in runs if run["parameters"].get("config") == str(config)]

    def task_runs(self, flow: dict[str, Any]) -> list[dict[str, Any]]:
        """The task runs of a flow."""
        found: list[dict[str, Any]] = self.ask("/task_runs/filter", {"flow_runs": {"id": {"any_": [flow["id"]]}}})
        return found

    @contextmanager
    def in_this_process(self) -> Iterator[None]:
        """Flows and tasks of this process are told to the server, and nothing else."""
        from prefect.settings import PREFECT_API_URL, PREFECT_LOGGING_TO_API_ENABLED, temporary_settings

        with temporary_settings({PREFECT_API_URL: self.url, PREFECT_LOGGING_TO_API_ENABLED: False}):
            yield

    def run_deployment(self, name: str) -> dict[str, Any]:
        """Have the job of that name run as soon as it is there; the record of it, once it has ended."""
        end, found = time.monotonic() + LONGEST_SECONDS, list[dict[str, Any]]()
        while not found:
            assert time.monotonic() < end, f"{name} is not there"
            time.sleep(0.2)
            found = self.ask("/deployments/filter", {"deployments": {"name": {"any_": [name]}}})
        run = self.ask(f"/deployments/{found[0]['id']}/create_flow_run", {"state": {"type": "SCHEDULED"}})
        while not run["end_time"]:
            assert time.monotonic() < end, f"{name} has not ended: {run['state_name']}"
            time.sleep(0.5)
            run = self.ask(f"/flow_runs/{run['id']}")
        return dict(run)


def clean_environment(home: Path) -> dict[str, str]:
    """This process's environment without Prefect's settings, at home in ``home``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")}
    return {**kept, "HOME": str(home), "TMPDIR": str(home), "DO_NOT_TRACK": "1"}


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def local_server(home: Path) -> Iterator[Server]:
    """A server until the context ends; its database lies in ``home``."""
    url = f"http://127.0.0.1:{free_port()}/api"
    settings = {
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_SERVER_UI_ENABLED": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
        "PREFECT_SERVER_TASKS_TAG_CONCURRENCY_SLOT_WAIT_SECONDS": "0.2",
        # one look at the schedules a second: as in earnest, but with less to wait for
        "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "1",
        "PREFECT_SERVER_SERVICES_SCHEDULER_RECENT_DEPLOYMENTS_LOOP_SECONDS": "1",
    }
    environment = {**clean_environment(home), **settings}
    command = [sys.executable, "-m", "prefect", "server", "start", "--port", url.split(":")[2].split("/")[0]]
    with (
        (home / "server.log").open("wb") as log,
        start_child_process(command, env=environment, stdout=log, stderr=log) as server,
    ):
        while not _ready(url):
            assert server.poll() is None, (home / "server.log").read_text()
            time.sleep(0.2)
        yield Server(home, url, {**environment, "PREFECT_API_URL": url})


def _ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5):
            return True
    except (urllib.error.URLError, OSError):
        return False
