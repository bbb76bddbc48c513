"""``redactory serve``: one process that keeps a job's schedule and runs it, with its own server or yours."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

from redactory.flows.environment import ADDRESS, settle_prefect, unset_empty
from redactory.flows.prefect_client import drop_schedules, limit_tasks
from redactory.flows.schedule import Schedule, check_cron
from redactory.flows.server import own_server, settle_own_server
from redactory.flows.with_prefect import flow_at
from redactory.foundation.files import make_private_folder
from redactory.foundation.keys import load_digest_key

HOME = ".prefect"
"""Prefect's home beside the runs; its name is hidden from readers of data folders."""


def serve(schedule: Schedule, port: int, limit: int | None, told: Callable[[dict[str, Any]], None]) -> None:
    """Register the job, hand what to know about it to ``told``, and run it whenever it is due.

    Ends with an interrupt or SIGTERM; the schedule is paused then, and a run that is under way is cancelled.
    It goes on where it stopped when it is tried again.  Without ``PREFECT_API_URL`` a server is started.
    """
    home, password = make_private_folder(schedule.folder / HOME), None
    unset_empty()
    if ADDRESS not in os.environ:
        password = settle_own_server(home, port)
    settle_prefect(home)
    flow = flow_at(schedule.entrypoint)
    check_cron(schedule)
    deployment = _deployment(flow, schedule)
    with own_server(port) if password else contextlib.nullcontext():
        if limit is not None:
            limit_tasks(limit)
        told(
            {
                "deployment": schedule.full_name,
                "cron": schedule.cron,
                "timezone": schedule.timezone,
                "output": schedule.parameters["output"],
                "server": os.environ[ADDRESS],
                "interface": os.environ[ADDRESS].removesuffix("/api"),
                "password_file": password and str(password),
                "keyed": not load_digest_key().fresh,
            }
        )
        _run(deployment, schedule)


def _deployment(flow: Any, schedule: Schedule) -> Any:
    from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
    from prefect.schedules import Cron
    from prefect.types.entrypoint import EntrypointType

    return flow.to_deployment(
        schedule.name,
        schedule=Cron(schedule.cron, timezone=schedule.timezone) if schedule.cron else None,
        parameters=schedule.parameters,
        concurrency_limit=ConcurrencyLimitConfig(
            limit=1, collision_strategy=ConcurrencyLimitStrategy.ENQUEUE
        ),
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


def _run(deployment: Any, schedule: Schedule) -> None:
    """Prefect's runner until an interrupt or SIGTERM, which ends it in the same way."""
    from prefect.runner import Runner

    class OurRunner(Runner):
        def handle_sigterm(self, *_: Any, **__: Any) -> None:
            # its own way out drops what it awaits, with a traceback
            signal.raise_signal(signal.SIGINT)

    runner = OurRunner(pause_on_shutdown=True, limit=1)
    runner.add_deployment(deployment)
    if schedule.cron is None:
        drop_schedules(schedule.full_name)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(runner.start())
