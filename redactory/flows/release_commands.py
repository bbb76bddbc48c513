"""``redactory release``: the runs of a job, its log, and what a person decides about a held run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import completion, nightly_page
from redactory.flows.options import JsonOption, PlaceArgument, RunArgument, show

releases = typer.Typer(
    no_args_is_help=True, help="List a job's runs, read its log, release a held run or give it up."
)

JobArgument = Annotated[
    Path,
    typer.Argument(metavar="JOB", help="The folder of a job's runs.", autocompletion=completion.job_folders),
]
ByOption = Annotated[str, typer.Option("--by", help="Who decides.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why, for the log.")]
ConfigOption = Annotated[
    str | None,
    typer.Option(
        "--config", help="Whose hooks are called; by default the file that the night was begun with."
    ),
]


@releases.command("list")
def list_command(job: JobArgument, as_json: JsonOption = False) -> None:
    """List the runs of a job: when, how they stand, how many points, and why."""
    result = redactory.list_releases(job)
    show(result, as_json, nightly_page.runs)
    if result["problems"]:
        raise SystemExit(1)


@releases.command("log")
def log_command(place: PlaceArgument, as_json: JsonOption = False) -> None:
    """Read the release log of a job, or of one run, one line a record; its chain is checked."""
    show(redactory.release_log(place), as_json, nightly_page.log)


@releases.command("approve")
def approve_command(
    run: RunArgument,
    by: ByOption,
    reason: ReasonOption,
    config: ConfigOption = None,
    empty: Annotated[
        bool, typer.Option("--empty", help="Also where it holds no point, public or private.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Release a held run all the same; the name and the reason go into the log."""
    _decided(redactory.approve_release(run, by, reason, config, empty=empty), as_json)


@releases.command("reject")
def reject_command(
    run: RunArgument,
    by: ByOption,
    reason: ReasonOption,
    config: ConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Give a run up: the next night reads its material as new."""
    _decided(redactory.reject_release(run, by, reason, config), as_json)


def _decided(result: dict[str, Any], as_json: bool) -> None:
    """What was decided; a hook that failed takes nothing back, and is the exit code."""
    show(result, as_json, nightly_page.decided)
    if result["hooks_failed"]:
        raise SystemExit(1)
