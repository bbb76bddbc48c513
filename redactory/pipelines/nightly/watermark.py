"""The watermark: which bytes of which file a job has read, as a fold over its release log.

What a run was begun with counts as read, whether the run was released, is held, or is not finished yet; what
a rejected run read does not.  So a watermark is no single number: where an earlier night was rejected and
a later one was not, there is a gap in a file, which the next night reads.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

from redactory.foundation.records import Record
from redactory.pipelines.nightly.pieces import Piece
from redactory.pipelines.releases.log import Event


@dataclass(frozen=True)
class Seen:
    """A piece that a night was planned with, and the run that has it; None where that was rejected."""

    piece: Piece
    run: str | None


Watermark = dict[str, tuple[Seen, ...]]
"""For each file the pieces of it, in the order of their bytes; the last one is read."""


def planned(record: Record) -> list[Piece]:
    """The pieces of the plan that a run was begun with."""
    return [Piece.from_json(piece) for piece in record.body["plan"]["slices"]]


def watermark(records: Iterable[Record]) -> Watermark:
    """What the records of a job's log come to."""
    files: dict[str, list[Seen]] = {}
    for record in records:
        if record.type == Event.BEGUN:
            for piece in planned(record):
                files[piece.url] = _with(files.get(piece.url, []), Seen(piece, record.body["run"]))
        elif record.type == Event.REJECTED:
            for url, seen in files.items():
                files[url] = [_given_back(own, record.body["run"]) for own in seen]
    return {url: trimmed for url, seen in files.items() if (trimmed := _trimmed(seen))}


def _with(seen: list[Seen], new: Seen) -> list[Seen]:
    if new.piece.again:
        return [new]
    start, end = new.piece.from_byte, new.piece.to_byte
    gap = [s.run is None and (s.piece.from_byte, s.piece.to_byte) == (start, end) for s in seen]
    if any(gap):
        return [new if fills else own for own, fills in zip(seen, gap, strict=True)]
    # what was given back at the end is cut anew, by the rows that are there now
    return [*(own for own in seen if own.piece.from_byte < start), new]


def _given_back(seen: Seen, run: str) -> Seen:
    return dataclasses.replace(seen, run=None) if seen.run == run else seen


def _trimmed(seen: list[Seen]) -> tuple[Seen, ...]:
    """Without what was given back at the end: those bytes are as new as what follows them."""
    while seen and seen[-1].run is None:
        seen = seen[:-1]
    return tuple(seen)
