"""Shapes of rows: JSON lines and arrays, CSV and TSV, Parquet and Arrow, and plain text."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, BinaryIO, Literal, cast

from redactory.pipelines.fields import changed_object
from redactory.pipelines.readers.formats import (
    BROKEN_ROW,
    BYTE_ORDER_MARK,
    CHUNK,
    FORMATS,
    ROW_TOO_LONG,
    UNDECODABLE,
    Batches,
    BinaryTable,
    Blanks,
    DamagedFile,
    cells_of,
    json_lines,
    parsed_object,
)
from redactory.pipelines.readers.formats import Columns as AllColumns
from redactory.pipelines.readers.shape import Edits, Render, Row, Shape, Whole
from redactory.pipelines.readers.tables import _Table
from redactory.redaction.replacements import edited


def _in_order(changes: Edits) -> Callable[[str], str]:
    """The changes of a row's texts, applied to one text after the other."""
    coming = iter(changes)
    return lambda text: edited(text, next(coming))


def _require_distinct(names: Sequence[str], file: str) -> None:
    """``DamagedFile`` where two columns have one name: a row by names would hold one of them alone."""
    for number, name in enumerate(names):
        if name in names[:number]:
            # by their numbers: where a header is missing, names are values of a row
            raise DamagedFile(
                f"{file}: columns {names.index(name) + 1} and {number + 1} have the same name; rename one"
            )


class JsonLines(Shape):
    """One object a line, or one over several lines; only literals that change are written anew."""

    names = ("jsonl",)

    def rows(self) -> Iterator[Row | bytes]:
        """A line that is not blank is a row."""
        blanks = Blanks(self.name)
        for number, line in json_lines(self.file, self.limit):
            if len(line) > self.limit:
                yield Row(number, reason=ROW_TOO_LONG)
                continue
            if number == 1 and line.startswith(BYTE_ORDER_MARK):
                yield BYTE_ORDER_MARK
                line = line.removeprefix(BYTE_ORDER_MARK)
            body = line.rstrip(b"\r\n")
            if not body.strip():
                blanks.add()
            yield self._object(number, body, line[len(body) :]) if body.strip() else line

    def _object(self, number: int, body: bytes, end: bytes = b"") -> Row:
        cells, reason = parsed_object(body)
        if cells is None:
            return Row(number, reason=reason)

        def render(changes: Edits, whole: Whole) -> bytes:
            # a row in which nothing was found needs no second look
            new = (
                changed_object(body.decode(), self.fields, _in_order(changes)).encode()
                if any(changes)
                else body
            )
            return (with_members(new.decode(), whole).encode() if whole else new) + end

        return self._row(number, cells, render)


class JsonArray(JsonLines):
    """One array of objects, which are held one at a time; a comma goes with the entry behind it."""

    names = ("json array",)

    def rows(self) -> Iterator[Row | bytes]:
        """An entry is a row."""
        # bytes that are not UTF-8 become lone surrogates, which the entry's own check then finds
        text = io.TextIOWrapper(self.file, "utf-8", errors="surrogateescape", newline="")
        decoder, number = json.JSONDecoder(), 0
        held = text.read(CHUNK)
        place = held.index("[") + 1
        yield held[:place].encode()
        while True:
            between = _BETWEEN.match(held, place)
            at = between.end() if between is not None else place
            if held[at : at + 1] == "]":
                yield held[place : at + 1].encode()
                yield from self._behind_all(held[at + 1 :], text)
                return
            try:
                end = decoder.raw_decode(held, at)[1]
            except RecursionError:
                raise DamagedFile(
                    f"{self.name}: entry {number + 1} of the array is nested too deep"
                ) from None
            except ValueError:
                # what is held may end inside an entry
                held, place = held[place:], 0
                more = text.read(max(CHUNK, len(held)))
                held += more
                if not more or len(held) > 2 * max(self.limit, CHUNK):
                    raise DamagedFile(
                        f"{self.name}: the array cannot be read behind entry {number}"
                    ) from None
                continue
            number += 1
            row = self._object(number, held[at:end].encode("utf-8", "surrogateescape"))
            yield replace(row, render=self._behind(held[place:at], row.render))
            place = end

    def _behind_all(self, held: str, text: io.TextIOWrapper) -> Iterator[bytes]:
        """What stands behind the array: white space, or else it would pass unread."""
        while held:
            if held.strip(" \t\r\n"):
                raise DamagedFile(
                    f"{self.name}: something stands behind the array's closing bracket; take it out, or "
                    "write one object a line"
                )
            yield held.encode()
            held = text.read(CHUNK)

    @staticmethod
    def _behind(before: str, render: Render | None) -> Render | None:
        return None if render is None else lambda changes, whole: (before, render(changes, whole))

    def write(self, target: BinaryIO, pieces: Iterator[Any]) -> None:
        """The first entry that is written has no comma before it."""
        is_first = True
        for piece in pieces:
            if isinstance(piece, tuple):
                before, body = piece
                piece = (before.replace(",", "", 1) if is_first else before).encode() + body
                is_first = False
            target.write(piece)


_BETWEEN = re.compile(r"\s*,?\s*")


def with_members(text: str, whole: Whole) -> str:
    """The JSON object ``text`` with members replaced whole or, where ``whole`` says None, taken out."""
    decoder = json.JSONDecoder()
    place = text.index("{") + 1
    pieces: list[str] = []
    while (match := _MEMBER.match(text, place)) is not None:
        name = json.loads(match["name"])
        _, end = decoder.raw_decode(text, match.end())
        comma = _COMMA.match(text, end)
        assert comma is not None
        if name not in whole:
            pieces.append(text[match.start() : end])
        elif (new := whole[name]) is not None:
            literal = text[match.end() : end]
            kept = literal if literal == "null" else json.dumps(new, ensure_ascii=False)
            pieces.append(text[match.start() : match.end()] + kept)
        place = comma.end()
    return text[: text.index("{") + 1] + ",".join(pieces) + text[place:]


_MEMBER = re.compile(r'\s*(?P<name>"(?:[^"\\]|\\.)*")\s*:\s*')
_COMMA = re.compile(r"(?:\s*,)?")


_DECLARED = re.compile(rb"(?:\xef\xbb\xbf)?sep=([,;|\t])\r?\n", re.IGNORECASE)
"""The line with which Excel says what separates the cells below."""


class Table(Shape):
    """CSV and TSV: a row in which nothing changes is written as it stood, another one in the same dialect."""

    names = ("csv", "tsv")

    def rows(self) -> Iterator[Row | bytes]:
        """The header line, then the rows."""
        declared = _DECLARED.match(cast(io.BufferedReader, self.file).peek(16))
        if declared is not None:
            yield self.file.readline()
            separator = declared[1].decode()
        else:
            separator = "\t" if self.format == "tsv" else self._separator()
            if cast(io.BufferedReader, self.file).peek(3).startswith(BYTE_ORDER_MARK):
                yield BYTE_ORDER_MARK
        rows = _Table(self.file, separator, self.limit).rows()
        header, reason, line = next(rows, ([], None, ""))
        if header is None:
            raise DamagedFile(f"{self.name}: its first line is no header ({reason})")
        _require_distinct(header, self.name)
        self.header, self._dialect = header, separator
        try:
            line.encode()
        except UnicodeEncodeError:
            raise DamagedFile(f"{self.name}: its first line is not UTF-8; convert the file") from None
        first, blanks = line, Blanks(self.name)
        yield Row(0, render=lambda _, whole: self._rendered(header, header, first, whole))
        for number, (cells, reason, line) in enumerate(rows, 2 if declared is None else 3):
            if cells == []:
                blanks.add()
                yield line.encode("utf-8", "surrogateescape")
            elif cells is None or len(cells) != len(header):
                yield Row(number, reason=reason or BROKEN_ROW)
            else:
                yield self._cells(number, cells, line)

    def _separator(self) -> str:
        """The sign that the header is full of, where it is not a comma."""
        first = cast(io.BufferedReader, self.file).peek(CHUNK).split(b"\n", 1)[0].decode("utf-8", "replace")
        return max(",;|\t", key=lambda sign: (first.count(sign), sign == ","))

    def _cells(self, number: int, cells: list[str], line: str) -> Row:
        named = dict(zip(self.header, cells, strict=True))
        try:
            line.encode()
        except UnicodeEncodeError:
            return Row(number, reason=UNDECODABLE)

        def render(changes: Edits, whole: Whole) -> bytes:
            changed = self.fields.changed(named, _in_order(changes))
            new = [changed[column] if column not in whole else whole[column] or "" for column in self.header]
            return self._rendered(cells, new, line, whole)

        return self._row(number, named, render)

    def _rendered(self, old: list[str], new: list[str], line: str, whole: Whole) -> bytes:
        dropped = {column for column, value in whole.items() if value is None}
        if old == new and not dropped:
            return line.encode()
        kept = [cell for column, cell in zip(self.header, new, strict=True) if column not in dropped]
        end = "\r\n" if line.endswith("\r\n") else "\n" if line.endswith("\n") else ""
        quoted = line.count('"') >= 2 * len(old) and line.startswith('"')
        text = io.StringIO()
        quoting: Literal[0, 1] = csv.QUOTE_ALL if quoted else csv.QUOTE_MINIMAL
        csv.writer(text, delimiter=self._dialect, lineterminator=end, quoting=quoting).writerow(kept)
        return text.getvalue().encode()


class Text(Shape):
    """A file is one text."""

    names = ("text",)

    def rows(self) -> Iterator[Row | bytes]:
        """The one row."""
        data = self.file.read(self.limit + 1)
        mark = b"\xef\xbb\xbf" if data.startswith(b"\xef\xbb\xbf") else b""
        if len(data) > self.limit:
            yield Row(1, reason=ROW_TOO_LONG)
            return
        try:
            text = data[len(mark) :].decode()
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            # letters of two bytes: what they say would not be found
            yield Row(1, reason=UNDECODABLE)
            return
        yield Row(1, [text], {}, lambda changes, _: mark + edited(text, changes[0]).encode())


_OF_TYPES = (b"huggingface", b"pandas")
"""Notes in a table's schema that name its columns and their types: untrue once one of them was replaced."""
_STRUCTURAL = re.compile(rb"ARROW:(?:schema|extension:.*)|PARQUET:field_id", re.DOTALL)
"""Notes that say how a column is to be read; any other one ("exported_by") is text that nobody looks at."""


def _structural(noted: Any, more: Sequence[bytes] = ()) -> dict[bytes, bytes]:
    """Of the notes of a schema or a field those that are structural, or named in ``more``."""
    notes = (noted.metadata or {}).items()
    return {key: value for key, value in notes if _STRUCTURAL.fullmatch(key) or key in more}


def _bare(field: Any) -> Any:
    """A field, and those inside of its type, with the structural notes alone."""
    import pyarrow as pa

    type_ = field.type
    if pa.types.is_struct(type_):
        type_ = pa.struct([_bare(type_.field(place)) for place in range(type_.num_fields)])
    elif pa.types.is_map(type_):
        type_ = pa.map_(_bare(type_.key_field), _bare(type_.item_field), keys_sorted=type_.keys_sorted)
    elif pa.types.is_fixed_size_list(type_):
        type_ = pa.list_(_bare(type_.value_field), type_.list_size)
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        made = pa.list_ if pa.types.is_list(type_) else pa.large_list
        type_ = made(_bare(type_.value_field))
    return pa.field(field.name, type_, field.nullable, _structural(field) or None)


class Columns(Shape):
    """Parquet and Arrow: columns without a text are handed on untouched, batch by batch."""

    names = ("parquet", "arrow")

    def rows(self) -> Iterator[Row | bytes]:
        """A row of a batch is a row."""

        held = told = None
        reader = cast(Batches, FORMATS[self.format])
        for number, group, batch, place in reader.rows(self.file, AllColumns(), self.name, self._begin):
            if held is not batch:
                named = {*self.fields.columns, *self.fields.paths}
                names = [name for name in batch.schema.names if name not in self.hidden or name in named]
                held, told = batch, batch.select(names)
            yield self._of_batch(number, group, batch, told, place)

    def _begin(self, table: BinaryTable) -> None:
        self._table = table
        self.header = table.schema.names
        _require_distinct(self.header, self.name)

    def _of_batch(self, number: int, group: int, batch: Any, told: Any, place: int) -> Row:
        named, reason = cells_of(told, place, self.limit)
        if named is None:
            return Row(number, reason=reason)

        def render(changes: Edits, whole: Whole) -> Any:
            return group, batch, place, self.fields.changed(named, _in_order(changes)), whole

        return self._row(number, named, render)

    def write(self, target: BinaryIO, pieces: Iterator[Any]) -> None:
        """Rows of one batch together; a row group of the source is one again."""
        import pyarrow as pa

        writer: Any = None
        held: list[Any] = []
        group: list[Any] = []

        def flush() -> None:
            if held:
                group.append(self._joined(held))
                held.clear()

        for piece in pieces:
            if held and held[-1][1] is not piece[1]:
                last = held[-1][0]
                flush()
                if last != piece[0]:
                    writer = writer or self._table.writer(target, group[0].schema)
                    writer.write_table(pa.Table.from_batches(group))
                    group.clear()
            held.append(piece)
        flush()
        if group:
            writer = writer or self._table.writer(target, group[0].schema)
            writer.write_table(pa.Table.from_batches(group))
        if writer is None:
            schema = self._table.schema
            empty = pa.schema(map(_bare, schema), _structural(schema, _OF_TYPES))
            writer = self._table.writer(target, empty)
        writer.close()

    def _joined(self, rows: list[Any]) -> Any:
        """The rows of one batch, with the columns that hold texts written anew."""
        import pyarrow as pa

        batch, whole = rows[0][1], rows[0][4]
        places = pa.array([row[2] for row in rows])
        anew = {*self.fields.columns, *self.fields.paths}
        columns, fields_ = [], []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            schema = _bare(batch.schema.field(name))
            if name in whole:
                if whole[name] is None:
                    continue
                values = [None if row[3].get(name) is None else row[4][name] for row in rows]
                schema = schema.with_type(pa.string())
                columns.append(pa.array(values, pa.string()))
            elif name in anew:
                columns.append(pa.array([row[3][name] for row in rows], schema.type))
            else:
                columns.append(column.take(places).cast(schema.type))
            fields_.append(schema)
        return pa.RecordBatch.from_arrays(
            columns, schema=pa.schema(fields_, _structural(batch.schema, () if whole else _OF_TYPES))
        )
