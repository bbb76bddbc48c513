"""The page of a model as Markdown: utility, guarantee, attacks, in this order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from redactory.evaluation.report_findings import Finding
from redactory.evaluation.report_models import ModelReport
from redactory.redaction.mask import MASK


def model_page(report: ModelReport) -> str:
    """``report`` in Markdown; private, since it tells what was computed from private text."""
    lines = [
        f"# {report.name}",
        "",
        f"A model trained with `{report.trainer}`. What was measured is computed from private text and not "
        "covered by the guarantee: treat this page as private. `README.md` has the whole guarantee.",
        "",
        "## How good it is",
        "",
        *(_told(report.utility) if report.utility else [report.no_utility]),
        "",
        "## What is promised",
        "",
        *_promised(report),
        "",
        "## What attacks found",
        "",
        *(_told(report.attacks) if report.attacks else [report.no_attack]),
    ]
    if report.attacks:
        lines += [
            "",
            "An attack that failed proves nothing: another may succeed. The promise above holds against "
            "every attack, where there is one.",
        ]
    return "\n".join(lines).replace(MASK, f"`{MASK}`") + "\n"


def _told(found: Iterable[Finding]) -> Iterator[str]:
    for one in found:
        yield f"- {one.title}: **{one.figure}**. {one.sentence}"


def _promised(report: ModelReport) -> Iterator[str]:
    if not report.promises:
        yield report.nothing_promised
        return
    if report.warning:
        yield f"**{report.warning}** With a secret key, the same training would promise this:"
        yield ""
    yield from (f"{number}. {sentence}" for number, sentence in enumerate(report.promises, 1))
    yield ""
    yield from (f"- {figure.title}: {figure.text}" for figure in report.figures)
