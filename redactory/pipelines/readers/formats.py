"""Formats: what a file of each kind holds, record by record.

A format is one class: it is registered under its name, and known by its endings, wherever files are read.
"""

from __future__ import annotations

import io
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, BinaryIO, ClassVar

import numpy as np

from redactory.foundation.canonical import RepeatedKey, once_each
from redactory.foundation.errors import InputError, shorten

Record = tuple[int, dict[str, Any] | None, str | None, bytes]
"""(row number from 1, the record or None, a reason code or None, the raw bytes for the quarantine)"""

UNDECODABLE, BROKEN_JSON, NOT_AN_OBJECT = "undecodable", "broken_json", "not_an_object"
REPEATED_KEY = "repeated_key"
ROW_TOO_LONG, BROKEN_ROW = "row_too_long", "broken_row"
KEPT_BYTES = 1 << 16
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
DEEPEST = 100
"""Levels of a JSON line.  Python's own limit depends on its version and on who calls; no document may."""
CHUNK = 1 << 20


class DamagedFile(InputError):
    """A file that is cut off, damaged, or not what its format says: other files can still be read.

    An ``InputError`` of another kind (a disk, a network) says nothing about the file itself.
    """

    reason = "unreadable_file"


class ExpandingFile(DamagedFile):
    """A small file that holds far more data than files do: reading it would not end, or fill the memory."""

    reason = "expanding_file"


EXPANSION, SMALL = 200, 1 << 24
"""Decoded bytes for each byte of a file, and decoded bytes that any file may hold."""


class Blanks:
    """Counts the blank lines of a file: there is no row in them, and each is looked at."""

    MOST = 1 << 20

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0

    def add(self) -> None:
        """One more; ``ExpandingFile`` where there are too many."""
        self.count += 1
        if self.count > self.MOST:
            raise ExpandingFile(f"{self.name} has more than {self.MOST:,} blank lines: take them out")


class OpenFile(io.BufferedReader):
    """A file to read, which may hold ``most`` decoded bytes; None: the default, by its size."""

    most: int | None = None


def check_expansion(name: str, decoded: int, most: int) -> None:
    """``ExpandingFile`` where a file holds more ``decoded`` bytes than ``most``."""
    if decoded > most:
        raise ExpandingFile(
            f"{name} holds more than {most:,} bytes of data, far more than its size: if you trust the file, "
            "raise input.max_expansion"
        )


@dataclass(frozen=True)
class Columns:
    """Columns of a table: those that it must have, and those that are read where it has them.

    ``mapped`` None reads all of them.
    """

    needed: tuple[str, ...] = ()
    mapped: tuple[str, ...] | None = None

    def among(self, names: Sequence[str], file: str) -> list[str]:
        """Those of ``names`` to read; ``DamagedFile`` if a needed one is missing, or one is there twice."""
        for column in self.needed:
            if column not in names:
                raise DamagedFile(
                    f"{file} has no column '{shorten(column)}'; say under input which column holds what "
                    "(text, id, user, label, keep). In CSV the first line names the columns, with commas "
                    "between them"
                )
        wanted = [name for name in names if self.mapped is None or name in self.mapped]
        for name in wanted:
            if self.mapped is not None and wanted.count(name) > 1:
                raise DamagedFile(f"{file} has two columns '{name}': rename one of them")
        return wanted


@dataclass(frozen=True)
class Rows:
    """What some bytes of a growing file hold: whole rows up to byte ``end``, and all rows to the last byte.

    ``blank`` says that there is nothing but white space (of a table: nothing below its header).
    """

    end: int
    whole: int
    all: int
    blank: bool


class Format:
    """A file format.  A subclass with a ``name`` is registered by being defined."""

    name: ClassVar[str] = ""
    endings: ClassVar[tuple[str, ...]] = ()
    packed: ClassVar[float] = 1.0
    """Bytes in the open that a byte of such a file is taken to stand for."""
    grows: ClassVar[bool] = False
    """Whether rows can be added to the end of such a file, so that :meth:`rows_in` can count them."""
    is_text: ClassVar[bool] = False
    """Whether a file is one text: the configured columns do not count."""

    def __init_subclass__(cls) -> None:
        if cls.name:
            FORMATS[cls.name] = cls()

    def records(self, file: BinaryIO, limit: int, columns: Columns, name: str) -> Iterator[Record]:
        """Each record of the file called ``name``, or why it cannot be read; rows have ``limit`` bytes."""
        raise NotImplementedError

    def header(self, file: BinaryIO, limit: int) -> int:
        """The length in bytes of the header line; 0 without one, or where it is not whole."""
        return 0

    def rows_in(self, file: BinaryIO, start: int, header: int, limit: int) -> Rows:
        """The rows of ``file``, whose first byte behind the ``header`` is byte ``start`` of a larger one."""
        raise NotImplementedError


FORMATS: dict[str, Format] = {}
"""Every format by its name."""


class JsonLines(Format):
    """One JSON object a line, or one over several lines."""

    name = "jsonl"
    endings = (".jsonl", ".ndjson", ".json")
    grows = True

    def records(self, file: BinaryIO, limit: int, columns: Columns, name: str) -> Iterator[Record]:
        """One a line that is not blank."""
        blanks = Blanks(name)
        for number, line in json_lines(file, limit):
            if len(line) > limit:
                yield number, None, ROW_TOO_LONG, line[:KEPT_BYTES]
            elif line.strip():
                value, reason = parsed_object(line, "utf-8-sig" if number == 1 else "utf-8")
                yield number, value, reason, line[:KEPT_BYTES]
            else:
                blanks.add()

    def rows_in(self, file: BinaryIO, start: int, header: int, limit: int) -> Rows:
        """A last row is whole once it is an object, line end or not."""
        whole, at, end, blank, tail = 0, start, start, True, b""
        first = _read_first_lines(file, limit)
        if len(first) == 1 and b"\n" in first[0].strip():
            return Rows(start + len(first[0]), 1, 1, False)
        for block in chain(first, iter(lambda: file.read(CHUNK), b"")):
            blank = blank and not block.strip()
            cut = block.rfind(b"\n") + 1
            whole += block.count(b"\n")
            # of a last row that is too long to be read it is enough to know that it is there
            tail = block[cut:] if cut else (tail + block)[: limit + 1]
            end = at + cut if cut else end
            at += len(block)
        if not tail.strip():
            return Rows(end, whole, whole, blank)
        # nothing that is added to an object leaves one that goes on
        if len(tail) <= limit and parsed_object(tail, "utf-8-sig")[0] is not None:
            return Rows(at, whole + 1, whole + 1, False)
        return Rows(end, whole, whole + 1, blank)


_OBJECT_LINES = 100_000
"""Lines, at most, of an object that is a whole file."""


def json_lines(file: BinaryIO, limit: int) -> Iterator[tuple[int, bytes]]:
    """Read the lines that are rows, with their numbers; a file that is one object over many lines is one.

    Of a line over the ``limit`` only ``limit + 1`` bytes are read, and the others passed over.
    """
    number, ahead = 0, deque(_read_first_lines(file, limit))
    while line := ahead.popleft() if ahead else file.readline(limit + 1):
        number += 1
        yield number, line
        is_cut = len(line) > limit
        while is_cut and line and not line.endswith(b"\n"):
            line = file.readline(CHUNK)


def _read_first_lines(file: BinaryIO, limit: int) -> list[bytes]:
    """Read as many lines as tell whether the file is one object over several lines, then joined to one."""
    lines, size, has_row = list[bytes](), 0, False
    while size <= limit and len(lines) < _OBJECT_LINES and (line := file.readline(limit + 1)):
        lines.append(line)
        size += len(line)
        if not has_row and (has_row := bool(line.strip())):
            # most files: the first row is a line by itself
            start = line.removeprefix(BYTE_ORDER_MARK).lstrip()[:1]
            if start != b"{" or _is_object(line):
                return lines
    whole = b"".join(lines)
    return [whole] if size <= limit and _is_object(whole) else lines


def _is_object(data: bytes) -> bool:
    """Whether ``data`` is one JSON object, a usable one or not."""
    try:
        return isinstance(json.loads(data.decode("utf-8-sig", "replace")), dict)
    except (ValueError, RecursionError):
        return False


_STRICT = json.JSONDecoder(object_pairs_hook=once_each)


def parsed_object(line: bytes, encoding: str = "utf-8") -> tuple[dict[str, Any] | None, str | None]:
    """The object that stands in a line, or the reason why there is none; no key comes twice at any depth."""
    try:
        value = _STRICT.decode(line.decode(encoding))
    except UnicodeDecodeError:
        return None, UNDECODABLE
    except RepeatedKey:
        return None, REPEATED_KEY
    except (ValueError, RecursionError):
        return None, BROKEN_JSON
    if line.count(b"[") + line.count(b"{") > DEEPEST and _is_too_deep(value):
        return None, BROKEN_JSON
    return (value, None) if isinstance(value, dict) else (None, NOT_AN_OBJECT)


def _is_too_deep(value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        inner = (part for whole in level for part in (whole.values() if isinstance(whole, dict) else whole))
        level = [part for part in inner if isinstance(part, dict | list)]
    return bool(level)


class Text(Format):
    """A file is one record, whose id is the file's name."""

    name = "text"
    endings = (".txt", ".text", ".md")
    is_text = True

    def records(self, file: BinaryIO, limit: int, columns: Columns, name: str) -> Iterator[Record]:
        """The whole file."""
        data = file.read(limit + 1)
        try:
            record = None if len(data) > limit else {"text": data.decode("utf-8-sig"), "id": name}
            yield 1, record, None if record else ROW_TOO_LONG, data[:KEPT_BYTES]
        except UnicodeDecodeError:
            yield 1, None, UNDECODABLE, data[:KEPT_BYTES]


@dataclass(frozen=True)
class BinaryTable:
    """An open Parquet or Arrow file: its schema, its batches, and what begins another file of this kind."""

    schema: Any
    batches: Iterator[tuple[int, Any]]
    """Each with the number of the row group that it belongs to."""
    writer: Callable[[BinaryIO, Any], Any]


class Batches(Format):
    """A binary table of record batches; only the columns that are mapped are read."""

    def open_table(self, file: BinaryIO, columns: Columns, name: str) -> BinaryTable:
        """The table, whose batches are safe to be read; ``EOFError`` where the file is not whole."""
        raise NotImplementedError

    def rows(
        self,
        file: BinaryIO,
        columns: Columns,
        name: str,
        begin: Callable[[BinaryTable], object] = lambda table: None,
    ) -> Iterator[tuple[int, int, Any, int]]:
        """Each row: its number, its row group, its batch and its place there; ``begin`` is given the table.

        ``DamagedFile`` names the file, and the last row before the place where it breaks off.
        """
        import pyarrow as pa

        kind, number = type(self).__name__, 0
        if not file.seekable():
            raise DamagedFile(f"{name} is {kind} inside of another compression: decompress it first")
        size, decoded = file.seek(0, io.SEEK_END), 0
        most = getattr(file, "most", None) or max(SMALL, EXPANSION * size)
        file.seek(0)
        try:
            table = self.open_table(file, columns, name)
            begin(table)
            for group, batch in table.batches:
                decoded += sum(map(_decoded_size, batch.columns))
                check_expansion(name, decoded, most)
                for place in range(batch.num_rows):
                    number += 1
                    yield number, group, batch, place
            return
        except InputError:
            raise
        except OSError as error:
            if error.errno is not None:
                # the disk's or the net's, not Arrow's
                raise
        except (pa.ArrowException, ValueError, MemoryError, OverflowError, EOFError):
            pass
        raise DamagedFile(
            f"{name} is no whole {kind} file: it cannot be read after row {number}; copy it anew, or set "
            "input.format to what it is"
        )

    def records(self, file: BinaryIO, limit: int, columns: Columns, name: str) -> Iterator[Record]:
        """One a row."""
        for number, _, batch, place in self.rows(file, columns, name):
            cells, reason = cells_of(batch, place, limit)
            yield number, cells, reason, b""


def _decoded_size(column: Any) -> int:
    """The bytes that a column's values have as Python's objects; each may point at the same few bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types, kind = pa.types, column.type
    if types.is_dictionary(kind):
        lengths = _lengths(column.dictionary)
        return pc.sum(lengths.take(column.indices)).as_py() or 0
    if types.is_run_end_encoded(kind):
        return int(np.diff(np.asarray(column.run_ends), prepend=0) @ np.asarray(_lengths(column.values)))
    if types.is_struct(kind):
        return sum(map(_decoded_size, column.flatten()))
    if types.is_map(kind):
        return _decoded_size(column.keys) + _decoded_size(column.items)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return 8 * len(column) + _decoded_size(column.flatten())
    return 8 * len(column) + (pc.sum(_lengths(column)).as_py() or 0)


def _lengths(column: Any) -> Any:
    """The length of each value that is text or bytes; 0 of others and of null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types, kind = pa.types, column.type
    has_lengths = (
        *(types.is_string, types.is_large_string),
        *(types.is_binary, types.is_large_binary, types.is_fixed_size_binary),
    )
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # a view begins with its length; many may look at the same bytes
        views = np.frombuffer(column.buffers()[1], np.int32)[::4]
        lengths = pa.array(views[column.offset : column.offset + len(column)])
    elif any(holds(kind) for holds in has_lengths):
        lengths = pc.binary_length(column)
    else:
        return pa.array(np.zeros(len(column), np.int64))
    return pc.fill_null(lengths.cast(pa.int64()), 0)


def cells_of(batch: Any, place: int, limit: int) -> tuple[dict[str, Any] | None, str | None]:
    """The values of a row by their columns, or the reason why it cannot be read."""
    if batch.nbytes > limit and sum(_decoded_size(one) for one in batch.slice(place, 1).columns) > limit:
        return None, ROW_TOO_LONG
    try:
        cells = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            value = column[place].as_py()
            cells[name] = _decode_bytes(value) if "binary" in str(column.type) else value
        return cells, None
    except UnicodeDecodeError:
        return None, UNDECODABLE
    except (ValueError, ArithmeticError, LookupError):
        # a date after the year 9999, a time zone that nobody knows
        return None, BROKEN_ROW


def _decode_bytes(value: Any) -> Any:
    """``value`` with the bytes in it that are UTF-8 as text, as Hive, Impala and old Spark mean them."""
    if isinstance(value, bytes):
        try:
            return value if b"\0" in value else value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, dict):
        return {key: _decode_bytes(below) for key, below in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_decode_bytes, value))
    return value


class Parquet(Batches):
    """A few rows at a time; as many as the footer promises."""

    name = "parquet"
    endings = (".parquet",)
    packed = 4.0
    _at_once = 16
    """Few: one long text that a small file holds once and repeats in every row is repeated in memory too."""

    def open_table(self, file: BinaryIO, columns: Columns, name: str) -> BinaryTable:
        """A few rows each."""
        import pyarrow.parquet as pq

        # read as it is needed: a column of a row group is held in whole otherwise
        table = pq.ParquetFile(file, buffer_size=CHUNK, pre_buffer=False)
        about, schema = table.metadata, table.schema_arrow
        wanted = columns.among(schema.names, name)

        def batches() -> Iterator[tuple[int, Any]]:
            sizes = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
            for group, size in enumerate(sizes):
                number, chosen = 0, None if columns.mapped is None else wanted
                for batch in table.iter_batches(self._at_once, row_groups=[group], columns=chosen):
                    number += batch.num_rows
                    yield group, batch
                if number != size:
                    raise EOFError
            if about.num_rows != sum(sizes):
                raise EOFError

        def writer(target: BinaryIO, schema: Any) -> Any:
            first = about.row_group(0).column(0) if about.num_row_groups and about.num_columns else None
            used = "snappy" if first is None else first.compression.lower()
            return pq.ParquetWriter(target, schema, compression="none" if used == "uncompressed" else used)

        return BinaryTable(schema, batches(), writer)


class Arrow(Batches):
    """Arrow IPC: streams, as ``datasets`` saves them, and files with a footer.

    A record batch is held whole, as large as its writer made it.  Its offsets point into memory, so they are
    checked before anything is read through them.
    """

    name = "arrow"
    endings = (".arrow",)
    _FILE, _STREAM_IN_FILE = b"ARROW1", 8
    _END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"

    def open_table(self, file: BinaryIO, columns: Columns, name: str) -> BinaryTable:
        """As they were written."""
        import pyarrow as pa

        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - len(self._END_OF_STREAM)))
        ended = file.read() == self._END_OF_STREAM
        file.seek(0)
        promised = None
        if file.read(len(self._FILE)) == self._FILE:
            # its footer names the batches; the stream in it comes next
            promised = int(pa.ipc.open_file(file).num_record_batches)
            file.seek(self._STREAM_IN_FILE)
        else:
            file.seek(0)
        reader = pa.ipc.open_stream(pa.PythonFile(file))
        wanted = columns.among(reader.schema.names, name)

        def batches() -> Iterator[tuple[int, Any]]:
            found = 0
            for batch in reader:
                batch.validate()
                chosen = [i for i, column in enumerate(reader.schema.names) if column in wanted]
                for column in map(batch.column, chosen):
                    # as bytes: one row's text may be no UTF-8, and is then rejected by itself
                    as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(
                        column.type
                    )
                    (column if as_bytes is None else column.view(as_bytes)).validate(full=True)
                yield found, batch.select(chosen)
                found += 1
            # what is cut off between two batches, or goes on with something else, looks finished
            whole = ended and file.tell() == size if promised is None else promised == found
            if not whole:
                raise EOFError

        writer = pa.ipc.new_stream if promised is None else pa.ipc.new_file
        return BinaryTable(reader.schema, batches(), writer)
