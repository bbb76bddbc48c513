"""Bytes to rows: whatever a file holds, its rows come out as documents or rejections, or it is refused."""

from __future__ import annotations

import bz2
import gzip
import io
import re

import atheris
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard

with atheris.instrument_imports(include=["redactory.pipelines.readers", "csv", "gzip", "json"]):
    from redactory.pipelines.readers import Document, InputSettings, Rejection, find_sources, read_documents

from redactory.foundation.errors import InputError
from tests.pipelines.oracles import json_lines, usable
from tests.soak.fuzzing import FOLDER, fuzz

EXECUTIONS, LONGEST, MAX_CHARS = 60_000, 3_000, 500
KINDS = ("jsonl", "csv", "tsv", "text", "parquet", "arrow")
PACKERS = {
    "": bytes,
    ".gz": lambda data: gzip.compress(data, 1, mtime=0),
    ".zst": zstandard.compress,
    ".bz2": bz2.compress,
}
REFUSALS = re.compile(
    r"rows(\.\w+)*( cannot be read: (it is (cut off|damaged).*|\w+)|.* decompress it first"
    r"| is no whole (Parquet|Arrow) file: it cannot be read after row \d+; .*"
    r"| has no column '(text|id)'; .*| has two columns '(text|id|user_id)': .*"
    r"|: its first line is no header \(\w+\)|: its first line is not UTF-8; .*)"
)


def target(data: bytes) -> None:
    """The first three bytes say which format, how it is compressed and which limit; the rest is the file."""
    if len(data) < 3:
        return
    kind, ending = KINDS[data[0] % len(KINDS)], list(PACKERS)[data[1] % len(PACKERS)]
    raw, limit = bool(data[2] & 1), (100, 1_000, 1 << 20)[data[2] // 2 % 3]
    content = data[3:]
    path = FOLDER / f"rows.{kind}{ending}"
    path.write_bytes(content if raw else PACKERS[ending](content))
    settings = InputSettings(
        path=(str(path),), format=kind, max_row_bytes=limit, max_chars=MAX_CHARS, **named(data[2])
    )
    entries = read(settings)
    assert entries == read(settings)
    if entries is None:
        return
    numbers = [entry.row for entry in entries]
    assert numbers == sorted(set(numbers))
    assert all(usable(entry, MAX_CHARS) for entry in entries)
    if kind == "jsonl" and not raw:
        expected = json_lines(content, limit)
        assert len(entries) == len(expected)
        for entry, text in zip(entries, expected, strict=True):
            if text is not None and len(text) <= MAX_CHARS and "id" not in settings.model_fields_set:
                assert isinstance(entry, Document)
                assert entry.text == text
    if kind == "parquet" and not ending:
        assert len(entries) == pq.ParquetFile(io.BytesIO(path.read_bytes())).metadata.num_rows


def named(flags: int) -> dict[str, str]:
    """Columns that the configuration names, and that must then be there."""
    return {"id": "id"} if flags & 0x80 else {}


def read(settings: InputSettings) -> list[Document | Rejection] | None:
    """The entries of the one file; None where it is refused, in words that quote nothing of it."""
    (source,) = find_sources(settings.path, settings.format)
    try:
        return list(read_documents(source, settings))
    except InputError as error:
        said = str(error)
    assert REFUSALS.fullmatch(said)
    return None


def seeds() -> list[bytes]:
    """A small file of each format, in each compression, packed here or as it is."""
    lines = b'{"text": "a line", "id": "1"}\n{"text": 1}\n\xff\n{"text": "\\ud800", "user_id": 2}\n[[{}]]\n'
    table = b'text,id,user_id\n"a ""b""\nc",1,2\nd,2,\n"open,3\n'
    files = {"jsonl": lines, "csv": table, "tsv": table.replace(b",", b"\t"), "text": "é\r\n🙂".encode()}
    for compression in ("none", "snappy", "zstd"):
        out = io.BytesIO()
        rows = pa.table({"text": ["a", "b", None, "a"], "id": [1, 2, 3, 4], "user_id": ["x"] * 4})
        pq.write_table(rows, out, compression=compression, store_schema=False)
        files[f"parquet{compression}"] = out.getvalue()
    for form, writer in (("stream", pa.ipc.new_stream), ("file", pa.ipc.new_file)):
        out = io.BytesIO()
        with writer(out, rows.schema) as written:
            written.write_table(rows, max_chunksize=3)
        files[f"arrow{form}"] = out.getvalue()
    found = []
    for name, content in files.items():
        kind = next(number for number, kind in enumerate(KINDS) if name.startswith(kind))
        for number, pack in enumerate(PACKERS.values()):
            found += [bytes([kind, number, 4]) + content, bytes([kind, number, 5]) + pack(content)]
    return found


if __name__ == "__main__":
    fuzz(target, seeds(), EXECUTIONS, LONGEST)
