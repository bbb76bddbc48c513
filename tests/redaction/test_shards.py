"""Parts: the same bytes for the same table, in pieces or whole, and no text outside the data pages."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from redactory.redaction import format_part_name, list_parts, read_batches, read_column, shards, write_part
from redactory.redaction.shards import PUBLIC, ROW_GROUP_ROWS

SCHEMAS = ("PUBLIC", "PRIVATE", "VAULT", "EXAMPLES", "SPANS", "QUARANTINE")
ROWS = 300


def value(kind: pa.DataType, row: int) -> Any:
    if pa.types.is_list(kind):
        return [value(kind.value_type, row)]
    if pa.types.is_string(kind):
        return f"xyzzy-secret-{row:03d}"
    if pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return f"xyzzy-{row:010d}".encode()
    return row if pa.types.is_integer(kind) else row / ROWS


def table_of(schema: pa.Schema, rows: int = ROWS) -> pa.Table:
    return pa.table({f.name: [value(f.type, row) for row in range(rows)] for f in schema}, schema=schema)


def quotes(path: Path) -> list[str]:
    """Where, outside the data, a Parquet file may quote values: footer, statistics, page index."""
    data, metadata = path.read_bytes(), pq.read_metadata(path)
    footer = data[-8 - struct.unpack("<I", data[-8:-4])[0] : -8]
    found = ["footer"] if b"xyzzy" in footer else []
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    for column in (group.column(number) for group in groups for number in range(metadata.num_columns)):
        if column.is_stats_set and column.physical_type in ("BYTE_ARRAY", "FIXED_LEN_BYTE_ARRAY"):
            found.append(f"statistics of {column.path_in_schema}")
        if column.has_column_index or column.has_offset_index:
            found.append(f"index of {column.path_in_schema}")
    return found


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_text_stands_outside_the_data_and_the_bytes_are_the_tables(tmp_path: Path, name: str) -> None:
    table = table_of(getattr(shards, name))
    for place in ("one", "other"):
        write_part(tmp_path / place, table)
    assert quotes(tmp_path / "one") == []
    assert pq.read_table(tmp_path / "one").equals(table)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert (tmp_path / "one").stat().st_mode & 0o777 == 0o600
    pq.write_table(table, tmp_path / "careless", write_page_index=True)
    assert "footer" in quotes(tmp_path / "careless"), "the check itself finds what a careless writer leaves"
    if name == "VAULT":
        numbers = pq.read_metadata(tmp_path / "one").row_group(0).column(0).statistics
        assert (numbers.min, numbers.max) == (0, ROWS - 1)


def test_the_bytes_do_not_depend_on_chunks(tmp_path: Path) -> None:
    chance = random.Random(5)
    texts = ["".join(chance.choices("abcdefgh ", k=chance.randrange(5, 120))) for _ in range(40_000)]
    table = pa.table({"example_id": [str(n) for n in range(40_000)], "text": texts}, schema=PUBLIC)
    write_part(tmp_path / "whole", table)
    for size in (1000, 12_345, ROW_GROUP_ROWS):
        pieces = [table.slice(start, size) for start in range(0, 40_000, size)]
        write_part(tmp_path / str(size), pa.concat_tables(pieces))
        assert (tmp_path / str(size)).read_bytes() == (tmp_path / "whole").read_bytes()
    assert pq.read_metadata(tmp_path / "whole").num_row_groups == 3


def test_a_folder_is_read_in_the_order_of_its_partitions(tmp_path: Path) -> None:
    table = table_of(PUBLIC, 2 * ROW_GROUP_ROWS + 5)
    start = 0
    for partition, size in {0: ROW_GROUP_ROWS + 2, 2: 0, 9: ROW_GROUP_ROWS, 11: 3}.items():
        write_part(tmp_path / format_part_name(partition), table.slice(start, size))
        start += size
    (tmp_path / ".tmp-1-part-00003.parquet").write_bytes(b"what a crash left")
    assert [p.name for p in list_parts(tmp_path)] == [format_part_name(n) for n in (0, 2, 9, 11)]
    assert read_column(tmp_path, "text") == table["text"].to_pylist()
    batches = list(read_batches(tmp_path, ["example_id"]))
    assert max(batch.num_rows for batch in batches) <= ROW_GROUP_ROWS
    assert all(batch.schema.names == ["example_id"] for batch in batches)
    assert list(read_batches(tmp_path / "absent")) == []
