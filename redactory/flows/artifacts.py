"""What Prefect's interface shows of a run: the flow of points, the report, the guarantee.

Counts, codes, figures and paths: no text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from prefect.artifacts import create_link_artifact, create_markdown_artifact

from redactory.foundation.wording import upwards

FATES = (
    ("rows", ("documents", "rejected")),
    ("points", ("public", "private", "duplicate", "quarantined")),
)
PROMISES = (
    "epsilon_confidentiality",
    "epsilon_bayesian",
    "epsilon_substitution",
    "coverage_failure",
)
PROMISES_OF_UNITS = ("epsilon_sound", "epsilon_user_removal")


def publish_run(name: str, summary: dict[str, Any], reused: bool) -> None:
    """The flow of points of a finished run, and where its report lies; one history for each ``name``."""
    lines = ["| of | count | share |", "|---|---:|---:|"]
    for whole, fates in FATES:
        lines.append(f"| **{whole}** | {summary[whole]:,} | |")
        lines += [
            f"| {fate} | {summary[fate]:,} | {_share(summary[fate], summary[whole])} |" for fate in fates
        ]
    for title in ("rejected", "quarantined"):
        reasons = summary[f"{title}_by_reason"]
        lines += [f"| {title}: `{code}` | {count:,} | |" for code, count in sorted(reasons.items())]
    told = f"`{summary['run']}`" + (" (unchanged input: the earlier run stands)" if reused else "")
    create_markdown_artifact(
        "\n".join([told, "", *lines]), key=_key("points", name), description="Flow of points"
    )
    report = Path(summary["report"]).resolve()
    create_link_artifact(
        report.as_uri(), link_text=str(report), key=_key("report", name), description="Report of the run"
    )


def publish_promise(name: str, model: dict[str, Any]) -> None:
    """The figures of the trained model's guarantee, each null with its reason."""
    card = model["guarantee"]
    reasons = card.get("reasons", {})
    keys = PROMISES_OF_UNITS if "epsilon_sound" in card else PROMISES
    lines = ["| figure | value |", "|---|---|"]
    lines += [f"| `{key}` | {_figure(card.get(key), reasons.get(key))} |" for key in keys]
    create_markdown_artifact(
        "\n".join(lines), key=_key("guarantee", name), description="Guarantee of the model"
    )


def _figure(value: float | None, reason: str | None) -> str:
    return f"none: {reason or 'not stated'}" if value is None else upwards(value)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f}%" if whole else ""


def _key(what: str, name: str) -> str:
    """Prefect's keys are lower-case letters, digits and dashes."""
    return f"{what}-{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-') or 'run'}"
