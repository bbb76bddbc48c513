"""Prefect's settings for this process: quiet, offline, at home in a private folder, behind a password.

They are read when Prefect is first imported, so this comes before it.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from redactory.foundation.files import make_private_folder

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # log records would go to the orchestrator's database
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    # a run that failed is told of in a line of ours, not in Prefect's own frames
    "PREFECT_LOGGING_LOGGERS_PREFECT_FLOW_RUNS_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_LOGGERS_PREFECT_TASK_RUNS_LEVEL": "CRITICAL",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
}
"""What a process that runs our flows is told, wherever it runs; a deployment hands it to its worker."""

_START_SECONDS = "90"
ADDRESS = "PREFECT_API_URL"
SERVER_PASSWORD, CLIENT_PASSWORD = "PREFECT_SERVER_API_AUTH_STRING", "PREFECT_API_AUTH_STRING"


def settle_prefect(home: Path) -> None:
    """Set what is not set already; Prefect's database and storage then lie in ``home``, mode 0700.

    A server that Prefect starts for this process listens on the loopback address, where every user of
    the machine could talk to it: it is given a password that only this process and its children know.
    """
    make_private_folder(home)
    unset_empty()
    os.environ.setdefault("PREFECT_HOME", str(home.resolve()))
    settings = {**QUIET, "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": _START_SECONDS}
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    if not any(name in os.environ for name in (ADDRESS, SERVER_PASSWORD, CLIENT_PASSWORD)):
        os.environ[SERVER_PASSWORD] = os.environ[CLIENT_PASSWORD] = new_password()


def unset_empty() -> None:
    """Unset each variable of Prefect that is set to nothing: it would be an address, a home or a password."""
    for name in [name for name, value in os.environ.items() if name.startswith("PREFECT_") and not value]:
        del os.environ[name]


def new_password() -> str:
    """A password for a server of ours, as Prefect writes it: user and password."""
    return f"redactory:{secrets.token_urlsafe(18)}"
