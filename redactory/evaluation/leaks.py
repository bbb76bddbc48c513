"""Ground truth against a finished run: which labelled secrets still stand in its shards.

The vault's points give a document back piece by piece, so a secret's place in the document is a place in
one point or in several; the point's released id says in which shard it went, the span ledger what π covered.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from itertools import groupby
from typing import Any, NamedTuple

from redactory.foundation.errors import CheckFailed
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import merge_intervals
from redactory.redaction.shards import read_batches, read_column

STRICT = "strict"
_COUNTS = ("secrets", "left_public", "left_private", "withheld")


Piece = tuple[int, str, str, str]
"""A point in the vault: point_id, prefix, text, suffix."""
Fate = tuple[str, list[tuple[int, int]]]
"""What became of a point: the side of the shard that holds it, and what π covered of its text."""


class PlacedPoint(NamedTuple):
    """A point whose text is ``document[start:end]``."""

    point_id: int
    start: int
    end: int


def secrets_left(run: RunFolder, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Count the labelled secrets of ``rows`` ({id, text, spans}) that a finished run left standing.

    A secret is ``left_public`` when any character of it stands in a point that went public (both policies
    missed it) and ``left_private`` when π does not cover all of it in the points that went private; it is
    ``withheld`` when no point of a shard holds any of it (rejected row, quarantined point).  A duplicate
    counts where its first copy lies.  A row's ``id`` is its ``doc_id``.

    Returns {documents, secrets, left_public, left_private, withheld, labels: {label: the same counts}}:
    counts, no text.  Raises ``CheckFailed`` where the vault does not fit a row's text.
    """
    labelled = {str(row["id"]): row for row in rows}
    fates = _fates(run)
    labels: dict[str, Counter[str]] = defaultdict(Counter)
    met: set[str] = set()
    vault = (
        entry
        for batch in read_batches(run.vault, ["doc_id", "point_id", "prefix", "text", "suffix"])
        for entry in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    )
    for doc_id, group in groupby(vault, key=lambda entry: entry[0]):
        if doc_id in labelled:
            met.add(doc_id)
            row = labelled[doc_id]
            points = place_points(doc_id, row["text"], (entry[1:] for entry in group))
            _count(row, points, fates, labels)
    for doc_id in labelled.keys() - met:
        _count(labelled[doc_id], [], fates, labels)
    total = sum(labels.values(), Counter[str]())
    return {
        "documents": len(labelled),
        **{name: total[name] for name in _COUNTS},
        "labels": {label: {name: labels[label][name] for name in _COUNTS} for label in sorted(labels)},
    }


def place_points(doc_id: str, document: str, pieces: Iterable[Piece]) -> list[PlacedPoint]:
    """Where each point of a document stands in it.

    Points follow each other without a gap, except where a quarantined one is missing from the vault:
    there the point ids jump, and the next piece is looked for.
    """
    placed = []
    position, expected = 0, None
    for point_id, prefix, text, suffix in pieces:
        piece = prefix + text + suffix
        found = position if point_id == expected else document.find(piece, position)
        if found < 0 or not document.startswith(piece, found):
            raise CheckFailed(f"document {doc_id}: the vault's points do not give its text back")
        start = found + len(prefix)
        placed.append(PlacedPoint(point_id, start, start + len(text)))
        position, expected = found + len(piece), point_id + 1
    return placed


def _count(
    row: Mapping[str, Any], points: list[PlacedPoint], fates: dict[int, Fate], labels: dict[str, Counter[str]]
) -> None:
    for span in row["spans"]:
        standing, met = set(), False
        for point in points:
            low, high = max(point.start, span["start"]), min(point.end, span["end"])
            fate = fates.get(point.point_id)
            if low >= high or fate is None:
                continue
            met = True
            masked = merge_intervals(row["text"][point.start : point.end], fate[1])
            if not any(start <= low - point.start and high - point.start <= end for start, end in masked):
                standing.add(fate[0])
        counts = labels[str(span["label"])]
        counts["secrets"] += 1
        counts["left_public"] += "public" in standing
        counts["left_private"] += "private" in standing
        counts["withheld"] += not met


def _fates(run: RunFolder) -> dict[int, Fate]:
    """The fate of every point that stands in a shard, itself or as a duplicate of one that does."""
    shard_of = dict.fromkeys(read_column(run.public, "point_id"), "public")
    shard_of.update((released, "private") for released in read_column(run.private, "point_id"))
    own: dict[int, str] = {}
    copies: dict[int, int] = {}
    for batch in read_batches(run.points, ["point_id", "released_id", "dup_of"]):
        for point_id, released, dup_of in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            if dup_of is not None:
                copies[point_id] = dup_of
            elif released in shard_of:
                own[point_id] = shard_of[released]
    own.update((copy, own[first]) for copy, first in copies.items() if first in own)
    fates: dict[int, Fate] = {point_id: (side, []) for point_id, side in own.items()}
    for batch in read_batches(run.spans, ["point_id", "start", "end", "policy"]):
        for point_id, start, end, policy in zip(*(c.to_pylist() for c in batch.columns), strict=True):
            if policy == STRICT and point_id in fates:
                fates[point_id][1].append((start, end))
    return fates
