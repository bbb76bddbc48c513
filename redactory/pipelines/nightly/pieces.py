"""What one night reads of one file, as its plan stands in the release log."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from redactory.pipelines.readers import Slice, Source


@dataclass(frozen=True)
class Piece:
    """Bytes ``from_byte`` up to ``to_byte`` of the file at ``url``, which hold ``rows`` rows.

    ``from_row`` rows come before, so that rows keep the numbers that they have in the file.  ``header`` is
    the length of a table's header line, for a piece that does not begin with it.  A file that can only be
    read ``whole`` (Parquet, compressed, text) has one piece.  ``stamp`` is a sign that stays as long as
    nobody writes the file, where the piece reaches its end.  ``again``: the file was asked for as new, and
    what was read of it before counts no more.
    """

    url: str
    name: str
    format: str
    from_byte: int
    to_byte: int
    from_row: int
    rows: int
    sha256: str
    header: int = 0
    whole: bool = False
    stamp: str | None = None
    again: bool = False

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.to_byte - self.from_byte

    @property
    def slice(self) -> Slice:
        """What is read for it."""
        return Slice(self.from_byte, self.to_byte, self.from_row, self.header)

    def to_json(self) -> dict[str, Any]:
        """As it stands in the release log: file, places and a digest; no text."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Piece:
        """What :meth:`to_json` gave."""
        return cls(**value)


def sources_of(pieces: Iterable[Piece]) -> list[Source]:
    """The files of a plan, each with all of its slices; one that is read whole has none."""
    found: dict[str, Source] = {}
    for piece in pieces:
        before = found[piece.url].slices if piece.url in found else ()
        slices = () if piece.whole else (*before, piece.slice)
        found[piece.url] = Source(piece.url, piece.name, piece.format, slices)
    return list(found.values())
