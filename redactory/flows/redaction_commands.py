"""``redactory evaluate redaction``: what the shards give away by themselves."""

from __future__ import annotations

from typing import Annotated, Any

import typer

import redactory
from redactory.flows import output
from redactory.flows.evaluate_commands import evaluations
from redactory.flows.options import JsonOption, RunArgument, show
from redactory.flows.output import out, table


@evaluations.command("redaction")
def evaluate_redaction(
    run: RunArgument,
    engine: Annotated[
        str | None,
        typer.Option(
            help="Who looks for what is left: patterns, tagger, spacy:NAME, stanza:FOLDER or "
            "transformers:FOLDER; one that did not mask."
        ),
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="Points of each side that it looks at.")] = 5_000,
    rare: Annotated[
        int, typer.Option(min=1, help="A phrase is rare where at most this many public points hold it.")
    ] = 2,
    as_json: JsonOption = False,
) -> None:
    """What the shards alone give away: linked points, identifiers left, near-duplicates across the split."""
    with output.shown_progress() as progress:
        result = redactory.evaluate_redaction(run, engine, sample, rare, progress=progress)
    show(result, as_json, redaction)


def redaction(result: dict[str, Any]) -> None:
    """The three attacks, each beside what chance gives."""
    rows = []
    for unit, own in result["linkage"].items():
        if own is not None:
            rows.append((f"same {unit}", f"{own['claimed']:,}", *map(_share, (own["share"], own["chance"]))))
    if rows:
        table(
            "Private points tied to a public one by a rare phrase", rows, ("", "claims", "right", "by chance")
        )
    if result["residual"] is not None:
        found = [
            (side, f"{own['looked_at']:,}", f"{own['held']:,}", _share(own["share"]))
            for side, own in result["residual"].items()
            if side in ("public", "private")
        ]
        title = f"Suspected identifiers left, by {result['residual']['engine']}, which did not mask"
        table(title, found, ("side", "points looked at", "with a hit", "share"))
        if result["residual"]["note"]:
            out.print(f"Mind: {result['residual']['note']}\n", soft_wrap=True)
    if result["across"] is not None:
        out.print(f"Public points that nearly duplicate a private one: {result['across']['public_points']:,}")
    for what, reason in result["reasons"].items():
        out.print(f"{what}: not measured: {reason}", soft_wrap=True, markup=False)


def _share(figure: dict[str, Any]) -> str:
    if figure["value"] is None:
        return "none"
    return f"{figure['value']:.1%} ({figure['low']:.1%} to {figure['high']:.1%})"
