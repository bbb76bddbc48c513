"""What the report says about a run, drawn from its manifest: sums that are checked, tables, shares."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.shards import read_batches

POLICIES = ("strict", "conservative")
_LARGEST_IN_FULL = 1e6
MOST_ROWS, MOST_HISTOGRAMS = 14, 10
"""Rows of a table before the rest is folded away; histograms of a policy."""


@dataclass(frozen=True)
class Law:
    """A sum that must hold: ``whole`` is ``parts`` together."""

    whole: tuple[str, int]
    parts: list[tuple[str, int]]

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.whole[1] == sum(count for _, count in self.parts)


def conservation(manifest: Mapping[str, Any]) -> list[Law]:
    """The laws of conservation of a run, each to be shown with whether it holds."""
    counts = manifest["counts"]

    def law(whole: str, *parts: str) -> Law:
        return Law((whole, counts[whole]), [(part, counts[part]) for part in parts])

    whole = [
        law("rows", "documents", "rejected"),
        law("points", "public", "private", "duplicate", "quarantined"),
    ]
    parts = [
        law("duplicate", "public_duplicate", "private_duplicate"),
        Law(("rejected", counts["rejected"]), sorted(manifest["rejected"].items())),
        Law(("quarantined", counts["quarantined"]), sorted(manifest["quarantined"].items())),
    ]
    # "0 = 0" says nothing, unless something should have been there
    return whole + [law for law in parts if law.whole[1] or any(count for _, count in law.parts)]


@dataclass(frozen=True)
class Bar:
    """A bar of the flow: the class that colours it, what its share is of, and what it divides into."""

    name: str
    count: int
    kind: str
    whole: int = 0
    parts: tuple[Bar, ...] = ()


def flow(counts: Mapping[str, int]) -> Bar:
    """Rows into documents, points, sides and shards; what has no count has no bar."""

    def bar(name: str, count: int, kind: str, *parts: Bar, whole: int = counts["points"]) -> Bar:
        return Bar(name, count, kind, whole, tuple(part for part in parts if part.count))

    public, private = (
        (
            bar(f"{side.capitalize()} shards", counts[side], side),
            bar("Duplicates", counts[f"{side}_duplicate"], "duplicate"),
        )
        for side in ("public", "private")
    )
    sides = (
        bar("Public side", sum(part.count for part in public), "public", *public),
        bar("Private side", sum(part.count for part in private), "private", *private[::-1]),
        bar("Quarantined", counts["quarantined"], "quarantined"),
    )
    points = bar("Points", counts["points"], "neutral", *sides, whole=0)
    documents = bar("Documents", counts["documents"], "neutral", points, whole=0)
    rejected = bar("Rejected", counts["rejected"], "rejected", whole=counts["rows"])
    return bar("Rows", counts["rows"], "neutral", documents, rejected, whole=0)


@dataclass(frozen=True)
class Found:
    """The hits of one policy: one row a label and detector, most frequent first."""

    policy: str
    rows: list[dict[str, Any]]
    most: int
    total: int


def found(manifest: Mapping[str, Any]) -> list[Found]:
    """The hits by policy, counted before overlapping spans are merged."""
    hits = sorted(manifest["hits"], key=lambda h: (POLICIES.index(h["policy"]), -h["count"], h["label"]))
    tables = []
    for policy, group in groupby(hits, key=lambda hit: hit["policy"]):
        rows = list(group)
        counts = [row["count"] for row in rows]
        tables.append(Found(policy, rows, max(counts), sum(counts)))
    return tables


def ranked(counts: Mapping[str, int]) -> list[tuple[str, int, float]]:
    """(name, count, count over the highest count), the highest first."""
    highest = max(counts.values(), default=1) or 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [(name, count, count / highest) for name, count in ordered]


def share(part: int, whole: int) -> str:
    """A percentage that rounds neither something to nothing nor a part to the whole."""
    if not whole or not part:
        return "0%"
    percent = 100 * part / whole
    if percent < 0.1:
        return "<0.1%"
    if percent > 99.9 and part < whole:
        return ">99.9%"
    return f"{percent:.1f}%"


def amount(value: float | None, digits: int = 3) -> str:
    """A figure with ``digits`` significant digits; a dash for null."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if 10**digits <= abs(value) < _LARGEST_IN_FULL else f"{value:.{digits}g}"


def size(octets: float) -> str:
    """Bytes in the largest unit that leaves a number over one."""
    for unit in ("bytes", "KB", "MB", "GB"):
        if octets < 1000 or unit == "GB":
            return f"{octets:,.0f} {unit}" if unit == "bytes" else f"{octets:,.1f} {unit}"
        octets /= 1000
    raise AssertionError("unreachable")


def engine_line(stands_on: Mapping[str, Any]) -> str:
    """What an engine stands on, in a line: its model, the digests of its files, its packages."""
    digests = stands_on.get("sha256", ())
    digests = [digests] if isinstance(digests, str) else digests
    named = " ".join(str(stands_on[key]) for key in ("name", "version") if key in stands_on)
    packages = ", ".join(f"{name} {version}" for name, version in stands_on.get("versions", {}).items())
    return "; ".join(filter(None, (named, *(f"sha256 {digest[:16]}…" for digest in digests), packages)))


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s"


def total_seconds(stages: Sequence[Mapping[str, Any]]) -> float:
    """The seconds of all stages together."""
    return float(sum(stage["seconds"] for stage in stages))


# Examples for the report: public points as they are, private ones as skeletons without a word.


BLOCK = "▇▇"
MORE = "…"
_LONGEST_TEXT = 320
_LONGEST_SKELETON = 24
_WORD_OR_MASK = re.compile(rf"{re.escape(MASK)}|\w+(?:['’\-.@]\w+)*")


@dataclass(frozen=True)
class Examples:
    """``public`` texts as they stand in the shards, ``skeletons`` of private ones: a list of pieces each."""

    public: list[str]
    skeletons: list[list[str]]


def pick_examples(run: RunFolder, count: int = 8) -> Examples:
    """The ``count`` points of each side whose released ids come first.

    Released ids are keyed pseudonyms, so the pick is random over the points and the same in each rendering.
    """
    return Examples(
        public=[_shortened(text) for text in _first(run.public, count)],
        skeletons=[skeleton(text) for text in _first(run.private, count)],
    )


def skeleton(text: str) -> list[str]:
    """What may be seen of a private point: ``<MASK>`` where a mask is, one same block for any word.

    A masked text can still hold what π missed, so neither letters nor lengths of words are shown.
    """
    pieces = [MASK if piece == MASK else BLOCK for piece in _WORD_OR_MASK.findall(text)]
    return pieces if len(pieces) <= _LONGEST_SKELETON else [*pieces[:_LONGEST_SKELETON], MORE]


def _first(folder: Path, count: int) -> list[str]:
    return [text for _, text in heapq.nsmallest(count, _rows(folder, count))]


def _rows(folder: Path, count: int) -> Iterator[tuple[str, str]]:
    """(id, text) of the first ``count`` of each batch: few of millions of points become Python objects."""
    for batch in read_batches(folder, ["point_id", "text"]):
        least = batch.take(pc.select_k_unstable(batch, count, [("point_id", "ascending")]))
        yield from zip(*(column.to_pylist() for column in least.columns), strict=True)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + MORE
