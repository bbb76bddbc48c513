"""``redactory deploy`` and ``redactory serve``: jobs that run by themselves, with Prefect."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from redactory.flows import output
from redactory.flows.output import ConfigArgument, DaskOption, JsonOption, WorkersOption, show
from redactory.flows.stopping import Work

TimezoneOption = Annotated[str, typer.Option("--timezone", help="Time zone of the schedule and of {date}.")]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        help="Where runs go: {start} and {date} stand for when a run was due; without them each run gets a "
        "folder {start} below it. The configuration's output by default.",
    ),
]
WorkOption = Annotated[
    Work,
    typer.Option("--work", help="curate; run: curate, train and evaluate; nightly: what is new, gated."),
]
NameOption = Annotated[
    str | None, typer.Option("--name", help="Name of the deployment; the configuration's by default.")
]
VerifyOption = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Verify each run; one that does not hold has failed.")
]
LimitOption = Annotated[
    int | None, typer.Option("--limit", min=1, help="Most tasks at once, over all runs on the server.")
]


def deploy(
    config: ConfigArgument,
    cron: Annotated[str | None, typer.Option("--cron", help="When, like '0 2 * * *'.")] = None,
    timezone: TimezoneOption = "UTC",
    out: OutOption = None,
    work: WorkOption = "curate",
    name: NameOption = None,
    pool: Annotated[
        str, typer.Option("--pool", help="The work pool; made where it is missing.")
    ] = "redactory",
    file: Annotated[Path, typer.Option("--file", help="The file to write.")] = Path("prefect.yaml"),
    workers: WorkersOption = None,
    dask: DaskOption = None,
    verify: VerifyOption = True,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Schedule a job on a Prefect server: into prefect.yaml, and registered where PREFECT_API_URL is set."""
    from redactory.flows.schedule import deploy as put
    from redactory.flows.schedule import plan_schedule

    planned = plan_schedule(
        config, cron, timezone, out=out, work=work, name=name, workers=workers, verify=verify, dask=dask
    )
    show(put(planned, file, pool, limit), as_json, _deployed)


def serve(
    config: ConfigArgument,
    cron: Annotated[
        str | None, typer.Option("--cron", help="When, like '0 2 * * *'; without it, when you ask for it.")
    ] = None,
    timezone: TimezoneOption = "UTC",
    out: OutOption = None,
    work: WorkOption = "curate",
    name: NameOption = None,
    port: Annotated[int, typer.Option("--port", help="Port of the server that is started here.")] = 4200,
    workers: WorkersOption = None,
    dask: DaskOption = None,
    verify: VerifyOption = True,
    limit: LimitOption = None,
    as_json: JsonOption = False,
) -> None:
    """Keep a job's schedule and run it, until it is ended; starts a Prefect server where none is named."""
    from redactory.flows.schedule import plan_schedule
    from redactory.flows.schedule import serve as keep

    planned = plan_schedule(
        config, cron, timezone, out=out, work=work, name=name, workers=workers, verify=verify, dask=dask
    )

    def told(what: dict[str, Any]) -> None:
        show(what, as_json, _serving)
        # it is printed now, though the process goes on
        sys.stdout.flush()

    keep(planned, port, limit, told)


def _deployed(told: dict[str, Any]) -> None:
    output.table("Deployed" if told["registered"] else "Written, not registered", _rows(told), text=True)
    pool = told["pool"]
    if told["registered"]:
        output.out.print(f"A worker runs it: prefect worker start --pool {pool}", soft_wrap=True)
    else:
        output.out.print(
            "No server is named: set PREFECT_API_URL and run this again, or use redactory serve.",
            soft_wrap=True,
        )


def _serving(told: dict[str, Any]) -> None:
    output.table("Serving", _rows(told), text=True)
    if told["password_file"]:
        output.out.print("Log in to the interface with the line in the password file.", soft_wrap=True)
    if not told["keyed"]:
        output.out.print(
            "No REDACTORY_KEY is set: unchanged input is run again, and no run that was cut off resumes.",
            soft_wrap=True,
        )


def _rows(told: dict[str, Any]) -> list[tuple[str, str]]:
    when = f"{told['cron']} ({told['timezone']})" if told["cron"] else "when asked for"
    rows = [("deployment", told["deployment"]), ("when", when), ("runs", told["output"])]
    rows += [
        (key.replace("_", " "), told[key])
        for key in ("file", "server", "interface", "password_file")
        if told.get(key)
    ]
    return rows
