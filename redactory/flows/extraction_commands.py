"""``redactory evaluate extraction``: which secrets a trained model writes."""

from __future__ import annotations

from typing import Annotated

import typer

import redactory
from redactory.flows import exposure_page, output
from redactory.flows.evaluate_commands import evaluations
from redactory.flows.options import JsonOption, ModelOption, RunArgument, show


@evaluations.command("extraction")
def evaluate_extraction(
    run: RunArgument,
    model: ModelOption = None,
    samples: Annotated[int, typer.Option(min=1, help="Texts that the model writes.")] = 1_000,
    tokens: Annotated[int, typer.Option(min=1, help="Most tokens of a text.")] = 64,
    temperature: Annotated[
        float, typer.Option(min=0, help="Below 1 likelier tokens are drawn more often; 0 draws none.")
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Draw among so many of the likeliest tokens; all by default.")
    ] = None,
    completions: Annotated[
        int, typer.Option(min=0, help="Secrets that are tried with the words before them.")
    ] = 500,
    seed: Annotated[int, typer.Option(help="The same seed writes the same texts.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Texts that the model writes, searched for the vault's secrets, beside values that it never saw."""
    with output.shown_progress() as progress:
        result = redactory.evaluate_extraction(
            run, model, samples, tokens, temperature, top_k, completions, seed, progress
        )
    show(result, as_json, exposure_page.extraction)
