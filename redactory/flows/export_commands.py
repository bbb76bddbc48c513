"""``redactory export``: what may leave a run, and nothing else."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import redactory
from redactory.flows import output
from redactory.flows.options import JsonOption, RunArgument, show
from redactory.foundation.wording import some


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
