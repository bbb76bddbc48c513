"""Formats: what a file of each kind holds, record by record.

A format is one class: it is registered under its name, and known by its endings, wherever files are read.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

from redactory.foundation.canonical import RepeatedKey, once_each
from redactory.foundation.errors import InputError

Record = tuple[int, dict[str, Any] | None, str | None, bytes]
"""(row number from 1, the record or None, a reason code or None, the raw bytes for the quarantine)"""

UNDECODABLE, BROKEN_JSON, NOT_AN_OBJECT = "undecodable", "broken_json", "not_an_object"
REPEATED_KEY = "repeated_key"
ROW_TOO_LONG, BROKEN_ROW = "row_too_long", "broken_row"
KEPT_BYTES = 1 << 16
DEEPEST = 100
"""Levels of a JSON line.  Python's own limit depends on its version and on who calls; no document may."""
CHUNK = 1 << 20


class DamagedFile(InputError):
    """A file that is cut off, damaged, or not what its format says: other files can still be read.

    An ``InputError`` of another kind (a disk, a network) says nothing about the file itself.
    """


@dataclass(frozen=True)
class Columns:
    """Columns of a table: those that it must have, and those that are read where it has them.

    ``mapped`` None reads all of them.
    """

    needed: tuple[str, ...] = ()
    mapped: tuple[str, ...] | None = None

    def among(self, names: Sequence[str], file: str) -> list[str]:
        """Those of ``names`` to read; ``DamagedFile`` where a needed one is missing, or one is there twice."""
        for column in self.needed:
            if column not in names:
                raise DamagedFile(
                    f"{file} has no column '{column}'; say under input which column holds what (text, id, "
                    "user, label, keep). In CSV the first line names the columns, with commas between them"
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
    """One JSON object a line; a line over the limit is passed over without being held."""

    name = "jsonl"
    endings = (".jsonl", ".ndjson", ".json")
    grows = True

    def records(self, file: BinaryIO, limit: int, columns: Columns, name: str) -> Iterator[Record]:
        """One a line that is not blank."""
        number = 0
        while line := file.readline(limit + 1):
            number += 1
            kept = line[:KEPT_BYTES]
            if len(line) > limit:
                while line and not line.endswith(b"\n"):
                    line = file.readline(CHUNK)
                yield number, None, ROW_TOO_LONG, kept
            elif line.strip():
                value, reason = parsed_object(line, "utf-8-sig" if number == 1 else "utf-8")
                yield number, value, reason, kept

    def rows_in(self, file: BinaryIO, start: int, header: int, limit: int) -> Rows:
        """A last row is whole once it is an object, line end or not."""
        whole, at, end, blank, tail = 0, start, start, True, b""
        while block := file.read(CHUNK):
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


class Batches(Format):
    """A binary table of record batches; only the columns that are mapped are read."""

    def batches(self, file: BinaryIO, columns: Columns, name: str) -> Iterator[Any]:
        """Its record batches, safe to be read; ``EOFError`` where the file is not whole."""
        raise NotImplementedError

    def records(self, file: BinaryIO, limit: int, columns: Columns, name: str) -> Iterator[Record]:
        """One a row; ``DamagedFile`` names the file, and the last row before the place where it breaks off."""
        import pyarrow as pa

        kind, number = type(self).__name__, 0
        if not file.seekable():
            raise DamagedFile(f"{name} is {kind} inside of another compression: decompress it first")
        try:
            for batch in self.batches(file, columns, name):
                for row in range(batch.num_rows):
                    number += 1
                    yield _cells(number, batch, row)
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


def _cells(number: int, batch: Any, row: int) -> Record:
    """The record of a row, or why it cannot be read."""
    try:
        cells = (batch.column(i)[row].as_py() for i in range(batch.num_columns))
        return number, dict(zip(batch.schema.names, cells, strict=True)), None, b""
    except UnicodeDecodeError:
        return number, None, UNDECODABLE, b""
    except (ValueError, ArithmeticError, LookupError):
        # a date after the year 9999, a time zone that nobody knows
        return number, None, BROKEN_ROW, b""


class Parquet(Batches):
    """A few rows at a time; as many as the footer promises."""

    name = "parquet"
    endings = (".parquet",)
    packed = 4.0
    _at_once = 16
    """Few: one long text that a small file holds once and repeats in every row is repeated in memory too."""

    def batches(self, file: BinaryIO, columns: Columns, name: str) -> Iterator[Any]:
        """A few rows each."""
        import pyarrow.parquet as pq

        # read as it is needed: a column of a row group is held in whole otherwise
        table = pq.ParquetFile(file, buffer_size=CHUNK, pre_buffer=False)
        wanted = columns.among(table.schema_arrow.names, name)
        number = 0
        for batch in table.iter_batches(self._at_once, columns=None if columns.mapped is None else wanted):
            number += batch.num_rows
            yield batch
        if number != table.metadata.num_rows:
            raise EOFError


class Arrow(Batches):
    """Arrow IPC: streams, as ``datasets`` saves them, and files with a footer.

    A record batch is held whole, as large as its writer made it.  Its offsets point into memory, so they are
    checked before anything is read through them.
    """

    name = "arrow"
    endings = (".arrow",)
    _FILE, _STREAM_IN_FILE = b"ARROW1", 8
    _END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"

    def batches(self, file: BinaryIO, columns: Columns, name: str) -> Iterator[Any]:
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
        wanted, found = columns.among(reader.schema.names, name), 0
        for batch in reader:
            found += 1
            batch.validate()
            chosen = [i for i, column in enumerate(reader.schema.names) if column in wanted]
            for column in map(batch.column, chosen):
                # as bytes: one row's text may be no UTF-8, and is then rejected by itself
                as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(column.type)
                (column if as_bytes is None else column.view(as_bytes)).validate(full=True)
            yield batch.select(chosen)
        # what is cut off between two batches, or goes on with something else, looks finished
        whole = ended and file.tell() == size if promised is None else promised == found
        if not whole:
            raise EOFError
