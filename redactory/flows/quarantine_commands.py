"""``redactory quarantine``: what could not be processed, why, and another try at it."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import output
from redactory.flows.options import JsonOption, PlaceArgument, RunArgument, WorkersOption, show
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.wording import some

quarantines = typer.Typer(no_args_is_help=True, help="Look into a quarantine, and try what lies there again.")


@quarantines.command("list")
def list_command(
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
    from redactory.pipelines.quarantine.listing import content_of_entry, harmless

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
