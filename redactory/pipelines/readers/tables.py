"""CSV and TSV, row by row in bounded memory, whatever the file does with its quotation marks.

A row may go on over many lines inside a quotation.  One that does not end, within the longest row
allowed or at all, is rejected with its first line alone; each line after it is then read by itself, so that
one quotation mark too many never swallows the rows below it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from typing import BinaryIO

from redactory.foundation.errors import InputError
from redactory.pipelines.readers.records import (
    BROKEN_ROW,
    KEPT_BYTES,
    ROW_TOO_LONG,
    UNDECODABLE,
    Columns,
    Record,
)

_PIECE = 1 << 16
_BYTE_ORDER_MARK = "\ufeff"
Row = tuple[list[str] | None, str | None, str]
"""(the cells or None, a reason code or None, the row as it stands in the file)"""


def delimited(separator: str) -> Callable[[BinaryIO, int, Columns, str], Iterator[Record]]:
    """CSV or TSV with a header line; quoted fields may hold line ends."""

    def read(file: BinaryIO, limit: int, columns: Columns, name: str) -> Iterator[Record]:
        rows = _rows(_Lines(file, limit), separator, limit)
        header, reason, _ = next(rows, ([], None, ""))
        if header is None:
            raise InputError(f"{name}: its first line is no header ({reason})")
        if not header:
            return
        if not set(columns.needed) <= set(header) and _undecodable(header):
            raise InputError(f"{name}: its first line is not UTF-8; convert the file (iconv -t UTF-8)")
        wanted = columns.among(header, name)
        for number, (cells, reason, line) in enumerate(rows, 2):
            raw = line[:KEPT_BYTES].encode("utf-8", "surrogateescape")[:KEPT_BYTES]
            if cells is None:
                yield number, None, reason, raw
            elif not cells:
                continue
            elif len(cells) != len(header):
                yield number, None, BROKEN_ROW, raw
            elif _undecodable(cells):
                yield number, None, UNDECODABLE, raw
            else:
                record = dict(zip(header, cells, strict=True))
                yield number, {column: record[column] for column in wanted}, None, raw

    return read


def _undecodable(cells: list[str]) -> bool:
    """Whether a row has bytes that are no UTF-8."""
    return any("\udc80" <= letter <= "\udcff" for cell in cells for letter in cell)


def row_ends(file: BinaryIO, separator: str, limit: int) -> Iterator[tuple[int, bool, bool]]:
    """For each row, the header first: the bytes up to its end, whether it is whole, whether it is blank.

    A row is not whole that ends without a line end, or that stands in a quotation which does not end.
    """
    lines = _Lines(file, limit)
    for _, _, line in _rows(lines, separator, limit):
        yield lines.bytes_read, lines.last.endswith("\n") and not lines.at_end(), not line.strip()


class _TooLong(Exception):
    """A row has passed the longest that is allowed."""


class _Lines:
    """The lines of the row that a ``csv.reader`` is at, handed to it one by one."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        # bytes that are no UTF-8 become lone surrogates, which the row's check then finds
        self._text = io.TextIOWrapper(file, "utf-8", errors="surrogateescape", newline="")
        self._limit = limit
        self.of_row: list[str] = []
        self.last = ""
        self.bytes_read = 0
        self._bytes = 0
        self._ended = False

    def at_end(self) -> bool:
        """Whether a line was asked for and there was none."""
        return self._ended

    def begin_row(self) -> None:
        """Forget the lines of the row before."""
        self.of_row, self._bytes = [], 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        at_start = not self.bytes_read
        line, size = self._next(self._limit + 1)
        if at_start:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not size:
            self._ended = True
            raise StopIteration
        self.of_row.append(line)
        self._bytes += size
        if self._bytes > self._limit:
            raise _TooLong
        return line

    def _next(self, most: int) -> tuple[str, int]:
        """At most so many signs of the next line, and how many bytes they are."""
        line = self._text.readline(most)
        size = len(line) if line.isascii() else len(line.encode("utf-8", "surrogateescape"))
        self.bytes_read += size
        self.last = line or self.last
        return line, size

    def finish_line(self) -> None:
        """Pass over what is left of the last line, without holding it."""
        line = self.of_row[-1]
        while line and not line.endswith(("\n", "\r")):
            line, _ = self._next(_PIECE)


def _rows(lines: _Lines, separator: str, limit: int) -> Iterator[Row]:
    csv.field_size_limit(limit)
    rows = csv.reader(lines, delimiter=separator, strict=False)
    while not lines.at_end():
        lines.begin_row()
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error:
            yield None, BROKEN_ROW, "".join(lines.of_row)
        except _TooLong:
            lines.finish_line()
            yield None, ROW_TOO_LONG, lines.of_row[0]
            yield from _one_by_one(lines.of_row[1:], separator, limit)
        else:
            if lines.at_end():
                # the reader asked for more: it was inside a quotation when the file ended
                yield None, BROKEN_ROW, lines.of_row[0]
                yield from _one_by_one(lines.of_row[1:], separator, limit)
            else:
                yield cells, None, "".join(lines.of_row)


def _one_by_one(lines: list[str], separator: str, limit: int) -> Iterator[Row]:
    """Each line as a row of its own."""
    for line in lines:
        if len(line) > limit:
            yield None, ROW_TOO_LONG, line
            continue
        try:
            # a quotation that is open at the line's end takes the second line in
            cells, *rest = csv.reader([line, "\n"], delimiter=separator, strict=False)
        except csv.Error:
            cells, rest = [], []
        yield (cells, None, line) if rest else (None, BROKEN_ROW, line)
