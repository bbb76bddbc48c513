"""Read and write Parquet and Arrow tables in record batches; columns without text are copied unchanged."""

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
    CHUNK_BYTES,
    MAX_EXPANSION,
    ROW_TOO_LONG,
    SMALL_FILE_BYTES,
    UNDECODABLE,
    ColumnReplacements,
    DamagedFile,
    Edits,
    Format,
    Row,
    check_expansion,
    make_sequential_editor,
)


class RecordBatchFormat(Format):
    """A table of record batches; only the selected columns are read."""

    schema: Any
    """Schema of the whole table, available once it is open."""

    def read_batches(self) -> Iterator[tuple[int, Any]]:
        """Open the table and read its validated batches, each with its row group; ``EOFError`` if it is incomplete."""
        raise NotImplementedError

    def open_writer(self, target: BinaryIO, schema: Any) -> Any:
        """Open a writer for a file of the same format."""
        raise NotImplementedError

    def _select_columns(self, schema: Any) -> list[str]:
        """Store the schema, and choose the columns to read."""
        self.schema, self.header = schema, schema.names
        return self.columns.select_columns(schema.names, self.path)

    def read_rows(self) -> Iterator[Row | bytes]:
        """Read the rows of all batches; ``DamagedFile`` names the last row before the damage."""
        import pyarrow as pa

        kind, number = type(self).__name__, 0
        if not self.file.seekable():
            raise DamagedFile(f"{self.path} is {kind} inside another compression: decompress it first")
        size, decoded = self.file.seek(0, io.SEEK_END), 0
        limit = getattr(self.file, "most", None) or max(SMALL_FILE_BYTES, MAX_EXPANSION * size)
        self.file.seek(0)
        named = {*self.fields.columns, *self.fields.paths}
        try:
            for group, batch in self.read_batches():
                decoded += sum(map(_measure_decoded_size, batch.columns))
                check_expansion(self.path, decoded, limit)
                names = [name for name in batch.schema.names if name not in self.hidden or name in named]
                visible = batch.select(names)
                for index in range(batch.num_rows):
                    number += 1
                    yield self._build_batch_row(number, group, batch, visible, index)
            return
        except InputError:
            raise
        except OSError as error:
            if error.errno is not None:
                # from the disk or network, not from Arrow
                raise
        except (pa.ArrowException, ValueError, MemoryError, OverflowError, EOFError):
            pass
        raise DamagedFile(
            f"{self.path} is not a complete {kind} file: it cannot be read after row {number}; copy it "
            "again, or set input.format to its real format"
        )

    def _build_batch_row(self, number: int, group: int, batch: Any, visible: Any, index: int) -> Row:
        columns = visible.slice(index, 1).columns
        if visible.nbytes > self.limit and sum(map(_measure_decoded_size, columns)) > self.limit:
            return Row(number, reason=ROW_TOO_LONG)
        cells = {}
        try:
            for name, column in zip(visible.schema.names, columns, strict=True):
                value = column[0].as_py()
                cells[name] = _decode_bytes(value) if "binary" in str(column.type) else value
        except UnicodeDecodeError:
            return Row(number, reason=UNDECODABLE)
        except (ValueError, ArithmeticError, LookupError):
            # for example a date after the year 9999, or an unknown time zone
            return Row(number, reason=BROKEN_ROW)

        def render_row(changes: Edits, replacements: ColumnReplacements) -> Any:
            return group, batch, index, self.fields.change_texts(cells, make_sequential_editor(changes)), replacements

        return self._build_row(number, cells, render_row)

    def write(self, target: BinaryIO, rendered_rows: Iterator[Any]) -> None:
        """Write the rows by batch; each row group of the source becomes a row group again."""
        import pyarrow as pa

        writer: Any = None
        for _, group in groupby(rendered_rows, lambda piece: piece[0]):
            # all rows of a batch refer to the same object
            batches = [self._assemble_batch(list(rows)) for _, rows in groupby(group, lambda piece: id(piece[1]))]
            writer = writer or self.open_writer(target, batches[0].schema)
            writer.write_table(pa.Table.from_batches(batches))
        if writer is None:
            empty = pa.schema(
                map(_strip_metadata_and_dictionaries, self.schema),
                _select_structural_metadata(self.schema, _TYPE_METADATA_KEYS),
            )
            writer = self.open_writer(target, empty)
        writer.close()

    def _assemble_batch(self, rows: list[Any]) -> Any:
        """Assemble the rows of one batch, with text columns and replaced columns rewritten."""
        import pyarrow as pa

        batch, whole = rows[0][1], rows[0][4]
        indices = pa.array([row[2] for row in rows])
        text_columns = {*self.fields.columns, *self.fields.paths}
        columns, fields_ = [], []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            schema = _strip_metadata_and_dictionaries(batch.schema.field(name))
            if name in whole:
                if whole[name] is None:
                    continue
                values = [None if row[3].get(name) is None else row[4][name] for row in rows]
                schema = schema.with_type(pa.string())
                columns.append(pa.array(values, pa.string()))
            elif name in text_columns:
                if pa.types.is_fixed_size_binary(schema.type):
                    # a mask has another length
                    schema = schema.with_type(pa.binary())
                columns.append(pa.array([row[3][name] for row in rows], schema.type))
            else:
                columns.append(column.take(indices).cast(schema.type))
            fields_.append(schema)
        return pa.RecordBatch.from_arrays(
            columns,
            schema=pa.schema(fields_, _select_structural_metadata(batch.schema, () if whole else _TYPE_METADATA_KEYS)),
        )


_TYPE_METADATA_KEYS = (b"huggingface", b"pandas")
"""Schema metadata with column names and types: wrong once a column is replaced."""
_STRUCTURAL_KEY = re.compile(rb"ARROW:(?:schema|extension:.*)|PARQUET:field_id", re.DOTALL)
"""Metadata needed to read a column; any other ("exported_by") is text that nobody checks."""


def _select_structural_metadata(owner: Any, extra_keys: Sequence[bytes] = ()) -> dict[bytes, bytes]:
    """Select the structural metadata of a schema or field, and the keys in ``extra_keys``."""
    metadata = (owner.metadata or {}).items()
    return {key: value for key, value in metadata if _STRUCTURAL_KEY.fullmatch(key) or key in extra_keys}


def _strip_metadata_and_dictionaries(field: Any) -> Any:
    """Reduce a field and its nested fields to structural metadata, and replace dictionaries by plain values.

    A dictionary can hold values of rows that are not written, and an Arrow file has one dictionary for all batches.
    """
    import pyarrow as pa

    type_ = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    inner = [_strip_metadata_and_dictionaries(type_.field(index)) for index in range(type_.num_fields)]
    if pa.types.is_struct(type_):
        type_ = pa.struct(inner)
    elif pa.types.is_map(type_):
        type_ = pa.map_(*inner[0].type, keys_sorted=type_.keys_sorted)
    elif pa.types.is_list(type_) or pa.types.is_fixed_size_list(type_):
        type_ = pa.list_(inner[0], getattr(type_, "list_size", -1))
    elif pa.types.is_large_list(type_):
        type_ = pa.large_list(inner[0])
    return pa.field(field.name, type_, field.nullable, _select_structural_metadata(field) or None)


def _measure_decoded_size(column: Any) -> int:
    """Estimate the bytes of a column's values once decoded; many values may share the same stored bytes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types, kind = pa.types, column.type
    if types.is_dictionary(kind):
        lengths = _measure_value_lengths(column.dictionary)
        return pc.sum(lengths.take(column.indices)).as_py() or 0
    if types.is_run_end_encoded(kind):
        return int(np.diff(np.asarray(column.run_ends), prepend=0) @ np.asarray(_measure_value_lengths(column.values)))
    if types.is_struct(kind):
        return sum(map(_measure_decoded_size, column.flatten()))
    if types.is_map(kind):
        return _measure_decoded_size(column.keys) + _measure_decoded_size(column.items)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return 8 * len(column) + _measure_decoded_size(column.flatten())
    return 8 * len(column) + (pc.sum(_measure_value_lengths(column)).as_py() or 0)


def _measure_value_lengths(column: Any) -> Any:
    """Return the length in bytes of each text or bytes value; 0 for null and other types."""
    import pyarrow as pa
    import pyarrow.compute as pc

    types, kind = pa.types, column.type
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # a view begins with its length; many views may share bytes
        views = np.frombuffer(column.buffers()[1], np.int32)[::4]
        lengths = pa.array(views[column.offset : column.offset + len(column)])
    else:
        try:
            lengths = pc.binary_length(column)
        except pa.ArrowNotImplementedError:
            return pa.array(np.zeros(len(column), np.int64))
    return pc.fill_null(lengths.cast(pa.int64()), 0)


def _decode_bytes(value: Any) -> Any:
    """Decode UTF-8 bytes within a value: Hive, Impala and old Spark store text as bytes."""
    if isinstance(value, bytes):
        try:
            return value if b"\0" in value else value.decode()
        except UnicodeDecodeError:
            return value
    if isinstance(value, dict):
        return {key: _decode_bytes(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_decode_bytes, value))
    return value


class Parquet(RecordBatchFormat):
    """A Parquet file, read a few rows at a time; it must hold as many rows as its footer declares."""

    name = "parquet"
    endings = (".parquet",)
    expansion_factor = 4.0
    _batch_rows = 16
    """Few, because a long text that the file stores once may be repeated in memory for every row."""
    _metadata: Any
    """The file's footer."""

    def read_batches(self) -> Iterator[tuple[int, Any]]:
        """Read batches of a few rows."""
        import pyarrow.parquet as pq

        # read on demand: otherwise whole column chunks are held in memory
        table = pq.ParquetFile(self.file, buffer_size=CHUNK_BYTES, pre_buffer=False)
        self._metadata = metadata = table.metadata
        wanted = self._select_columns(table.schema_arrow)
        selected = None if self.columns.selected is None else wanted
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        for group, size in enumerate(sizes):
            read_rows = 0
            for batch in table.iter_batches(self._batch_rows, row_groups=[group], columns=selected):
                read_rows += batch.num_rows
                yield group, batch
            if read_rows != size:
                raise EOFError
        if metadata.num_rows != sum(sizes):
            raise EOFError

    def open_writer(self, target: BinaryIO, schema: Any) -> Any:
        """Open a writer with the compression of the source's first column."""
        import pyarrow.parquet as pq

        # only after reading rows: with a broken footer, this would crash the process
        metadata = self._metadata
        is_empty = not (metadata.num_row_groups and metadata.num_columns)
        codec = "snappy" if is_empty else metadata.row_group(0).column(0).compression.lower()
        return pq.ParquetWriter(target, schema, compression="none" if codec == "uncompressed" else codec)


class Arrow(RecordBatchFormat):
    """Arrow IPC: streams (as ``datasets`` saves them) and files with a footer.

    Each record batch is held in memory as a whole. Its offsets point into memory, so they are validated before use.
    """

    name = "arrow"
    endings = (".arrow",)
    _FILE_MAGIC, _STREAM_OFFSET = b"ARROW1", 8
    _END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
    _footer_batches: int | None = None
    """Number of batches in the footer; None for a stream."""

    def read_batches(self) -> Iterator[tuple[int, Any]]:
        """Read the batches as they were written."""
        import pyarrow as pa

        file = self.file
        size = file.seek(0, io.SEEK_END)
        file.seek(max(0, size - len(self._END_OF_STREAM)))
        ended = file.read() == self._END_OF_STREAM
        file.seek(0)
        has_footer = file.read(len(self._FILE_MAGIC)) == self._FILE_MAGIC
        if has_footer:
            self._footer_batches = int(pa.ipc.open_file(file).num_record_batches)
        # in a file with a footer, the stream follows the magic bytes
        file.seek(self._STREAM_OFFSET if has_footer else 0)
        reader = pa.ipc.open_stream(pa.PythonFile(file))
        wanted, count = self._select_columns(reader.schema), 0
        selected = [index for index, column in enumerate(reader.schema.names) if column in wanted]
        for batch in reader:
            batch.validate()
            for column in map(batch.column, selected):
                # validate text as bytes: a row whose text is not UTF-8 is rejected individually
                as_bytes = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(column.type)
                (column if as_bytes is None else column.view(as_bytes)).validate(full=True)
            yield count, batch.select(selected)
            count += 1
        # a file truncated between two batches, or followed by other data, looks complete
        is_whole = ended and file.tell() == size if self._footer_batches is None else self._footer_batches == count
        if not is_whole:
            raise EOFError

    def open_writer(self, target: BinaryIO, schema: Any) -> Any:
        """Open a writer for a file with a footer, or for a stream, like the source."""
        import pyarrow as pa

        begin = pa.ipc.new_stream if self._footer_batches is None else pa.ipc.new_file
        return begin(target, schema)
