"""Configure Prefect for this process, and name the folders of scheduled runs.

Prefect reads its settings on the first import: quiet, offline, in a private home.
"""

from __future__ import annotations

import datetime
import os
import secrets
import zoneinfo
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redactory.foundation.errors import ConfigurationError, shorten_name
from redactory.foundation.files import make_private_folder
from redactory.foundation.keys import require_secure_address

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
LOCAL_CLUSTER = "local"
_START_SECONDS = 90
START_PLACEHOLDER, DATE_PLACEHOLDER = "{start}", "{date}"
"""Placeholders in a template of run folders for the scheduled time: the second in UTC, the day."""


def check_dask_address(dask: str | None) -> None:
    """Raise ``ConfigurationError`` unless ``dask`` is local (the default) or an address that is safe for a run."""
    if dask not in (None, LOCAL_CLUSTER):
        require_secure_address(str(dask), "--dask")


def configure_prefect(home: Path | None = None) -> None:
    """Set Prefect settings that are not set yet, with database and storage in ``home``, mode 0700."""
    # an empty value would count as an address, a home or a password
    for name in [name for name, value in os.environ.items() if name.startswith("PREFECT_") and not value]:
        del os.environ[name]
    settings = {**PREFECT_SETTINGS}
    if home is not None:
        settings["PREFECT_HOME"] = str(make_private_folder(home).resolve())
    for name, value in settings.items():
        os.environ.setdefault(name, value)


def find_server_address() -> str | None:
    """The API address in Prefect's settings (``PREFECT_API_URL`` or a profile), or None."""
    from prefect.settings import PREFECT_API_URL

    address: str | None = PREFECT_API_URL.value()
    return address or None


@contextmanager
def open_server() -> Iterator[None]:
    """Use the configured server, or start one that serves this process and its workers, and stop it at the end.

    It listens on the loopback address, which every user of the machine can reach, so it gets a password that only this
    process and its workers know.
    """
    if find_server_address() is not None:
        yield
        return
    from prefect.server.api.server import SubprocessASGIServer
    from prefect.settings import (
        PREFECT_API_AUTH_STRING,
        PREFECT_API_URL,
        PREFECT_SERVER_API_AUTH_STRING,
        temporary_settings,
    )

    password = f"redactory:{secrets.token_urlsafe(18)}"
    with temporary_settings({PREFECT_SERVER_API_AUTH_STRING: password, PREFECT_API_AUTH_STRING: password}):
        server = SubprocessASGIServer()
        try:
            server.start(timeout=_START_SECONDS)
            with temporary_settings({PREFECT_API_URL: server.api_url}):
                yield
        finally:
            server.stop()


# Output of scheduled runs: one folder per run, named by its scheduled time.


def has_placeholder(template: str) -> bool:
    """Whether a template gives each run a separate folder."""
    return START_PLACEHOLDER in template or DATE_PLACEHOLDER in template


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
