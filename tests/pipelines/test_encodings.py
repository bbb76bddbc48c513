"""Files in another encoding than UTF-8, and keys that may be personal data."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import redactory
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.pipelines.curation_hints import describe_rejection
from redactory.pipelines.documents.redact import redact
from tests.pipelines.support import LINE_CONFIG, DigitDetector, invoke_command

PATTERNS: dict[str, Any] = {"detect": {"tagger": None}}
SECRET = "ann.kovacs@example.org"
TEXTS = {
    "cp1252": "Zoë paid €5 “now”",
    "latin-1": "çà et là",
    "utf-16": "Грüße 東",
    "utf-16-le": "é",
    "shift_jis": "山田 表",
}


def file_of(kind: str, texts: list[str]) -> str:
    if kind == "jsonl":
        return "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts)
    if kind == "json":
        return json.dumps([{"text": text} for text in texts], ensure_ascii=False, indent=1)
    if kind == "txt":
        return "\n".join(texts)
    table = io.StringIO()
    csv.writer(table, delimiter="\t" if kind == "tsv" else ",", lineterminator="\n").writerows(
        [["text"], *([text] for text in texts)]
    )
    return table.getvalue()


KINDS = ("csv", "tsv", "jsonl", "json", "txt")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoding", TEXTS)
def test_a_copy_has_the_encoding_of_its_input(tmp_path: Path, encoding: str, kind: str) -> None:
    texts = [f"{TEXTS[encoding]} {SECRET}", TEXTS[encoding]]
    (tmp_path / f"in.{kind}").write_bytes(file_of(kind, texts).encode(encoding))
    made = redact(tmp_path / f"in.{kind}", tmp_path / f"out.{kind}", config=PATTERNS, encoding=encoding)
    expected = file_of(kind, [text.replace(SECRET, "<MASK>") for text in texts])
    assert (tmp_path / f"out.{kind}").read_bytes().decode(encoding) == expected
    assert made["quarantined"] == {}
    found = redactory.scan([tmp_path / f"in.{kind}"], config=PATTERNS, encoding=encoding)
    assert (found["unread"], found["by_label"]) == (0, {"EMAIL_ADDRESS": 1})
    assert redactory.scan([tmp_path / f"out.{kind}"], config=PATTERNS, encoding=encoding)["clean"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_encoding_no_row_is_read(tmp_path: Path, kind: str) -> None:
    for encoding in ("cp1252", "utf-16"):
        source = tmp_path / f"{encoding}.{kind}"
        source.write_bytes(file_of(kind, [f"Zoë {SECRET}"]).encode(encoding))
        try:
            message = describe_rejection(
                *redact(source, tmp_path / f"out.{kind}", config=PATTERNS)["quarantined"].popitem()
            )
        except InputError as error:
            message = str(error)
        assert "give --encoding NAME (input.encoding), or convert the file (iconv -t UTF-8)" in message
        assert not any(SECRET.encode() in path.read_bytes() for path in tmp_path.glob("out*"))
        for path in tmp_path.glob("out*"):
            path.unlink()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cp1525", "did you mean 'cp1252'?"),
        ("shift-jiss", "did you mean 'shift_jis'?"),
        ("base64", "use one like cp1252"),
        ("idna", "use one like cp1252"),
        ("rot13", "use one like"),
        ("", "use one like"),
    ],
)
def test_an_unknown_encoding_is_rejected(tmp_path: Path, name: str, hint: str) -> None:
    (tmp_path / "in.csv").write_text("text\nx\n")
    with pytest.raises(ConfigurationError, match=r"input\.encoding: unknown encoding") as error:
        redact(tmp_path / "in.csv", tmp_path / "out.csv", encoding=name)
    assert hint in str(error.value)
    for command in (
        ["curate", tmp_path / "in.csv"],
        ["curate", tmp_path / "in.csv", "--dry-run"],
        ["scan", tmp_path / "in.csv"],
    ):
        done = invoke_command(*command, "--encoding", name)
        assert hint in str(done.exception)


def test_bytes_that_are_not_of_the_encoding_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes("text\nZoë\nx\x81y\n€\n".encode("cp1252", "replace").replace(b"x?y", b"x\x81y"))
    made = redact(tmp_path / "in.csv", tmp_path / "out.csv", config=PATTERNS, encoding="cp1252")
    assert made["quarantined"] == {"undecodable": 1}
    assert (tmp_path / "out.csv").read_text("cp1252") == "text\nZoë\n€\n"
    (tmp_path / "odd.txt").write_bytes("text".encode("utf-16") + b"\x00\xd8")
    with pytest.raises(InputError, match=r"odd\.txt is not utf-16: give another --encoding"):
        redact(tmp_path / "odd.txt", tmp_path / "odd.out.txt", config=PATTERNS, encoding="utf-16")


@given(
    st.lists(st.text(st.characters(codec="cp1252", exclude_characters="\r\n\0"), max_size=9), min_size=1, max_size=9)
)
def test_an_encoding_changes_nothing_else(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> None:
    folder = tmp_path_factory.mktemp("encoding")
    data = file_of("csv", ["x" + text for text in texts])
    for encoding in ("utf-8", "cp1252"):
        (folder / f"{encoding}.csv").write_bytes(data.encode(encoding))
        rows = {"detect": {"tagger": None, "patterns": None}}
        redact(folder / f"{encoding}.csv", folder / f"{encoding}.out.csv", config=rows, encoding=encoding)
        assert (folder / f"{encoding}.out.csv").read_bytes().decode(encoding) == data


def test_a_curation_reads_the_encoding_of_its_option_or_its_configuration(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_bytes("text\nZoë has number 17\n".encode("utf-16"))
    by_key = {**LINE_CONFIG, "input": {"path": str(source), "encoding": "utf-16"}}
    runs = {"key": (by_key, None), "option": ({**LINE_CONFIG, "input": str(source)}, "utf-16")}
    for name, (config, encoding) in runs.items():
        made = redactory.curate(config, encoding=encoding, output=tmp_path / name, detector=DigitDetector())
        assert (made["documents"], made["rejected"]) == (1, 0)
    texts = [pq.read_table(next((tmp_path / name / "private").glob("*.parquet")))["text"].to_pylist() for name in runs]
    assert texts == [["Zoë has number <MASK>"]] * 2


def test_a_scheduled_run_needs_lines_that_it_can_count(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl").write_bytes('{"text": "Zoë"}\n'.encode("utf-16"))
    config = {**LINE_CONFIG, "input": {"path": str(tmp_path / "in"), "encoding": "utf-16"}}
    with pytest.raises(ConfigurationError, match=r"input\.encoding: scheduled runs need"):
        redactory.nightly({**config, "output": str(tmp_path / "job")})


def test_a_vault_needs_utf_8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "in.csv").write_text("text\nx\n")
    settings = {"replace": "pseudonym", "vault": str(tmp_path / "vault")}
    with pytest.raises(ConfigurationError, match="vault: unmask reads only UTF-8"):
        redact(tmp_path / "in.csv", tmp_path / "out.csv", settings, encoding="utf-16")


# Keys.

PLANTED = ("Mary Smith", "mary.smith@example.com", "555-123-4567", "mary_smith")
NESTED: dict[str, Any] = {
    "a key of the row": lambda key: {key: 1},
    "one level down": lambda key: {"scores": {key: 3}},
    "two levels down": lambda key: {"scores": {"all": {key: {"n": 3}}}},
    "in a list": lambda key: {"scores": [{"n": 1}, {key: 3}]},
    "in a list of lists": lambda key: {"scores": [[{key: 3}]]},
    "in a turn": lambda key: {"messages": [{"role": "user", "content": "x", key: 3}]},
    "in the arguments of a call": lambda key: {
        "messages": [{"role": "assistant", "content": "x", "tool_calls": [{"function": {"arguments": {key: 3}}}]}]
    },
}


@pytest.mark.parametrize("place", NESTED)
@pytest.mark.parametrize("key", PLANTED)
def test_a_personal_key_is_refused_masked_or_reported(tmp_path: Path, place: str, key: str) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(json.dumps({"text": "ok", **NESTED[place](key)}) + "\n")
    with pytest.raises(ConfigurationError, match="fields that would be copied unmasked") as error:
        redact(source, out, config=PATTERNS)
    assert not out.exists()
    assert key not in str(error.value)
    column = next(iter(NESTED[place](key)))
    for what in ("drop",) if place == "a key of the row" else ("drop", "IDENTIFIER"):
        made = redact(source, tmp_path / what, {"columns": {column: what}}, text_columns=["text"], config=PATTERNS)
        assert made["kept_keys"] == []
        assert key not in (tmp_path / what).read_text()
    for number, settings in enumerate(({"columns": {column: "keep"}}, {"keep_other_columns": True})):
        made = redact(source, tmp_path / f"kept{number}", settings, config=PATTERNS)
        # the key is not named
        assert made["kept_keys"] == ["field 2" if place == "a key of the row" else column]


def test_the_command_says_which_keys_are_kept(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "ok", "scores": {"Mary Smith": 3}}\n')
    done = invoke_command("redact", tmp_path / "in.jsonl", "--out", tmp_path / "out.jsonl", "--column", "scores=keep")
    assert done.exit_code == 0
    assert "Keys that may be personal data are kept as declared: in scores." in done.output


def test_of_kept_columns_with_usual_keys_nothing_is_said(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"text": "ok", "meta": {"source": "web", "n": [{"a_b": 1}]}}\n')
    made = redact(tmp_path / "in.jsonl", tmp_path / "out.jsonl", {"columns": {"meta": "keep"}}, config=PATTERNS)
    assert made["kept_keys"] == []


def test_text_in_bytes_of_a_fixed_length_is_masked(tmp_path: Path) -> None:
    rows = [f"to {SECRET}".encode(), b"x" * 25]
    pq.write_table(pa.table({"text": pa.array(rows, pa.binary(25))}), tmp_path / "in.parquet")
    redact(tmp_path / "in.parquet", tmp_path / "out.parquet", config=PATTERNS)
    assert pq.read_table(tmp_path / "out.parquet")["text"].to_pylist() == [b"to <MASK>", b"x" * 25]
