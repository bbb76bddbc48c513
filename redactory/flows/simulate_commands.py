"""``redactory simulate``: make a corpus whose every secret is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import redactory
from redactory.flows import output, pages
from redactory.flows.options import JsonOption, show

simulations = typer.Typer(no_args_is_help=True, help="Make a corpus whose every secret is known.")


@simulations.command("customersim")
def simulate_customersim(
    out: Annotated[Path, typer.Option("--out", help="The JSONL file to write.")],
    rows: Annotated[int, typer.Option(min=1, help="Dialogues.")] = 1_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same corpus.")] = 0,
    canaries: Annotated[int, typer.Option(min=0, help="Planted numbers 'My ID is: 123456'.")] = 0,
    copies: Annotated[int, typer.Option(min=1, help="How often each canary is planted.")] = 1,
    canary_miss_rate: Annotated[
        float,
        typer.Option(min=0, max=1, help="Probability that a canary is marked as one that π is to miss."),
    ] = 0.0,
    canary_template: Annotated[
        list[str] | None,
        typer.Option(help="Words before a canary, and its digits: 'My PIN is {4}'; give it again for more."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Support dialogues of invented people, with every secret's place."""
    with output.shown_progress() as progress:
        templates = {"templates": canary_template} if canary_template else {}
        result = redactory.simulate(
            out, rows, seed, canaries, copies, progress, canary_miss_rate, **templates
        )
    show(result, as_json, pages.simulated)
