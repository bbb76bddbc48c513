"""``redactory publish`` and ``redactory fetch``: a finished run at a URL, and back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import output
from redactory.flows.options import JsonOption, RunArgument, show
from redactory.foundation.wording import some


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
