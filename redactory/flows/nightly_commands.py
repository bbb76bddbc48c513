"""``redactory nightly``: curate what is new since the night before."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import nightly_page, output
from redactory.flows.options import ConfigArgument, DaskOption, JsonOption, WorkersOption, show

JobOption = Annotated[
    Path | None,
    typer.Option("--out", help="The folder of the job's runs; the configuration's output by default."),
]


def nightly(
    config: ConfigArgument,
    out: JobOption = None,
    date: Annotated[
        str | None, typer.Option("--date", help="The day that {date} in input.path stands for; today in UTC.")
    ] = None,
    first: Annotated[
        str | None, typer.Option("--from", help="Backfill: a night for each day from this one.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", help="Backfill: the last day.")] = None,
    again: Annotated[
        list[str] | None,
        typer.Option("--again", help="A changed file to read whole, as new; can be repeated."),
    ] = None,
    workers: WorkersOption = None,
    dask: DaskOption = None,
    as_json: JsonOption = False,
) -> None:
    """Curate what is new since the night before, and release it unless it drifted."""
    more: dict[str, Any] = {}
    if dask is not None:
        from redactory.flows.dask_map import over_dask

        more["curating"] = over_dask(redactory.curate, dask)
    with output.shown_progress() as progress:
        result = redactory.nightly(
            config,
            output=out,
            date=date,
            first=first,
            last=last,
            again=again or (),
            workers=workers,
            progress=progress,
            **more,
        )
    show(result, as_json, nightly_page.nights)
    if any(night["state"] == "held" or night.get("hooks_failed") for night in result["nights"]):
        raise SystemExit(1)
