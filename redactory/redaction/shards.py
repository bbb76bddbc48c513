"""Parquet parts: one way to write them, the same bytes for the same table, and to read them in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from redactory.foundation.files import PRIVATE_FILE, commit

ROW_GROUP_ROWS = 16_384

PUBLIC = pa.schema([("point_id", pa.string()), ("text", pa.string())])
PRIVATE = pa.schema(
    [
        ("point_id", pa.string()),
        ("user", pa.string()),
        ("text", pa.string()),
        ("reasons", pa.list_(pa.string())),
    ]
)
VAULT = pa.schema(
    [
        ("point_id", pa.int64()),
        ("doc_id", pa.string()),
        ("user_id", pa.string()),
        ("speaker", pa.string()),
        ("prefix", pa.string()),
        ("text", pa.string()),
        ("suffix", pa.string()),
    ]
)
POINTS = pa.schema(
    [
        ("point_id", pa.int64()),
        ("released_id", pa.string()),
        ("document", pa.string()),
        ("user", pa.string()),
        ("side", pa.string()),
        ("fate", pa.string()),
        ("dup_of", pa.int64()),
        ("reasons", pa.list_(pa.string())),
    ]
)
FOUND = pa.schema(
    [
        ("point_id", pa.int64()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("label", pa.string()),
        ("score", pa.float32()),
        ("detector", pa.string()),
        ("policy", pa.string()),
    ]
)
SPANS = pa.schema([*FOUND, pa.field("value_digest", pa.binary(16)), pa.field("tokens", pa.int32())])
QUARANTINE = pa.schema(
    [
        ("kind", pa.string()),
        ("reason", pa.string()),
        ("source", pa.string()),
        ("row", pa.int64()),
        ("point_id", pa.int64()),
        ("content", pa.binary()),
    ]
)

_SAFE_STATISTICS = ["point_id", "start", "end", "score", "row"]


def write_part(path: Path, table: pa.Table, mode: int = PRIVATE_FILE) -> None:
    """Commit ``table`` as one Parquet file: zstd, fixed row groups, no page index.

    Column statistics would quote the smallest and the largest text; they are written for numeric
    columns only.  The bytes do not depend on how ``table`` is cut into chunks.
    """
    table = table.combine_chunks()
    safe = [
        n
        for n in table.column_names
        if n in _SAFE_STATISTICS and not pa.types.is_string(table.schema.field(n).type)
    ]
    with commit(path, mode) as temporary:
        pq.write_table(
            table,
            temporary,
            compression="zstd",
            row_group_size=ROW_GROUP_ROWS,
            write_statistics=safe or False,
            store_schema=True,
        )


def parts(folder: Path) -> list[Path]:
    """The parts of a data folder in partition order."""
    return sorted(folder.glob("part-*.parquet"))


def read_batches(folder: Path, columns: list[str] | None = None) -> Iterator[pa.RecordBatch]:
    """The rows of a data folder in order, a row group at a time."""
    for path in parts(folder):
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=ROW_GROUP_ROWS, columns=columns)


def read_column(folder: Path, column: str) -> list[str]:
    """One text column of a data folder, whole, in order."""
    return [value for batch in read_batches(folder, [column]) for value in batch.column(0).to_pylist()]
