"""Masked copies: the shape of the input stays, hits go, what cannot be read is left out and named."""

from __future__ import annotations

import csv
import datetime
import gzip
import hashlib
import io
import json
import lzma
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import feather

import redactory.pipelines.documents.redact as redacting
from redactory.foundation.errors import ConfigurationError, InputError, RunStateError, SealedError
from redactory.pipelines.curation.config import Redaction
from redactory.pipelines.documents.redact import _find_strict_spans, redact
from redactory.pipelines.documents.redact_io import UnfinishedCopy, open_unfinished_copy
from redactory.pipelines.documents.unmask import unmask
from redactory.pipelines.json_paths import Fields, KeyedText, change_json_object, parse_path
from redactory.pipelines.readers.formats import choose_reader
from redactory.redaction.mask import Edit
from redactory.redaction.replacements import ReplacedSpan
from tests.pipelines.support import write_rows

PLAIN = Redaction()
SECRET = "ann.kovacs@example.org"
PATTERNS = {"detect": {"tagger": None}}
"""Recognizers alone: no model to load."""

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


class Copier:
    """Writes a file, makes a masked copy of it and returns the copy's content."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str, data: bytes, redaction: Redaction = PLAIN, **options: Any) -> bytes:
        (self.folder / name).write_bytes(data)
        self.out = self.folder / f"out-{name}"
        self.summary = redact(self.folder / name, self.out, redaction, config=PATTERNS, **options)
        return self.out.read_bytes()


@pytest.fixture
def copy(tmp_path: Path) -> Copier:
    return Copier(tmp_path)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDACTORY_KEY", "k" * 32)
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", "e" * 32)


def parquet(columns: Any, **options: Any) -> bytes:
    packed = io.BytesIO()
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), packed, **options)
    return packed.getvalue()


def arrow(table: pa.Table, begin: Callable[..., Any] = pa.ipc.new_stream, **options: Any) -> bytes:
    packed = io.BytesIO()
    with begin(packed, table.schema) as writer:
        writer.write_table(table, **options)
    return packed.getvalue()


def read_table(data: bytes) -> pa.Table:
    if data.startswith(b"PAR1"):
        return pq.read_table(io.BytesIO(data))
    return (pa.ipc.open_file if data.startswith(b"ARROW1") else pa.ipc.open_stream)(data).read_all()


def write_file(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Rows in the format that the file's name says."""
    if path.suffix == ".parquet":
        path.write_bytes(parquet(pa.Table.from_pylist(rows)))
    elif path.suffix == ".arrow":
        path.write_bytes(arrow(pa.Table.from_pylist(rows)))
    elif path.suffix == ".csv":
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    else:
        write_rows(path, rows)
    return path


def turn(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


@given(st.dictionaries(st.text(max_size=5), values, max_size=4), st.text(max_size=10), st.sampled_from([None, 1, "\t"]))
def test_json_in_which_nothing_changes_is_the_same_to_the_byte(row: dict[str, Any], text: str, indent: Any) -> None:
    line = json.dumps(row | {"text": text}, indent=indent, ensure_ascii=len(text) % 2 == 0)
    fields = Fields(("text",))
    assert change_json_object(line, fields, str) == line
    changed = json.loads(change_json_object(line, fields, lambda old: old + "!"))
    assert changed == json.loads(line) | {"text": text + "!"}


def test_only_the_literal_that_changes_is_written_anew(copy: Copier) -> None:
    line = f'{{"n": 1.0e5 ,"text":"\\u00e9 to {SECRET}",  "s": 1, "t": 2}}\r\n\r\n{{"text": null}}'
    assert copy("a.jsonl", line.encode()).decode() == line.replace(SECRET, "<MASK>")


CONTENT = [{"type": "text", "text": SECRET}, {"type": "image_url", "image_url": {"url": "x"}}]
CALL = {"name": "find", "arguments": json.dumps({"email": SECRET, "n": 1.50})}
CHAT = {
    "messages": [
        turn(SECRET),
        turn(CONTENT, name=SECRET, metadata={"seen": [{"by": SECRET, "id": "7", "value": 3}], "n": 1}),
        turn({"text": SECRET}, role="tool", tool_call_id="1", name="f"),
        turn(None, role="assistant", tool_calls=[{"id": "1", "function": CALL}]),
    ]
}
SHARE = {"conversations": [{"from": "human", "value": SECRET}, {"from": "gpt", "value": "ok", "note": SECRET}]}


@pytest.mark.parametrize("row", [CHAT, SHARE])
def test_a_conversation_keeps_all_but_what_was_said(copy: Copier, row: dict[str, Any]) -> None:
    line = json.dumps(row)
    assert copy("chat.jsonl", line.encode()).decode() == line.replace(SECRET, "<MASK>")


FAR = "\u00e9va.kov\u00e1cs@example.org"
INSIDE = [
    (json.dumps({"to": FAR, "n": 1.5, "date": "x"}), '{"to": "<MASK>", "n": 1.5, "date": "x"}'),
    (json.dumps([FAR, {"in": json.dumps({"to": SECRET})}]), json.dumps(["<MASK>", {"in": '{"to": "<MASK>"}'}])),
    (f'{{"{SECRET}": {{"card": 4111111111111111}}, "n": 7}}', '{"<MASK>": {"card": "<MASK>"}, "n": 7}'),
    (r"INFO Andr\u00E1s to \uD83D\uDE00 " + SECRET, r"INFO Andr\u00E1s to \uD83D\uDE00 <MASK>"),
    (rf"\ud83d é \u00e9 {SECRET}", r"\ud83d é é <MASK>"),
    (f"[{SECRET}]", "[<MASK>]"),
    ('{"user_name": ["marble7"], "n": "x"}', '{"user_name": ["<MASK>"], "n": "x"}'),
]


@pytest.mark.parametrize(("said", "left"), INSIDE)
def test_json_in_a_text_stays_json_and_is_read_as_what_it_says(copy: Copier, said: str, left: str) -> None:
    row = {"text": said, "messages": [{"role": "tool", "content": said}]}
    want = {"text": left, "messages": [{"role": "tool", "content": left}]}
    assert json.loads(copy("a.jsonl", json.dumps(row).encode())) == want


REFUSED = {
    "embedded_data": [
        turn([{"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}]),
        turn([{"type": "input_audio", "input_audio": {"data": "QUJD" * 200}}]),
        turn("DATA:text/html,x"),
        turn("x", tool_calls=[{"function": {"arguments": '{"a": "data:,x"}'}}]),
    ],
    "text_not_string": [
        *(turn(5551234567), turn([{"type": "text", "text": 1.5}]), turn(["x", 3])),
        {"from": "human", "value": True},
    ],
    "repeated_key": [
        turn("x", function_call={"arguments": f'{{"a": "{SECRET}", "a": ""}}'}),
        turn(f'{{"a": "{SECRET}", "a": ""}}', role="tool"),
    ],
    "broken_json": [turn("x", function_call={"arguments": "[" * 9_999})],
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_turn_that_cannot_be_read_whole_is_left_out(copy: Copier, reason: str) -> None:
    lines = [json.dumps({"messages": [turn]}) for turn in REFUSED[reason]]
    assert copy("chat.jsonl", "\n".join([*lines, '{"messages": []}']).encode()) == b'{"messages": []}'
    assert copy.summary["quarantined"] == {reason: len(lines)}


def test_no_value_hides_behind_another(copy: Copier) -> None:
    twice = f'{{"text": "{SECRET}", "text": "b"}}'
    below = f'{{"text": "b", "n": [{{"a": "{SECRET}", "a": 1}}]}}'
    assert copy("a.jsonl", f'{twice}\n{below}\n{{"text": "b"}}'.encode()) == b'{"text": "b"}'
    assert json.loads(copy("a.json", f'[{twice}, {below}, {{"text": "b"}}]'.encode())) == [{"text": "b"}]
    assert copy.summary["quarantined"] == {"repeated_key": 2}


TWICE = pa.Table.from_arrays([pa.array([SECRET]), pa.array(["b"])], ["text", "text"])


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.json", b'[{"text": "b"}]\n' + b" " * (1 << 20) + SECRET.encode(), "after the array's"),
        ("a.json", b'[{"a":' + b"[" * 99_999, "entry 1 of the array is nested too deep"),
        ("a.csv", f"text,n,text\n{SECRET},1,b\n".encode(), "columns 1 and 3 have the same name"),
        ("a.parquet", parquet(TWICE), "columns 1 and 2 have the same name"),
        ("a.arrow", arrow(TWICE), "columns 1 and 2 have the same name"),
    ],
)
def test_data_that_would_stay_unread_is_refused(copy: Copier, name: str, data: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        copy(name, data, Redaction(keep_other_columns=True))


@pytest.mark.parametrize(
    ("paths", "row"),
    [
        (("ticket.body",), {"ticket": {"body": SECRET, "id": SECRET}}),
        (("turns[].text", "notes"), {"turns": [{"text": SECRET}, {"text": SECRET}], "notes": SECRET, "open": SECRET}),
        (('["a.b"]',), {"a.b": SECRET, "a": {"b": SECRET}}),
        (("list[*]",), {"list": [SECRET, "x"]}),
    ],
)
def test_a_path_names_its_texts_and_no_other(copy: Copier, paths: tuple[str, ...], row: dict[str, Any]) -> None:
    keep = Redaction(keep_other_columns=True)
    result = json.loads(copy("a.jsonl", json.dumps(row).encode(), keep, text_columns=paths))
    fields = Fields(paths)
    assert set(fields.read_texts(result)) <= {"<MASK>", "x"}
    assert json.dumps(result).count("@") == json.dumps(row).count("@") - len(
        [text for text in fields.read_texts(row) if text == SECRET]
    )


@pytest.mark.parametrize("path", ["", "a..b", "[*]", "a[", "a[0]", ".a", 'a["b'])
def test_a_path_that_cannot_be_read_is_refused(path: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a path"):
        parse_path(path)


def test_an_array_of_json_stays_one(copy: Copier) -> None:
    data = f' [ {{"text": "{SECRET}"}} ,\n {{"text": 1}}, {{"text":"b", "x":1.0}}\n]\n'
    expected = ' [ {"text": "<MASK>"}, {"text":"b", "x":1.0}\n]\n'
    assert copy("a.json", data.encode()).decode() == expected
    assert copy.summary["quarantined"] == {"text_not_string": 1}
    first_goes = copy("b.json", f'[{{"text": 1}}, {{"text": "{SECRET}"}}]'.encode())
    assert json.loads(first_goes) == [{"text": "<MASK>"}]


@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("a.csv", '\ufeffid,text\r\n1,"a, {}"\r\n\r\n2,b\r\n3,"say ""hi"" {}"'),
        ("a.csv", '"id";"text"\n"1";"{}"\n"2";"x;y"\n'),
        ("a.tsv", "id\ttext\n1\t{}\n2\tb, c\n"),
        ("a.csv", "sep=;\r\nid;text\r\n1;a, b and {}\r\n"),
        ("a.csv", "\ufeffsep=;\r\nid;text\r\n1;a, b and {}\r\n"),
    ],
)
def test_a_table_keeps_its_dialect(copy: Copier, name: str, table: str) -> None:
    data = table.replace("{}", SECRET)
    assert copy(name, data.encode()).decode() == data.replace(SECRET, "<MASK>")


def test_columns_of_binary_tables_stay_as_they_were(copy: Copier) -> None:
    table = pa.table(
        {
            "at": pa.array([1, 2, 3], pa.timestamp("ns")),
            "text": [SECRET, None, "b"],
            "messages": [[turn(SECRET)], None, []],
            "kind": pa.array(["x", "y", "x"]).dictionary_encode(),
        }
    ).replace_schema_metadata({"made": "by hand", "pandas": "{}"})
    inside = pa.field("x", pa.int64(), metadata={"made": "by Ann"})
    noted = pa.field("meta", pa.struct([inside]), metadata={"made": "by Ann", "PARQUET:field_id": "7"})
    table = table.append_column(noted, pa.array([{"x": 1}, None, {"x": 2}], noted.type))
    expected = table.set_column(1, "text", [["<MASK>", None, "b"]]).set_column(3, "kind", [["x", "y", "x"]])
    expected = expected.set_column(2, table.schema.field(2), [[[turn("<MASK>")], None, []]])
    keep = Redaction(columns={"kind": "keep"})
    made = pq.ParquetFile(io.BytesIO(copy("a.parquet", parquet(table, row_group_size=2, compression="zstd"), keep)))
    assert made.read().equals(expected)
    # notes are text that nobody looks at, but those that say how a column is to be read
    assert made.schema_arrow.metadata == {b"pandas": b"{}"}
    meta = made.schema_arrow.field("meta")
    assert meta.metadata == {b"PARQUET:field_id": b"7"}
    assert b"made" not in (meta.type.field("x").metadata or {})
    assert made.metadata.num_row_groups == 2
    assert made.metadata.row_group(0).column(0).compression == "ZSTD"
    for begin in (pa.ipc.new_file, pa.ipc.new_stream):
        result = copy(f"{begin.__name__}.arrow", arrow(table, begin), keep)
        assert result.startswith(b"ARROW1") == (begin is pa.ipc.new_file)
        assert read_table(result).equals(expected)
        assert b"by hand" not in result
        assert b"by Ann" not in result


@pytest.mark.parametrize("name", ["stream.arrow", "file.arrow", "feather.arrow", "a.parquet"])
def test_a_dictionary_is_copied_as_the_values_of_the_rows_that_are_written(copy: Copier, name: str) -> None:
    """One dictionary is all that an Arrow file can have; and nobody looked at the values of no row."""
    texts = [SECRET, "b", None, f"{SECRET} again", "b"]
    column = pa.array([*texts, "nobody said this"]).dictionary_encode()[:5]
    large = pa.array(texts, pa.large_string()).dictionary_encode()
    columns = {
        "text": column,
        "other": large,
        "listed": pa.ListArray.from_arrays(range(6), column),
        "inside": pa.StructArray.from_arrays([column], ["a"]),
        "kind": pa.DictionaryArray.from_arrays([0, 1, 0, 0, 1], ["x", "y", "nobody said this"]),
    }
    table, packed = pa.table(columns), io.BytesIO()
    feather.write_feather(table, packed, chunksize=2)
    data = {
        "a.parquet": lambda: parquet(table, row_group_size=2, compression="none"),
        "feather.arrow": packed.getvalue,
        "stream.arrow": lambda: arrow(table, max_chunksize=2),
        "file.arrow": lambda: arrow(table, pa.ipc.new_file, max_chunksize=2),
    }[name]()
    keep = Redaction(columns={"kind": "keep"})
    result = copy(name, data, keep, text_columns=["text", "other", "listed[]", "inside.a"])
    made = read_table(result)
    masked = ["<MASK>", "b", None, "<MASK> again", "b"]
    assert made.to_pydict() == {
        "text": masked,
        "other": masked,
        "listed": [[one] for one in masked],
        "inside": [{"a": one} for one in masked],
        "kind": ["x", "y", "x", "x", "y"],
    }
    assert made.schema.field("text").type == made.schema.field("kind").type == pa.string()
    assert b"nobody said this" not in result


@pytest.mark.parametrize("format_", ["jsonl", "csv"])
@given(data=st.binary(max_size=300))
def test_no_byte_breaks_a_reader(format_: str, data: bytes) -> None:
    file = io.BufferedReader(io.BytesIO(data))  # type: ignore[arg-type]
    reader = choose_reader(format_, file)(file, "a", 1_000, Fields(("text",)))
    try:
        for row in reader.read_rows():
            if not isinstance(row, bytes) and row.render is not None:
                row.render([[Edit(0, len(text), "x")] if text else [] for text in row.texts], {})
    except InputError:
        pass


def test_a_folder_and_compressed_files_go_in_their_own_shape(tmp_path: Path) -> None:
    line = json.dumps({"text": SECRET}).encode()
    (tmp_path / "in/below").mkdir(parents=True)
    (tmp_path / "in/below/a.jsonl.gz").write_bytes(gzip.compress(line))
    (tmp_path / "in/b.txt").write_text(f"to {SECRET}\n")
    redact(tmp_path / "in", tmp_path / "out", config=PATTERNS)
    assert json.loads(gzip.decompress((tmp_path / "out/below/a.jsonl.gz").read_bytes())) == {"text": "<MASK>"}
    assert (tmp_path / "out/b.txt").read_text() == "to <MASK>\n"


def test_a_folder_at_a_url_keeps_its_files_apart(tmp_path: Path) -> None:
    store = fsspec.filesystem("memory")
    for name in ("a.jsonl", "below/b.jsonl"):
        store.pipe(f"/redact/in/{name}", json.dumps({"text": f"{name} {SECRET}"}).encode())
    redact("memory://redact/in", "memory://redact/out", config=PATTERNS)
    redact("memory://redact/in", tmp_path / "out", config=PATTERNS)
    redact("memory://redact/in/a.jsonl", "memory://redact/one.jsonl", config=PATTERNS)
    for name in ("a.jsonl", "below/b.jsonl"):
        expected = json.dumps({"text": f"{name} <MASK>"}).encode()
        assert store.cat(f"/redact/out/{name}") == expected == (tmp_path / "out" / name).read_bytes()
    assert store.cat("/redact/one.jsonl") == store.cat("/redact/out/a.jsonl")


def test_a_data_set_on_disk_is_one_again(tmp_path: Path) -> None:
    import datasets

    made = datasets.Dataset.from_dict({"text": [SECRET, "b"], "n": [1, 2], "name": [3, 4], "iban": ["", "x"]})
    made.info.description = f"Ask {SECRET}."
    made.save_to_disk(tmp_path / "in" / "set")
    # a file of rows by the name of a note
    (tmp_path / "in" / "state.json").write_text(json.dumps({"text": SECRET, "name": 1, "iban": 2}))
    redact(tmp_path / "in", tmp_path / "out", {"columns": COLUMNS}, config=PATTERNS)
    assert datasets.load_from_disk(str(tmp_path / "out" / "set")).to_dict() == {
        "text": ["<MASK>", "b"],
        "n": [1, 2],
        "name": ["<MASK>", "<MASK>"],
    }
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert SECRET.encode() not in written


COLUMNS = {"name": "PERSON", "iban": "drop"}


def test_columns_are_replaced_or_taken_out_and_their_values_are_known(copy: Copier) -> None:
    row = {"id": "1", "name": "Quirin Ozols", "iban": "x", "text": "Ozols and Quirin Ozols and bob"}
    masked = {"id": "1", "name": "<MASK>", "text": "<MASK> and <MASK> and bob"}
    made = json.loads(copy("a.jsonl", json.dumps(row).encode(), Redaction(columns=COLUMNS, replace="label")))
    assert made == {key: value.replace("MASK", "PERSON") for key, value in masked.items()}
    made = copy("a.csv", f"{','.join(row)}\n{','.join(row.values())}\n".encode(), Redaction(columns=COLUMNS))
    assert list(csv.DictReader(io.StringIO(made.decode()))) == [masked]
    noted = {"huggingface": '{"info": 1}', "pandas": '{"columns": []}', "made": "by hand"}
    table = read_table(
        copy(
            "a.parquet", parquet(pa.Table.from_pylist([row]).replace_schema_metadata(noted)), Redaction(columns=COLUMNS)
        )
    )
    assert not table.schema.metadata, "types that are no more"
    assert table.to_pylist() == [masked]
    # parts of a dropped name are known, too
    dropped = Redaction(columns={"name": "drop"}, replace="label")
    rows = b"name;note\nTimm Ozols;Spoke to Timm today, asked ozols.\n"
    made = copy("b.csv", rows, dropped, text_columns=["note"])
    assert made == b"note\nSpoke to <PERSON> today, asked <PERSON>.\n"
    assert copy.summary["replaced"] == {"PERSON": 2}


@pytest.mark.parametrize(
    ("row", "asked", "said"),
    [
        (
            {"messages": [{"role": "user", "content": "x", "id": SECRET}]},
            {},
            r"unmasked: messages\[\]\.id \(text in 1 of",
        ),
        ({"messages": [{"role": "Quirin Ozols", "content": "x"}]}, {}, r"unmasked: messages\[\]\.role \(text in 1 of"),
        (
            {"ticket": {"body": "t", "to": "q"}},
            {"text_columns": ["ticket.body"]},
            r"unmasked: ticket\.to \(text in 1 of",
        ),
        ({"note": "t"}, {}, "name the text fields with --text-column; its fields are note$"),
        ({"text": "t"}, {"text_columns": ["txt"]}, "no field 'txt'; its fields are text"),
        ({"text": "t"}, {"redaction": {"columns": {"nam": "drop"}}}, "no field 'nam'"),
        ({"text": "t"}, {"redaction": {"columns": {"text": "Drop"}}}, "columns: 'text' needs a label"),
        ({"text": "t"}, {"redaction": {"replace": "stars"}}, "replace: must be one of 'mask', "),
        ({"text": "t"}, {"redaction": {"colums": {}}}, "colums: "),
    ],
)
def test_what_is_not_said_is_refused_before_anything_is_written(
    copy: Copier, tmp_path: Path, row: dict[str, Any], asked: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        copy("a.jsonl", json.dumps(row).encode(), **asked)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_a_configuration_says_what_the_command_would_and_what_is_asked_for_wins(tmp_path: Path) -> None:
    row = {"id": 1, "name": "Quirin Ozols", "iban": "DE89370400440532013000", "note": "Ozols pays"}
    (tmp_path / "in.jsonl").write_text(json.dumps(row))
    config = tmp_path / "own.yaml"
    config.write_text(
        "input: {text: note}\ndetect: {tagger: null}\nredact: {columns: {name: PERSON, iban: drop}, replace: label}\n"
    )

    def made(**asked: Any) -> Any:
        out = tmp_path / f"out{len(list(tmp_path.iterdir()))}.jsonl"
        redact(tmp_path / "in.jsonl", out, asked, config=config)
        return json.loads(out.read_text())

    assert made() == {"id": 1, "name": "<PERSON>", "note": "<PERSON> pays"}
    assert made(replace="mask") == {"id": 1, "name": "<MASK>", "note": "<MASK> pays"}
    assert made(known_values=False) == {"id": 1, "name": "<PERSON>", "note": "Ozols pays"}
    # of columns those that are named, not all
    assert made(columns={"iban": "ACCOUNT"}) == made() | {"iban": "<ACCOUNT>"}


@pytest.mark.parametrize("out", ["in", "in/below", "there.jsonl", "no/such/folder"])
def test_an_output_in_the_input_or_over_something_is_refused(tmp_path: Path, out: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text('{"text": "x"}')
    (tmp_path / "there.jsonl").write_text("mine")
    with pytest.raises(ConfigurationError, match="--out"):
        redact(tmp_path / "in", tmp_path / out, config=PATTERNS)
    assert (tmp_path / "there.jsonl").read_text() == "mine"


@pytest.mark.parametrize("when", ["before", "meanwhile"])
@pytest.mark.parametrize("what", ["a file", "an empty file", "a folder", "an empty folder", "a link to nowhere"])
@pytest.mark.parametrize("given", ["in", "in/a.jsonl"])
def test_what_has_the_outputs_name_is_never_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, what: str, given: str
) -> None:
    out = tmp_path / "out"
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.jsonl").write_text('{"text": "x"}')

    def put() -> None:
        if "file" in what:
            out.write_text("" if "empty" in what else "mine")
        elif "folder" in what:
            out.mkdir()
            if "empty" not in what:
                (out / "mine").write_text("mine")
        else:
            out.symlink_to(tmp_path / "nowhere")

    def contents() -> Any:
        inside = [(path.name, path.read_text()) for path in out.rglob("*")] if out.is_dir() else None
        return os.lstat(out).st_ino, inside, out.read_text() if out.is_file() else None

    put()
    mine = contents()
    if when == "meanwhile":
        out.rename(tmp_path / "aside")
        publish = UnfinishedCopy.publish
        monkeypatch.setattr(
            UnfinishedCopy, "publish", lambda work, to: ((tmp_path / "aside").rename(out), publish(work, to))
        )
    with pytest.raises(ConfigurationError, match="out already exists: remove it"):
        redact(tmp_path / given, out, config=PATTERNS)
    assert contents() == mine
    assert not (tmp_path / "nowhere").exists()


UNDECLARED: list[tuple[dict[str, Any], str]] = [
    ({"name": "x"}, "name"),
    ({"contact": SECRET}, "contact"),
    ({"note": "the end"}, "note"),
    ({"tags": ["a b"]}, "tags[]"),
    ({"meta": {"who": [{"to": SECRET}]}}, "meta.who[].to"),
    ({"phone": 5551234567}, "phone"),
    ({"ref": "5551234567"}, "ref"),
    ({"at": "2024-05-01"}, "at"),
    *(({"id": value}, "id") for value in (SECRET, "ozols", "123-45-6789", "Quirin 7")),
    *(({name: "Quirin Ozols"}, name) for name in ("lang", "role", "type", "model", "country")),
    *(({"scores": {key: 1}}, "scores.…") for key in ("mary_smith", "peter-miller", "jose.garcia", "MaryJones")),
    *(({"scores": {key: 1}}, "scores.…") for key in ("Quirin Ozols", "emily_clark", "@mary")),
    ({"cards": [{"4111 1111 1111 1111": 1}]}, "cards.…"),
    ({"a": [[{"b": {"123-45-6789": 1}}]]}, "a.…"),
    *(({key: None}, "field 2") for key in (SECRET, "+49 30 1234567", "Dr. Hans Müller", "DE89370400440532013000")),
    ({"# exported by Mary Smith on 2024-01-01": 1}, "field 2"),
]
"""Of a row what is neither masked nor harmless, and how a message calls it."""


def undeclared(called: str) -> str:
    """The message about one undeclared field, with its reason."""
    return rf"copied unmasked: {re.escape(called)} \([a-z ]+ in \d of \d rows?\)\. Mask"


@pytest.mark.parametrize(("more", "called"), UNDECLARED)
def test_a_field_that_nobody_declared_stops_the_copy(
    copy: Copier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any], called: str
) -> None:
    row, column = {"text": "ok"} | more, next(iter(more))
    line = json.dumps(row).encode()
    with pytest.raises(ConfigurationError, match=undeclared(called)) as refused:
        copy("a.jsonl", line)
    written = called.startswith("field")
    assert f"--column {'NAME' if written else column}=WHAT" in str(refused.value)
    assert not any(word in str(refused.value) for word in ("ary", "Quirin", "4111", "Hans", "DE89", "kovacs", "555"))
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    assert copy("b.jsonl", line, Redaction(keep_other_columns=True)) == line
    assert copy("c.jsonl", line, Redaction(columns={column: "keep"})) == line
    assert json.loads(copy("d.jsonl", line, Redaction(columns={column: "drop"}))) == {"text": "ok"}
    # a later row is left out
    monkeypatch.setattr(redacting, "_INSPECTED_ROWS", 2)
    early = b'{"text": "ok"}\n{"text": "ok"}\n'
    assert copy("e.jsonl", early + line) == early
    assert copy.summary["quarantined"] == {"undeclared_field": 1}


def test_harmless_fields_need_no_declaration(copy: Copier) -> None:
    row = {
        "text": '{"not a name": "b"}',
        "id": "call_18409e8ac2",
        "lang": "pt-BR",
        "locale": "zh-Hans-CN",
        "language": "de",
        "country": "GB",
        "role": "assistant",
        "type": "image_url",
        "model": "gpt-4o",
        "score": 1.5,
        "user_number": 5551234567,
        "n": "-12.50",
        "flag": "True",
        "empty": "",
        "none": None,
        "vector": [0.1, 2],
        "meta": {"stars": [{"x-y": 1, "7": True, "Größe": 3}]},
        "feature_000001x": 1,
        **dict.fromkeys(("max_day", "mark_read", "will_call", "grant_total", "createdAt", "lastPage", "art_style"), 1),
    }
    line = json.dumps(row).encode()
    assert copy("a.jsonl", line) == line
    assert copy("a.csv", b"id,n,text\n1,2.5,ok\nx7,,ok\n") == b"id,n,text\n1,2.5,ok\nx7,,ok\n"


def test_names_of_fields_that_may_be_data_are_not_printed(copy: Copier) -> None:
    rows = [{"text": "t", "n": {"id": "7"}} for _ in range(30)]
    lines = [*rows, {"text": "t", "Ann": "x", "n": {"Ann": {"to": "x"}}}]
    data, unnamed = "\n".join(map(json.dumps, lines)), "since they may be data"
    row = json.dumps({"Quirin Ozols": 1, "mail to " + SECRET: SECRET, "z": "t"})
    texts = {"text_columns": ["z"]}
    for name, content, asked, told in (
        # few rows have it: it may be somebody's name
        (
            "a.jsonl",
            data,
            {},
            r"unmasked: n\.… \(an unusual key in 1 of 31 rows\) and field 3 \(text .* --column n=WHAT --column NAM",
        ),
        ("b.jsonl", data, {"text_columns": ["txt"]}, "fields are text and n$"),
        ("a.csv", "Ozols,ann,hello\nx,y,z\n", {}, unnamed),
        ("b.csv", "Ozols,ann,hello\nx,y,z\n", texts, unnamed),
        ("c.jsonl", row, {}, unnamed),
        ("d.jsonl", row, texts, r"unmasked: field 1 \(.*\) and field 2 \(.*\)\. Mask"),
        # a header counts even if no row can be read
        ("c.csv", "# exported by Ann Smith on 2024-01-01\nid,text\n1,Quirin Ozols\n", {}, unnamed),
        (
            "a.parquet",
            parquet({"text": pa.array([], pa.string()), SECRET: pa.array([], pa.int8())}),
            {},
            r"field 2 \(.*\)\. Mask",
        ),
    ):
        with pytest.raises(ConfigurationError, match=told) as refused:
            copy(name, content.encode() if isinstance(content, str) else content, **asked)
        assert not any(said in str(refused.value) for said in ("Ozols", "ann", "Ann", "hello"))
        assert not copy.out.exists()


@pytest.mark.parametrize(
    ("name", "type_", "value", "called"),
    [
        ("meta", pa.map_(pa.string(), pa.string()), [("to", "x")], "meta.to"),
        ("meta", pa.map_(pa.string(), pa.int64()), [(SECRET, 1)], "meta.…"),
        ("contact", pa.binary(), SECRET.encode(), "contact"),
        ("birth_date", pa.date32(), datetime.date(1980, 5, 1), "birth_date"),
        ("born", pa.timestamp("us"), datetime.datetime(1980, 5, 1), "born"),
        ("photo", pa.binary(), b"\xff\xd8\x00", "photo"),
        ("kind", pa.dictionary(pa.int8(), pa.string()), "x", "kind"),
    ],
)
def test_columns_of_every_type_are_judged(copy: Copier, name: str, type_: Any, value: Any, called: str) -> None:
    data = parquet({"text": ["t", "u"], name: pa.array([value, None], type_)})
    with pytest.raises(ConfigurationError, match=undeclared(called)):
        copy("a.parquet", data)
    assert read_table(copy("b.parquet", data, Redaction(columns={name: "drop"}))).column_names == ["text"]


def test_the_field_of_a_map_can_be_masked(copy: Copier) -> None:
    maps = pa.array([[("remark", SECRET), ("rank", "7")], None, []], pa.map_(pa.string(), pa.string()))
    data = parquet({"text": ["t", "u", "v"], "facts": maps})
    made = read_table(copy("b.parquet", data, text_columns=("text", "facts.remark")))
    assert made["facts"].to_pylist() == [[("remark", "<MASK>"), ("rank", "7")], None, []]
    assert made["facts"].type == maps.type


TOOL_CALL = {"id": "call_18409e8ac2", "type": "function", "function": CALL}
MADE = [
    {"conversations": [{"from": "human", "value": SECRET}, {"from": "gpt", "value": "Hello!"}]},
    {
        "id": "c0",
        "model": "gpt-4o",
        "messages": [
            turn(SECRET),
            turn(None, role="assistant", tool_calls=[TOOL_CALL]),
            turn("ok", role="tool", tool_call_id="call_18409e8ac2"),
        ],
    },
    {"conversations": [{"from": "function_call", "value": SECRET}, {"from": "observation", "value": "ok"}]},
]


@pytest.mark.parametrize("row", MADE)
def test_roles_and_what_machines_call_things_are_not_personal(copy: Copier, row: dict[str, Any]) -> None:
    line = json.dumps(row)
    assert copy("a.jsonl", line.encode()).decode() == line.replace(SECRET, "<MASK>")


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.parquet"])
def test_a_text_that_appears_later_omits_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(redacting, "_INSPECTED_ROWS", 3)
    rows = [{"text": "t", "note": None, "lang": "en"} for _ in range(6)]
    rows[4] |= {"note": "Quirin Ozols"}
    source, out = write_file(tmp_path / name, rows), tmp_path / f"out-{name}"
    assert redact(source, out, config=PATTERNS)["quarantined"] == {"undeclared_field": 1}
    assert b"Ozols" not in out.read_bytes()
    whole = redact(source, tmp_path / f"whole-{name}", {"keep_other_columns": True}, config=PATTERNS)
    assert whole["written"] == 6, "columns that are kept are not judged"


def test_rows_in_are_rows_out_and_quarantined(tmp_path: Path) -> None:
    lines = [json.dumps({"text": f"row {n} {SECRET}"}) for n in range(50)]
    lines[7], lines[9], lines[11] = '{"text": 3}', "{broken", json.dumps({"text": "x" * 300})
    config = PATTERNS | {"input": {"max_chars": 200}}
    source = tmp_path / "rows.jsonl"
    source.write_text("\n".join(lines))
    summary = redact(source, tmp_path / "out.jsonl", config=config)
    kept = [json.loads(line)["text"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert kept == [f"row {n} <MASK>" for n in range(50) if n not in (7, 9, 11)]
    assert (summary["rows"], summary["written"]) == (50, 47)
    notes = [json.loads(line) for line in (tmp_path / "out.jsonl.quarantine.jsonl").read_text().splitlines()]
    reasons = [(note["row"], note["reason"]) for note in notes]
    assert reasons == [(8, "text_not_string"), (10, "broken_json"), (12, "too_long")]


@pytest.mark.slow
def test_a_killed_copy_goes_on_and_workers_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "a.jsonl"
    source.write_text("\n".join(json.dumps({"text": f"{n} {SECRET}"}) for n in range(1_200)))
    redact(source, tmp_path / "whole.jsonl", config=PATTERNS)
    found, asked = redacting._find_strict_spans, list[int]()

    def dies(policy: Any, texts: Any) -> Any:
        asked.append(len(texts))
        if len(asked) == 2:
            raise KeyboardInterrupt
        return found(policy, texts)

    monkeypatch.setattr(redacting, "_find_strict_spans", dies)
    with pytest.raises(KeyboardInterrupt):
        redact(source, tmp_path / "out.jsonl", config=PATTERNS)
    assert not (tmp_path / "out.jsonl").exists()
    assert SECRET not in "".join(
        path.read_text() for path in (tmp_path / "out.jsonl.unfinished/spans").rglob("*") if path.is_file()
    )
    asked[:] = [0, 0]
    redact(source, tmp_path / "out.jsonl", config=PATTERNS)
    assert sum(asked) == 700, "the first chunk is not looked at again"
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not (tmp_path / "out.jsonl.unfinished").exists()
    monkeypatch.undo()
    redact(source, tmp_path / "two.jsonl", config=PATTERNS, workers=2)
    assert (tmp_path / "two.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_spans_of_one_text_are_never_applied_to_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, out = tmp_path / "a.jsonl", tmp_path / "out.jsonl"
    lines = [json.dumps({"text": f"{n:4} {SECRET}, {n:4}"}) for n in range(600)]
    source.write_text("\n".join(lines))
    before = source.stat()
    with monkeypatch.context() as patch:
        patch.setattr(UnfinishedCopy, "publish", lambda *_: 1 / 0)
        with pytest.raises(SealedError):
            redact(source, out, config=PATTERNS)
    # as long as it was, and as old: one sentence turned round
    lines[3] = json.dumps({"text": f"   3, {SECRET}    3"})
    source.write_text("\n".join(lines))
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert source.stat().st_size == before.st_size
    asked, found = list[int](), redacting._find_strict_spans
    monkeypatch.setattr(
        redacting, "_find_strict_spans", lambda policy, texts: asked.append(len(texts)) or found(policy, texts)
    )
    redact(source, out, config=PATTERNS)
    assert sum(asked) == 500, "of the two chunks the one that changed"
    assert out.read_text() == source.read_text().replace(SECRET, "<MASK>")


def test_the_digest_of_a_text_is_known_to_its_own_copy_alone(tmp_path: Path) -> None:
    """Whoever guesses a text could tell by a digest without a secret that it is there."""

    def digest(name: str, *texts: str, settings: str = "") -> str:
        return UnfinishedCopy.open(tmp_path / name, "", settings).get_spans_path(texts).name

    digests = {name: digest(name, "a text") for name in ("a", "b", "c", "d")}
    assert len(set(digests.values())) == len(digests)
    # neither the cut between two texts nor their number is lost, nor the key before a text, nor the settings
    keyed = KeyedText("a")
    keyed.key = "b"
    cuts = [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("a", "b", "c"), (), ("a",), (keyed,)]
    assert len({digest("cuts", *texts) for texts in cuts} | {digest("cuts", "abc", settings="x")}) == len(cuts) + 1
    # the same copy goes on
    assert all(digest(name, "a text") == before for name, before in digests.items())


def test_what_lies_where_a_copy_is_begun_is_never_lost(tmp_path: Path) -> None:
    source, work = tmp_path / "a.jsonl", tmp_path / "out.jsonl.unfinished"
    source.write_text('{"text": "x"}')
    (work / "found").mkdir(parents=True)
    (work / "found" / "mine").write_text("mine")
    with pytest.raises(ConfigurationError, match=r"out\.jsonl\.unfinished is needed .* move it"):
        redact(source, tmp_path / "out.jsonl", config=PATTERNS)
    assert (work / "found" / "mine").read_text() == "mine"
    work.rename(tmp_path / "elsewhere")
    with (
        open_unfinished_copy(str(tmp_path / "out.jsonl"), (), {}),
        pytest.raises(RunStateError, match="being written by"),
    ):
        redact(source, tmp_path / "out.jsonl", config=PATTERNS)
    redact(source, tmp_path / "out.jsonl", config=PATTERNS)
    assert not work.exists()


@pytest.mark.parametrize("place", ["{}/", "memory://redact-quarantine/"])
def test_the_list_of_rows_that_are_left_out_is_of_this_call(tmp_path: Path, place: str) -> None:
    place = place.format(tmp_path)
    listed = f"{place}out.jsonl.quarantine.jsonl"
    for rows, expected in (('{"text": 3}', 1), ('{"text": "x"}', 0)):
        (tmp_path / "a.jsonl").write_text(rows)
        redact(tmp_path / "a.jsonl", f"{place}out.jsonl", config=PATTERNS)
        store, inner = fsspec.url_to_fs(f"{place}out.jsonl")
        assert store.exists(listed) == expected
        if expected:
            assert json.loads(store.cat(listed)) == {"file": "a.jsonl", "row": 1, "reason": "text_not_string"}
        store.rm(inner)


def test_unmask_needs_vault_and_key(keys: None, copy: Copier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vault = tmp_path / "v.vault"
    redaction = Redaction(columns={"name": "PERSON"}, replace="pseudonym", vault=str(vault))
    data = json.dumps({"name": "Quirin Ozols", "text": f"Ozols: {SECRET}, {SECRET.upper()}"}).encode()
    made = copy("a.jsonl", data, redaction)
    assert b"Ozols" not in made
    assert SECRET.encode() not in made
    assert SECRET.encode() not in vault.read_bytes()
    first = copy.out
    copy("b.jsonl", json.dumps({"name": "Zita", "text": "x", "n": 1}).encode(), redaction)
    summary = unmask(first, tmp_path / "back.jsonl", vault)
    assert (tmp_path / "back.jsonl").read_bytes() == data, "what a vault knew it knows"
    unmask(copy.out, tmp_path / "b.jsonl.xz", vault)
    assert lzma.decompress((tmp_path / "b.jsonl.xz").read_bytes()) == (tmp_path / "b.jsonl").read_bytes()
    assert summary["rows"] == 1
    assert (tmp_path / "back.jsonl").stat().st_mode & 0o077 == 0, "values are private again"
    sealed = vault.read_bytes()
    for key in (b"e" * 32, hashlib.sha256(b"e" * 32).digest()):
        # the key of the environment opens nothing by itself: each use has a key of its own
        with pytest.raises(InvalidTag):
            AESGCM(key).decrypt(sealed[:12], sealed[12:], b"redactory vault")
    log = (tmp_path / "v.vault.log.jsonl").read_text()
    assert log.count("\n") == 4
    assert "Ozols" not in log
    assert SECRET not in log
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", "f" * 32)
    with pytest.raises(InputError, match="not a vault, or"):
        unmask(first, tmp_path / "again.jsonl", vault)


SPELLED = [
    {"name": "Mary Smith", "text": "Mary Smith called; SMITH, Mary signed; Mary agreed."},
    {"name": "SMITH, Mary", "text": "Mary Smith called; Mary Smith signed; Mary agreed."},
    {"name": "Mary", "text": "Call +1 415 555 2671, (415) 555-2671 or 415-555-2671."},
    {"name": "Mary", "text": "Call (415) 555-2671, +1 415 555 2671 or 415-555-2671."},
    {"name": "Bob", "text": "Card 4111 1111 1111 1111 is 4111111111111111, and 4111-1111-1111-1111."},
    {"name": "Zita Ozols", "text": "Ozols, Zita and ZITA OZOLS wrote to zita@corp.org and Zita@Corp.org."},
    {"name": "Mary Smith", "text": "Mary Smith called; SMITH, Mary signed; Mary agreed."},
    {"name": "Zita Ozols", "text": "nothing"},
]


@pytest.mark.parametrize("format_", ["jsonl", "csv"])
def test_each_spelling_of_a_value_comes_back(keys: None, copy: Copier, tmp_path: Path, format_: str) -> None:
    redaction = Redaction(columns={"name": "PERSON"}, replace="pseudonym", vault=str(tmp_path / "v"))
    data = "".join(json.dumps(row) + "\n" for row in SPELLED)
    if format_ == "csv":
        data = "name,text\n" + "".join('"{name}","{text}"\n'.format(**row) for row in SPELLED)
    # another file in the same vault, whose first spellings are others
    other = "".join(json.dumps(row) + "\n" for row in SPELLED[::-1])
    copy("b.jsonl", other.encode(), redaction)
    second = copy.out
    made = copy(f"a.{format_}", data.encode(), redaction).decode()
    rows = made.splitlines()[format_ == "csv" :]
    tokens = [set(re.findall(r"<(?!PERSON)[A-Z_]+_[a-z2-7]{16}>", row)) for row in rows]
    assert [len(found) for found in tokens] == [0, 0, 1, 1, 1, 1, 0, 0]
    assert len(set(re.findall(r"<PERSON_\w+>", rows[0]))) == 1
    unmask(copy.out, tmp_path / f"back.{format_}", tmp_path / "v")
    assert (tmp_path / f"back.{format_}").read_text() == data
    unmask(second, tmp_path / "second.jsonl", tmp_path / "v")
    assert (tmp_path / "second.jsonl").read_text() == other
    # rows that went elsewhere have their values in one spelling at least
    moved = tmp_path / f"moved.{format_}"
    moved.write_text("\n".join([*made.splitlines()[: format_ == "csv"], *rows[3:5]]) + "\n")
    unmask(moved, tmp_path / f"again.{format_}", tmp_path / "v")
    assert "415-555-2671" in (tmp_path / f"again.{format_}").read_text()
    assert "4111 1111 1111 1111 is 4111111111111111" in (tmp_path / f"again.{format_}").read_text()


def test_the_spellings_of_one_copy_do_not_oust_those_of_another(keys: None, copy: Copier, tmp_path: Path) -> None:
    """Texts that are masked to the same, each in a row of its own of another file of one vault."""
    redaction = Redaction(replace="pseudonym", vault=str(tmp_path / "v"))
    made, ways = {}, ("(415) 555-2671", "415-555-2671", "415 555 2671")
    for row, way in enumerate(ways):
        lines = ["nothing"] * row + [f"Call +1 415 555 2671, or {way}."]
        data = "".join(json.dumps({"text": line}) + "\n" for line in lines)
        written = copy(f"{row}.jsonl", data.encode(), redaction)
        made[copy.out] = (data, written.splitlines()[-1])
    assert len({last for _, last in made.values()}) == 1
    for number, (out, (data, _)) in enumerate(made.items()):
        unmask(out, tmp_path / f"back-{number}.jsonl", tmp_path / "v")
        assert (tmp_path / f"back-{number}.jsonl").read_text() == data


@pytest.mark.parametrize(
    ("vault", "key", "told"),
    [
        ("v.vault", None, "REDACTORY_ENCRYPTION_KEY"),
        ("no/such/folder/v.vault", "e" * 32, "vault: .* cannot be written"),
        ("mine.txt", "e" * 32, "is not a vault"),
    ],
)
def test_a_vault_that_cannot_be_written_is_told_before_anything_is_read(
    keys: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vault: str, key: str | None, told: str
) -> None:
    if key is None:
        monkeypatch.delenv("REDACTORY_ENCRYPTION_KEY")
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "a.csv").write_text("no,text\nin,it\n")
    redaction = Redaction(replace="pseudonym", vault=str(tmp_path / vault))
    with pytest.raises((ConfigurationError, InputError), match=told):
        redact(tmp_path / "a.csv", tmp_path / "out.csv", redaction, config=PATTERNS)
    assert (tmp_path / "mine.txt").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "mine.txt"]


def test_no_planted_secret_is_left_in_any_format(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    draw = random.Random(1)
    secrets = [f"user{draw.getrandbits(40):x}@example.org" for _ in range(1_000)]
    rows = [{"id": n, "text": f"Write to {secret} soon."} for n, secret in enumerate(secrets)]
    folder = tmp_path / "in"
    folder.mkdir()
    for n, kind in enumerate(("jsonl", "csv", "parquet", "arrow")):
        write_file(folder / f"a.{kind}", rows[n::6])
    (folder / "b.json").write_text(json.dumps(rows[4::6]))
    (folder / "f.txt").write_text("\n".join(row["text"] for row in rows[5::6]))
    summary = redact(folder, tmp_path / "out", config=PATTERNS)
    out = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    out += str(pq.read_table(tmp_path / "out/a.parquet").to_pylist()).encode()
    left = [secret for secret in secrets if secret.partition("@")[0].encode() in out]
    assert left == []
    assert not any(secret in caplog.text for secret in secrets)
    assert summary["rows"] == summary["written"] == 1_000 - len(rows[5::6]) + 1


def test_a_text_of_which_a_part_was_not_processed_has_a_reason_and_no_hits() -> None:
    hit = SimpleNamespace(start=0, end=1, label="PERSON", score=1.0, policy="strict")
    read, lost = (SimpleNamespace(failure=failure, spans=[hit]) for failure in (None, "engine_error"))
    policy: Any = SimpleNamespace(read_many=lambda texts: [[read], [read, lost]][: len(texts)])
    assert _find_strict_spans(policy, ["a", "b", "a"]) == [
        [ReplacedSpan(0, 1, "PERSON")],
        "engine_error",
        [ReplacedSpan(0, 1, "PERSON")],
    ]


def test_a_configuration_for_conversations_hides_no_text_of_a_copy(tmp_path: Path) -> None:
    """Neither speakers' labels nor what is written before a separator of documents."""
    said = "Mary Smith wrote: call 555-123-4567\x1f bye"
    rows = [{"id": 1, "messages": [{"role": "user", "content": said}]}]
    path, out = write_rows(tmp_path / "rows.jsonl", rows), tmp_path / "out.jsonl"
    redact(path, out, config={"input": {"text": "messages"}, "segment": {"mode": "turn"}})
    [row] = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    content = row["messages"][0]["content"]
    assert "555-123-4567" not in content
    assert content.endswith("\x1f bye")
    line = "5551234567: that is me\n(555) 123-4567: and this"
    path, out = write_rows(tmp_path / "lines.jsonl", [{"id": 1, "text": line}]), tmp_path / "copy.jsonl"
    redact(path, out, config={"segment": {"mode": "turn", "speaker": r"[^:\n]{1,20}:[ \t]+"}})
    assert "123" not in json.loads(out.read_text(encoding="utf-8"))["text"]
