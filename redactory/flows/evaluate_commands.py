"""``redactory evaluate``: measure a trained model, or the policies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import redactory
from redactory.flows import accuracy_page, detection_page, exposure_page, output, pages
from redactory.flows.options import ConfigArgument, JsonOption, ModelOption, OutOption, RunArgument, show

evaluations = typer.Typer(no_args_is_help=True, help="Measure a trained model, or the policies.")


@evaluations.command("perplexity")
def evaluate_perplexity(
    run: RunArgument,
    model: ModelOption = None,
    test: Annotated[
        list[str] | None, typer.Option(help="Held-out corpus instead of the configured one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Perplexity on held-out text, as it is and masked by the strict policy."""
    with output.shown_progress() as progress:
        result = redactory.evaluate_perplexity(run, model, tuple(test or ()), progress)
    show(result, as_json, pages.perplexity)


@evaluations.command("accuracy")
def evaluate_accuracy(
    run: RunArgument,
    model: ModelOption = None,
    test: Annotated[
        list[str] | None, typer.Option(help="Held-out corpus with classes, instead of the configured one.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Test error rate of a classifier on held-out text, and which classes it takes for which."""
    with output.shown_progress() as progress:
        result = redactory.evaluate_accuracy(run, model, tuple(test or ()), progress)
    show(result, as_json, accuracy_page.accuracy)


@evaluations.command("canary")
def evaluate_canary(
    run: RunArgument,
    model: ModelOption = None,
    canaries: Annotated[
        Path | None, typer.Option(help="FILE.canaries.json instead of the configured one.")
    ] = None,
    samples: Annotated[
        int, typer.Option(min=2_000, help="Candidates drawn where there are more than a million.")
    ] = 20_000,
    seed: Annotated[int, typer.Option(help="Which candidates these are.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Exposure of planted canaries among all candidates, exact up to a million of them."""
    with output.shown_progress() as progress:
        result = redactory.evaluate_canary(run, model, canaries, progress, samples, seed)
    show(result, as_json, exposure_page.canary)


@evaluations.command("recall")
def evaluate_recall(config: ConfigArgument, out: OutOption = None, as_json: JsonOption = False) -> None:
    """What the policies miss of the secrets in evaluate.labelled; a guarantee takes its figures from here."""
    with output.shown_progress() as progress:
        result = redactory.evaluate_recall(config, output=out, progress=progress)
    show(result, as_json, pages.recall)


@evaluations.command("detect")
def evaluate_detect(
    labelled: Annotated[Path, typer.Option(help="JSONL with the true spans (text, spans).")],
    config: Annotated[
        str | None, typer.Option(help="The configuration to measure; the default detection without one.")
    ] = None,
    policy: Annotated[
        Literal["strict", "conservative", "both"], typer.Option(help="Whose figures to give.")
    ] = "both",
    as_json: JsonOption = False,
) -> None:
    """What the policies find and miss in labelled text, and what share of it stays public."""
    with output.shown_progress() as progress:
        result = redactory.evaluate_detect(labelled, config, policy, progress=progress)
    show(result, as_json, detection_page.detection)
