"""Prefect's settings for this process, a server of our own, what is asked of one; where runs go.

Prefect reads its settings when it is first imported: quiet, offline, at home in a private folder, behind a password.
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

from redactory.foundation.errors import ConfigurationError, RunStateError, shorten
from redactory.foundation.files import make_private_folder, write_text

PREFECT_SETTINGS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # log records would go to the orchestrator's database
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    # a run that failed is reported in a line of ours, not in Prefect's own frames
    "PREFECT_LOGGING_LOGGERS_PREFECT_FLOW_RUNS_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_LOGGERS_PREFECT_TASK_RUNS_LEVEL": "CRITICAL",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
}
"""Settings of every process that runs our flows; a deployment hands them to its worker."""
TASK_TAG = "redactory"
"""Of every task of ours: a server's limit on them goes by it."""
ADDRESS_VARIABLE = "PREFECT_API_URL"
SERVER_PASSWORD_VARIABLE, CLIENT_PASSWORD_VARIABLE = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"
LOOPBACK_HOST = "127.0.0.1"
_READY_SECONDS, _END_SECONDS = 120.0, 20.0
START_PLACEHOLDER, DATE_PLACEHOLDER = "{start}", "{date}"
"""What stands in a template of run folders for when a run was due: the second in UTC, the day."""


def configure_prefect(home: Path, port: int | None = None) -> Path | None:
    """Set what is not set already; Prefect's database and storage then lie in ``home``, mode 0700.

    A server that Prefect starts for this process listens on the loopback address, where every user of the machine could
    talk to it: it is given a password that only this process and its children know. With ``port`` that is
    :func:`run_prefect_server`, unless the environment names another one; the file that holds its password is returned.
    ``ConfigurationError`` where the port is taken.
    """
    make_private_folder(home)
    # set to nothing, one would be an address, a home or a password
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
    # a task that meets the limit asks again soon, not after half a minute
    environment = {"PREFECT_SERVER_TASKS_TAG_CONCURRENCY_SLOT_WAIT_SECONDS": "1", **os.environ}
    # a session of its own: an interrupt at the terminal ends the runs first, and the server here
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


# What is asked of a server.


def find_server_address() -> str | None:
    """The API that Prefect's settings name (``PREFECT_API_URL`` or a profile), or None."""
    from prefect.settings import PREFECT_API_URL

    address: str | None = PREFECT_API_URL.value()
    return address or None


def prepare_server(limit: int | None, unscheduled_deployment: str | None = None, pool: str | None = None) -> None:
    """Make what the job needs on the server: a limit of our tasks at once, a work pool of processes.

    What an earlier registration of the deployment ``unscheduled`` scheduled is removed: Prefect keeps it.
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


# Where a scheduled run writes: one folder a run, named after the moment it was due.


def has_placeholder(template: str) -> bool:
    """Whether each run of a template has a folder of its own."""
    return START_PLACEHOLDER in template or DATE_PLACEHOLDER in template


def add_start_placeholder(output: str) -> str:
    """``output`` where it names a placeholder, else a folder for each run below it."""
    return output if has_placeholder(output) else f"{output.rstrip('/')}/{START_PLACEHOLDER}"


def find_runs_folder(template: str) -> str:
    """The folder that holds the runs of a template: what stands before the first placeholder's name."""
    fixed = min(template.find(sign) for sign in (START_PLACEHOLDER, DATE_PLACEHOLDER) if sign in template)
    return template[:fixed].rpartition("/")[0] or "."


def list_runs(template: str) -> list[Path]:
    """The folders of a template's runs that are there, the latest first."""
    pattern = glob.escape(template).replace("{start}", "*").replace("{date}", "*")
    return [Path(place) for place in sorted(glob.glob(pattern), reverse=True)]


def expand_template(template: str, due: datetime.datetime, timezone: str) -> str:
    """``template`` with ``{date}`` as the day in ``timezone`` and ``{start}`` as the second in UTC.

    Both follow from when the run was due, not from when it began: tried again, a run finds its folder.
    """
    day = due.astimezone(load_time_zone(timezone)).strftime("%Y-%m-%d")
    # in UTC: the hour that the clocks are put back happens twice anywhere else
    second = due.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H%M%SZ")
    return template.replace(DATE_PLACEHOLDER, day).replace(START_PLACEHOLDER, second)


def load_time_zone(timezone: str) -> zoneinfo.ZoneInfo:
    """The time zone of that name; ``ConfigurationError`` where there is none."""
    try:
        return zoneinfo.ZoneInfo(timezone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ConfigurationError(
            f"--timezone: '{shorten(timezone)}' is not a time zone; use a name like Europe/Berlin or UTC"
        ) from None
