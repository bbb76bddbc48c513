"""Which lines read as rows by themselves, where a quotation amid them is broken.

Such a stretch can be read in two ways: as lines of one quoted text, or as rows.  What tells them apart is
how the lines read as rows: the number of their fields, and their quotation marks.
"""

from __future__ import annotations

import csv
import io
import re
from collections import deque
from collections.abc import Callable, Iterator
from functools import cache
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

MARK = '"'


def is_balanced(text: str, separator: str) -> bool:
    """Whether every mark of a row opens a field, closes one, or is doubled in one."""
    return _expression(separator, "whole").fullmatch(text) is not None


def last_rows(lines: list[str], separator: str, width: int) -> int:
    """The index from which on all ``lines`` are rows of ``width`` fields; how many there are if it is none.

    The last may begin a row that goes on below: the mark that breaks a quotation is then one that opens
    another.
    """
    first, at = 0, 0
    while at < len(lines):
        # a row of many lines ends with the next line that has an odd number of marks
        end = at + 1
        if lines[at].count(MARK) % 2:
            end = next((n + 1 for n in range(at + 1, len(lines)) if lines[n].count(MARK) % 2), 0)
        if end and _is_row(lines[at:end], separator, width):
            at = end
        elif at == len(lines) - 1 and _begins_row(lines[at], separator, width):
            at += 1
        else:
            at += 1
            first = at
    return first


def _is_row(lines: list[str], separator: str, width: int) -> bool:
    """Whether these lines are one row, or one blank line."""
    if len(lines) > 1 and not is_balanced("".join(lines), separator):
        return False
    try:
        rows = list(csv.reader(lines, delimiter=separator, strict=True))
    except csv.Error:
        return False
    return len(rows) == 1 and len(rows[0]) in (0, width)


def _begins_row(line: str, separator: str, width: int) -> bool:
    """Whether a field of a row is open at the line's end; a first one would say nothing of the others."""
    if not _expression(separator, "open").fullmatch(line):
        return False
    fields = len(next(csv.reader([line], delimiter=separator)))
    return min(2, width) <= fields <= width


@cache
def _expression(separator: str, kind: str) -> re.Pattern[str]:
    """Fields up to a line end, or up to one that is open; each sign is looked at once."""
    quoted, plain = '"(?:[^"]|"")*+"', rf'[^"\r\n{separator}]*+'
    row = rf"(?:(?:{quoted}|{plain}){separator})*+"
    last = rf"(?:{quoted}|{plain})[\r\n]*+" if kind == "whole" else '"(?:[^"]|"")*+'
    return re.compile(row + last)


# CSV and TSV, row by row in bounded memory, whatever the file does with its quotation marks.


_PIECE = 1 << 16
_BYTE_ORDER_MARK = "\ufeff"
Row = tuple[list[str] | None, str | None, str]
"""(the cells or None, a reason code or None, the row as it stands in the file)"""


def delimited(separator: str) -> Callable[[BinaryIO, int, Columns, str], Iterator[Record]]:
    """CSV or TSV with a header line; quoted fields may hold line ends."""

    def read(file: BinaryIO, limit: int, columns: Columns, name: str) -> Iterator[Record]:
        rows = iter(_Rows(_Lines(file, limit), separator, limit))
        header, reason, _ = next(rows, ([], None, ""))
        if header is None:
            raise InputError(f"{name}: its first line is no header ({reason})")
        if not header:
            return
        if not set(columns.needed) <= set(header) and _undecodable(header):
            raise InputError(f"{name}: its first line is not UTF-8; convert the file (iconv -t UTF-8)")
        lacking = next((column for column in columns.needed if column not in header), None)
        if lacking is not None and separator == "," and len(header) == 1 and ";" in header[0]:
            raise InputError(
                f"{name} has no column '{lacking}'; its first line was read as one column, for it has "
                "semicolons and no commas: save the file with commas, or with tabs as .tsv"
            )
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

    A row is not whole that ends without a line end, or that what comes below may read in another way.
    """
    lines = _Lines(file, limit)
    for _, _, line in _Rows(lines, separator, limit):
        yield lines.bytes_read, lines.is_whole(), not line.strip()


class _TooLong(Exception):
    """A row has passed the longest that is allowed."""


class _Lines:
    """The lines of the row that a ``csv.reader`` is at, handed to it one by one."""

    def __init__(self, file: BinaryIO, limit: int) -> None:
        # bytes that are no UTF-8 become lone surrogates, which the row's check then finds
        self._text = io.TextIOWrapper(file, "utf-8", errors="surrogateescape", newline="")
        self._limit = limit
        self._given_back: deque[str] = deque()
        self.of_row: list[str] = []
        self.bytes_read = 0
        self.is_lost = False
        self._last = ""
        self._bytes = 0
        self._ended = False

    def at_end(self) -> bool:
        """Whether a line was asked for and there was none, and none was given back."""
        return self._ended and not self._given_back

    def is_whole(self) -> bool:
        """Whether no line that may come below can change how the rows so far are read."""
        return self._last.endswith("\n") and not self._ended and not self.is_lost

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
        line = self._given_back.popleft() if self._given_back else self._text.readline(most)
        size = _size(line)
        self.bytes_read += size
        self._last = line or self._last
        return line, size

    def finish_line(self) -> tuple[bool, int]:
        """Pass over what is left of the last line: whether anything was, and the marks in the line."""
        line = self.of_row[-1]
        marks, was_cut = line.count(MARK), False
        while line and not line.endswith(("\n", "\r")):
            line, _ = self._next(_PIECE)
            marks += line.count(MARK)
            was_cut = was_cut or bool(line)
        return was_cut, marks

    def give_back(self, lines: list[str]) -> None:
        """Lines that were handed out last, to be handed out again."""
        self._given_back.extendleft(reversed(lines))
        self.bytes_read -= sum(_size(line) for line in lines)
        self._last = "\n" if lines else self._last


def _size(line: str) -> int:
    return len(line) if line.isascii() else len(line.encode("utf-8", "surrogateescape"))


class _Rows:
    """The rows of a table, the header first."""

    def __init__(self, lines: _Lines, separator: str, limit: int) -> None:
        csv.field_size_limit(limit)
        self._lines = lines
        self._separator = separator
        self._limit = limit
        self._width: int | None = None
        self._reader = csv.reader(lines, delimiter=separator, strict=True)

    def __iter__(self) -> Iterator[Row]:
        lines = self._lines
        while not lines.at_end():
            lines.begin_row()
            if lines.is_lost:
                yield from self._found_again()
                continue
            cells, reason = self._next(self._reader)
            if not lines.of_row:
                return
            if self._width is None:
                self._width = len(cells or ())
            elif reason is not None or not self._is_good(cells or []):
                yield from self._broken(cells, reason)
                continue
            yield cells, reason, "".join(lines.of_row)

    def _next(self, reader: Iterator[list[str]]) -> tuple[list[str] | None, str | None]:
        """A row's cells, or the reason why it has none."""
        try:
            return next(reader), None
        except StopIteration:
            return None, BROKEN_ROW
        except csv.Error:
            return None, BROKEN_ROW
        except _TooLong:
            return None, ROW_TOO_LONG

    def _is_good(self, cells: list[str]) -> bool:
        """Whether nothing says that a quotation of this row is not what it looks like."""
        text = "".join(self._lines.of_row)
        if MARK not in text or not cells:
            return True
        # a mark amid a field that is not quoted is a letter, but not in a row that goes on over lines
        is_sure = len(self._lines.of_row) == 1 or is_balanced(text, self._separator)
        return len(cells) == self._width and is_sure

    def _broken(self, cells: list[str] | None, reason: str | None) -> Iterator[Row]:
        """The first line is rejected, and those below that are no rows by themselves."""
        lines = self._lines
        first, *below = lines.of_row
        was_cut, marks = lines.finish_line() if reason == ROW_TOO_LONG else (False, 1)
        kept = len(below) if was_cut or cells is not None else self._unclear(below)
        # one line that is too long says by its marks whether a quotation is open behind it
        lines.is_lost = kept == len(below) and (bool(below) or marks % 2 == 1)
        lines.give_back(below[kept:])
        yield None, reason or BROKEN_ROW, first
        yield from self._rejected(below[:kept])

    def _unclear(self, lines: list[str]) -> int:
        """How many of these lines may be no rows, before all others are."""
        return last_rows(lines, self._separator, self._width or 0)

    def _found_again(self) -> Iterator[Row]:
        """Lines that may stand inside a quotation or not: rejected up to where that can be told."""
        lines = self._lines
        # as if a quotation were open, the first line having its mark
        reader = csv.reader(_Opened(lines), delimiter=self._separator, strict=True)
        cells, reason = self._next(reader)
        if not lines.of_row:
            return
        was_cut = reason == ROW_TOO_LONG and lines.finish_line()[0]
        held = lines.of_row
        kept = len(held) if was_cut else self._unclear(held)
        if cells is not None:
            # the mark that closes it may as well open a field of a row: then it cannot be told yet
            lines.is_lost, kept = kept < len(held), len(held)
        else:
            lines.is_lost = kept == len(held)
        lines.give_back(held[kept:])
        yield from self._rejected(held[:kept])

    def _rejected(self, below: list[str]) -> Iterator[Row]:
        for line in below:
            if not line.strip("\r\n"):
                yield [], None, line
            else:
                yield None, ROW_TOO_LONG if _size(line) > self._limit else BROKEN_ROW, line


class _Opened:
    """Lines, the first of them behind a quotation mark."""

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        is_first = not self._lines.of_row
        line = next(self._lines)
        return MARK + line if is_first else line
