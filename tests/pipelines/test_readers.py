"""Readers: every row is a document or a rejection with a reason, in every format."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.pipelines.config import InputSettings
from redactory.pipelines.readers import Document, Rejection, find_sources, read_documents

ROWS = [
    {"id": "a", "user_id": "u1", "text": 'Hello, "world"\nsecond line'},
    {"id": "b", "user_id": None, "text": "ümlaut 🙂 \u2028 end"},
]


def _read(path: Path, **changes: object) -> list[Document | Rejection]:
    config = InputSettings.model_validate({"path": str(path), **changes})
    sources = find_sources(config.path, config.format)
    return [entry for source in sources for entry in read_documents(source, config)]


def _write(folder: Path, kind: str) -> Path:
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
    path = folder / f"corpus.{kind}"
    if kind == "jsonl":
        path.write_bytes(lines)
    elif kind == "jsonl.gz":
        path.write_bytes(gzip.compress(lines))
    elif kind == "jsonl.zst":
        path.write_bytes(zstandard.compress(lines))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        separator = "," if kind == "csv" else "\t"
        cells = [["id", "user_id", "text"]] + [[r["id"], r["user_id"] or "", r["text"]] for r in ROWS]
        quoted = [separator.join('"' + str(c).replace('"', '""') + '"' for c in row) for row in cells]
        path.write_bytes(("\r\n".join(quoted) + "\r\n").encode())
    return path


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "parquet", "csv", "tsv"])
def test_formats_agree(tmp_path: Path, kind: str) -> None:
    entries = _read(_write(tmp_path, kind))
    assert [(e.doc_id, e.user_id, e.text) for e in entries if isinstance(e, Document)] == [
        (r["id"], r["user_id"], r["text"]) for r in ROWS
    ]
    assert not [e for e in entries if isinstance(e, Rejection)]


def test_a_folder_of_text_files_and_a_glob(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.txt").write_text("first", encoding="utf-8")
    (tmp_path / "deep" / "b.txt.gz").write_bytes(gzip.compress(b"second"))
    (tmp_path / ".hidden.txt").write_text("never", encoding="utf-8")
    (tmp_path / "notes.bin").write_bytes(b"\x00")
    texts = [e.text for e in _read(tmp_path) if isinstance(e, Document)]
    assert texts == ["first", "second"]
    assert [e.text for e in _read(tmp_path / "*.txt") if isinstance(e, Document)] == ["first"]


BAD = {
    "undecodable": b'{"text": "\xff"}',
    "broken_json": b'{"text": "a"',
    "not_an_object": b'["a"]',
    "missing_text": b'{"id": "x"}',
    "text_not_string": b'{"text": 3}',
    "lone_surrogate": b'{"text": "a \\ud800 b"}',
    "nul": b'{"text": "a \\u0000 b"}',
    "empty_text": b'{"text": "  \\n"}',
    "too_long": b'{"text": "' + b"x" * 60 + b'"}',
    "row_too_long": b'{"text": "' + b"x" * 600 + b'"}',
    "id_not_string": b'{"text": "a", "id": [1]}',
    "user_not_string": b'{"text": "a", "user_id": {"a": 1}}',
}


def test_each_kind_of_bad_row_has_its_reason_and_reading_goes_on(tmp_path: Path) -> None:
    good = b'{"text": "fine"}'
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b"\n".join(line for bad in BAD.values() for line in (bad, good)) + b"\n")
    entries = _read(path, max_chars=50, max_row_bytes=500)
    rejections = [e for e in entries if isinstance(e, Rejection)]
    assert [r.reason for r in rejections] == list(BAD)
    assert [r.row for r in rejections] == list(range(1, 2 * len(BAD), 2))
    assert len(entries) == 2 * len(BAD)


def test_deep_nesting_is_a_broken_row(tmp_path: Path) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_bytes(b'{"text":' + b"[" * 200_000 + b"\n" + b'{"text": "fine"}\n')
    assert [type(e) for e in _read(path)] == [Rejection, Document]


def test_a_named_id_column_must_be_filled(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "a", "key": "1"}\n{"text": "b"}\n')
    entries = _read(path, id="key")
    assert [getattr(e, "reason", None) for e in entries] == [None, "missing_id"]
    assert [e.doc_id for e in _read(path) if isinstance(e, Document)] == ["rows.jsonl:1", "rows.jsonl:2"]


def test_csv_with_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"id,text\n1,fine\n2,\xff\xfe\n3,too,many\n4,fine again\n")
    entries = _read(path)
    assert [getattr(e, "reason", "document") for e in entries] == [
        "document",
        "undecodable",
        "broken_row",
        "document",
    ]


def test_a_missing_column_of_a_table_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"id,body\n1,secret words\n")
    with pytest.raises(InputError, match="'text'") as error:
        _read(path)
    assert "secret" not in str(error.value)


def test_nothing_there_and_unknown_format(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"input\.path"):
        _read(tmp_path / "absent.jsonl")
    (tmp_path / "a.xyz").write_bytes(b"")
    with pytest.raises(ConfigurationError, match=r"input\.format"):
        _read(tmp_path / "a.xyz")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.binary(max_size=60).map(lambda b: b.replace(b"\n", b" ")), max_size=8))
def test_any_bytes_are_documents_or_rejections(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "rows.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    assert len(_read(path)) == sum(1 for line in lines if line.strip())
