"""Commands about detection alone: fit a tagger, fit a policy, explain one text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import explain_page, fit_page, output
from redactory.flows.options import JsonOption, readable_configuration, show
from redactory.flows.standard_input import standard_input
from redactory.foundation.errors import ConfigurationError


def explain(
    text: Annotated[str, typer.Argument(help="The text; - reads it from standard input.")],
    config: Annotated[
        str | None,
        typer.Option(
            help="The configuration; the default detection without one.", callback=readable_configuration
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every mark of every engine and rule.")] = False,
) -> None:
    """Show what each policy does with a text, and which hits decide it, on the terminal only."""
    if os.path.isfile(text):
        raise ConfigurationError(
            f"{text}: this is a file: redactory scan FILE looks into files; a text that is a file's name is "
            "read from standard input (-)"
        )
    given = standard_input() if text == "-" else text
    with output.shown_progress() as progress:
        result = redactory.explain(given, config, progress=progress)
    explain_page.explained(result, explain_page.every_mark if every else explain_page.deciding_hits)


def fit(
    labelled: Annotated[list[Path], typer.Argument(help="JSONL files with the true spans (text, spans).")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")],
    base: Annotated[
        Path | None,
        typer.Option(help="A Hugging Face model's folder to train further, instead of our own small tagger."),
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the rows.")] = None,
    language: Annotated[
        str | None, typer.Option(help="Language code of the tokenizer of our own tagger; en without one.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same tagger.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Train and calibrate a token tagger on labelled rows."""
    settings: dict[str, Any] = {"language": language, "epochs": epochs, "seed": seed}
    given = {key: value for key, value in settings.items() if value is not None}
    with output.shown_progress() as progress:
        result = redactory.fit(labelled, out, given, progress=progress, base=base)
    show(result, as_json, fit_page.tagger_fitted)


def fit_policy(
    labelled: Annotated[Path, typer.Option(help="JSONL with the true spans (text, spans).")],
    out: Annotated[Path, typer.Option("--out", help="The YAML file to write.")] = Path("policy.yaml"),
    config: Annotated[
        str | None,
        typer.Option(
            help="The configuration to fit; the default detection without one.",
            callback=readable_configuration,
        ),
    ] = None,
    miss_rate: Annotated[float, typer.Option(help="Bound of the share of secrets that are missed.")] = 0.001,
    confidence: Annotated[float, typer.Option(help="Confidence of the bound.")] = 0.95,
    as_json: JsonOption = False,
) -> None:
    """Fit the conservative policy to labelled secrets, so that what is missed is bounded."""
    with output.shown_progress() as progress:
        result = redactory.fit_policy(
            labelled, out=out, config=config, miss_rate=miss_rate, confidence=confidence, progress=progress
        )
    show(result, as_json, fit_page.fitted)
    if result["chosen"] is None:
        raise SystemExit(1)
