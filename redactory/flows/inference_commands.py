"""``redactory evaluate membership``, ``redactory evaluate audit`` and ``redactory audit plant``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

import redactory
from redactory.flows import inference_page, output
from redactory.flows.audit_commands import audits
from redactory.flows.evaluate_commands import evaluations
from redactory.flows.options import JsonOption, ModelOption, RunArgument, show


@evaluations.command("membership")
def evaluate_membership(
    run: RunArgument,
    model: ModelOption = None,
    secrets: Annotated[
        Path | None, typer.Option(help="This corpus with true spans, instead of evaluate.labelled.")
    ] = None,
    others: Annotated[
        Path | None, typer.Option(help="Labelled JSONL whose values were never trained on; drawn without it.")
    ] = None,
    label: Annotated[str | None, typer.Option(help="The kind of secret; the commonest by default.")] = None,
    reference: Annotated[
        str | None, typer.Option(help="Another model of this run, or another run: a stronger attack.")
    ] = None,
    count: Annotated[int, typer.Option(min=4, help="Sentences of each kind, at most.")] = 1_000,
    group_size: Annotated[int, typer.Option(min=1, help="Sentences in a group.")] = 20,
    confidence: Annotated[
        float, typer.Option(help="Of each interval; 1 - 0.05 / k for k comparisons.")
    ] = 0.95,
    seed: Annotated[int, typer.Option(help="The same seed draws the same sentences.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """Whether a model's training secrets can be told from others of the same form."""
    with output.shown_progress() as progress:
        result = redactory.evaluate_membership(
            run,
            model,
            secrets=secrets,
            others=others,
            label=label,
            reference=reference,
            count=count,
            group_size=group_size,
            confidence=confidence,
            seed=seed,
            progress=progress,
        )
    show(result, as_json, inference_page.membership)


@evaluations.command("audit")
def evaluate_audit(
    run: RunArgument,
    model: ModelOption = None,
    coins: Annotated[
        Path | None, typer.Option(help="The .coins.json of 'redactory audit plant'; that beside the input.")
    ] = None,
    confidence: Annotated[float, typer.Option(help="Of the lower bound.")] = 0.95,
    as_json: JsonOption = False,
) -> None:
    """The least epsilon that a model shows, beside the most that is stated; fails where it is larger."""
    with output.shown_progress() as progress:
        result = redactory.evaluate_audit(run, model, coins=coins, confidence=confidence, progress=progress)
    show(result, as_json, inference_page.audit)
    if not result["holds"]:
        raise SystemExit(1)


@audits.command("plant")
def audit_plant(
    corpus: Annotated[Path, typer.Argument(metavar="CORPUS", help="The corpus, as JSON lines.")],
    out: Annotated[Path, typer.Option("--out", help="Its copy with canaries, to be curated.")],
    canaries: Annotated[int, typer.Option(min=1, help="Canaries, each with a fair coin.")] = 1_000,
    form: Annotated[
        Literal["pair", "masked", "absent"],
        typer.Option(help="A coin's worlds: one number or another, a number or its mask, a user or none."),
    ] = "pair",
    template: Annotated[
        str, typer.Option(help="The sentence that ends with a number.")
    ] = "The code is: {digits}",
    text: Annotated[str, typer.Option("--text", help="Column of the text.")] = "text",
    identity: Annotated[str, typer.Option("--id", help="Column of the document's id.")] = "id",
    user: Annotated[str, typer.Option("--user", help="Column of the user.")] = "user_id",
    seed: Annotated[int | None, typer.Option(help="Test mode: coins that anybody can draw again.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Plant canaries by fair coins, for 'redactory evaluate audit' to guess after training."""
    with output.shown_progress() as progress:
        result = redactory.audit_plant(
            corpus,
            out,
            canaries=canaries,
            form=form,
            template=template,
            seed=seed,
            columns={"text": text, "id": identity, "user_id": user},
            progress=progress,
        )
    show(result, as_json, inference_page.planted)
