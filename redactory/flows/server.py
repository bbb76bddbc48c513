"""Configure Prefect for this process, run and prepare a server, and name run folders.

Prefect reads its settings on the first import: quiet, offline, in a private home, behind a password.
"""

from __future__ import annotations

import datetime
import glob
import os
import secrets
import socket
import subprocess
import sys
import time
import zoneinfo
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from redactory.foundation.errors import ConfigurationError, RunStateError, shorten_name
from redactory.foundation.files import make_private_folder, write_text

PREFECT_SETTINGS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # log records would enter the orchestrator's database
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    # failed runs are reported by us, not by Prefect's tracebacks
    "PREFECT_LOGGING_LOGGERS_PREFECT_FLOW_RUNS_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_LOGGERS_PREFECT_TASK_RUNS_LEVEL": "CRITICAL",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
}
"""Settings of every process that runs our flows; a deployment passes them to its worker."""
TASK_TAG = "redactory"
"""Tag of all our tasks, to which a server's limit applies."""
ADDRESS_VARIABLE = "PREFECT_API_URL"
SERVER_PASSWORD_VARIABLE, CLIENT_PASSWORD_VARIABLE = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"
LOOPBACK_HOST = "127.0.0.1"
_READY_SECONDS, _END_SECONDS = 120.0, 20.0
START_PLACEHOLDER, DATE_PLACEHOLDER = "{start}", "{date}"
"""Placeholders in a template of run folders for the scheduled time: the second in UTC, the day."""


def configure_prefect(home: Path, port: int | None = None) -> Path | None:
    """Set Prefect settings that are not set yet, with database and storage in ``home``, mode 0700.

    A server that Prefect starts for this process listens on the loopback address, which every user of the machine can
    reach, so it gets a password that only this process and its children know. With ``port`` that is
    :func:`run_prefect_server`, unless the environment names another one; returns the file with its password.
    ``ConfigurationError`` if the port is taken.
    """
    make_private_folder(home)
    # an empty value would count as an address, a home or a password
    for name in [name for name, value in os.environ.items() if name.startswith("PREFECT_") and not value]:
        del os.environ[name]
    server_settings = {"PREFECT_HOME": str(home.resolve()), "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90"}
    for name, value in {**PREFECT_SETTINGS, **server_settings}.items():
        os.environ.setdefault(name, value)
    if ADDRESS_VARIABLE in os.environ or (port is None and CLIENT_PASSWORD_VARIABLE in os.environ):
        return None
    password = os.environ.setdefault(SERVER_PASSWORD_VARIABLE, f"redactory:{secrets.token_urlsafe(18)}")
    os.environ[CLIENT_PASSWORD_VARIABLE] = password
    if port is None:
        return None
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK_HOST, port))
        except OSError:
            raise ConfigurationError(
                f"--port: {port} is taken; give another port, or set {ADDRESS_VARIABLE} to the server that uses it"
            ) from None
    os.environ[ADDRESS_VARIABLE] = f"http://{LOOPBACK_HOST}:{port}/api"
    password_file = home / "password"
    write_text(password_file, password + "\n")
    return password_file


@contextmanager
def run_prefect_server(port: int) -> Iterator[None]:
    """Serve Prefect's API and interface on ``port`` until the context ends."""
    from prefect.client.orchestration import get_client

    command = [sys.executable, "-m", "prefect", "server", "start", "--host", LOOPBACK_HOST, "--port", str(port)]
    # a task at the limit retries soon, not after half a minute
    environment = {"PREFECT_SERVER_TASKS_TAG_CONCURRENCY_SLOT_WAIT_SECONDS": "1", **os.environ}
    # a new session: an interrupt at the terminal ends the runs first, then the server here
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    with server:
        try:
            end = time.monotonic() + _READY_SECONDS
            with get_client(sync_client=True) as client:
                while client.api_healthcheck() is not None:
                    if time.monotonic() > end or server.poll() is not None:
                        raise RunStateError(f"the Prefect server did not start; set {ADDRESS_VARIABLE} to a server")
                    time.sleep(0.2)
            yield
        finally:
            server.terminate()
            try:
                server.wait(_END_SECONDS)
            except subprocess.TimeoutExpired:
                server.kill()


def find_server_address() -> str | None:
    """The API address in Prefect's settings (``PREFECT_API_URL`` or a profile), or None."""
    from prefect.settings import PREFECT_API_URL

    address: str | None = PREFECT_API_URL.value()
    return address or None


def prepare_server(limit: int | None, unscheduled_deployment: str | None = None, pool: str | None = None) -> None:
    """Create a limit of our concurrent tasks and a pool of processes on the server.

    Removes what an earlier registration of ``unscheduled_deployment`` scheduled, because Prefect keeps it.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

    with get_client(sync_client=True) as client:
        if limit is not None:
            client.create_concurrency_limit(tag=TASK_TAG, concurrency_limit=limit)
        if pool is not None:
            with suppress(ObjectAlreadyExists):
                client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
        if unscheduled_deployment is not None:
            with suppress(ObjectNotFound):
                deployment = client.read_deployment_by_name(unscheduled_deployment)
                for schedule in deployment.schedules:
                    client.delete_deployment_schedule(deployment.id, schedule.id)


# Output of scheduled runs: one folder per run, named by its scheduled time.


def has_placeholder(template: str) -> bool:
    """Whether a template gives each run a separate folder."""
    return START_PLACEHOLDER in template or DATE_PLACEHOLDER in template


def add_start_placeholder(output: str) -> str:
    """``output`` if it has a placeholder, else a folder per run below it."""
    return output if has_placeholder(output) else f"{output.rstrip('/')}/{START_PLACEHOLDER}"


def extract_runs_folder(template: str) -> str:
    """The folder that holds the runs of a template: its path up to the first placeholder."""
    fixed = min(template.find(sign) for sign in (START_PLACEHOLDER, DATE_PLACEHOLDER) if sign in template)
    return template[:fixed].rpartition("/")[0] or "."


def list_runs(template: str) -> list[Path]:
    """The existing run folders of a template, the latest first."""
    pattern = glob.escape(template).replace("{start}", "*").replace("{date}", "*")
    return [Path(place) for place in sorted(glob.glob(pattern), reverse=True)]


def expand_template(template: str, scheduled_time: datetime.datetime, timezone: str) -> str:
    """Replace ``{date}`` by the day in ``timezone`` and ``{start}`` by the second in UTC.

    Both use the scheduled time, not the start, so that a retried run finds its folder.
    """
    day = scheduled_time.astimezone(load_time_zone(timezone)).strftime("%Y-%m-%d")
    # in UTC: elsewhere the hour when clocks go back occurs twice
    second = scheduled_time.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H%M%SZ")
    return template.replace(DATE_PLACEHOLDER, day).replace(START_PLACEHOLDER, second)


def load_time_zone(timezone: str) -> zoneinfo.ZoneInfo:
    """Return the time zone of that name; ``ConfigurationError`` if there is none."""
    try:
        return zoneinfo.ZoneInfo(timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"--timezone: '{shorten_name(timezone)}' is not a time zone; use a name like Europe/Berlin or UTC"
        ) from None
