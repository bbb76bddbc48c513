"""Nights that were begun and did not come to their end: which they are, and whether they can go on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from redactory.foundation.records import Record
from redactory.pipelines.nightly.pieces import Piece
from redactory.pipelines.nightly.watermark import planned
from redactory.pipelines.releases.log import standings


@dataclass(frozen=True)
class Begun:
    """A night as it stands in the log: its run, the day of its data (or None), what it reads."""

    run: str
    date: str | None
    slices: tuple[Piece, ...]


def unfinished(records: Iterable[Record]) -> list[Begun]:
    """The nights to be finished before anything new is read, oldest first.

    What was begun without a plan is no night, but another try of a quarantine: whoever asks for that again
    finishes it.
    """
    return [
        Begun(own.run, own.begun.body["date"], tuple(planned(own.begun)))
        for own in standings(records).values()
        if own.state in ("unfinished", "failed") and own.begun is not None and planned(own.begun)
    ]
