"""A scheduled job: which flow, of which configuration, when, and where its runs go."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from redactory.flows.dask_cluster import check_dask
from redactory.flows.environment import QUIET
from redactory.flows.run_place import DATE, START, folder_of_all, one_folder_a_run, zone_of
from redactory.foundation.errors import ConfigurationError

Work = Literal["curate", "run", "nightly"]
FLOWS: dict[Work, tuple[str, str]] = {
    "curate": ("curate", "redactory.flows.prefect_flows.curate"),
    "run": ("curate-and-train", "redactory.flows.prefect_flows.curate_and_train"),
    "nightly": ("nightly", "redactory.flows.nightly_flow.nightly"),
}
"""For each kind of work the flow's name in Prefect, and where the flow is."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Schedule:
    """A deployment of one of our flows, checked; without ``cron`` it runs when it is asked to."""

    name: str
    work: Work
    cron: str | None
    timezone: str
    parameters: dict[str, Any]

    @property
    def entrypoint(self) -> str:
        """The flow, as ``prefect.yaml`` names it: importable wherever Redactory is installed."""
        return FLOWS[self.work][1]

    @property
    def full_name(self) -> str:
        """The deployment as Prefect addresses it."""
        return f"{FLOWS[self.work][0]}/{self.name}"

    @property
    def folder(self) -> Path:
        """The folder of all its runs."""
        output: str = self.parameters["output"]
        return Path(output if self.work == "nightly" else folder_of_all(output))


def plan_schedule(
    config: str,
    cron: str | None,
    timezone: str,
    *,
    out: Path | None,
    work: Work,
    name: str | None,
    workers: int | None,
    verify: bool,
    dask: str | None = None,
) -> Schedule:
    """The job as asked for; ``ConfigurationError`` for what would only fail at two in the morning.

    Paths become absolute: a worker starts elsewhere.
    """
    from redactory.pipelines.curate import check_before_reading
    from redactory.pipelines.loading import load_config

    settings = load_config(config, workers=workers)
    check_before_reading(settings)
    if settings.store is not None and out is None:
        raise ConfigurationError(
            f"output: the runs of a schedule lie in a folder on this machine, not at {settings.store}: give "
            "--out FOLDER, and publish them from there (nightly.publish, or redactory publish)"
        )
    zone_of(timezone)
    if dask is not None:
        check_dask(dask)
    if work == "nightly" and any(sign in str(out or settings.output) for sign in (START, DATE)):
        raise ConfigurationError(
            f"--out: nights name their runs themselves: give a folder without {START}, {DATE}"
        )
    path = Path(config)
    name = name or path.stem
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"--name: '{name}' cannot name a deployment; use letters, digits, '.', '_' and '-' (at most 64)"
        )
    place = str(Path(out or settings.output).absolute())
    parameters = {
        "config": str(path.absolute()) if path.exists() else config,
        # nights name their runs themselves, and always go on with what was begun
        **({"output": place} if work == "nightly" else {"output": one_folder_a_run(place), "resume": True}),
        "workers": settings.workers,
        "timezone": timezone,
        "verify": verify,
        **({"dask": dask} if dask is not None else {}),
    }
    return Schedule(name, work, cron, timezone, parameters)


def check_cron(schedule: Schedule) -> None:
    """``ConfigurationError`` where Prefect cannot read the schedule; it is imported for that."""
    from prefect.client.schemas.schedules import CronSchedule

    if schedule.cron is None:
        return
    try:
        CronSchedule(cron=schedule.cron, timezone=schedule.timezone)
    except ValueError:
        raise ConfigurationError(
            f"--cron: '{schedule.cron}' is no schedule; write minute, hour, day, month and weekday, "
            "like '0 2 * * *'"
        ) from None


def deployment_entry(schedule: Schedule, pool: str) -> dict[str, Any]:
    """The deployment as an entry of ``prefect.yaml``; a worker of ``pool`` runs it, one run at a time."""
    entry: dict[str, Any] = {
        "name": schedule.name,
        "description": f"redactory {schedule.work} of {Path(schedule.parameters['config']).name}",
        "entrypoint": schedule.entrypoint,
        "parameters": schedule.parameters,
        "concurrency_limit": {"limit": 1, "collision_strategy": "ENQUEUE"},
        # the package is installed where the worker runs: there is no code to fetch
        "pull": [],
        "work_pool": {"name": pool, "job_variables": {"env": dict(QUIET)}},
        "schedules": [],
    }
    if schedule.cron is not None:
        entry["schedules"] = [{"cron": schedule.cron, "timezone": schedule.timezone, "active": True}]
    return entry
