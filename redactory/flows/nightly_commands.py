"""``redactory nightly``: curate what is new since the night before."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import completion, nightly_page, output
from redactory.flows.output import (
    ConfigArgument,
    DaskOption,
    JsonOption,
    PlaceArgument,
    RunArgument,
    WorkersOption,
    show,
)
from redactory.foundation.errors import ConfigurationError, some

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


# ``redactory release``: the runs of a job, its log, and what a person decides about a held run.


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


# ``redactory quarantine``: what could not be processed, why, and another try at it.


quarantines = typer.Typer(no_args_is_help=True, help="Look into a quarantine, and try what lies there again.")


@quarantines.command("list")
def list_command_quarantine_commands(
    place: PlaceArgument,
    limit: Annotated[int, typer.Option("--limit", min=0, help="List at most so many entries a run.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """List what lies in quarantine, by reason, and the id of each entry. No text is shown."""
    show(redactory.quarantine_list(place, limit), as_json, _listed)


@quarantines.command("show")
def show_command(
    run: RunArgument,
    entry: Annotated[str, typer.Argument(metavar="ID", help="The id of an entry, as 'list' gives it.")],
) -> None:
    """Print an entry's content to the terminal, and nowhere else; signs that steer a terminal as escapes."""
    if not sys.stdout.isatty():
        raise ConfigurationError(
            "quarantine show prints original text, to a terminal alone: standard output is a file or a pipe"
        )
    from redactory.pipelines.quarantine import content_of_entry, harmless

    sys.stdout.write(harmless(content_of_entry(run, entry)) + "\n")


@quarantines.command("retry")
def retry_command(
    run: RunArgument,
    config: Annotated[
        str | None, typer.Option("--config", help="A configuration (.yaml); the run's own by default.")
    ] = None,
    workers: WorkersOption = None,
    as_json: JsonOption = False,
) -> None:
    """Curate what lies in a run's quarantine again, into a new run beside it."""
    with output.shown_progress() as progress:
        result = redactory.quarantine_retry(run, config, workers=workers, progress=progress)
    show(result, as_json, _retried)


def _listed(result: dict[str, Any]) -> None:
    for run in result["runs"]:
        if run.get("purged"):
            output.out.print(
                f"{run['run']}: the quarantine was purged: what lay in it is gone, and cannot be listed.",
                soft_wrap=True,
                markup=False,
            )
            continue
        if not run["entries"]:
            output.out.print(f"{run['run']}: nothing lies in quarantine.", soft_wrap=True, markup=False)
            continue
        rows = [(r["reason"], r["kind"], f"{r['count']:,}", f"{r['bytes']:,}") for r in run["reasons"]]
        output.table(
            f"{run['run']}: {some(run['entries'], 'entry', 'entries')}",
            rows,
            ("reason", "kind", "entries", "bytes"),
        )
        listed = [
            (entry["id"], entry["kind"], entry["reason"], _place_of(entry), f"{entry['bytes']:,}")
            for entry in run["listed"]
        ]
        if listed:
            output.table("Entries", listed, ("id", "kind", "reason", "where", "bytes"), text=True)
        if len(listed) < run["entries"]:
            output.out.print(f"{run['entries'] - len(listed):,} more; --limit lists them.")


def _place_of(entry: dict[str, Any]) -> str:
    return f"point {entry['point_id']}" if entry["kind"] == "point" else f"{entry['source']}:{entry['row']}"


def _retried(result: dict[str, Any]) -> None:
    if result["run"] is None:
        output.out.print("Nothing of the quarantine can be tried again.")
    else:
        counts = result["counts"]
        output.out.print(
            f"{result['retried']:,} of {some(result['entries'], 'entry', 'entries')} went into "
            f"{result['run']}: "
            f"{some(counts['points'], 'point')}; {some(counts['rejected'], 'row')} and "
            f"{some(counts['quarantined'], 'point')} "
            "failed again.",
            soft_wrap=True,
            markup=False,
        )
    for why, count in result["left"].items():
        output.out.print(f"Left {count:,}: {why}", soft_wrap=True, markup=False)
    if result["state"] == "held":
        output.out.print(
            f"It is held. Next: redactory release approve {result['run']}", soft_wrap=True, markup=False
        )
