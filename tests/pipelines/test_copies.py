"""Where a copy is read from and written to: paths, standard input and output, what is passed over."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from redactory.flows.cli import app
from redactory.foundation.errors import ConfigurationError
from redactory.pipelines.documents.redact import redact
from redactory.pipelines.documents.redact_io import PIPE, find_copy_sources, require_matching_format
from tests.pipelines.support import invoke_command

SECRET = "ann.kovacs@example.org"
PATTERNS = {"detect": {"tagger": None}}
"""Recognizers alone: no model to load."""
LINE = json.dumps({"text": SECRET})
MASKED = json.dumps({"text": "<MASK>"})


@pytest.mark.parametrize("given", ["{}/a/../in", "../in", "link/../in", "../in/b\\c"])
def test_a_path_with_two_dots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    for name in ("a", "in/b\\c", "elsewhere/a", "elsewhere/in/b\\c"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "in/b\\c/one.jsonl").write_text(LINE)
    (tmp_path / "elsewhere/in/b\\c/one.jsonl").write_text(json.dumps({"text": f"else {SECRET}"}))
    (tmp_path / "a/link").symlink_to(tmp_path / "elsewhere/a")
    monkeypatch.chdir(tmp_path / "a")
    expected = MASKED.replace("<", "else <") if given.startswith("link") else MASKED
    redact(given.format(tmp_path), "out", config=PATTERNS)
    below = [path.relative_to("out").as_posix() for path in Path("out").rglob("*.jsonl")]
    assert below == ["one.jsonl" if "\\" in given else "b\\\\c/one.jsonl"]
    assert Path("out", *below).read_text() == expected
    one = given.format(tmp_path) + ("/one.jsonl" if "\\" in given else "/b\\c/one.jsonl")
    redact(one, "one.jsonl", config=PATTERNS)
    assert Path("one.jsonl").read_text() == expected


@pytest.mark.slow
def test_standard_input_of_any_format_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, table = io.BytesIO(), io.BytesIO()
    with zipfile.ZipFile(packed, "w") as parts:
        parts.writestr("[Content_Types].xml", "<Types/>")
        parts.writestr("word/document.xml", f"<document><p><t>{SECRET}</t></p></document>")
    pq.write_table(pa.table({"text": [SECRET]}), table)
    far = {"text": SECRET, "size": "x " * (1 << 20)}
    keep: dict[str, Any] = {"config": PATTERNS, "redaction": {"keep_other_columns": True}}
    source, out, whole = tmp_path / "in", tmp_path / "out", tmp_path / "whole"
    for format_, data in (
        ("jsonl", json.dumps(far).encode()),
        ("docx", packed.getvalue()),
        ("parquet", table.getvalue()),
        ("jsonl", json.dumps([far, far]).encode()),
        ("text", f"first line\n{SECRET} and no line end".encode()),
    ):
        source.write_bytes(data)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
        assert redact("-", out, format_=format_, **keep)["quarantined"] == {}, format_
        redact(source, whole, format_=format_, **keep)
        assert out.read_bytes() == whole.read_bytes(), format_
        assert SECRET.encode() not in out.read_bytes()
        out.unlink()
        whole.unlink()


def test_a_folder_is_not_written_into_one_stream(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINE)
    with pytest.raises(ConfigurationError, match="--out: a folder needs a folder"):
        redact(tmp_path, "-", config=PATTERNS)


@pytest.mark.parametrize(
    ("given", "out", "fix"),
    [
        ("in.csv", "x.parquet", "x.csv"),
        ("in.csv", "x.jsonl", "x.csv"),
        ("in.csv", "x.TSV", "x.csv"),
        ("in.csv", "x.jsonl.gz", "x.csv.gz"),
        ("in.csv", "x.docx.xz", "x.csv.xz"),
        ("in.tsv", "x.csv", "x.tsv"),
        ("in.jsonl", "x.csv.bz2", "x.jsonl.bz2"),
        ("in.jsonl", "x.html", "x.jsonl"),
        ("in.txt", "x.eml", "x.txt"),
        ("in.md", "x.pdf", "x.txt"),
        ("in.jsonl", "x.jsonl.zip", "x.jsonl, or x.jsonl.gz"),
        ("in.jsonl", "x.tar", "x, or x.gz"),
        (".", "../x.jsonl", "the copy of a folder is a folder"),
        (".", "../x.gz", "the copy of a folder is a folder"),
    ],
)
def test_an_output_whose_name_says_another_format_is_refused(tmp_path: Path, given: str, out: str, fix: str) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    data = '{"text": "x"}' if "jsonl" in given else "text\nx\n"
    (folder / ("in.csv" if given == "." else given)).write_text(data)
    with pytest.raises(ConfigurationError, match=f"--out: .*{re.escape(fix)}$"):
        redact(folder / given, folder / out, config=PATTERNS)
    with pytest.raises(ConfigurationError, match=f"--out: .*{re.escape(fix)}$"):
        require_matching_format(out, *find_copy_sources(str(folder / given), "auto"))
    assert not list(tmp_path.rglob("x*"))
    if given == "in.csv":
        for right in ("x.csv", "x.CSV.gz", "x.csv.xz", "x", "x.masked", "csv.new", "-", "s3://b/x.csv"):
            require_matching_format(right, *find_copy_sources(str(folder / given), "auto"))


@pytest.mark.slow
def test_a_reader_that_goes_away_is_not_the_documents_fault(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(f"{LINE}\n" * 20_000)
    (tmp_path / "job.yaml").write_text("detect: {tagger: null}")
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-m", "redactory", "redact", "a.jsonl", "--out", "-", "--config", "job.yaml"]
    done = subprocess.run(command, cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert "redactory: standard output was closed by its reader" in done.stderr
    assert ("Exception ignored" in done.stderr, done.returncode) == (False, 2)


def test_unknown_pseudonyms_are_counted_when_unmasking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDACTORY_KEY", "k" * 32)
    monkeypatch.setenv("REDACTORY_ENCRYPTION_KEY", "e" * 32)
    monkeypatch.chdir(tmp_path)
    for name, text in (("in/below/a.jsonl", SECRET), ("in/b.jsonl", f"{SECRET} x@example.org"), ("c", "no")):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(json.dumps({"text": text}))
    Path("other.jsonl").write_text(LINE.replace("ann", "zita"))
    for source, vault in (("in", "v.vault"), ("other.jsonl", "other.vault")):
        redact(source, f"out-{source}", {"replace": "pseudonym", "vault": vault}, config=PATTERNS)
    Path("plain.jsonl").write_text(LINE)
    for given, vault, code, told in (
        ("out-in", "v.vault", 0, "EMAIL_ADDRESS  3"),
        ("out-in", "other.vault", 1, "0 pseudonyms restored; 3 are not in this vault"),
        ("plain.jsonl", "v.vault", 1, "No pseudonym was found"),
    ):
        done = invoke_command("unmask", given, "--vault", vault, "--out", f"{vault}-{given}")
        assert (done.exit_code, told in done.stdout) == (code, True), done.stdout
    for name in ("below/a.jsonl", "b.jsonl"):
        assert Path("v.vault-out-in", name).read_text() == Path("in", name).read_text()


def test_a_file_that_is_not_copied_is_counted_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in/.git").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for name in ("in/a.jsonl", "in/b.ods", "in/.git/c.jsonl", "outside.jsonl"):
        Path(name).write_text(LINE)
    Path("in/inside.jsonl").symlink_to("a.jsonl")
    Path("in/link.jsonl").symlink_to("../outside.jsonl")
    Path("job.yaml").write_text("detect: {tagger: null}")
    done = invoke_command("redact", "in", "--out", "out", "--config", "job.yaml")
    assert (done.exit_code, sorted(os.listdir("out"))) == (1, ["a.jsonl", "inside.jsonl"])
    notes = map(json.loads, Path("out.quarantine.jsonl").read_text().splitlines())
    reasons = {".git/c.jsonl": "unknown_format", "b.ods": "unknown_format", "link.jsonl": "link_outside"}
    assert {note["file"]: note["reason"] for note in notes} == reasons
    page = " ".join(done.stdout.split())
    assert "files left out: unknown_format 2 files left out: link_outside 1" in page


@pytest.mark.parametrize(
    ("given", "out", "data", "told"),
    [
        ("a.docx", "b.docx", "no document", "Nothing was written: every document was left out."),
        ("a.pdf", "b.txt", "no document", "Nothing was written: every document was left out."),
        ("a.pdf", "b.PDF", "no document", "give b.txt"),
        ("-", "b.jsonl", "id,text\n1,x\n", "The copy b.jsonl has no rows: every one was left out."),
        ("-", "b.jsonl", "id,text\n1,x\n", "as JSON lines: or give --format (csv, parquet, mbox, …)"),
    ],
)
def test_a_message_says_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, out: str, data: str, told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, content in {"a.docx": data, "a.pdf": data, "job.yaml": "detect: {tagger: null}"}.items():
        Path(name).write_text(content)
    done = CliRunner().invoke(app, ["redact", given, "--out", out, "--config", "job.yaml"], input=data)
    assert told in done.stdout + str(done.exception)
    assert "written as text" not in done.stdout
    assert not Path("b.docx").exists()


LISTED = {"tickets": [{"body": "x", "n": [{"t": "x"}]}]}
FIELDS = {"text": "x", "fields": [{"value": SECRET}, {"value": True}], SECRET: SECRET}


@pytest.mark.parametrize(
    ("row", "redaction", "told"),
    [
        (LISTED, {"text_columns": ["tickets.body"]}, "no field 'tickets.body'; did you mean 'tickets[].body'?"),
        (LISTED, {"text_columns": ["tickets.n.t"]}, "no field 'tickets.n.t'; did you mean 'tickets[].n[].t'?"),
        (
            {"requester": {"name": "x"}, "text": "x"},
            {"redaction": {"columns": {"requester.name": "PERSON"}}},
            "'requester.name' among the columns; --column handles whole",
        ),
        (
            FIELDS,
            {},
            "fields[].value (text in 1 of 1 row) and field 3 (text in 1 of 1 row). Mask texts with --text-column, "
            "or choose per column with "
            "--column fields=WHAT --column NAME=WHAT (WHAT is keep, a label like PERSON, or drop)",
        ),
    ],
)
def test_a_message_tells_the_way(tmp_path: Path, row: Any, redaction: dict[str, Any], told: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    with pytest.raises(ConfigurationError, match=re.escape(told)):
        redact(tmp_path / "a.jsonl", tmp_path / "b.jsonl", config=PATTERNS, **redaction)


@pytest.mark.parametrize("name", ["txt", "md", "TEXT", ".text", "json", "ndjson", "eml", "htm", "foo", "", "ods"])
@pytest.mark.parametrize("piped", [False, True])
def test_a_format_is_known_by_its_endings_and_another_is_refused_with_the_list(name: str, piped: bool) -> None:
    known = {"txt": "text", "md": "text", "TEXT": "text", ".text": "text", "json": "jsonl", "ndjson": "jsonl"}
    known |= {"eml": "mail", "htm": "html"}
    path = PIPE if piped else __file__
    if name in known:
        assert find_copy_sources(path, name)[0][0].format == known[name]
        return
    with pytest.raises(ConfigurationError, match=r"--format: unknown format .*; expected auto, jsonl, text, parquet"):
        find_copy_sources(path, name)
