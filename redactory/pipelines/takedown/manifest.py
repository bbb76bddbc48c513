"""What the manifest says once a person is out: every count that she was in, less by her share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from redactory.pipelines.stages.redact import BINS
from redactory.pipelines.takedown.parts import Tally

OF_POINTS = ("public", "private")


def counts_without(
    counts: Mapping[str, int], removed: Mapping[str, int], moved_up: Mapping[str, int]
) -> dict[str, int]:
    """The manifest's ``counts`` after a change; also what ``verify`` holds a release against."""
    less = Counter(removed)
    less["rows"] = removed.get("documents", 0) + removed.get("rejected", 0)
    for side in OF_POINTS:
        up = moved_up.get(side, 0)
        less[side] -= up
        less["duplicate"] += up
        less[f"{side}_duplicate"] += up
    return {name: count - less[name] for name, count in counts.items()}


def body_without(manifest: Mapping[str, Any], tally: Tally) -> dict[str, Any]:
    """The keys of the manifest that change: counts, reasons, hits, masks, what deduplication found.

    ``inputs``, ``seconds`` and ``stages`` stay: they say what was read, and what the curation did.
    """
    dedup = dict(manifest["dedup"])
    if dedup["across"] is not None:
        dedup["across"] -= tally.across
    if "index" in dedup:
        repeats = dedup["index"]["duplicate_earlier"]
        left = {side: count - tally.repeats[side] for side, count in repeats.items()}
        dedup["index"] = {**dedup["index"], "duplicate_earlier": left}
    return {
        "counts": counts_without(manifest["counts"], tally.removed, tally.moved_up),
        "rejected": _less(manifest["rejected"], tally.rejected),
        "quarantined": _less(manifest["quarantined"], tally.quarantined),
        "reasons": _less(manifest["reasons"], tally.reasons),
        "hits": _hits(manifest["hits"], tally),
        "masks": max(0, manifest["masks"] - tally.masks),
        "dedup": dedup,
    }


def _less(counts: Mapping[str, int], gone: Counter[str]) -> dict[str, int]:
    return {name: count - gone[name] for name, count in counts.items() if count > gone[name]}


def _hits(hits: list[dict[str, Any]], tally: Tally) -> list[dict[str, Any]]:
    gone: Counter[tuple[str, str, str, int]] = Counter()
    for (policy, detector, label, score), count in tally.hits.items():
        gone[policy, detector, label, min(int(score * BINS), BINS - 1)] += count
    left = []
    for hit in hits:
        bins = [
            count - gone[hit["policy"], hit["detector"], hit["label"], place]
            for place, count in enumerate(hit["histogram"])
        ]
        if sum(bins):
            left.append({**hit, "count": sum(bins), "histogram": bins})
    return left
