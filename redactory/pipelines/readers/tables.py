"""CSV and TSV: the standard reader in strict mode, row by row in bounded memory.

A stretch of lines in which a quotation is broken can be read in two ways: as lines of one quoted text, or as
rows.  Rows are read from where on every line is one by itself; what may stand inside a quotation is rejected.
"""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Iterator
from typing import BinaryIO, ClassVar

from redactory.pipelines.readers.formats import (
    BROKEN_ROW,
    KEPT_BYTES,
    ROW_TOO_LONG,
    UNDECODABLE,
    Blanks,
    Columns,
    DamagedFile,
    Format,
    Record,
    Rows,
)

MARK = '"'
_PIECE = 1 << 16
_BYTE_ORDER_MARK = "\ufeff"
Row = tuple[list[str] | None, str | None, str]
"""(the cells or None, a reason code or None, the row as it stands in the file)"""


class Csv(Format):
    """A header line, then a row a record; quoted fields may hold line ends."""

    name = "csv"
    endings = (".csv",)
    grows = True
    separator: ClassVar[str] = ","

    def records(self, file: BinaryIO, limit: int, columns: Columns, name: str) -> Iterator[Record]:
        """One a row that is not blank, numbered with the header line as 1."""
        rows = _Table(file, self.separator, limit).rows()
        header, reason, _ = next(rows, ([], None, ""))
        if header is None:
            raise DamagedFile(f"{name}: its first line is no header ({reason})")
        if not header:
            return
        lacking = next((column for column in columns.needed if column not in header), None)
        if lacking is not None and _undecodable(header):
            raise DamagedFile(f"{name}: its first line is not UTF-8; convert the file (iconv -t UTF-8)")
        if lacking is not None and self.separator == "," and len(header) == 1 and ";" in header[0]:
            raise DamagedFile(
                f"{name} has no column '{lacking}'; its first line was read as one column, for it has "
                "semicolons and no commas: save the file with commas, or with tabs as .tsv"
            )
        wanted, blanks = columns.among(header, name), Blanks(name)
        for number, (cells, reason, line) in enumerate(rows, 2):
            raw = line[:KEPT_BYTES].encode("utf-8", "surrogateescape")[:KEPT_BYTES]
            if cells is None:
                yield number, None, reason, raw
            elif cells and len(cells) != len(header):
                yield number, None, BROKEN_ROW, raw
            elif _undecodable(cells):
                yield number, None, UNDECODABLE, raw
            elif cells:
                record = dict(zip(header, cells, strict=True))
                yield number, {column: record[column] for column in wanted}, None, raw
            else:
                blanks.add()

    def header(self, file: BinaryIO, limit: int) -> int:
        """The length of the first row, once it is whole."""
        table = _Table(file, self.separator, limit)
        return table.bytes_read if next(table.rows(), None) and table.is_whole() else 0

    def rows_in(self, file: BinaryIO, start: int, header: int, limit: int) -> Rows:
        """A row is not whole that ends without a line end, or that what comes below may change."""
        # the header is read in front of a later part, and counts as a row of the first one
        before, whole, count, end, blank = bool(header), 0, 0, 0, True
        table = _Table(file, self.separator, limit)
        for count, (_, _, line) in enumerate(table.rows(), 1):
            whole, end = (count, table.bytes_read) if table.is_whole() else (whole, end)
            blank = blank and (not line.strip() or count == 1)
        if not whole:
            return Rows(start, 0, count, blank)
        return Rows(end + start - header, whole - before, count - before, blank)


class Tsv(Csv):
    """As CSV, with tabs."""

    name = "tsv"
    endings = (".tsv",)
    separator = "\t"


def _undecodable(cells: list[str]) -> bool:
    """Whether a row has bytes that are no UTF-8."""
    return any("\udc80" <= letter <= "\udcff" for cell in cells for letter in cell)


def _size(line: str) -> int:
    return len(line) if line.isascii() else len(line.encode("utf-8", "surrogateescape"))


class _TooLong(Exception):
    """A row has passed the longest that is allowed."""


class _Table:
    """The rows of a table, the header first; ``bytes_read`` is where the row at hand ends in the file."""

    def __init__(self, file: BinaryIO, separator: str, limit: int) -> None:
        csv.field_size_limit(limit)
        # bytes that are no UTF-8 become lone surrogates, which the row's check then finds
        self._text = io.TextIOWrapper(file, "utf-8", errors="surrogateescape", newline="")
        self._separator, self._limit = separator, limit
        self._given_back = deque[str]()
        self._row, self._row_bytes = list[str](), 0
        self._lost = False
        """Whether the next line may stand inside a quotation."""
        self._ended, self._last = False, ""
        self.bytes_read = 0

    def is_whole(self) -> bool:
        """Whether no line that may come below can change how the rows so far are read."""
        return self._last.endswith("\n") and not self._ended and not self._lost

    def rows(self) -> Iterator[Row]:
        """Each row; of a broken one its lines by themselves."""
        width = None
        while not self._ended or self._given_back:
            self._row, self._row_bytes = [], 0
            cells, reason = None, None
            try:
                cells = next(csv.reader(self._lines(), delimiter=self._separator, strict=True))
            except (StopIteration, csv.Error):
                reason = BROKEN_ROW
            except _TooLong:
                reason = ROW_TOO_LONG
            if not self._row:
                return
            if width is None:
                width = len(cells or ())
            elif self._lost or cells is None or (MARK in "".join(self._row) and len(cells) not in (0, width)):
                yield from self._rejected(cells is not None, reason or BROKEN_ROW, width)
                continue
            yield cells, reason, "".join(self._row)

    def _lines(self) -> Iterator[str]:
        """The lines of the row at hand, each as it is asked for."""
        while line := self._next(self._limit + 1):
            self._row.append(line if self.bytes_read > _size(line) else line.removeprefix(_BYTE_ORDER_MARK))
            self._row_bytes += _size(line)
            if self._row_bytes > self._limit:
                raise _TooLong
            # of a lost place it is read on as if a quotation were open before the first line
            yield MARK + self._row[-1] if self._lost and len(self._row) == 1 else self._row[-1]
        self._ended = True

    def _next(self, most: int) -> str:
        """At most so many characters of the next line."""
        line = self._given_back.popleft() if self._given_back else self._text.readline(most)
        self.bytes_read += _size(line)
        self._last = line or self._last
        return line

    def _rejected(self, was_read: bool, reason: str, width: int) -> Iterator[Row]:
        """The first line of a broken row, and those below it up to where all are rows by themselves.

        Where the row begins inside a quotation that may be open, its first line is one of those.
        """
        lines, was_lost, was_cut = self._row, self._lost, False
        marks = 1
        if reason == ROW_TOO_LONG:
            # pass over what is left of the last line
            line = lines[-1]
            marks = line.count(MARK)
            while line and not line.endswith(("\n", "\r")):
                line = self._next(_PIECE)
                marks += line.count(MARK)
                was_cut = was_cut or bool(line)
        kept = len(lines)
        while not was_cut and kept > (not was_lost) and self._is_row(lines[kept - 1], width):
            kept -= 1
        if was_read:
            # the mark that closes it may as well open a field of a row: then it cannot be told yet
            self._lost = not was_lost or kept < len(lines)
            kept = len(lines)
        else:
            # one line that is too long says by its marks whether a quotation is open behind it
            self._lost = kept == len(lines) and (was_lost or kept > 1 or marks % 2 == 1)
        if back := lines[kept:]:
            self._given_back.extendleft(reversed(back))
            self.bytes_read -= sum(map(_size, back))
            self._last = "\n"
        for number, line in enumerate(lines[:kept]):
            if not line.strip("\r\n"):
                yield [], None, line
            elif number == 0 and not was_lost:
                yield None, reason, line
            else:
                yield None, ROW_TOO_LONG if _size(line) > self._limit else BROKEN_ROW, line

    def _is_row(self, line: str, width: int) -> bool:
        """Whether this line is one row by itself, or blank; one with an odd mark may end or begin another."""
        try:
            cells = next(csv.reader([line], delimiter=self._separator, strict=True))
            return line.count(MARK) % 2 == 0 and len(cells) in (0, width)
        except csv.Error:
            return False
