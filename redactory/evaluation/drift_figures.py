"""The figures of a run that are compared from night to night, read off its manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from redactory.evaluation.drift import Count, Key

METRICS = {
    "public": "public points, of those in the shards",
    "quarantined": "quarantined points",
    "rejected": "rejected rows",
    "duplicate": "duplicates within the run",
    "duplicate_earlier": "duplicates of earlier runs",
    "hits/strict/label": "hits of π per 1,000 points, by label",
    "hits/strict/detector": "hits of π per 1,000 points, by detector",
    "hits/conservative/label": "hits of π_c per 1,000 points, by label",
    "hits/conservative/detector": "hits of π_c per 1,000 points, by detector",
}
"""Each metric in words."""


def figures_of(manifest: Mapping[str, Any]) -> dict[Key, Count]:
    """Every figure of a run; a metric by label also stands without one, for labels that it has none of."""
    counts = manifest["counts"]
    earlier = manifest["dedup"].get("index")
    repeated = sum(earlier["duplicate_earlier"].values()) if earlier else 0
    shares = {
        "public": (counts["public"], counts["public"] + counts["private"]),
        "quarantined": (counts["quarantined"], counts["points"]),
        "rejected": (counts["rejected"], counts["rows"]),
        "duplicate": (counts["duplicate"] - repeated, counts["points"]),
    }
    if earlier:
        shares["duplicate_earlier"] = (repeated, counts["points"])
    figures = {Key(name): Count("share", *share) for name, share in shares.items()}
    return figures | dict(_hits(manifest["hits"], counts["points"]))


def _hits(hits: list[dict[str, Any]], points: int) -> Iterator[tuple[Key, Count]]:
    for metric in METRICS:
        if not metric.startswith("hits/"):
            continue
        _, policy, by = metric.split("/")
        yield Key(metric), Count("rate", 0, points)
        found: Counter[str] = Counter()
        for hit in hits:
            if hit["policy"] == policy:
                found[hit[by]] += hit["count"]
        for label, count in found.items():
            yield Key(metric, label), Count("rate", count, points)
