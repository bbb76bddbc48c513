"""``redactory audit``: people label a sample of a run, and misses are measured on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from redactory.flows import audit_page, output
from redactory.flows.options import JsonOption, RunArgument, show

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
    from redactory.pipelines.labelling.sample import audit_sample as draw

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
    from redactory.pipelines.labelling.score import audit_score as score

    with output.shown_progress() as progress:
        result = score(
            run, labelled, name=name, confidence=confidence, unchanged=unchanged, progress=progress
        )
    show(result, as_json, audit_page.scored)
