"""Prefect's settings for this process: quiet, offline, at home in the run's private area.

They are read when Prefect is first imported, so this comes before it.
"""

from __future__ import annotations

import os
from pathlib import Path

from redactory.foundation.files import make_private_folder

SETTINGS = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # log records would go to the orchestrator's database
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "ERROR",
    "PREFECT_SERVER_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
}


def settle_prefect(home: Path) -> None:
    """Set what is not set already; Prefect's database and storage then lie in ``home``, mode 0700."""
    make_private_folder(home)
    os.environ.setdefault("PREFECT_HOME", str(home.resolve()))
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
