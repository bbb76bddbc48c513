"""File formats: read the rows of a file, and write it again with changed texts.

A format is one class, registered under its name and file endings. Tables are in :mod:`tables` and
:mod:`columnar`, documents in :mod:`document_formats` and the modules ``*_format``.
"""

from __future__ import annotations

import io
import json
import re
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, BinaryIO, ClassVar, cast

from redactory.foundation.canonical import DuplicateKeyError, reject_duplicate_keys
from redactory.foundation.errors import InputError, shorten
from redactory.pipelines.json_paths import Fields, NoTextError, change_object
from redactory.redaction.replacements import Edit, ReplacedSpan, apply_edits

UNDECODABLE, BROKEN_JSON, NOT_AN_OBJECT = "undecodable", "broken_json", "not_an_object"
REPEATED_KEY = "repeated_key"
ROW_TOO_LONG, BROKEN_ROW = "row_too_long", "broken_row"
QUARANTINED_BYTES = 1 << 16
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAX_DEPTH = 100
"""Levels of a JSON line.  Python's own limit depends on its version and on who calls; no document may."""
CHUNK_BYTES = 1 << 20


class DamagedFile(InputError):
    """A file that is cut off, damaged, or not what its format says: other files can still be read.

    An ``InputError`` of another kind (a disk, a network) says nothing about the file itself.
    """

    reason = "unreadable_file"


class ExpandingFile(DamagedFile):
    """A small file that holds far more data than files do: reading it would not end, or fill the memory."""

    reason = "expanding_file"


MAX_EXPANSION, SMALL_FILE_BYTES = 200, 1 << 24
"""Decoded bytes for each byte of a file, and decoded bytes that any file may hold."""


class OpenFile(io.BufferedReader):
    """A file to read, which may hold ``most`` decoded bytes; None: the default, by its size."""

    most: int | None = None


def check_expansion(name: str, decoded: int, limit: int) -> None:
    """``ExpandingFile`` where a file holds more ``decoded`` bytes than ``limit``."""
    if decoded > limit:
        raise ExpandingFile(
            f"{name} holds more than {limit:,} bytes of data, far more than its size: if you trust the file, "
            "raise input.max_expansion"
        )


NO_FIELDS = Fields(())


@dataclass(frozen=True)
class ColumnSelection:
    """Columns of a table: those that it must have, and those that are read where it has them.

    ``selected`` None reads all of them.
    """

    required: tuple[str, ...] = ()
    selected: tuple[str, ...] | None = None

    def select(self, names: Sequence[str], file: str) -> list[str]:
        """Those of ``names`` to read; ``DamagedFile`` if a needed one is missing, or one is there twice."""
        for column in self.required:
            if column not in names:
                raise DamagedFile(
                    f"{file} has no column '{shorten(column)}'; set the columns under input (text, id, "
                    "user, label, keep). In CSV the first line must name the columns, separated by commas"
                )
        wanted = [name for name in names if self.selected is None or name in self.selected]
        for number, name in enumerate(names):
            if name in wanted and name in names[:number]:
                if self.selected is not None:
                    raise DamagedFile(f"{file} has two columns '{name}': rename one of them")
                # by their numbers: where a header is missing, names are values of a row
                raise DamagedFile(
                    f"{file}: columns {names.index(name) + 1} and {number + 1} have the same name; rename one"
                )
        return wanted


ALL_COLUMNS = ColumnSelection()


@dataclass(frozen=True)
class RowScan:
    """What some bytes of a growing file hold: whole rows up to byte ``end``, and all rows to the last byte.

    ``blank`` says that there is nothing but white space (of a table: nothing below its header).
    """

    end_byte: int
    complete_rows: int
    total_rows: int
    is_blank: bool


ColumnReplacements = Mapping[str, str | None]
"""Columns that are replaced whole, by what stands in their place; None takes a column out."""
Edits = Sequence[Sequence[Edit]]
"""The changes to each text of a row, in order."""
Renderer = Callable[[Edits, ColumnReplacements], Any]


@dataclass(frozen=True)
class Row:
    """A row: its number from 1, its texts in order, its cells, and how it is written with changes to them.

    A header has the number 0.

    ``reason`` says why it has none; such a row is left out.  ``render`` is given the changes to each text,
    and the columns that are replaced whole.
    """

    number: int
    texts: list[str] = field(default_factory=list)
    cells: Mapping[str, Any] = field(default_factory=dict)
    render: Renderer | None = None
    reason: str | None = None
    raw: bytes = b""
    """Its first bytes for the quarantine, where the format has them."""
    structural_spans: Sequence[Sequence[ReplacedSpan]] = ()
    """For each text, the spans that follow from its position in the document; empty if there are none."""
    removed_parts: int = 0
    """Images and attachments that cannot be read and are not written."""
    visible_texts: frozenset[int] = frozenset()
    """Of a document, the indices of the texts that its readers see."""


class Format:
    """Read a file of one format as texts, and write it again with everything else unchanged.

    A subclass with a ``name`` registers itself. It yields the rows of a file in order; each row has its texts and
    is rendered with changes to them. Bytes between rows (blank lines, headers) are passed through.
    """

    name: ClassVar[str] = ""
    endings: ClassVar[tuple[str, ...]] = ()
    expansion_factor: ClassVar[float] = 1.0
    """Bytes in the open that a byte of such a file is taken to stand for."""
    is_appendable: ClassVar[bool] = False
    """Whether rows can be added to the end of such a file, so that :meth:`count_rows` can count them."""
    is_text: ClassVar[bool] = False
    """Whether a file is one text: the configured columns do not count."""
    max_blank_lines: ClassVar[int] = 1 << 20
    """Blank lines that a file may have: each is looked at."""

    def __init_subclass__(cls) -> None:
        if cls.name:
            FORMATS[cls.name] = cls

    def __init__(
        self,
        file: BinaryIO,
        path: str,
        limit: int,
        fields: Fields = NO_FIELDS,
        hidden: Collection[str] = (),
        columns: ColumnSelection = ALL_COLUMNS,
    ) -> None:
        """The open ``file`` that users know as ``path``, whose rows have at most ``limit`` bytes.

        ``fields`` are its texts.  No cell of ``hidden`` is told.  A file is written again with the
        ``columns`` that are read.
        """
        self.file, self.path, self.limit = file, path, limit
        self.fields, self.hidden, self.columns = fields, hidden, columns
        self._blank_lines = 0
        self.header: Sequence[str] = ()
        """The names in the header or the schema, once rows are read."""

    def read_rows(self) -> Iterator[Row | bytes]:
        """Read the rows, and the bytes between them, in the order of the file."""
        raise NotImplementedError

    def read_records(self) -> Iterator[Row]:
        """Read the rows alone; of a document the cells are its text and its id."""
        for row in self.read_rows():
            if isinstance(row, bytes) or row.number == 0:
                continue
            if self.is_text and row.reason is None:
                text = "\n\n".join(row.texts[index] for index in sorted(row.visible_texts))
                row = replace(row, cells={"text": text, "id": self._build_document_id(row)})
            yield row

    def _build_document_id(self, row: Row) -> str:
        return self.path

    def write(self, target: BinaryIO, pieces: Iterator[Any]) -> None:
        """Write what the rows rendered, and the bytes between them."""
        for piece in pieces:
            target.write(piece)

    def measure_header(self) -> int:
        """Measure what stands before the first row, in bytes; 0 for nothing, or where it is not whole."""
        return 0

    def count_rows(self, start: int, header: int) -> RowScan:
        """Count the rows of a part of a file, whose first byte behind the ``header`` is byte ``start``."""
        raise NotImplementedError

    def _count_blank_line(self) -> None:
        """Count a blank line: there is no row in it; ``ExpandingFile`` where there are too many."""
        self._blank_lines += 1
        if self._blank_lines > self.max_blank_lines:
            raise ExpandingFile(f"{self.path} has more than {self.max_blank_lines:,} blank lines: remove them")

    def _build_row(self, number: int, cells: Mapping[str, Any], render: Renderer, raw: bytes = b"") -> Row:
        try:
            return Row(number, self.fields.read_texts(cells), cells, render, raw=raw)
        except NoTextError as error:
            return Row(number, reason=str(error), raw=raw)


FORMATS: dict[str, type[Format]] = {}
"""Every format by its name."""


def choose_reader(format_: str, file: BinaryIO) -> type[Format]:
    """Choose what copies a file of a format; JSON is an array where it begins as one."""
    start = cast(io.BufferedReader, file).peek(CHUNK_BYTES).removeprefix(BYTE_ORDER_MARK).lstrip()
    return JsonArrayFormat if format_ == "jsonl" and start.startswith(b"[") else FORMATS[format_]


def apply_in_order(changes: Edits) -> Callable[[str], str]:
    """Apply the changes of a row's texts, to one text after the other."""
    remaining = iter(changes)
    return lambda text: apply_edits(text, next(remaining))


class JsonLinesFormat(Format):
    """One JSON object a line, or one over several lines; only literals that change are written anew."""

    name = "jsonl"
    endings = (".jsonl", ".ndjson", ".json")
    is_appendable = True

    def read_rows(self) -> Iterator[Row | bytes]:
        """A line that is not blank is a row."""
        for number, line in read_json_lines(self.file, self.limit):
            raw = line[:QUARANTINED_BYTES]
            if len(line) > self.limit:
                yield Row(number, reason=ROW_TOO_LONG, raw=raw)
                continue
            if number == 1 and line.startswith(BYTE_ORDER_MARK):
                yield BYTE_ORDER_MARK
                line = line.removeprefix(BYTE_ORDER_MARK)
            body = line.rstrip(b"\r\n")
            if not body.strip():
                self._count_blank_line()
            yield self._parse_row(number, body, line[len(body) :], raw) if body.strip() else line

    def _parse_row(self, number: int, body: bytes, line_end: bytes, raw: bytes) -> Row:
        cells, reason = parse_object(body)
        if cells is None:
            return Row(number, reason=reason, raw=raw)

        def render(changes: Edits, replacements: ColumnReplacements) -> bytes:
            # a row in which nothing was found needs no second look
            new = change_object(body.decode(), self.fields, apply_in_order(changes)).encode() if any(changes) else body
            return (replace_members(new.decode(), replacements).encode() if replacements else new) + line_end

        return self._build_row(number, cells, render, raw)

    def count_rows(self, start: int, header: int) -> RowScan:
        """A last row is whole once it is an object, line end or not."""
        complete, at, end, blank, tail = 0, start, start, True, b""
        first = _read_first_lines(self.file, self.limit)
        if len(first) == 1 and b"\n" in first[0].strip():
            return RowScan(start + len(first[0]), 1, 1, False)
        for block in chain(first, iter(lambda: self.file.read(CHUNK_BYTES), b"")):
            blank = blank and not block.strip()
            cut = block.rfind(b"\n") + 1
            complete += block.count(b"\n")
            # of a last row that is too long to be read it is enough to know that it is there
            tail = block[cut:] if cut else (tail + block)[: self.limit + 1]
            end = at + cut if cut else end
            at += len(block)
        if not tail.strip():
            return RowScan(end, complete, complete, blank)
        # nothing that is added to an object leaves one that goes on
        if len(tail) <= self.limit and parse_object(tail.removeprefix(BYTE_ORDER_MARK))[0] is not None:
            return RowScan(at, complete + 1, complete + 1, False)
        return RowScan(end, complete, complete + 1, blank)


class JsonArrayFormat(JsonLinesFormat):
    """One array of objects, which are held one at a time; a comma goes with the entry behind it."""

    name = ""

    def read_rows(self) -> Iterator[Row | bytes]:
        """An entry is a row."""
        # bytes that are not UTF-8 become lone surrogates, which the entry's own check then finds
        text = io.TextIOWrapper(self.file, "utf-8", errors="surrogateescape", newline="")
        decoder, number = json.JSONDecoder(), 0
        buffer = text.read(CHUNK_BYTES)
        position = buffer.index("[") + 1
        yield buffer[:position].encode()
        while True:
            separator = _SEPARATOR.match(buffer, position)
            start = separator.end() if separator is not None else position
            if buffer[start : start + 1] == "]":
                yield buffer[position : start + 1].encode()
                yield from self._check_trailing(buffer[start + 1 :], text)
                return
            try:
                end = decoder.raw_decode(buffer, start)[1]
            except RecursionError:
                raise DamagedFile(f"{self.path}: entry {number + 1} of the array is nested too deeply") from None
            except ValueError:
                # what is held may end inside an entry
                buffer, position = buffer[position:], 0
                block = text.read(max(CHUNK_BYTES, len(buffer)))
                buffer += block
                if not block or len(buffer) > 2 * max(self.limit, CHUNK_BYTES):
                    raise DamagedFile(f"{self.path}: the array cannot be read after entry {number}") from None
                continue
            number += 1
            entry = buffer[start:end].encode("utf-8", "surrogateescape")
            row = self._parse_row(number, entry, b"", entry[:QUARANTINED_BYTES])
            yield replace(row, render=self._prepend_separator(buffer[position:start], row.render))
            position = end

    def _check_trailing(self, buffer: str, text: io.TextIOWrapper) -> Iterator[bytes]:
        """What stands behind the array: white space, or else it would pass unread."""
        while buffer:
            if buffer.strip(" \t\r\n"):
                raise DamagedFile(
                    f"{self.path}: unexpected content after the array's closing bracket; remove it, or "
                    "write one object per line"
                )
            yield buffer.encode()
            buffer = text.read(CHUNK_BYTES)

    @staticmethod
    def _prepend_separator(separator: str, render: Renderer | None) -> Renderer | None:
        return None if render is None else lambda changes, whole: (separator, render(changes, whole))

    def write(self, target: BinaryIO, pieces: Iterator[Any]) -> None:
        """The first entry that is written has no comma before it."""
        is_first = True
        for piece in pieces:
            if isinstance(piece, tuple):
                separator, body = piece
                piece = (separator.replace(",", "", 1) if is_first else separator).encode() + body
                is_first = False
            target.write(piece)


_SEPARATOR = re.compile(r"\s*,?\s*")


def replace_members(text: str, replacements: ColumnReplacements) -> str:
    """The JSON object ``text`` with members replaced whole or, where ``replacements`` says None, taken out."""
    decoder = json.JSONDecoder()
    position = text.index("{") + 1
    pieces: list[str] = []
    while (match := _MEMBER.match(text, position)) is not None:
        name = json.loads(match["name"])
        _, end = decoder.raw_decode(text, match.end())
        comma = _COMMA.match(text, end)
        assert comma is not None
        if name not in replacements:
            pieces.append(text[match.start() : end])
        elif (new := replacements[name]) is not None:
            literal = text[match.end() : end]
            rendered = literal if literal == "null" else json.dumps(new, ensure_ascii=False)
            pieces.append(text[match.start() : match.end()] + rendered)
        position = comma.end()
    return text[: text.index("{") + 1] + ",".join(pieces) + text[position:]


_MEMBER = re.compile(r'\s*(?P<name>"(?:[^"\\]|\\.)*")\s*:\s*')
_COMMA = re.compile(r"(?:\s*,)?")


_MAX_OBJECT_LINES = 100_000
"""Lines, at most, of an object that is a whole file."""


def read_json_lines(file: BinaryIO, limit: int) -> Iterator[tuple[int, bytes]]:
    """Read the lines that are rows, with their numbers; a file that is one object over many lines is one.

    Of a line over the ``limit`` only ``limit + 1`` bytes are read, and the others passed over.
    """
    number, lookahead = 0, deque(_read_first_lines(file, limit))
    while line := lookahead.popleft() if lookahead else file.readline(limit + 1):
        number += 1
        yield number, line
        is_cut = len(line) > limit
        while is_cut and line and not line.endswith(b"\n"):
            line = file.readline(CHUNK_BYTES)


def _read_first_lines(file: BinaryIO, limit: int) -> list[bytes]:
    """Read as many lines as tell whether the file is one object over several lines, then joined to one."""
    lines, size, has_row = list[bytes](), 0, False
    while size <= limit and len(lines) < _MAX_OBJECT_LINES and (line := file.readline(limit + 1)):
        lines.append(line)
        size += len(line)
        if not has_row and (has_row := bool(line.strip())):
            # most files: the first row is a line by itself
            start = line.removeprefix(BYTE_ORDER_MARK).lstrip()[:1]
            if start != b"{" or _is_json_object(line):
                return lines
    joined = b"".join(lines)
    return [joined] if size <= limit and _is_json_object(joined) else lines


def _is_json_object(data: bytes) -> bool:
    """Whether ``data`` is one JSON object, a usable one or not."""
    try:
        return isinstance(json.loads(data.decode("utf-8-sig", "replace")), dict)
    except (ValueError, RecursionError):
        return False


_STRICT_DECODER = json.JSONDecoder(object_pairs_hook=reject_duplicate_keys)


def parse_object(line: bytes) -> tuple[dict[str, Any] | None, str | None]:
    """Parse the JSON object in a line, or return the reason code; a repeated key at any depth is an error."""
    try:
        value = _STRICT_DECODER.decode(line.decode())
    except UnicodeDecodeError:
        return None, UNDECODABLE
    except DuplicateKeyError:
        return None, REPEATED_KEY
    except (ValueError, RecursionError):
        return None, BROKEN_JSON
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _is_too_deep(value):
        return None, BROKEN_JSON
    return (value, None) if isinstance(value, dict) else (None, NOT_AN_OBJECT)


def _is_too_deep(value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        inner = (
            child for container in level for child in (container.values() if isinstance(container, dict) else container)
        )
        level = [child for child in inner if isinstance(child, dict | list)]
    return bool(level)


class TextFormat(Format):
    """A file is one text, whose id is the file's name."""

    name = "text"
    endings = (".txt", ".text", ".md")
    is_text = True

    def read_rows(self) -> Iterator[Row | bytes]:
        """The one row."""
        data = self.file.read(self.limit + 1)
        mark = BYTE_ORDER_MARK if data.startswith(BYTE_ORDER_MARK) else b""
        try:
            text = data[len(mark) :].decode()
        except UnicodeDecodeError:
            text = "\0"
        if len(data) > self.limit or "\0" in text:
            # letters of two bytes have NUL between them: what they say would not be found
            reason = ROW_TOO_LONG if len(data) > self.limit else UNDECODABLE
            yield Row(1, reason=reason, raw=data[:QUARANTINED_BYTES])
            return

        def render(changes: Edits, _: ColumnReplacements) -> bytes:
            return mark + apply_edits(text, changes[0]).encode()

        yield Row(1, [text], {}, render, raw=data[:QUARANTINED_BYTES], visible_texts=frozenset({0}))
