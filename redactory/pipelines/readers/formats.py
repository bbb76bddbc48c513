"""Read the rows of a file, and write the file again with changed texts.

Each format is a class, registered under its name and file endings. :mod:`tables` and :mod:`columnar` hold the
tables, :mod:`document_formats` and the modules ``*_format`` the documents.
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
from redactory.foundation.errors import InputError, shorten_name
from redactory.pipelines.json_paths import Fields, NoTextError, change_json_object
from redactory.redaction.mask import Edit, apply_edits
from redactory.redaction.replacements import ReplacedSpan

UNDECODABLE, BROKEN_JSON, NOT_AN_OBJECT = "undecodable", "broken_json", "not_an_object"
REPEATED_KEY = "repeated_key"
ROW_TOO_LONG, BROKEN_ROW = "row_too_long", "broken_row"
QUARANTINED_BYTES = 1 << 16
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAX_DEPTH = 100
"""Maximum nesting of a JSON row. Python's limit depends on its version and the call stack; results must not."""
CHUNK_BYTES = 1 << 20


class DamagedFile(InputError):
    """A file is truncated, damaged or of another format; other files can still be read.

    Failures of a disk or network are a plain ``InputError``: the file itself may be intact.
    """

    reason = "unreadable_file"


class ExpandingFile(DamagedFile):
    """A small file expands to far more data than usual: reading it could fill the memory or never end."""

    reason = "expanding_file"


MAX_EXPANSION, SMALL_FILE_BYTES = 200, 1 << 24
"""Maximum decoded bytes per stored byte, and the decoded bytes that any file may hold."""


class OpenFile(io.BufferedReader):
    """An open file with at most ``most`` decoded bytes; None for a default that depends on its size."""

    most: int | None = None


def check_expansion(name: str, decoded: int, limit: int) -> None:
    """Raise ``ExpandingFile`` if a file holds more ``decoded`` bytes than ``limit``."""
    if decoded > limit:
        raise ExpandingFile(
            f"{name} holds more than {limit:,} bytes of data, far more than its size: if you trust the file, "
            "raise input.max_expansion"
        )


NO_FIELDS = Fields(())


@dataclass(frozen=True)
class ColumnSelection:
    """The columns that a table must have, and those that are read if present (``selected`` None: all)."""

    required: tuple[str, ...] = ()
    selected: tuple[str, ...] | None = None

    def select_columns(self, names: Sequence[str], file: str) -> list[str]:
        """Choose the columns to read; ``DamagedFile`` if a required column is missing or a column occurs twice."""
        for column in self.required:
            if column not in names:
                raise DamagedFile(
                    f"{file} has no column '{shorten_name(column)}'; set the columns under input (text, id, "
                    "user, label, metadata_columns). In CSV the first line must name the columns, separated by commas"
                )
        wanted = [name for name in names if self.selected is None or name in self.selected]
        for number, name in enumerate(names):
            if name in wanted and name in names[:number]:
                if self.selected is not None:
                    raise DamagedFile(f"{file} has two columns '{name}': rename one of them")
                # numbers instead of names: without a header, the names are values of a row
                raise DamagedFile(
                    f"{file}: columns {names.index(name) + 1} and {number + 1} have the same name; rename one"
                )
        return wanted


ALL_COLUMNS = ColumnSelection()


@dataclass(frozen=True)
class RowScan:
    """Row counts of a part of a growing file: complete rows up to ``end_byte``, and all rows.

    ``is_blank``: the part holds only white space (in a table, nothing below the header).
    """

    end_byte: int
    complete_rows: int
    total_rows: int
    is_blank: bool


ColumnReplacements = Mapping[str, str | None]
"""Replacement value of each column that is replaced as a whole; None removes the column."""
Edits = Sequence[Sequence[Edit]]
"""The changes to each text of a row, in order."""
Renderer = Callable[[Edits, ColumnReplacements], Any]


@dataclass(frozen=True)
class Row:
    """A row: its number (from 1; a header has 0), its texts in order, its cells, and how to write it.

    ``reason`` is the reason code of an unreadable row, which is not written. ``render`` takes the edits of each
    text and the replaced columns.
    """

    number: int
    texts: list[str] = field(default_factory=list)
    cells: Mapping[str, Any] = field(default_factory=dict)
    render: Renderer | None = None
    reason: str | None = None
    raw: bytes = b""
    """The bytes, or the first of them, for the quarantine, if the format provides them."""
    structural_spans: Sequence[Sequence[ReplacedSpan]] = ()
    """For each text, the spans that follow from its position in the document; empty if there are none."""
    removed_parts: int = 0
    """Number of unreadable images and attachments, which are not written."""
    removed_formulas: int = 0
    """Number of formulas without a value, which are not written."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """The header fields of a mail by their names in lower case."""
    visible_texts: frozenset[int] = frozenset()
    """In a document, the indices of the texts that its readers see."""


class Format:
    """Read the texts of a file, and write the file again with everything else unchanged.

    A subclass with a ``name`` registers itself. It yields the rows in order, each with its texts and a way to render
    it with edits. Bytes between rows (blank lines, headers) are copied.
    """

    name: ClassVar[str] = ""
    endings: ClassVar[tuple[str, ...]] = ()
    expansion_factor: ClassVar[float] = 1.0
    """Assumed decoded bytes per stored byte."""
    is_appendable: ClassVar[bool] = False
    """Whether rows can be appended to a file; requires :meth:`count_rows`."""
    is_text: ClassVar[bool] = False
    """Whether rows are texts without columns: the configured columns are ignored."""
    is_recodable: ClassVar[bool] = False
    """Whether ``input.encoding`` applies."""
    written_format: ClassVar[str] = ""
    """Name of the format in which a copy is written; empty: the same."""
    max_blank_lines: ClassVar[int] = 1 << 20
    """Maximum number of blank lines, because each costs time."""

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
        """Read an open ``file`` that users know as ``path``, with rows of at most ``limit`` bytes.

        ``fields`` select the texts. Cells of the columns ``hidden`` are not returned. Only ``columns`` are read
        and written.
        """
        self.file, self.path, self.limit = file, path, limit
        self.fields, self.hidden, self.columns = fields, hidden, columns
        self._blank_lines = 0
        self.header: Sequence[str] = ()
        """Column names of the header or schema, available once rows are read."""

    def read_rows(self) -> Iterator[Row | bytes]:
        """Read the rows, and the bytes between them, in the order of the file."""
        raise NotImplementedError

    def read_records(self) -> Iterator[Row]:
        """Read only the rows; the cells of a document are its text and its id."""
        for row in self.read_rows():
            if isinstance(row, bytes) or row.number == 0:
                continue
            if self.is_text and row.reason is None:
                text = "\n\n".join(row.texts[index] for index in sorted(row.visible_texts))
                row = replace(row, cells={"text": text, "id": self._build_document_id(row)})
            yield row

    def _build_document_id(self, row: Row) -> str:
        return self.path

    def write(self, target: BinaryIO, rendered_rows: Iterator[Any]) -> None:
        """Write the rendered rows and the bytes between them."""
        for piece in rendered_rows:
            target.write(piece)

    def measure_header(self) -> int:
        """Measure the bytes before the first row; 0 if there are none, or if the header is incomplete."""
        return 0

    def count_rows(self, start: int, header: int) -> RowScan:
        """Count the rows of a part of a file; byte ``start`` is its first after ``header`` bytes of header."""
        raise NotImplementedError

    def _count_blank_line(self) -> None:
        """Count a line without a row; ``ExpandingFile`` if there are too many."""
        self._blank_lines += 1
        if self._blank_lines > self.max_blank_lines:
            raise ExpandingFile(f"{self.path} has more than {self.max_blank_lines:,} blank lines: remove them")

    def _build_row(self, number: int, cells: Mapping[str, Any], render: Renderer, raw: bytes = b"") -> Row:
        try:
            return Row(number, self.fields.read_texts(cells), cells, render, raw=raw)
        except NoTextError as error:
            return Row(number, reason=str(error), raw=raw)


FORMATS: dict[str, type[Format]] = {}
"""All formats by name."""


def choose_reader(format_: str, file: BinaryIO) -> type[Format]:
    """Choose the class that reads a file; JSON that begins with a list of objects, or an empty one, is an array."""
    start = cast(io.BufferedReader, file).peek(CHUNK_BYTES).removeprefix(BYTE_ORDER_MARK)
    return JsonArrayFormat if format_ == "jsonl" and _ARRAY_START.match(start) else FORMATS[format_]


def make_sequential_editor(changes: Edits) -> Callable[[str], str]:
    """Return a function that edits one text after the other of a row."""
    remaining = iter(changes)
    return lambda text: apply_edits(text, next(remaining))


class JsonLinesFormat(Format):
    """One JSON object per line, or one over several lines; only changed string literals are rewritten."""

    name = "jsonl"
    endings = (".jsonl", ".ndjson", ".json")
    is_appendable = is_recodable = True

    def read_rows(self) -> Iterator[Row | bytes]:
        """Read each nonblank line as a row."""
        for number, (line, _, _) in enumerate(self._read_lines(), 1):
            if len(line) > self.limit:
                yield Row(number, reason=ROW_TOO_LONG, raw=line)
                continue
            body = line.removeprefix(BYTE_ORDER_MARK if number == 1 else b"")
            if body != line:
                yield BYTE_ORDER_MARK
            if not body.strip():
                self._count_blank_line()
            yield self._parse_row(number, b"", body, line) if body.strip() else body

    def _parse_row(self, number: int, before: bytes, body: bytes, raw: bytes) -> Row:
        cells, reason = parse_json_object(body)
        if cells is None:
            return Row(number, reason=reason, raw=raw)

        def render_line(changes: Edits, replacements: ColumnReplacements) -> bytes:
            text = body.decode()
            if any(changes):
                text = change_json_object(text, self.fields, make_sequential_editor(changes))
            if replacements:
                text = replace_json_members(text, replacements)
            return before + text.encode()

        return self._build_row(number, cells, render_line, raw)

    def count_rows(self, start: int, header: int) -> RowScan:
        """Count rows; the last one is complete once it is an object, even without a line end."""
        complete, total, at, end, blank = 0, 0, start, start, True
        for line, size, is_ended in self._read_lines():
            at += size
            blank = blank and not line.strip()
            total += is_ended or bool(line.strip())
            if is_ended or b"\n" in line:
                complete, end = total, at
            elif len(line) <= self.limit and parse_json_object(line.removeprefix(BYTE_ORDER_MARK))[1] is None:
                # appended bytes cannot extend a complete object
                complete, end = total, at
        return RowScan(end, complete, total, blank)

    def _read_lines(self) -> Iterator[tuple[bytes, int, bool]]:
        """Read each line, its size, and whether it has an end; a file that is one object over many lines is one line.

        Only the first ``limit + 1`` bytes of a line over the ``limit`` are returned.
        """
        lookahead = deque(_read_first_lines(self.file, self.limit))
        while line := lookahead.popleft() if lookahead else self.file.readline(self.limit + 1):
            rest, size = line, len(line)
            while len(line) > self.limit and not rest.endswith(b"\n"):
                if not (rest := self.file.readline(CHUNK_BYTES)):
                    break
                size += len(rest)
            yield line, size, rest.endswith(b"\n")


class JsonArrayFormat(JsonLinesFormat):
    """An array of objects, read one at a time; a comma belongs to the entry after it."""

    name = ""
    is_appendable = False

    def read_rows(self) -> Iterator[Row | bytes]:
        """Read each entry of the array as a row."""
        # bytes that are not UTF-8 become lone surrogates, which the check of the entry then finds
        text = io.TextIOWrapper(self.file, "utf-8", errors="surrogateescape", newline="")
        decoder, number = json.JSONDecoder(), 0
        buffer = text.read(CHUNK_BYTES)
        position = buffer.index("[") + 1
        yield buffer[:position].encode()
        while True:
            separator = _SEPARATOR.match(buffer, position)
            assert separator is not None
            start = separator.end()
            if buffer[start : start + 1] == "]":
                yield buffer[position : start + 1].encode()
                yield from self._check_trailing_content(buffer[start + 1 :], text)
                return
            try:
                end = decoder.raw_decode(buffer, start)[1]
            except RecursionError:
                raise DamagedFile(f"{self.path}: entry {number + 1} of the array is nested too deeply") from None
            except ValueError:
                # the buffer may end inside an entry
                buffer, position = buffer[position:], 0
                block = text.read(max(CHUNK_BYTES, len(buffer)))
                buffer += block
                if not block or len(buffer) > 2 * max(self.limit, CHUNK_BYTES):
                    raise DamagedFile(f"{self.path}: the array cannot be read after entry {number}") from None
                continue
            number += 1
            entry = buffer[start:end].encode("utf-8", "surrogateescape")
            yield self._parse_row(number, buffer[position:start].encode(), entry, entry)
            position = end

    def _check_trailing_content(self, buffer: str, text: io.TextIOWrapper) -> Iterator[bytes]:
        """Check that only white space follows the array; other content would be copied unread."""
        while buffer:
            if buffer.strip(" \t\r\n"):
                raise DamagedFile(
                    f"{self.path}: unexpected content after the array's closing bracket; remove it, or "
                    "write one object per line"
                )
            yield buffer.encode()
            buffer = text.read(CHUNK_BYTES)

    def write(self, target: BinaryIO, rendered_rows: Iterator[Any]) -> None:
        """Write the entries; no comma is after the bracket, even if the first entries are left out."""
        for number, piece in enumerate(rendered_rows):
            target.write(_LEADING_COMMA.sub(rb"\1", piece) if number == 1 else piece)


_ARRAY_START = re.compile(rb"\s*\[\s*[{\]]")
_SEPARATOR = re.compile(r"\s*,?\s*")
_LEADING_COMMA = re.compile(rb"\A(\s*),")


def replace_json_members(text: str, replacements: ColumnReplacements) -> str:
    """Replace members of the JSON object ``text``, or remove those whose replacement is None."""
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
"""Maximum number of lines of an object that is a whole file."""


def _read_first_lines(file: BinaryIO, limit: int) -> list[bytes]:
    """Read the lines needed to tell whether the file is one object over several lines; join them if so."""
    lines, size, has_row = list[bytes](), 0, False
    while size <= limit and len(lines) < _MAX_OBJECT_LINES and (line := file.readline(limit + 1)):
        lines.append(line)
        size += len(line)
        if not has_row and (has_row := bool(line.strip())):
            # usual case: the first row is one line
            start = line.removeprefix(BYTE_ORDER_MARK).lstrip()[:1]
            if start != b"{" or _is_json_object(line):
                return lines
    joined = b"".join(lines)
    return [joined] if size <= limit and _is_json_object(joined) else lines


def _is_json_object(data: bytes) -> bool:
    """Whether ``data`` is one JSON object, even an unusable one."""
    try:
        return isinstance(json.loads(data.decode("utf-8-sig", "replace")), dict)
    except (ValueError, RecursionError):
        return False


_STRICT_DECODER = json.JSONDecoder(object_pairs_hook=reject_duplicate_keys)


def parse_json_object(line: bytes) -> tuple[dict[str, Any] | None, str | None]:
    """Parse the JSON object in a line, or return a reason code; a repeated key at any depth is an error."""
    try:
        value = _STRICT_DECODER.decode(line.decode())
    except UnicodeDecodeError:
        return None, UNDECODABLE
    except DuplicateKeyError:
        return None, REPEATED_KEY
    except (ValueError, RecursionError):
        # NUL may mean a two-byte encoding
        return None, UNDECODABLE if b"\0" in line else BROKEN_JSON
    if line.count(b"[") + line.count(b"{") > MAX_DEPTH and _is_too_deep(value):
        return None, BROKEN_JSON
    return (value, None) if isinstance(value, dict) else (None, NOT_AN_OBJECT)


def _is_too_deep(value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(MAX_DEPTH):
        children = (container.values() if isinstance(container, dict) else container for container in level)
        level = [child for child in chain.from_iterable(children) if isinstance(child, dict | list)]
    return bool(level)


class TextFormat(Format):
    """A file that is one text; its id is the file name."""

    name = "text"
    endings = (".txt", ".text", ".md")
    is_text = is_recodable = True

    def read_rows(self) -> Iterator[Row | bytes]:
        """Read the file as one row."""
        data = self.file.read(self.limit + 1)
        mark = BYTE_ORDER_MARK if data.startswith(BYTE_ORDER_MARK) else b""
        try:
            text = data[len(mark) :].decode()
        except UnicodeDecodeError:
            text = "\0"
        if len(data) > self.limit or "\0" in text:
            # NUL may mean a two-byte encoding, in which nothing would be found
            yield Row(1, reason=ROW_TOO_LONG if len(data) > self.limit else UNDECODABLE, raw=data)
            return

        def render_file(changes: Edits, _: ColumnReplacements) -> bytes:
            return mark + apply_edits(text, changes[0]).encode()

        yield Row(1, [text], {}, render_file, raw=data, visible_texts=frozenset({0}))
