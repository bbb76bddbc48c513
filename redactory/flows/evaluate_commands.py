"""``redactory evaluate``: measure a trained model, or the policies."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import redactory
from redactory.flows import evaluation_pages as accuracy_page
from redactory.flows import evaluation_pages as audit_page
from redactory.flows import evaluation_pages as detection_page
from redactory.flows import evaluation_pages as exposure_page
from redactory.flows import evaluation_pages as inference_page
from redactory.flows import output, pages
from redactory.flows.output import (
    ConfigArgument,
    JsonOption,
    ModelOption,
    OutOption,
    RunArgument,
    out,
    show,
    table,
)

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


# ``redactory evaluate extraction``: which secrets a trained model writes.


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


# ``redactory evaluate redaction``: what the shards give away by themselves.


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


# ``redactory audit``: people label a sample of a run, and misses are measured on it.


audits = typer.Typer(no_args_is_help=True, help="Have people label a sample; plant canaries by fair coins.")

NameOption = Annotated[str, typer.Option("--name", help="Name of the sample.")]


@audits.command("sample")
def audit_sample(
    run: RunArgument,
    n: Annotated[int, typer.Option("-n", min=1, help="Most texts to label.")] = 400,
    seed: Annotated[int | None, typer.Option(help="The same seed draws the same points.")] = None,
    public_share: Annotated[float, typer.Option(help="Share of them that is public.")] = 0.6,
    name: NameOption = "sample",
    as_json: JsonOption = False,
) -> None:
    """Draw points of a finished run for people to label, into the private part of the run folder."""
    from redactory.pipelines.sample import audit_sample as draw

    show(draw(run, n, seed=seed, name=name, public_share=public_share), as_json, audit_page.sampled)


@audits.command("score")
def audit_score(
    run: RunArgument,
    labelled: Annotated[
        Path,
        typer.Argument(metavar="LABELLED", help="The labelled JSON lines, or Label Studio's JSON export."),
    ],
    confidence: Annotated[float, typer.Option(help="Confidence of each bound.")] = 0.95,
    unchanged: Annotated[
        bool, typer.Option("--unchanged", help="Score labels of which none differs from what was filled in.")
    ] = False,
    name: NameOption = "sample",
    as_json: JsonOption = False,
) -> None:
    """What the policies miss of the labelled secrets; a guarantee takes its figures from here."""
    from redactory.pipelines.sample import audit_score as score

    with output.shown_progress() as progress:
        result = score(
            run, labelled, name=name, confidence=confidence, unchanged=unchanged, progress=progress
        )
    show(result, as_json, audit_page.scored)


# ``redactory evaluate membership``, ``redactory evaluate audit`` and ``redactory audit plant``.


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
