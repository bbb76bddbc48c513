"""``redactory labels``: labelled rows to Label Studio and back."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import output
from redactory.flows.options import JsonOption, show
from redactory.foundation.wording import some

labels = typer.Typer(no_args_is_help=True, help="Labelled rows to Label Studio and back.")


class Standing(StrEnum):
    """How the spans of rows stand in Label Studio."""

    PREDICTIONS = "predictions"
    ANNOTATIONS = "annotations"


@labels.command("to-label-studio")
def to_label_studio(
    labelled: Annotated[
        Path, typer.Argument(metavar="LABELLED", help="JSONL with the true spans (text, spans).")
    ],
    out: Annotated[
        Path, typer.Option("--out", help="A new .json file; the interface goes beside it, as .xml.")
    ],
    standing: Annotated[
        Standing, typer.Option("--as", help="Spans to start from, or spans that are done.")
    ] = Standing.PREDICTIONS,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", help="A label to choose from beside those of the rows; several times."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write labelled rows as tasks and labelling interface, to import into Label Studio."""
    result = redactory.to_label_studio(labelled, out, standing=standing.value, labels=tuple(label or ()))
    show(result, as_json, _tasks_written)


@labels.command("from-label-studio")
def from_label_studio(
    export: Annotated[Path, typer.Argument(metavar="EXPORT", help="Label Studio's JSON export.")],
    out: Annotated[Path, typer.Option("--out", help="A new .jsonl file.")],
    text: Annotated[str, typer.Option(help="Key of the text in the tasks' data.")] = "text",
    as_json: JsonOption = False,
) -> None:
    """Write what was labelled in Label Studio as rows, for fit, fit-policy, evaluate detect and others."""
    show(redactory.from_label_studio(export, out, text=text), as_json, _rows_written)


def _tasks_written(result: dict[str, Any]) -> None:
    output.out.print(
        f"{some(result['tasks'], 'task')} with {some(sum(result['spans'].values()), 'span')}: "
        f"{result['out']}. "
        f"The project's labelling interface: {result['interface']}.",
        soft_wrap=True,
        markup=False,
    )
    output.out.print(
        "Both hold your text: import them where it may lie. Then export the project as JSON.", soft_wrap=True
    )


def _rows_written(result: dict[str, Any]) -> None:
    output.out.print(
        f"{some(result['rows'], 'row')} with {some(sum(result['spans'].values()), 'span')}: {result['out']}",
        soft_wrap=True,
        markup=False,
    )
