"""Run flows here, and register jobs on a Prefect server: served by this process, or deployed for workers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from redactory.flows.server import (
    ADDRESS_VARIABLE,
    DATE_PLACEHOLDER,
    PREFECT_SETTINGS,
    START_PLACEHOLDER,
    check_dask_address,
    configure_prefect,
    find_server_address,
    has_placeholder,
    load_time_zone,
    open_server,
)
from redactory.foundation.errors import ConfigurationError, RunStateError, pluralize, shorten_name
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress
from redactory.pipelines.curation.loading import load_config
from redactory.pipelines.curation.output_folder import check_environment_keys, check_output_folder
from redactory.pipelines.operations.nightly import nightly
from redactory.redaction import RunFolder
from redactory.redaction.folder import JobFolder

_CRON_FORMAT = "five fields (minute, hour, day, month, weekday) like '0 2 * * *', or a name like @daily"
FlowName = Literal["curate", "run", "nightly"]
"""The flow of :mod:`redactory.flows.prefect_flows` that a scheduled job runs."""
_DEPLOYMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class FlowSchedule:
    """A checked deployment of one of our flows; without ``cron`` it runs on request."""

    name: str
    work: FlowName
    cron: str | None
    timezone: str
    parameters: dict[str, Any]

    def describe(self, server: str) -> dict[str, Any]:
        """What to tell the person who scheduled the job."""
        return {
            "deployment": f"{self.work}/{self.name}",
            "cron": self.cron,
            "timezone": self.timezone,
            "output": self.parameters["output"],
            "server": server,
        }

    def deployment_kwargs(self) -> dict[str, Any]:
        """The arguments of Prefect's deployment; ``ConfigurationError`` if the job would never be due."""
        from prefect.schedules import Cron
        from prefect.server.schemas.schedules import CronSchedule
        from prefect.types.entrypoint import EntrypointType

        if self.cron is not None:
            try:
                asyncio.run(CronSchedule(cron=self.cron, timezone=self.timezone).get_dates(1))
            except ValueError:
                raise ConfigurationError(
                    f"--cron: invalid schedule, or one that never runs; expected {_CRON_FORMAT}"
                ) from None
        return {
            "schedule": Cron(self.cron, timezone=self.timezone) if self.cron else None,
            "parameters": self.parameters,
            # importable wherever Redactory is installed, so there is no code to fetch
            "entrypoint_type": EntrypointType.MODULE_PATH,
        }


def plan_schedule(
    config: str,
    *,
    cron: str | None = None,
    timezone: str = "UTC",
    out: Path | None = None,
    work: FlowName = "curate",
    name: str | None = None,
    workers: int | None = None,
    verify: bool = True,
    dask: str | None = None,
) -> FlowSchedule:
    """Plan the job; ``ConfigurationError`` for anything that would otherwise only fail at run time.

    Paths become absolute, because a worker starts in another directory.
    """
    from redactory.pipelines.curation.curate import check_engines

    settings = load_config(config, workers=workers)
    check_engines(settings)
    if settings.store is not None and out is None:
        raise ConfigurationError(
            f"output: a schedule needs a local folder for its runs, got {settings.store}: give --out "
            "FOLDER, and publish from there (nightly.publish, or redactory export --whole)"
        )
    load_time_zone(timezone)
    check_dask_address(dask)
    place = str(Path(out or settings.output).absolute())
    if work == "nightly" and has_placeholder(place):
        raise ConfigurationError(
            f"--out: a nightly job names its runs itself; give a folder without {START_PLACEHOLDER}, {DATE_PLACEHOLDER}"
        )
    template = place if has_placeholder(place) else f"{place}/{START_PLACEHOLDER}"
    path = Path(config)
    name = name or path.stem
    if not _DEPLOYMENT_NAME.fullmatch(name):
        raise ConfigurationError(
            f"--name: '{shorten_name(name)}' is not a valid deployment name; use letters, digits, '.', '_' and "
            "'-' (at most 64)"
        )
    parameters = {
        "config": str(path.absolute()) if path.exists() else config,
        # a nightly job names its runs, and always resumes
        **({"output": place} if work == "nightly" else {"output": template, "resume": True}),
        "workers": settings.workers,
        "timezone": timezone,
        "verify": verify,
        "dask": dask,
    }
    fields = [] if cron is None else cron.split()
    # Prefect would read a sixth field, as seconds
    if cron is not None and not (cron.isascii() and (len(fields) == 5 or cron.strip().startswith("@"))):
        raise ConfigurationError(f"--cron: expected {_CRON_FORMAT}; got {pluralize(len(fields), 'field')}")
    return FlowSchedule(name, work, " ".join(fields) or None, timezone, parameters)


def deploy_schedule(schedule: FlowSchedule, pool: str) -> dict[str, Any]:
    """Register the job for workers of ``pool`` on the server of ``PREFECT_API_URL``; return the facts."""
    flow = getattr(import_flows(), schedule.work)
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    options, server = schedule.deployment_kwargs(), _require_server()
    deployment = flow.to_deployment(
        schedule.name,
        **options,
        concurrency_limit=1,
        work_pool_name=pool,
        job_variables={"env": dict(PREFECT_SETTINGS)},
    )
    try:
        with get_client(sync_client=True) as client:
            if pool not in {existing.name for existing in client.read_work_pools()}:
                client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
        deployment.apply()
    except Exception as error:
        raise RunStateError(f"{server} rejected the job ({type(error).__name__})") from None
    return {**schedule.describe(server), "pool": pool}


def serve_schedule(schedule: FlowSchedule, report: Callable[[dict[str, Any]], None]) -> None:
    """Register the job on the server of ``PREFECT_API_URL``, pass its facts to ``report``, and run it on schedule.

    An interrupt or SIGTERM ends it: the schedule is paused and the current run cancelled, which resumes on the next
    attempt.
    """
    configure_prefect()
    flow = getattr(import_flows(), schedule.work)
    options, server = schedule.deployment_kwargs(), _require_server()
    report({**schedule.describe(server), "keyed": not load_digest_key().is_generated})
    flow.serve(schedule.name, **options, global_limit=1, limit=1, print_starting_message=False)


def _require_server() -> str:
    if (server := find_server_address()) is None:
        raise ConfigurationError(
            f"a schedule needs a Prefect server: start one (prefect server start), and set {ADDRESS_VARIABLE} to it "
            "(http://127.0.0.1:4200/api)"
        )
    return server


@contextmanager
def open_flows(home: Path, progress: Progress) -> Iterator[Any]:
    """Yield the module of flows, ready to run them in this process, with Prefect's files in ``home``."""
    configure_prefect(home)
    flows = import_flows()
    token = flows.progress_listener.set(progress)
    try:
        with open_server():
            yield flows
    finally:
        flows.progress_listener.reset(token)


def run_flow(work: str, config: str, output: str | Path | None, progress: Progress, **settings: Any) -> dict[str, Any]:
    """Run the flow ``work`` of :mod:`redactory.flows.prefect_flows` here and return its result."""
    loaded = load_config(config, output=output)
    run = RunFolder(Path(loaded.output))
    check_dask_address(settings["dask"])
    check_environment_keys()
    check_output_folder(run, resume=settings["resume"])
    with open_flows(run.state / "prefect", progress) as flows:
        result: dict[str, Any] = getattr(flows, work)(config, loaded.store or str(run.root), **settings)
        return result


def run_nightly_on_dask(
    config: str, *, dask: str, output: Path | None, progress: Progress, **options: Any
) -> dict[str, Any]:
    """Run ``redactory.nightly`` here, with the parts of its runs as tasks on the Dask workers of ``dask``."""
    check_dask_address(dask)
    job = JobFolder(Path(load_config(config, output=output).output).absolute())
    with open_flows(job.state / "prefect", progress) as flows:
        curate_run = partial(flows.curate_with_tasks, dask=dask)
        return nightly(config, output=job.root, curate_run=curate_run, progress=progress, **options)


def import_flows() -> Any:
    """Import the module of flows, which makes Prefect read its settings: configure them first."""
    try:
        from redactory.flows import prefect_flows
    except ImportError:
        raise ConfigurationError("this needs Prefect and Dask: pip install 'redactory[flows]'") from None
    return prefect_flows
