"""What attacks on the shards alone found, with a sentence for everybody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from redactory.evaluation.report_findings import Finding
from redactory.foundation.files import read_json
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import is_finished

_UNITS = {"document": "document", "user": "person"}


def shard_findings(run: RunFolder) -> list[Finding]:
    """Of ``redactory evaluate redaction``; empty where it was not made."""
    if not is_finished(run.redaction):
        return []
    result = read_json(run.redaction.root / "result.json")
    return [*_linked(result["linkage"]), *_left(result["residual"]), *_across(result["across"])]


def _linked(linkage: Mapping[str, Any]) -> Iterator[Finding]:
    for unit, own in linkage.items():
        if own is None:
            continue
        if own["share"]["value"] is None:
            yield Finding(
                f"linked to the same {_UNITS[unit]}",
                "none",
                "No private point shares a rare phrase with one public point alone: none could be tied.",
            )
            continue
        above = (own["excess"]["low"] or 0.0) > 0.0
        yield Finding(
            f"linked to the same {_UNITS[unit]}",
            f"{100 * own['share']['value']:.1f}%",
            f"{own['claimed']:,} of {own['private']:,} private points share a rare phrase with one public "
            f"point. In {100 * own['share']['value']:.1f}% of these cases both are of the same "
            f"{_UNITS[unit]}; pairs drawn at random would be in {100 * own['chance']['value']:.1f}%.",
            above,
        )


def _left(residual: Mapping[str, Any] | None) -> Iterator[Finding]:
    for side in ("public", "private"):
        own = (residual or {}).get(side)
        if residual is None or own is None or own["share"]["value"] is None:
            continue
        yield Finding(
            f"suspected identifiers, {side}",
            f"{100 * own['share']['value']:.1f}%",
            f"{residual['engine']}, which had no part in masking, was shown {own['looked_at']:,} {side} "
            f"points and saw a name, a long number or another identifier that is no ordinary word in "
            f"{own['held']:,}. It is mistaken at times: look at the points that the result lists."
            + (f" Mind: {residual['note']}." if residual.get("note") else ""),
            side == "public" and own["held"] > 0,
        )


def _across(across: Mapping[str, Any] | None) -> Iterator[Finding]:
    if across is not None:
        yield Finding(
            "near-duplicates across the split",
            f"{across['public_points']:,}",
            "So many public points are nearly the same as a private one. What is secret in the one may stand "
            "in the open in the other; audit/across lists them.",
            across["public_points"] > 0,
        )
