"""What goes with each example beside its text: columns that are kept, its document, its place there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from jsonschema import Draft202012Validator

import redactory
from redactory.foundation.errors import CheckFailed, ConfigurationError
from redactory.foundation.keys import load_digest_key
from redactory.pipelines.curation import curate as curating
from redactory.redaction import (
    RunFolder,
    list_files,
    list_parts,
    read_batches,
    read_manifest,
    write_manifest,
    write_part,
    write_success,
)
from tests.pipelines.support import (
    LINE_CONFIG,
    DigitDetector,
    list_failed_checks,
    read_data_bytes,
    run_checks,
    write_rows,
)

pytestmark = pytest.mark.usefixtures("unsynced")
ROWS: list[dict[str, Any]] = [
    {
        "id": f"d{i}",
        "text": f"call {i} now\nhello there\nline {'abc'[i % 3]}",
        "lang": "de" if i % 2 else "en",
        "meta": {"stars": i if i != 4 else 4.5, "good": i > 2},
    }
    for i in range(7)
]
KEPT = {"metadata_columns": ["lang", "meta.stars", "meta.good"], "emit_document_order": True}


def _run(folder: Path, rows: list[dict[str, Any]] | Path, workers: int = 1, **section: Any) -> Path:
    path = rows if isinstance(rows, Path) else write_rows(folder / "rows.jsonl", rows)
    config = {**LINE_CONFIG, "input": {"path": str(path), **section}, "partition": {"documents": 3}}
    redactory.curate(config, output=folder / "run", detector=DigitDetector(), workers=workers)
    return folder / "run"


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [row for batch in read_batches(folder) for row in batch.to_pylist()]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _run(tmp_path_factory.mktemp("kept"), ROWS, **KEPT)


def test_kept_columns_and_order_go_with_every_example(run: Path) -> None:
    key, seen = load_digest_key(), list[tuple[int, int]]()
    by_document = {key.make_pseudonym("document", row["id"]): row for row in ROWS}
    for side in ("public", "private"):
        for one in _rows(run / side):
            row = by_document[one["document_id"]]
            assert (one["lang"], one["meta.stars"], one["meta.good"]) == (row["lang"], *row["meta"].values())
            line = row["text"].split("\n")[one["position"]]
            assert one["text"] == (line if side == "public" else "call <MASK> now")
            seen.append((ROWS.index(row), one["position"]))
    # of equal texts the first stays, with its own columns
    assert sorted(seen) == [(0, 0), (0, 1), (0, 2), (1, 2), (2, 2)]
    types = {"document_id": "string", "position": "int32", "lang": "string", "meta.stars": "double"}
    assert read_manifest(RunFolder(run))["columns"] == {**types, "meta.good": "bool"}
    assert not list_failed_checks(run)


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_workers(run: Path, tmp_path: Path) -> None:
    assert read_data_bytes(_run(tmp_path, ROWS, workers=2, **KEPT)) == read_data_bytes(run)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_tables_keep_what_they_have(kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows.{kind}"
    if kind == "csv":
        path.write_text("text,stars\nhello,5\nbye,\n")
    else:
        pq.write_table(pa.table({"text": ["hello", "bye"], "stars": [5, None]}), path)
    found = _rows(_run(tmp_path, path, metadata_columns="stars") / "public")
    assert [row["stars"] for row in found] == (["5", ""] if kind == "csv" else [5, None])


@pytest.mark.parametrize("kept", [True, False])
def test_a_card_offers_classification_if_the_shards_have_the_class(kept: bool, tmp_path: Path) -> None:
    run = _run(tmp_path, ROWS, label="lang", **({"metadata_columns": ["lang"]} if kept else {}))
    redactory.export(run, tmp_path / "out")
    assert not list_failed_checks(tmp_path / "out")
    Draft202012Validator(redactory.schema("export-manifest")).validate(read_manifest(RunFolder(tmp_path / "out")))
    for folder in (run, tmp_path / "out"):
        front = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
        assert front["task_categories"] == ["text-generation", *(["text-classification"] if kept else [])]
        assert set(_rows(folder / "public")[0]) >= ({"lang"} if kept else set())


def test_an_export_says_what_was_kept_and_a_changed_column_shows(run: Path, tmp_path: Path) -> None:
    redactory.export(run, tmp_path / "out")
    said = (tmp_path / "out" / "README.md").read_text()
    assert "`lang`, `meta.stars`, `meta.good`" in said
    assert "outside of every guarantee" in said
    assert not list_failed_checks(tmp_path / "out")
    copy = RunFolder(shutil.copytree(run, tmp_path / "run"))
    for part in list_parts(copy.public):
        table = pq.read_table(part)
        write_part(part, table.append_column("more", table["text"]).drop_columns("lang"))
    manifest = read_manifest(copy)
    files = {**manifest.pop("files"), **list_files(copy, list_parts(copy.public))}
    write_manifest(copy, manifest, files)
    write_success(copy)
    assert "public: columns differ from the manifest: lang, more" in run_checks(copy.root)["example ids"]["detail"]


@pytest.mark.parametrize(
    ("column", "values"),
    [("customer_name", ["x"]), ("phone", [5]), ("source", ["web", "call 555-1234"]), ("number", [5551234])],
)
def test_what_looks_personal_is_refused_until_it_is_accepted(
    column: str, values: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"text": "hello"}, *({"text": f"line {'ab'[i]}", column: value} for i, value in enumerate(values))]
    told = rf"{column} \(.*\)\. Remove the column, or accept it \(input\.allow_personal_columns: \[{column}\]\)"
    with pytest.raises(ConfigurationError, match=told):
        _run(tmp_path, rows, metadata_columns=[column])
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigurationError, match=told):
        redactory.describe({"input": {"path": str(tmp_path / "rows.jsonl"), "metadata_columns": [column]}})
    # what the first rows do not show is seen where texts are detected
    monkeypatch.setattr(curating, "INSPECTED_ROWS", 1)
    with pytest.raises(ConfigurationError, match=told):
        _run(tmp_path, rows, metadata_columns=[column])
    columns = {"metadata_columns": [column], "allow_personal_columns": [column]}
    accepted = _run(tmp_path / "accepted", tmp_path / "rows.jsonl", **columns)
    assert [row[column] for row in _rows(accepted / "public")] == [None, *values]


def test_a_language_column_is_not_personal_and_a_reason_has_a_rule_and_a_count(tmp_path: Path) -> None:
    codes = ["en", "de", "pt-BR", "fr_CA"]
    names = ["lang", "language_code", "source_lang", "target_language"]
    rows = [{"text": f"line {'abcd'[i]}", **dict.fromkeys(names, code)} for i, code in enumerate(codes)]
    for folder in ("languages", "people"):
        (tmp_path / folder).mkdir()
    run = _run(tmp_path / "languages", rows, metadata_columns=names)
    assert {row["source_lang"] for row in _rows(run / "public")} == {*codes}
    people = [{"text": f"line {'ab'[i]}", "phone": i, "source_lang": "call 555-123-4567"} for i in range(2)]
    told = r"phone \(by its name; 2 values\) and source_lang \(1 of 1 values look like NUMBER\)\. Remove"
    with pytest.raises(ConfigurationError, match=told):
        _run(tmp_path / "people", people, metadata_columns=["phone", "source_lang"])


def test_what_is_no_plain_value_is_rejected_and_a_column_has_one_type(tmp_path: Path) -> None:
    bad: list[Any] = [["en"], {"a": 1}, 1 << 63, "x\0", "x" * 1025]
    rows = [{"text": f"line {'abcdefg'[i]}", "lang": value} for i, value in enumerate(["en", *bad])]
    run = _run(tmp_path, rows, metadata_columns=["lang"])
    assert read_manifest(RunFolder(run))["rejected"] == {"kept_not_plain": 4, "kept_too_long": 1}
    for values, told in (
        (["en", 1], r"input\.metadata_columns: 'lang' is string and integer in different rows"),
        ([None, None], r"input\.metadata_columns: no row has a value for 'lang'"),
        ([["en"]], "name a field in it."),
    ):
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        place.mkdir()
        with pytest.raises(CheckFailed, match=told):
            _run(place, [{"text": "hello", "lang": value} for value in values], metadata_columns=["lang"])


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"metadata_columns": ["a..b"]}, r"input\.metadata_columns: 'a\.\.b' is not a path"),
        ({"metadata_columns": ["tags[]"]}, r"input\.metadata_columns: 'tags\[\]' names the entries of a list"),
        ({"metadata_columns": ["text"]}, r"input\.metadata_columns: 'text' is a column that shards have anyway"),
        ({"metadata_columns": ["lang", "lang"]}, r"input\.metadata_columns: 'lang' occurs twice"),
        ({"allow_personal_columns": ["lang"]}, r"allow_personal_columns: 'lang' is not in input\.metadata_columns"),
    ],
)
def test_what_cannot_be_kept_is_told_before_anything_is_read(section: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        redactory.describe({"input": {"path": "nothing.jsonl", **section}})


def test_an_exported_quarantine_keeps_them(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "all broken"}, {"role": "assistant", "content": "broken too"}]
    rows = [{"id": "a", "user_id": "u", "messages": [*chat, {"role": "user", "content": "fine"}], "lang": "en"}]
    run = _run(tmp_path, rows, text="messages", metadata_columns=["lang"], emit_document_order=True)
    document = _rows(run / "public")[0]["document_id"]

    class Mended(DigitDetector):
        def detect(self, texts: Any) -> Any:
            return super().detect(text.replace("broken", "mended") for text in texts)

    out = redactory.quarantine_export(run)["out"]
    columns = {"text": "messages", "metadata_columns": ["lang"], "emit_document_order": True}
    config = {**LINE_CONFIG, "input": {"path": out, **columns}}
    redactory.curate(config, output=tmp_path / "again", detector=Mended())
    found = [{**row, "example_id": ""} for row in _rows(tmp_path / "again" / "public")]
    same = {"example_id": "", "document_id": document, "lang": "en"}
    assert found == [
        {**same, "text": "all broken", "position": 0, "turn": 0, "role": "user"},
        {**same, "text": "broken too", "position": 1, "turn": 1, "role": "assistant"},
    ]
    assert json.loads((run / "manifest.json").read_text())["columns"]["role"] == "string"


def test_a_number_that_a_column_cannot_hold_exactly_is_refused_by_the_name_of_its_column(tmp_path: Path) -> None:
    rows = [{"id": str(n), "text": f"hello {n}", "meta": {"size": n}} for n in (9007199254740993, 1.5)]
    with pytest.raises(CheckFailed, match=r"'meta\.size' has an integer that its column cannot hold") as caught:
        _run(tmp_path, rows, metadata_columns=["meta.size"], allow_personal_columns=["meta.size"])
    assert "9007199254740993" not in str(caught.value)
