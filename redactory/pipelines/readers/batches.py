"""Parquet and Arrow: tables of record batches; columns without a text are handed on untouched."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, BinaryIO

import numpy as np

from redactory.foundation.errors import InputError
from redactory.pipelines.readers.formats import (
    BROKEN_ROW,
    CHUNK,
    EXPANSION,
    ROW_TOO_LONG,
    SMALL,
    UNDECODABLE,
    DamagedFile,
    Edits,
    Format,
    Row,
    Whole,
    check_expansion,
    in_order,
)


class Batches(Format):
    """A table of record batches; of a table that is not copied, only the columns that are mapped are read."""

    schema: Any
    """Of the whole table, once it is open."""

    def batches(self) -> Iterator[tuple[int, Any]]:
        """Open the table, then read its batches, safe to be read, each with the number of its row group.

        ``EOFError`` where the file is not whole.
        """
        raise NotImplementedError

    def writer(self, target: BinaryIO, schema: Any) -> Any:
        """Begin another file of this kind."""
        raise NotImplementedError

    def _open(self, schema: Any) -> list[str]:
        """Note the schema, and choose the columns to read."""
        self.schema, self.header = schema, schema.names
        return self.columns.among(schema.names, self.path)

    def rows(self) -> Iterator[Row | bytes]:
        """A row of a batch is a row; ``DamagedFile`` names the last one before the table breaks off."""
        import pyarrow as pa

        kind, number = type(self).__name__, 0
        if not self.file.seekable():
            raise DamagedFile(f"{self.path} is {kind} inside another compression: decompress it first")
        size, decoded = self.file.seek(0, io.SEEK_END), 0
        most = getattr(self.file, "most", None) or max(SMALL, EXPANSION * size)
        self.file.seek(0)
        named = {*self.fields.columns, *self.fields.paths}
        try:
            for group, batch in self.batches():
                decoded += sum(map(_decoded_size, batch.columns))
                check_expansion(self.path, decoded, most)
                names = [name for name in batch.schema.names if name not in self.hidden or name in named]
                told = batch.select(names)
                for place in range(batch.num_rows):
                    number += 1
                    yield self._of_batch(number, group, batch, told, place)
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
            f"{self.path} is not a complete {kind} file: it cannot be read after row {number}; copy it "
            "again, or set input.format to its real format"
        )

    def _of_batch(self, number: int, group: int, batch: Any, told: Any, place: int) -> Row:
        cells, reason = cells_of(told, place, self.limit)
        if cells is None:
            return Row(number, reason=reason)

        def render(changes: Edits, whole: Whole) -> Any:
            return group, batch, place, self.fields.changed(cells, in_order(changes)), whole

        return self._row(number, cells, render)

    def write(self, target: BinaryIO, pieces: Iterator[Any]) -> None:
        """Rows of one batch together; a row group of the source is one again."""
        import pyarrow as pa

        writer: Any = None
        for _, group in groupby(pieces, lambda piece: piece[0]):
            # a batch is the same object in all of its rows
            batches = [self._joined(list(rows)) for _, rows in groupby(group, lambda piece: id(piece[1]))]
            writer = writer or self.writer(target, batches[0].schema)
            writer.write_table(pa.Table.from_batches(batches))
        if writer is None:
            empty = pa.schema(map(_bare, self.schema), _structural(self.schema, _OF_TYPES))
            writer = self.writer(target, empty)
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


_OF_TYPES = (b"huggingface", b"pandas")
"""Notes in a table's schema that name its columns and their types: untrue once one of them was replaced."""
_STRUCTURAL = re.compile(rb"ARROW:(?:schema|extension:.*)|PARQUET:field_id", re.DOTALL)
"""Notes that say how a column is to be read; any other one ("exported_by") is text that nobody looks at."""


def _structural(noted: Any, more: Sequence[bytes] = ()) -> dict[bytes, bytes]:
    """Of the notes of a schema or a field those that are structural, or named in ``more``."""
    notes = (noted.metadata or {}).items()
    return {key: value for key, value in notes if _STRUCTURAL.fullmatch(key) or key in more}


def _bare(field: Any) -> Any:
    """A field, and those inside of its type, with the structural notes alone, and without dictionaries.

    A dictionary can hold values of no row that is written, and an Arrow file one dictionary for all batches.
    """
    import pyarrow as pa

    type_ = field.type
    if pa.types.is_dictionary(type_):
        type_ = type_.value_type
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
    _about: Any
    """What the footer says."""

    def batches(self) -> Iterator[tuple[int, Any]]:
        """A few rows each."""
        import pyarrow.parquet as pq

        # read as it is needed: a column of a row group is held in whole otherwise
        table = pq.ParquetFile(self.file, buffer_size=CHUNK, pre_buffer=False)
        self._about = about = table.metadata
        wanted = self._open(table.schema_arrow)
        chosen = None if self.columns.mapped is None else wanted
        sizes = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
        for group, size in enumerate(sizes):
            number = 0
            for batch in table.iter_batches(self._at_once, row_groups=[group], columns=chosen):
                number += batch.num_rows
                yield group, batch
            if number != size:
                raise EOFError
        if about.num_rows != sum(sizes):
            raise EOFError

    def writer(self, target: BinaryIO, schema: Any) -> Any:
        """Compressed as the table's first column was."""
        import pyarrow.parquet as pq

        # not before rows were read: of a broken footer this would end the process
        about = self._about
        is_empty = not (about.num_row_groups and about.num_columns)
        used = "snappy" if is_empty else about.row_group(0).column(0).compression.lower()
        return pq.ParquetWriter(target, schema, compression="none" if used == "uncompressed" else used)


class Arrow(Batches):
    """Arrow IPC: streams, as ``datasets`` saves them, and files with a footer.

    A record batch is held whole, as large as its writer made it.  Its offsets point into memory, so they are
    checked before anything is read through them.
    """

    name = "arrow"
    endings = (".arrow",)
    _FILE, _STREAM_IN_FILE = b"ARROW1", 8
    _END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
    _promised: int | None = None
    """Batches that the footer names; a stream has none."""

    def batches(self) -> Iterator[tuple[int, Any]]:
        """As they were written."""
        import pyarrow as pa

        file = self.file
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - len(self._END_OF_STREAM)))
        ended = file.read() == self._END_OF_STREAM
        file.seek(0)
        if file.read(len(self._FILE)) == self._FILE:
            # its footer names the batches; the stream in it comes next
            self._promised = int(pa.ipc.open_file(file).num_record_batches)
            file.seek(self._STREAM_IN_FILE)
        else:
            file.seek(0)
        reader = pa.ipc.open_stream(pa.PythonFile(file))
        wanted, found = self._open(reader.schema), 0
        chosen = [place for place, column in enumerate(reader.schema.names) if column in wanted]
        for batch in reader:
            batch.validate()
            for column in map(batch.column, chosen):
                # as bytes: one row's text may be no UTF-8, and is then rejected by itself
                as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(column.type)
                (column if as_bytes is None else column.view(as_bytes)).validate(full=True)
            yield found, batch.select(chosen)
            found += 1
        # what is cut off between two batches, or goes on with something else, looks finished
        is_whole = ended and file.tell() == size if self._promised is None else self._promised == found
        if not is_whole:
            raise EOFError

    def writer(self, target: BinaryIO, schema: Any) -> Any:
        """A file with a footer, or a stream."""
        import pyarrow as pa

        begin = pa.ipc.new_stream if self._promised is None else pa.ipc.new_file
        return begin(target, schema)
