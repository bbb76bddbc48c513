"""Read and write CSV and TSV row by row with Python's reader in strict mode, in bounded memory.

An unchanged row is written as it was read, a changed one in the same dialect.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from itertools import chain
from typing import ClassVar, Literal, cast

from redactory.pipelines.readers.formats import (
    BROKEN_ROW,
    BYTE_ORDER_MARK,
    CHUNK_BYTES,
    ROW_TOO_LONG,
    UNDECODABLE,
    ColumnReplacements,
    DamagedFile,
    Edits,
    Format,
    Row,
    RowScan,
    make_sequential_editor,
)

QUOTE = '"'
_SKIPPED_CHARS = 1 << 16
_SURROGATE = re.compile("[\udc80-\udcff]")
"""A byte that is not UTF-8, as ``surrogateescape`` reads it."""
_SEPARATOR_LINE = re.compile(rb"(?:\xef\xbb\xbf)?sep=([,;|\t])\r?\n", re.IGNORECASE)
"""Excel's line that declares the separator of the cells below."""
ParsedRow = tuple[list[str] | None, str | None, str]
"""(the cells or None, a reason code or None, the original row)"""


class CsvFormat(Format):
    """A table with a header line and one record per row; quoted fields may hold line ends."""

    name = "csv"
    endings = (".csv",)
    is_appendable = is_recodable = True
    separators: ClassVar[str] = ",;|\t"
    """The separator is the most frequent of these in the header; the first wins a tie."""

    def read_rows(self) -> Iterator[Row | bytes]:
        """Read the header, which counts as row 1, then the rows."""
        if preamble := self._detect_dialect():
            yield preamble
        rows = self._parse_rows()
        header, reason, first = next(rows, ([], None, ""))
        if header is None:
            raise DamagedFile(f"{self.path}: its first line is not a header ({reason})")
        if not first:
            return
        if _SURROGATE.search(first):
            raise DamagedFile(
                f"{self.path}: its first line is not UTF-8; give --encoding NAME "
                "(input.encoding), or convert the file (iconv -t UTF-8)"
            )
        self.columns.select_columns(header, self.path)
        self.header = header
        yield Row(0, render=lambda _, whole: self._render_cells(header, header, first, whole))
        for number, (cells, reason, line) in enumerate(rows, 2):
            raw = line.encode("utf-8", "surrogateescape")
            if cells == []:
                self._count_blank_line()
                yield raw
            elif cells is None or len(cells) != len(header):
                yield Row(number, reason=reason or BROKEN_ROW, raw=raw)
            elif _SURROGATE.search(line):
                yield Row(number, reason=UNDECODABLE, raw=raw)
            else:
                yield self._build_csv_row(number, cells, line, raw)

    def _build_csv_row(self, number: int, cells: list[str], line: str, raw: bytes) -> Row:
        values = dict(zip(self.header, cells, strict=True))

        def render_row(changes: Edits, replacements: ColumnReplacements) -> bytes:
            changed = self.fields.change_texts(values, make_sequential_editor(changes))
            new = [
                changed[column] if column not in replacements else replacements[column] or "" for column in self.header
            ]
            return self._render_cells(cells, new, line, replacements)

        return self._build_row(number, values, render_row, raw)

    def _render_cells(self, old: list[str], new: list[str], line: str, replacements: ColumnReplacements) -> bytes:
        dropped = {column for column, value in replacements.items() if value is None}
        if old == new and not dropped:
            return line.encode()
        kept = [cell for column, cell in zip(self.header, new, strict=True) if column not in dropped]
        end = "\r\n" if line.endswith("\r\n") else "\n" if line.endswith("\n") else ""
        quoted = line.count(QUOTE) >= 2 * len(old) and line.startswith(QUOTE)
        text = io.StringIO()
        quoting: Literal[0, 1] = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
        csv.writer(text, delimiter=self._separator, lineterminator=end, quoting=quoting).writerow(kept)
        return text.getvalue().encode()

    def measure_header(self) -> int:
        """Measure the bytes before the second row; 0 if the first row is incomplete."""
        self._detect_dialect()
        return self._position if next(self._parse_rows(), None) and self._is_complete() else 0

    def count_rows(self, start: int, header: int) -> RowScan:
        """Count rows; one is incomplete if it has no line end, or if later lines may change how it is read."""
        # the header is read before each later part, and counts as a row of the first part
        before, complete, count, end, blank = bool(header), 0, 0, 0, True
        self._detect_dialect()
        for count, (_, _, line) in enumerate(self._parse_rows(), 1):
            complete, end = (count, self._position) if self._is_complete() else (complete, end)
            blank = blank and (not line.strip() or count == 1)
        if complete <= 1:
            # the header alone is nothing to read
            return RowScan(start, 0, count - before, blank)
        return RowScan(end + start - header, complete - before, count - before, blank)

    def _is_complete(self) -> bool:
        """Whether appended lines cannot change how the rows so far are read."""
        return self._ends_in_line_end and not self._is_at_end and not self._is_recovering

    # Lines and rows.

    def _detect_dialect(self) -> bytes:
        """Detect the separator and start reading; return the bytes before the header."""
        start = cast(io.BufferedReader, self.file).peek(CHUNK_BYTES)
        declared = _SEPARATOR_LINE.match(start)
        preamble = declared[0] if declared else BYTE_ORDER_MARK * start.startswith(BYTE_ORDER_MARK)
        first = start[len(preamble) :].split(b"\n", 1)[0].decode("utf-8", "replace")
        self._separator = declared[1].decode() if declared else max(self.separators, key=first.count)
        self._position = len(self.file.read(len(preamble)))
        """The byte at which the current row ends."""
        self._is_at_end = self._is_recovering = self._ends_in_line_end = False
        csv.field_size_limit(self.limit)
        self._lines: Iterator[str] = self._read_lines()
        self._returned_lines = list[str]()
        return preamble

    def _read_lines(self) -> Iterator[str]:
        """Read each line; only the beginning of a line over the limit is returned."""
        # bytes that are not UTF-8 become lone surrogates, which the check of the row then finds
        text = io.TextIOWrapper(self.file, "utf-8", errors="surrogateescape", newline="")
        while line := text.readline(self.limit + 1):
            self._position += _measure_line_bytes(line)
            rest = line
            while len(line) > self.limit and not rest.endswith(("\n", "\r")):
                if not (rest := text.readline(_SKIPPED_CHARS)):
                    break
                self._position += _measure_line_bytes(rest)
            self._ends_in_line_end = rest.endswith("\n")
            yield line
            while self._returned_lines:
                yield self._returned_lines.pop()
        self._is_at_end = True

    def _parse_rows(self) -> Iterator[ParsedRow]:
        """Read each row; return the lines of a broken row one by one."""
        width = None
        while True:
            lines: list[str] = []
            cells = reason = None
            try:
                cells = next(csv.reader(self._read_row_lines(lines), delimiter=self._separator, strict=True))
            except (StopIteration, csv.Error):
                reason = ROW_TOO_LONG if sum(map(_measure_line_bytes, lines)) > self.limit else BROKEN_ROW
            if not lines:
                return
            line = "".join(lines)
            if width is None:
                width = len(cells or ())
            elif cells is None or (QUOTE in line and len(cells) not in (0, width)):
                yield from self._recover_rows(lines, reason or BROKEN_ROW, width)
                continue
            yield cells, reason, line

    def _read_row_lines(self, lines: list[str]) -> Iterator[str]:
        """Yield the lines of a row on demand, up to the limit, and append each that was read to ``lines``."""
        size = 0
        for line in self._lines:
            lines.append(line)
            size += _measure_line_bytes(line)
            if size > self.limit:
                return
            yield line

    def _recover_rows(self, lines: list[str], reason: str, width: int) -> Iterator[ParsedRow]:
        """Reject the first of a broken row's ``lines``, and the following lines that may be inside a quotation.

        Even a line with the right number of cells may be inside a quotation, and would become a false row. So lines
        without quotation marks wait. They become rows at a fitting line with a mark in which no quotation can end, or
        if a quotation over them would never end or exceed the row limit.
        """
        self._is_recovering = True
        yield None, reason, lines[0]
        waiting, size = list[ParsedRow](), 0
        for number, line in enumerate(chain(lines[1:], self._lines), 1):
            is_long, has_mark = _measure_line_bytes(line) > self.limit, QUOTE in line
            cells = None if is_long else self._parse_cells(line)
            fits = cells is not None and len(cells) in (0, width) and line.count(QUOTE) % 2 == 0
            is_outside = has_mark and self._parse_cells(QUOTE + line, QUOTE) is None
            # a row of several lines begins after the broken row
            begins = number >= len(lines) and is_outside and not is_long and cells is None
            if begins and self._parse_cells(line, QUOTE) is not None:
                yield from _reject_lines(waiting, self.limit)
                waiting = []
                self._returned_lines.append(line)
                break
            waiting.append((cells, None, line))
            size += _measure_line_bytes(line)
            if not fits or (has_mark and not is_outside):
                yield from _reject_lines(waiting, self.limit)
                waiting, size = [], 0
            elif has_mark or size > self.limit:
                break
        yield from waiting[:-1]
        self._is_recovering = False
        yield from waiting[-1:]

    def _parse_cells(self, *lines: str) -> list[str] | None:
        """Parse the cells of a row; None if it is broken, or does not end in these lines."""
        try:
            return next(csv.reader(lines, delimiter=self._separator, strict=True))
        except csv.Error:
            return None


class TsvFormat(CsvFormat):
    """Like CSV, but separated by tabs."""

    name = "tsv"
    endings = (".tsv",)
    separators = "\t"


def _reject_lines(waiting: list[ParsedRow], limit: int) -> Iterator[ParsedRow]:
    """Reject lines, except for blank ones."""
    for _, _, line in waiting:
        is_blank, is_long = not line.strip("\r\n"), _measure_line_bytes(line) > limit
        yield [] if is_blank else None, ROW_TOO_LONG if is_long else BROKEN_ROW, line


def _measure_line_bytes(line: str) -> int:
    return len(line) if line.isascii() else len(line.encode("utf-8", "surrogateescape"))
