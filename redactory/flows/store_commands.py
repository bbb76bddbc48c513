"""``redactory publish`` and ``redactory fetch``: a finished run at a URL, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import output
from redactory.flows.output import JsonOption, RunArgument, show
from redactory.foundation.errors import some


def publish(
    run: RunArgument,
    to: Annotated[str, typer.Option("--to", metavar="URL", help="Where it is to lie: s3://BUCKET/FOLDER.")],
    as_json: JsonOption = False,
) -> None:
    """Mirror a finished, encrypted run with its models at a URL; again, to bring it up to date."""
    with output.shown_progress() as progress:
        result = redactory.publish(run, to, progress=progress)
    show(result, as_json, published)


def fetch(
    url: Annotated[str, typer.Argument(metavar="URL", help="Where a run or an export was published.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A new folder.")],
    as_json: JsonOption = False,
) -> None:
    """Bring a published run or export here, and compare every digest."""
    with output.shown_progress() as progress:
        result = redactory.fetch(url, to, progress=progress)
    show(result, as_json, brought)


def published(result: dict[str, Any]) -> None:
    """What was written there."""
    output.out.print(
        f"{result['run']} lies at {result['to']}: {some(result['files'], 'file')}, of which "
        f"{result['written']:,} "
        f"written now ({some(result['bytes'], 'byte')}) and {result['removed']:,} taken away.",
        soft_wrap=True,
        markup=False,
    )


def brought(result: dict[str, Any]) -> None:
    """What was brought."""
    output.out.print(
        f"Fetched {result['from']} into {result['to']}: {some(result['files'], 'file')}, "
        f"{some(result['bytes'], 'byte')}. Next: redactory verify {result['to']}",
        soft_wrap=True,
        markup=False,
    )


# ``redactory export``: what may leave a run, and nothing else.


def export(
    run: RunArgument,
    to: Annotated[str, typer.Option("--to", metavar="DIR", help="A new folder, or a URL (s3://…).")],
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help="A trained model to bring along; may be given several times."),
    ] = None,
    by: Annotated[str | None, typer.Option(help="Who exports; goes into the release log.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Copy what may leave a run: its public side, a card, a manifest, SHA256SUMS; models where asked for."""
    with output.shown_progress() as progress:
        result = redactory.export(run, to, models=tuple(model or ()), by=by, progress=progress)
    show(result, as_json, exported)


def exported(result: dict[str, Any]) -> None:
    """What left, and how it is checked."""
    models = f", models {', '.join(result['models'])}" if result["models"] else ""
    output.out.print(
        f"Exported release {result['release']} of {result['run']} to {result['to']}: "
        f"{some(result['public'], 'public point')}{models}, {some(result['files'], 'file')}, "
        f"{some(result['bytes'], 'byte')}.",
        soft_wrap=True,
        markup=False,
    )
    output.out.print(f"Next: redactory verify {result['to']}", soft_wrap=True, markup=False)


# ``redactory index``: what earlier runs a nightly job goes by, and taking old ones out.


indexes = typer.Typer(no_args_is_help=True, help="Look into the index across runs, and prune it.")

IndexArgument = Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of dedup.index.path.")]


@indexes.command("show")
def show_command(folder: IndexArgument, as_json: JsonOption = False) -> None:
    """List the runs that an index holds, and what it is bound to. Nothing is changed."""
    from redactory.pipelines.index import show_index

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
    from redactory.pipelines.index import prune_index

    show(
        prune_index(folder, keep_runs, keep_days),
        as_json,
        lambda done: output.out.print(
            f"Removed {', '.join(done['removed']) or 'nothing'}; {some(len(done['kept']), 'run')} left.",
            soft_wrap=True,
        ),
    )


def _page(index: dict[str, Any]) -> None:
    from redactory.pipelines.index import WAITING

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
