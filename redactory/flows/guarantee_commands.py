"""``redactory guarantee``: what may be promised of a model, or of several in one hand."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import completion, inference_page, pages
from redactory.flows.options import JsonOption, RunsArgument, show
from redactory.flows.output import out

ModelsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--model",
        help="A trained model; the configured one by default. Several: what holds of all of them together.",
        autocompletion=completion.models_of_run,
    ),
]


def guarantee(
    runs: RunsArgument,
    model: ModelsOption = None,
    delta: Annotated[
        float | None, typer.Option(help="Of several models: delta of the figures.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print what may be promised of a trained model, or of several, derived again from the ledgers."""
    first, *also = runs
    named = model[0] if model and len(model) == 1 else model or None
    result: dict[str, Any] = dict(redactory.guarantee(first, named, also=also, delta=delta))
    if "models" in result:
        show(result, as_json, pages.composed_guarantee)
        return
    show(result, as_json, pages.guarantee)
    if not as_json:
        _say_others(first, result["model"])
    if inference_page.refuted(result.get("audit")):
        raise SystemExit(1)


def _say_others(run: Path, name: str) -> None:
    """That the figures are of one model alone, where the run has others."""
    from redactory.redaction import RunFolder

    others = [other for other in RunFolder(run).model_names() if other != name]
    if others:
        named = [part for one in (name, *others) for part in ("--model", one)]
        command = shlex.join(["redactory", "guarantee", str(run), *named])
        out.print(
            f"Of {name} alone. What holds of whoever has {', '.join(others)} as well: {command}",
            soft_wrap=True,
            markup=False,
            highlight=False,
        )
