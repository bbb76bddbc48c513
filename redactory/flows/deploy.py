"""``redactory deploy``: a job into ``prefect.yaml``, and from there to a Prefect server."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from redactory.flows.prefect_client import drop_schedules, limit_tasks, make_pool, server_address
from redactory.flows.schedule import Schedule, check_cron, deployment_entry
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import PUBLIC_FILE, write_text

HEADER = "# Written by redactory deploy; prefect deploy --all --prefect-file reads it."


def deploy(schedule: Schedule, file: Path, pool: str, limit: int | None) -> dict[str, Any]:
    """Put the job into ``file`` and register it where a server is named; what was done.

    ``limit`` bounds the tasks of ours that the server lets run at once, over all runs.
    """
    server = server_address()
    if limit is not None and server is None:
        raise ConfigurationError("--limit is kept by a server: name yours in PREFECT_API_URL")
    check_cron(schedule)
    write_deployment(schedule, file, pool)
    if server is not None:
        make_pool(pool)
        if limit is not None:
            limit_tasks(limit)
        _register(schedule, file)
        if schedule.cron is None:
            drop_schedules(schedule.full_name)
    return {
        "file": str(file),
        "deployment": schedule.full_name,
        "cron": schedule.cron,
        "timezone": schedule.timezone,
        "output": schedule.parameters["output"],
        "pool": pool,
        "server": server,
        "registered": server is not None,
    }


def write_deployment(schedule: Schedule, file: Path, pool: str) -> None:
    """Add the job to ``file``, in the place of one of the same name and flow.

    A file that was written by somebody else is left alone (``ConfigurationError``).
    """
    entries = [entry for entry in _entries(file) if _same(entry) != (schedule.name, schedule.entrypoint)]
    content = {"name": "redactory", "deployments": [*entries, deployment_entry(schedule, pool)]}
    write_text(file, f"{HEADER}\n{yaml.safe_dump(content, sort_keys=False)}", PUBLIC_FILE)


def _entries(file: Path) -> list[dict[str, Any]]:
    if not file.exists():
        return []
    mend = "name another file with --file, and keep what is in this one"
    try:
        text = file.read_text(encoding="utf-8")
        value = yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError):
        raise ConfigurationError(f"{file} cannot be read as YAML; {mend}") from None
    if not text.startswith(HEADER):
        raise ConfigurationError(f"{file} was not written by redactory deploy; {mend}")
    entries: list[dict[str, Any]] = value["deployments"]
    return entries


def _same(entry: dict[str, Any]) -> tuple[str, str]:
    return entry["name"], entry["entrypoint"]


def _register(schedule: Schedule, file: Path) -> None:
    """Have Prefect read the file: what is registered is what stands in it."""
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--prefect-file", str(file)]
    done = subprocess.run(
        # by its own name: Prefect cannot tell the flow of an entrypoint that is a module
        [*command, "--name", schedule.name],
        env={**os.environ, "PREFECT_LOGGING_LEVEL": "CRITICAL"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        told = " ".join(done.stdout.split())[-400:]
        raise RunStateError(f"the job is in {file}, but prefect deploy failed: {told}")
