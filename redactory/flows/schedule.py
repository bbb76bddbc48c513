"""Schedule jobs with Prefect, served by this process or deployed for workers, and run flows here."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from redactory.flows.dask_map import check_dask_address
from redactory.flows.server import (
    ADDRESS_VARIABLE,
    DATE_PLACEHOLDER,
    PREFECT_SETTINGS,
    START_PLACEHOLDER,
    add_start_placeholder,
    configure_prefect,
    extract_runs_folder,
    find_server_address,
    load_time_zone,
    prepare_server,
    run_prefect_server,
)
from redactory.foundation.errors import ConfigurationError, RunStateError, pluralize, shorten_name
from redactory.foundation.files import make_private_folder
from redactory.foundation.keys import load_digest_key
from redactory.foundation.progress import Progress
from redactory.pipelines.curation.loading import load_config
from redactory.pipelines.curation.output_folder import check_output_folder
from redactory.redaction import RunFolder

_CRON_FORMAT = "five fields (minute, hour, day, month, weekday) like '0 2 * * *', or a name like @daily"
FlowName = Literal["curate", "run", "nightly"]
"""The flow of :mod:`redactory.flows.prefect_flows` that a scheduled job runs."""
_DEPLOYMENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PREFECT_HOME = ".prefect"
"""Prefect's home beside the runs; the hidden name keeps readers of data folders out."""


@dataclass(frozen=True)
class FlowSchedule:
    """A checked deployment of one of our flows; without ``cron`` it runs on request."""

    name: str
    work: FlowName
    cron: str | None
    timezone: str
    parameters: dict[str, Any]

    @property
    def full_name(self) -> str:
        """The deployment's name as Prefect addresses it."""
        return f"{self.work}/{self.name}"

    @property
    def runs_folder(self) -> Path:
        """The folder of all its runs."""
        output: str = self.parameters["output"]
        return Path(output if self.work == "nightly" else extract_runs_folder(output))

    def describe(self) -> dict[str, Any]:
        """What to tell the person who scheduled the job."""
        return {
            "deployment": self.full_name,
            "cron": self.cron,
            "timezone": self.timezone,
            "output": self.parameters["output"],
        }

    def deployment_kwargs(self) -> dict[str, Any]:
        """The arguments of Prefect's deployment; imports the job."""
        from prefect.schedules import Cron
        from prefect.types.entrypoint import EntrypointType

        return {
            "schedule": Cron(self.cron, timezone=self.timezone) if self.cron else None,
            "parameters": self.parameters,
            # importable wherever Redactory is installed, so there is no code to fetch
            "entrypoint_type": EntrypointType.MODULE_PATH,
        }

    def check_cron(self) -> None:
        """Raise ``ConfigurationError`` if Prefect, which this imports, finds no scheduled time."""
        from prefect.server.schemas.schedules import CronSchedule

        if self.cron is None:
            return
        try:
            asyncio.run(CronSchedule(cron=self.cron, timezone=self.timezone).get_dates(1))
        except ValueError:
            raise ConfigurationError(
                f"--cron: invalid schedule, or one that never runs; expected {_CRON_FORMAT}"
            ) from None


def parse_cron(cron: str) -> str:
    """Return ``cron``, which must have five fields or be an @name: Prefect would read a sixth, as seconds."""
    fields = cron.split()
    if not cron.isascii() or (len(fields) != 5 and not cron.strip().startswith("@")):
        raise ConfigurationError(f"--cron: expected {_CRON_FORMAT}; got {pluralize(len(fields), 'field')}")
    return " ".join(fields)


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
    if dask is not None:
        check_dask_address(dask)
    if work == "nightly" and any(sign in str(out or settings.output) for sign in (START_PLACEHOLDER, DATE_PLACEHOLDER)):
        raise ConfigurationError(
            f"--out: a nightly job names its runs itself; give a folder without {START_PLACEHOLDER}, {DATE_PLACEHOLDER}"
        )
    path = Path(config)
    name = name or path.stem
    if not _DEPLOYMENT_NAME.fullmatch(name):
        raise ConfigurationError(
            f"--name: '{shorten_name(name)}' is not a valid deployment name; use letters, digits, '.', '_' and "
            "'-' (at most 64)"
        )
    place = str(Path(out or settings.output).absolute())
    parameters = {
        "config": str(path.absolute()) if path.exists() else config,
        # a nightly job names its runs, and always resumes
        **({"output": place} if work == "nightly" else {"output": add_start_placeholder(place), "resume": True}),
        "workers": settings.workers,
        "timezone": timezone,
        "verify": verify,
        **({"dask": dask} if dask is not None else {}),
    }
    return FlowSchedule(name, work, None if cron is None else parse_cron(cron), timezone, parameters)


# Deployed on your Prefect server, whose workers run it.


def deploy_schedule(schedule: FlowSchedule, pool: str, limit: int | None) -> dict[str, Any]:
    """Register the job for workers of ``pool`` on the server of ``PREFECT_API_URL``; return the facts.

    ``limit`` bounds the number of our tasks that the server runs at once, over all runs.
    """
    flow = getattr(import_flows(), schedule.work)
    schedule.check_cron()
    server = find_server_address()
    if server is None:
        raise ConfigurationError(
            f"--deploy: set {ADDRESS_VARIABLE} to your Prefect server, or omit --deploy to run the job here"
        )
    prepare_server(limit, None if schedule.cron else schedule.full_name, pool)
    deployment = flow.to_deployment(
        schedule.name,
        **schedule.deployment_kwargs(),
        concurrency_limit=1,
        description=f"redactory {schedule.work} of {Path(schedule.parameters['config']).name}",
        work_pool_name=pool,
        job_variables={"env": dict(PREFECT_SETTINGS)},
    )
    try:
        deployment.apply()
    except Exception as error:
        raise RunStateError(f"{server} rejected the job ({type(error).__name__})") from None
    return {**schedule.describe(), "pool": pool, "server": server}


# Run here, with Prefect's home in the run's private area, or served with a new or your server.


def run_flow(work: str, config: str, output: str | Path | None, progress: Progress, **settings: Any) -> dict[str, Any]:
    """Run the flow ``work`` of :mod:`redactory.flows.prefect_flows` here and return its result."""
    loaded = load_config(config, output=output)
    run = RunFolder(Path(loaded.output))
    if work != "train":
        check_output_folder(run, resume=bool(settings.get("resume")))
    configure_prefect(run.state / "prefect")
    flows = import_flows()
    token = flows.progress_listener.set(progress)
    try:
        result: dict[str, Any] = getattr(flows, work)(config, str(run.root), **settings)
        return result
    finally:
        flows.progress_listener.reset(token)


def import_flows() -> Any:
    """Import the module of flows, which makes Prefect read its settings: configure them first."""
    try:
        from redactory.flows import prefect_flows
    except ImportError:
        raise ConfigurationError("this needs Prefect: pip install 'redactory[flows]'") from None
    return prefect_flows


def serve_schedule(
    schedule: FlowSchedule, port: int, limit: int | None, report: Callable[[dict[str, Any]], None]
) -> None:
    """Register the job, pass its facts to ``report``, and run it on schedule.

    An interrupt or SIGTERM ends it: the schedule is paused and the current run cancelled, which resumes on the next
    attempt. Without ``PREFECT_API_URL`` a server is started.
    """
    home = make_private_folder(schedule.runs_folder / _PREFECT_HOME)
    password = configure_prefect(home, port)
    flow = getattr(import_flows(), schedule.work)
    from prefect.runner import Runner

    schedule.check_cron()
    server = os.environ[ADDRESS_VARIABLE]
    with run_prefect_server(port) if password else contextlib.nullcontext():
        prepare_server(limit, None if schedule.cron else schedule.full_name)
        password_file = None if password is None else str(password)
        places = {"server": server, "interface": server.removesuffix("/api"), "password_file": password_file}
        report({**schedule.describe(), **places, "keyed": not load_digest_key().is_generated})
        # handle SIGTERM like an interrupt, which a shell may have disabled: the runner's own handler
        # aborts with a traceback
        signal.signal(signal.SIGINT, signal.default_int_handler)
        Runner.handle_sigterm = lambda *_, **__: signal.raise_signal(signal.SIGINT)  # type: ignore[method-assign]
        flow.serve(schedule.name, **schedule.deployment_kwargs(), global_limit=1, limit=1, print_starting_message=False)
