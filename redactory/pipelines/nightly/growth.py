"""One file of a night: what of it is new, and that what was read of it before is still what it was."""

from __future__ import annotations

import dataclasses
import datetime
from dataclasses import dataclass

from redactory.foundation.errors import InputError
from redactory.foundation.keys import load_digest_key
from redactory.pipelines.nightly.pieces import Piece
from redactory.pipelines.nightly.watermark import Seen
from redactory.pipelines.readers import Slice, Source, blocks_of, modified, size_of, stamp_of
from redactory.pipelines.readers.row_ends import grows, header_of, rows_in

_SETTLED = datetime.timedelta(seconds=2)
"""A file that was written last within this may be written again at what its clock calls the same time."""


@dataclass(frozen=True)
class Growth:
    """The new pieces of a file, and the bytes of a last row that is not whole yet."""

    pieces: tuple[Piece, ...] = ()
    waiting: int = 0


class Changed(Exception):
    """What was read of a file is not there any more; the argument says where, without text."""


@dataclass(frozen=True)
class Look:
    """How files are looked at: the longest row in bytes, when it is, and after how long a row is an end."""

    limit: int
    now: datetime.datetime
    quiet: datetime.timedelta

    def growth(self, source: Source, seen: tuple[Seen, ...]) -> Growth:
        """What of ``source`` is new; ``Changed`` where it is not the file that was read before."""
        stamp = stamp_of(source, self.now - _SETTLED)
        if stamp is not None and seen and _stands(seen, stamp):
            return Growth()
        size = size_of(source)
        if size is None:
            raise InputError(f"{source.name}: its size cannot be told, so that what is new in it cannot be")
        if not grows(source):
            return self._whole(source, seen, size, stamp)
        gaps = _checked(source, seen, size)
        start, row = self._start(source, seen, size)
        tail, waiting = self._tail(source, start, row, size, stamp)
        return Growth((*gaps, *tail), waiting)

    def _whole(self, source: Source, seen: tuple[Seen, ...], size: int, stamp: str | None) -> Growth:
        if not size:
            return Growth()
        if seen:
            if seen[-1].piece.to_byte != size or not seen[-1].piece.is_in(source):
                raise Changed("it can only be read whole")
            return Growth()
        told = _digest(source, Slice(0, size))
        piece = Piece(source.url, source.name, source.format, 0, size, 0, 0, *told, whole=True, stamp=stamp)
        return Growth((piece,))

    def _start(self, source: Source, seen: tuple[Seen, ...], size: int) -> tuple[int, int]:
        """The byte at which new rows begin, and how many rows come before."""
        if not seen:
            return 0, 0
        last = seen[-1].piece
        end, row = last.to_byte, last.from_row + last.rows
        if end == size or b"".join(blocks_of(source, Slice(end - 1, end))) == b"\n":
            return end, row
        # the last row was read without its line end, which may have come by now
        with source.open(part=Slice(end, min(end + 2, size))) as file:
            next_bytes = file.read()
        if next_bytes not in (b"\r", b"\r\n") and not next_bytes.startswith(b"\n"):
            raise Changed(f"its row {row} has gone on since it was read")
        return min(end + (1 if next_bytes.startswith(b"\n") else 2), size), row

    def _tail(
        self, source: Source, start: int, row: int, size: int, stamp: str | None
    ) -> tuple[tuple[Piece, ...], int]:
        header = header_of(source, self.limit, size) if start else 0
        rows = rows_in(source, Slice(start, size, row, header), self.limit)
        if rows.blank:
            return (), 0
        end, count = rows.end, rows.whole
        if end < size and self._is_quiet(source):
            end, count = size, rows.all
        if end == start or (count <= 1 and not start and source.format != "jsonl"):
            # nothing yet, or a table's header alone
            return (), size - start
        told = _digest(source, Slice(start, end))
        piece = Piece(source.url, source.name, source.format, start, end, row, count, *told, header)
        return (dataclasses.replace(piece, stamp=stamp if end == size else None),), size - end

    def _is_quiet(self, source: Source) -> bool:
        written = modified(source)
        return written is not None and self.now - written >= self.quiet


def _digest(source: Source, part: Slice) -> tuple[str, str]:
    """The keyed digest of these bytes, and the fingerprint of the key."""
    key = load_digest_key()
    return key.file_digest(blocks_of(source, part)), key.fingerprint


def _stands(seen: tuple[Seen, ...], stamp: str) -> bool:
    """Whether nobody wrote the file since it was read to its end, and all of it is read."""
    return seen[-1].piece.stamp == stamp and all(own.run is not None for own in seen)


def _checked(source: Source, seen: tuple[Seen, ...], size: int) -> list[Piece]:
    """The pieces that were given back and lie before others; ``Changed`` unless all are what they were."""
    for own in seen:
        piece = own.piece
        if piece.to_byte > size or not piece.is_in(source):
            raise Changed(f"its rows {piece.from_row + 1} to {piece.from_row + piece.rows}")
    return [dataclasses.replace(own.piece, again=False, stamp=None) for own in seen if own.run is None]
