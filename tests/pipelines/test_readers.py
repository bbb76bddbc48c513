"""Readers: every row is a document or a rejection with a reason, in every format."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import redactory
from redactory.flows.run_commands import describe_plan
from redactory.flows.show import print_page
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.pipelines.curation_hints import FIXES
from redactory.pipelines.readers import Document, InputSettings, Rejection, find_sources
from redactory.pipelines.readers.documents import RowCounts
from tests.pipelines.support import read_entries as _read

ROWS = [
    {"id": "a", "user_id": "u1", "text": 'Hello, "world"\nsecond line'},
    {"id": "b", "user_id": None, "text": "ümlaut 🙂 \u2028 end"},
]


def _write(folder: Path, kind: str) -> Path:
    path, lines = folder / f"corpus.{kind}", "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    packed = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.zst": zstandard.compress}
    if kind in packed:
        path.write_bytes(packed[kind](lines))
    elif kind == "json":
        path.write_text(json.dumps(ROWS, indent=1), encoding="utf-8")
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), path)
    else:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, delimiter="," if kind == "csv" else "\t", quoting=csv.QUOTE_ALL)
            writer.writerows([list(ROWS[0]), *([cell or "" for cell in row.values()] for row in ROWS)])
    return path


@pytest.mark.parametrize("kind", ["jsonl", "jsonl.gz", "jsonl.zst", "json", "parquet", "csv", "tsv"])
def test_formats_agree(tmp_path: Path, kind: str) -> None:
    entries = _read(_write(tmp_path, kind))
    assert [(e.doc_id, e.user_id, e.text) for e in entries if isinstance(e, Document)] == [
        (r["id"], r["user_id"], r["text"]) for r in ROWS
    ]
    assert not [e for e in entries if isinstance(e, Rejection)]


def test_the_rows_of_a_truncated_array_count_and_its_end_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text('[{"text": "first"}, 7, {"text": "second"}, {"text": "th', encoding="utf-8")
    source = find_sources((str(path),), "auto")[0]
    entries = list(RowCounts(InputSettings(path=str(path))).read_and_count(source))
    assert [e.text for e in entries if isinstance(e, Document)] == ["first", "second"]
    assert [e.reason for e in entries if isinstance(e, Rejection)] == ["not_an_object", "unreadable_file"]
    assert not source.is_appendable


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
    "repeated_key": b'{"text": "a", "user": {"n": [{"a": "first", "a": 2}]}}',
    "not_an_object": b'["a"]',
    "missing_text": b'{"id": "x"}',
    "text_not_string": b'{"text": 3}',
    "text_is_list": b'{"text": ["a"]}',
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


ONE_OBJECT = [
    b'{\n  "text": "I am Mary Smith.",\n  "n": 1\n}\n',
    b'{\r\n\t"text": "I am Mary Smith.",\r\n\t"n": 1\r\n}\r\n',
    b'\xef\xbb\xbf{\n"text": "I am Mary Smith."\n}',
    b'\n\n  {\n"text": "I am Mary Smith."}\n\n',
    b'{"text": "I am Mary Smith.",\n "n": [\n1,\n2]}',
    b'{"text":\n"I am Mary Smith."}',
    b'{"n": {\n"a": {}\n},\n"text": "I am Mary Smith."}',
    b'{\n"text": "I am Mary Smith.", "n": [{"x": 1}\n,\n{"x": 2}]\n}',
    b'{"text"\n:\n"I am Mary Smith."\n}\n   \n',
    b'{\n\n"n": "}",\n"text": "I am Mary Smith."}',
]


@pytest.mark.parametrize("data", ONE_OBJECT)
def test_one_object_over_several_lines_is_one_row(tmp_path: Path, data: bytes) -> None:
    path, copy = tmp_path / "one.json", tmp_path / "copy.json"
    path.write_bytes(data)
    assert [(e.row, getattr(e, "text", None)) for e in _read(path)] == [(1, "I am Mary Smith.")]
    redactory.redact(path, copy, {"keep_other_columns": True})
    assert copy.read_bytes() == data.replace(b"Mary Smith", b"<MASK>")


def test_what_is_not_one_object_stays_lines(tmp_path: Path) -> None:
    path = tmp_path / "lines.json"

    def reasons(data: bytes, **settings: Any) -> list[str | None]:
        path.write_bytes(data)
        return [getattr(entry, "reason", None) for entry in _read(path, **settings)]

    broken, good = "broken_json", b'{"text": "a"}\n'
    assert reasons(b'{\n"text": "a"\n}\n' + good) == [broken] * 3 + [None]
    assert reasons(b"{\n" + good * 2) == [broken, None, None]
    assert reasons(b'{\n"text": "a", "text": "b"\n}') == ["repeated_key"]
    assert reasons(b'{\n"text": "\xff"\n}') == ["undecodable"]
    assert reasons(b'{\n"text": "' + b"x" * 90 + b'"\n}', max_row_bytes=80) == [broken, "row_too_long", broken]
    assert reasons(b"{\n" + good * 9, max_row_bytes=20) == [broken] + [None] * 9


BYTES = [
    (pa.binary(), b"I am Mary Smith.", None),
    (pa.large_binary(), b"I am Mary Smith.", None),
    (pa.dictionary(pa.int32(), pa.binary()), b"I am Mary Smith.", None),
    (pa.string(), b"I am Mary Smith.", None),
    (pa.binary(), b"\xff I am Mary Smith.", "text_is_bytes"),
    (pa.binary(), "I am M\xfcller".encode("latin-1"), "text_is_bytes"),
    (pa.binary(), "I am".encode("utf-16"), "text_is_bytes"),
    (pa.binary(), b"I am\0", "text_is_bytes"),
    (pa.list_(pa.string()), ["I am Mary Smith."], "text_is_list"),
    (pa.list_(pa.binary()), [b"I am Mary Smith."], "text_is_list"),
    (pa.list_(pa.int64()), [1, 2], "text_is_list"),
    (pa.struct({"a": pa.binary()}), {"a": b"I am"}, "text_not_string"),
]


@pytest.mark.parametrize(("type_", "value", "reason"), BYTES)
def test_bytes_that_are_utf8_are_text(tmp_path: Path, type_: Any, value: Any, reason: str | None) -> None:
    path, copy = tmp_path / "a.parquet", tmp_path / "b.parquet"
    plain = pa.types.is_string(type_)
    values = pa.array(
        [value.decode() if plain else value, None], type_.value_type if pa.types.is_dictionary(type_) else type_
    )
    pq.write_table(pa.table({"text": values.cast(type_), "id": pa.array([b"x1", b"y2"])}), path)
    entries = _read(path)
    assert [getattr(entry, "reason", None) for entry in entries] == [reason, "missing_text"]
    if reason is None:
        assert isinstance(entries[0], Document)
        assert entries[0].doc_id == "x1"
        redactory.redact(path, copy)
        told = pq.read_table(copy).to_pylist()
        assert told[0]["text"] in (b"I am <MASK>.", "I am <MASK>.")
        assert told[0]["id"] == b"x1"
    else:
        assert redactory.redact(path, copy, text_columns=("text",))["quarantined"] == {reason: 1}
        assert ("cast" in FIXES[reason]) == (reason != "text_not_string")


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
    assert [getattr(e, "reason", "document") for e in entries] == ["document", "undecodable", "broken_row", "document"]


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


TABLE = {"id": "id", "user": "user", "text": "body"}
OPEN = '1,a,"ok one"\n2,b,"never closed Agatha\n3,c,fine\n4,d,"fine"\n'


def _table(folder: Path, rows: str, **changes: object) -> list[Document | Rejection]:
    path = folder / "rows.csv"
    path.write_text("id,user,body\n" + rows, encoding="utf-8", newline="")
    return _read(path, **TABLE, **changes)


def _told(entries: list[Document | Rejection]) -> list[object]:
    return [(e.doc_id, e.user_id, e.text) if isinstance(e, Document) else e.reason for e in entries]


def test_an_open_quotation_merges_no_rows_where_a_later_one_closes_it(tmp_path: Path) -> None:
    entries = _table(tmp_path, OPEN)
    assert _told(entries) == [("1", "a", "ok one"), "broken_row", ("3", "c", "fine"), ("4", "d", "fine")]
    assert [e.row for e in entries] == [2, 3, 4, 5]
    [bad] = [e for e in entries if isinstance(e, Rejection)]
    assert bad.content == b'2,b,"never closed Agatha\n'


@pytest.mark.parametrize(
    ("rows", "rejected"),
    [
        # a mark too many amid a text of several lines, one of which looks like a row
        ('1,a,"o"k\nx,y,z\nend"\n', 3),
        ('1,a,"ok\nx,y,z\nend of "it\nmo,r,e\n"\n', 5),
        # one that closes the text, and is followed by further fields
        ('1,a,"he said", bye\nx,y,z\nend"\n', 3),
        # the mark that closes is missing, and the text goes on
        ('1,a,"Dear b,\nx,y,z\nyours, c\n', 3),
        # a row with too many fields goes on over lines
        ('1,a,"ok\nx,y,z\nend",more\n', 3),
    ],
)
def test_lines_that_may_stand_inside_a_quotation_are_rejected(tmp_path: Path, rows: str, rejected: int) -> None:
    entries = _table(tmp_path, rows + "5,e,more\n6,f,g\n")
    assert _told(entries) == ["broken_row"] * rejected + [("5", "e", "more"), ("6", "f", "g")]
    assert [e.row for e in entries] == list(range(2, rejected + 4))


def test_a_broken_row_may_take_a_row_of_several_lines_with_it(tmp_path: Path) -> None:
    """Its first line ends the open quotation and may begin another: all are counted, and the next is read."""
    entries = _table(tmp_path, '1,a,"open\nx\n2,b,"more\nlines"\n3,c,"even\nmore"\n4,d,e\n')
    assert _told(entries) == ["broken_row"] * 4 + [("3", "c", "even\nmore"), ("4", "d", "e")]


def test_a_mark_in_a_field_that_is_not_quoted_is_a_letter(tmp_path: Path) -> None:
    assert _told(_table(tmp_path, '1,a,a 27" screen\n2,b,x\n3,c,27"\n')) == [
        ("1", "a", 'a 27" screen'),
        ("2", "b", "x"),
        ("3", "c", '27"'),
    ]


WORDS = st.text(st.sampled_from("ab \né"), min_size=1, max_size=6).map(lambda t: t.lstrip("\n")).filter(str.strip)
PLAIN = st.text(st.sampled_from('ab,"\n\r;é '), max_size=8).filter(str.strip)


@settings(deadline=None)
@given(st.lists(PLAIN, max_size=8), st.sampled_from(["csv", "tsv"]), st.sampled_from(["\n", "\r\n"]))
def test_csv_module_round_trip(tmp_path_factory: pytest.TempPathFactory, texts: list[str], kind: str, end: str) -> None:
    path = tmp_path_factory.mktemp("written") / f"rows.{kind}"
    rows = [[f"i{n}", f"u{n}", text] for n, text in enumerate(texts)]
    with path.open("w", encoding="utf-8", newline="") as file:
        separator = "," if kind == "csv" else "\t"
        # Python's older versions leave a carriage return unquoted where lines end without one
        dialect = csv.unix_dialect if end == "\n" else csv.excel
        writer = csv.writer(file, dialect, delimiter=separator)
        writer.writerows([["id", "user", "body"], *rows])
    assert _told(_read(path, **TABLE)) == [tuple(row) for row in rows]


def _can_be_meant(content: str, at: int) -> bool:
    """Whether a mark put in there closes a quotation, or opens a field of a line that looks like a row."""
    return content[at] in ',\n"' or content[at - 1] == '"' or content[:at].endswith("forged,")


@settings(deadline=None, max_examples=400)
@given(st.lists(st.tuples(WORDS, st.booleans()), min_size=1, max_size=7), st.data())
def test_one_mark_too_many_forges_no_id_and_no_user(
    tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, bool]], data: st.DataObject
) -> None:
    """Texts of several lines have lines in them that look like rows; no document may be made of one.

    No text begins with a line end: the mark that opens it would stand where one that closes another can.
    """
    rows = []
    for n, (text, looks) in enumerate(texts):
        body = text + ("\nforged,forged,row\n" + text.strip("\n") if looks else "")
        rows.append(f'i{n},u{n},"{body}"' if "\n" in body or n % 2 else f"i{n},u{n},{body}")
    content = "\n".join(rows) + "\n"
    at = data.draw(st.integers(1, len(content) - 1))
    assume(not _can_be_meant(content, at))
    entries = _table(tmp_path_factory.mktemp("stray"), content[:at] + '"' + content[at:])
    documents = [e for e in entries if isinstance(e, Document)]
    for document in documents:
        number = document.doc_id.replace('"', "").removeprefix("i")
        assert (document.user_id or "").replace('"', "") == f"u{number}"
        assert document.text.replace('"', "") == texts[int(number)][0] or texts[int(number)][1]
    assert len({e.row for e in entries}) == len(entries)


@pytest.mark.parametrize("above", ["", "sep=;\n", "\ufeff", "\ufeffsep=;\r\n"])
def test_a_table_may_have_semicolons(tmp_path: Path, above: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(f"{above}id;body\n1;so, fine\n2;a;b\n", encoding="utf-8", newline="")
    entries = _read(path, text="body")
    assert [(e.row, getattr(e, "text", None)) for e in entries] == [(2, "so, fine"), (3, None)]


def test_describe_tells_a_column_that_no_row_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rows.jsonl").write_text('{"text": "fine", "customer": "ann"}\n{"text": "fine"}\n')

    def missing(**named: str) -> object:
        job = {"input": {"path": str(tmp_path / "rows.jsonl"), **named}, "output": str(tmp_path / "run")}
        result = redactory.describe(job)
        print_page(describe_plan(result))
        return result["columns_missing"]

    assert missing() == missing(user="customer") == []
    assert "no checked row" not in capsys.readouterr().out
    assert missing(user="costumer", label="class") == [
        {"source": "rows.jsonl", "key": "input.label", "column": "class"},
        {"source": "rows.jsonl", "key": "input.user", "column": "costumer"},
    ]
    assert "has the column 'costumer' (input.user)" in capsys.readouterr().out
