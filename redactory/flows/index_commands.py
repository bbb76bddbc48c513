"""``redactory index``: what earlier runs a nightly job goes by, and taking old ones out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from redactory.flows import output
from redactory.flows.options import JsonOption, show
from redactory.foundation.wording import some

indexes = typer.Typer(no_args_is_help=True, help="Look into the index across runs, and prune it.")

IndexArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of dedup.index.path.")]


@indexes.command("show")
def show_command(folder: IndexArgument, as_json: JsonOption = False) -> None:
    """List the runs that an index holds, and what it is bound to. Nothing is changed."""
    from redactory.pipelines.indexes.view import show_index

    show(show_index(folder), as_json, _page)


@indexes.command("prune")
def prune_command(
    folder: IndexArgument,
    keep_runs: Annotated[
        int | None, typer.Option("--keep-runs", min=0, help="Keep the last so many runs.")
    ] = None,
    keep_days: Annotated[
        int | None, typer.Option("--keep-days", min=0, help="Keep the runs of the last so many days.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Forget old runs: what they saw is no duplicate any more. Also drafts whose run folder is gone."""
    from redactory.pipelines.indexes.view import prune_index

    show(
        prune_index(folder, keep_runs, keep_days),
        as_json,
        lambda done: output.out.print(
            f"Removed {', '.join(done['removed']) or 'nothing'}; {some(len(done['kept']), 'run')} left.",
            soft_wrap=True,
        ),
    )


def _page(index: dict[str, Any]) -> None:
    from redactory.pipelines.indexes.view import WAITING

    made = index["parameters"]
    modes = ", ".join(f"{side} {mode}" for side, mode in made["modes"].items())
    output.out.print(
        f"Index {index['id']}: {modes}; scope {made['scope']}; segments by {made['segment']['mode']}; "
        f"key {made['key']}",
        soft_wrap=True,
    )
    runs = [
        (r["entry"], r["created"], f"{r['texts']['public']:,}", f"{r['texts']['private']:,}")
        for r in index["runs"]
    ]
    if runs:
        output.table("Runs", runs, ("entry", "created", "public texts", "private texts"))
    else:
        output.out.print("No run counts yet.")
    for draft in index["pending"]:
        output.out.print(f"{draft['path']}: {WAITING[draft['state']]}", soft_wrap=True, markup=False)
