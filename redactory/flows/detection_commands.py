"""Commands about detection alone: fit a tagger, fit a policy, explain one text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import redactory
from redactory.flows import explain_page, output, pages
from redactory.flows.options import JsonOption, show


def explain(
    text: Annotated[str, typer.Argument(help="The text; - reads it from standard input.")],
    config: Annotated[
        str | None, typer.Option(help="The configuration; the default detection without one.")
    ] = None,
) -> None:
    """Show which engine marks what in a text and what each policy does with it, on the terminal only."""
    given = typer.get_text_stream("stdin").read() if text == "-" else text
    explain_page.explained(redactory.explain(given, config))


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
    show(result, as_json, pages.tagger_fitted)


def fit_policy(
    labelled: Annotated[Path, typer.Option(help="JSONL with the true spans (text, spans).")],
    out: Annotated[Path, typer.Option("--out", help="The YAML file to write.")] = Path("policy.yaml"),
    config: Annotated[
        str | None, typer.Option(help="The configuration to fit; the default detection without one.")
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
    show(result, as_json, pages.fitted)
    if result["chosen"] is None:
        raise SystemExit(1)
