"""One generator a format: a file's records, or why a record cannot be read, with its row number."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from redactory.foundation.errors import InputError

Record = tuple[int, dict[str, Any] | None, str | None, bytes]
"""(row number from 1, the record or None, a reason code or None, the raw bytes for the quarantine)"""

UNDECODABLE, BROKEN_JSON, NOT_AN_OBJECT = "undecodable", "broken_json", "not_an_object"
ROW_TOO_LONG, BROKEN_ROW = "row_too_long", "broken_row"
KEPT_BYTES = 1 << 16
_BATCH_ROWS = 512


def jsonl(file: BinaryIO, limit: int, columns: list[str], name: str) -> Iterator[Record]:
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
            good = isinstance(value, dict)
            yield number, value if good else None, None if good else NOT_AN_OBJECT, line[:KEPT_BYTES]


def delimited(separator: str) -> Callable[[BinaryIO, int, list[str], str], Iterator[Record]]:
    """CSV or TSV with a header line; quoted fields may hold line ends."""

    def read(file: BinaryIO, limit: int, columns: list[str], name: str) -> Iterator[Record]:
        csv.field_size_limit(limit)
        # bytes that are no UTF-8 become lone surrogates, which the row's check then finds
        text = io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline="")
        rows = csv.reader(text, delimiter=separator, strict=False)
        header = next(rows, None)
        if header is None:
            return
        missing = [column for column in columns if column not in header]
        if missing:
            raise InputError(f"{name} has no column '{missing[0]}'; map the columns under input")
        number = 1
        while True:
            number += 1
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error:
                yield number, None, ROW_TOO_LONG, b""
                continue
            if not cells:
                continue
            raw = separator.join(cells).encode("utf-8", "surrogateescape")[:KEPT_BYTES]
            if len(cells) != len(header):
                yield number, None, BROKEN_ROW, raw
            elif any("\udc80" <= letter <= "\udcff" for cell in cells for letter in cell):
                yield number, None, UNDECODABLE, raw
            else:
                yield number, dict(zip(header, cells, strict=True)), None, raw

    return read


def parquet(file: BinaryIO, limit: int, columns: list[str], name: str) -> Iterator[Record]:
    """Parquet, a few rows at a time, only the columns that are mapped."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(file)
        missing = [column for column in columns if column not in table.schema_arrow.names]
        if missing:
            raise InputError(f"{name} has no column '{missing[0]}'; map the columns under input")
        number = 0
        for batch in table.iter_batches(batch_size=_BATCH_ROWS):
            for row in range(batch.num_rows):
                number += 1
                try:
                    yield number, {n: batch.column(n)[row].as_py() for n in batch.schema.names}, None, b""
                except UnicodeDecodeError:
                    yield number, None, UNDECODABLE, b""
    except pa.ArrowException:
        raise InputError(f"{name} is no readable Parquet file") from None


def text(file: BinaryIO, limit: int, columns: list[str], name: str) -> Iterator[Record]:
    """A text file is one record."""
    data = file.read(limit + 1)
    if len(data) > limit:
        yield 1, None, ROW_TOO_LONG, data[:KEPT_BYTES]
        return
    try:
        yield 1, {"text": data.decode("utf-8-sig"), "id": name}, None, data[:KEPT_BYTES]
    except UnicodeDecodeError:
        yield 1, None, UNDECODABLE, data[:KEPT_BYTES]


READERS: dict[str, Callable[[BinaryIO, int, list[str], str], Iterator[Record]]] = {
    "jsonl": jsonl,
    "csv": delimited(","),
    "tsv": delimited("\t"),
    "parquet": parquet,
    "text": text,
}


def _skip_to_newline(file: BinaryIO, line: bytes) -> None:
    while line and not line.endswith(b"\n"):
        line = file.readline(1 << 20)
