"""A part of a file that is read as if it were the file: what one night reads of a file that grows."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import BinaryIO

_BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class Slice:
    """Bytes ``from_byte`` up to ``to_byte`` of a file; ``from_row`` rows of it come before.

    ``header`` is the length in bytes of a table's header line, which is read in front of a later slice; 0
    where the format has none, and for the slice that begins with it.
    """

    from_byte: int
    to_byte: int
    from_row: int = 0
    header: int = 0

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.to_byte - self.from_byte

    def row(self, number: int) -> int:
        """The number in the whole file of the row that a reader of this slice counts as ``number``."""
        return self.from_row + number - (1 if self.header else 0)

    def without_header(self) -> Slice:
        """The same bytes by themselves, to be compared."""
        return Slice(self.from_byte, self.to_byte, self.from_row)


def sliced(file: BinaryIO, part: Slice) -> BinaryIO:
    """``file`` cut to ``part``; ``EOFError`` where it ends before."""
    spans = [(part.from_byte, part.to_byte)]
    if part.header:
        spans.insert(0, (0, part.header))
    return io.BufferedReader(_Spans(file, spans), _BUFFER_BYTES)


class _Spans(io.RawIOBase):
    """Spans of a file one after the other; the file may grow meanwhile."""

    def __init__(self, file: BinaryIO, spans: list[tuple[int, int]]) -> None:
        self._file = file
        self._spans = spans
        self._at: int | None = None

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill ``buffer`` as far as the span goes; 0 at the end of the last one."""
        while self._spans:
            start, end = self._spans[0]
            if self._at is None:
                self._file.seek(start)
                self._at = start
            if self._at < end:
                block = self._file.read(min(len(buffer), end - self._at))
                if not block:
                    raise EOFError
                buffer[: len(block)] = block
                self._at += len(block)
                return len(block)
            del self._spans[0]
            self._at = None
        return 0
