"""One generator a format: a file's records, or why a record cannot be read, with its row number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from redactory.foundation.errors import InputError
from redactory.pipelines.readers.arrow import arrow
from redactory.pipelines.readers.records import (
    BROKEN_JSON,
    BROKEN_ROW,
    KEPT_BYTES,
    NOT_AN_OBJECT,
    ROW_TOO_LONG,
    UNDECODABLE,
    Columns,
    Record,
)
from redactory.pipelines.readers.tables import delimited

DEEPEST = 100
"""Levels of a JSON line.  Python's own limit depends on its version and on who calls; no document may."""
_BATCH_ROWS = 16
"""Few: one long text that a small file holds once and repeats in every row is repeated in memory too."""
_BUFFER_BYTES = 1 << 20


def jsonl(file: BinaryIO, limit: int, columns: Columns, name: str) -> Iterator[Record]:
    """JSON lines; a line over ``limit`` bytes is passed over without being held."""
    number = 0
    while line := file.readline(limit + 1):
        number += 1
        if len(line) > limit:
            _skip_to_newline(file, line)
            yield number, None, ROW_TOO_LONG, line[:KEPT_BYTES]
            continue
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError:
            yield number, None, UNDECODABLE, line[:KEPT_BYTES]
        except (ValueError, RecursionError):
            yield number, None, BROKEN_JSON, line[:KEPT_BYTES]
        else:
            if line.count(b"[") + line.count(b"{") > DEEPEST and _is_too_deep(value):
                yield number, None, BROKEN_JSON, line[:KEPT_BYTES]
                continue
            good = isinstance(value, dict)
            yield number, value if good else None, None if good else NOT_AN_OBJECT, line[:KEPT_BYTES]


def _is_too_deep(value: Any) -> bool:
    level = [value] if isinstance(value, dict | list) else []
    for _ in range(DEEPEST):
        inner = (part for whole in level for part in (whole.values() if isinstance(whole, dict) else whole))
        level = [part for part in inner if isinstance(part, dict | list)]
    return bool(level)


def parquet(file: BinaryIO, limit: int, columns: Columns, name: str) -> Iterator[Record]:
    """Parquet, a few rows at a time, only the columns that are mapped; as many as its footer promises."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not file.seekable():
        raise InputError(f"{name} is a Parquet file inside of another compression: decompress it first")
    try:
        # read as it is needed: a column of a row group is held in whole otherwise
        table = pq.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        wanted = columns.among(table.schema_arrow.names, name)
        chosen = None if columns.mapped is None else wanted
        number = 0
        for batch in table.iter_batches(batch_size=_BATCH_ROWS, columns=chosen):
            for row in range(batch.num_rows):
                number += 1
                yield _parquet_row(batch, row, number)
        whole = number == table.metadata.num_rows
    except (pa.ArrowException, UnicodeDecodeError):
        whole = False
    if not whole:
        raise InputError(f"{name} is no whole Parquet file; copy it anew, or set input.format to what it is")


def _parquet_row(batch: Any, row: int, number: int) -> Record:
    try:
        cells = (batch.column(i)[row].as_py() for i in range(batch.num_columns))
        return number, dict(zip(batch.schema.names, cells, strict=True)), None, b""
    except UnicodeDecodeError:
        return number, None, UNDECODABLE, b""
    except (ValueError, ArithmeticError):
        # a date after the year 9999, say
        return number, None, BROKEN_ROW, b""


def text(file: BinaryIO, limit: int, columns: Columns, name: str) -> Iterator[Record]:
    """A text file is one record."""
    data = file.read(limit + 1)
    if len(data) > limit:
        yield 1, None, ROW_TOO_LONG, data[:KEPT_BYTES]
        return
    try:
        yield 1, {"text": data.decode("utf-8-sig"), "id": name}, None, data[:KEPT_BYTES]
    except UnicodeDecodeError:
        yield 1, None, UNDECODABLE, data[:KEPT_BYTES]


READERS: dict[str, Callable[[BinaryIO, int, Columns, str], Iterator[Record]]] = {
    "jsonl": jsonl,
    "csv": delimited(","),
    "tsv": delimited("\t"),
    "parquet": parquet,
    "arrow": arrow,
    "text": text,
}


def _skip_to_newline(file: BinaryIO, line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = file.readline(1 << 20)
