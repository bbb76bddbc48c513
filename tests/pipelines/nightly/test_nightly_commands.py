"""``redactory nightly`` and ``redactory release`` as an operator types them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from redactory.flows.cli import app
from redactory.foundation.records import Record
from redactory.pipelines.release_log import in_words
from redactory.redaction import RunFolder, read_column
from tests.pipelines.support import write_rows

BLANK = {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of one night."""
    folder = tmp_path_factory.mktemp("operator")
    write_rows(folder / "rows.jsonl", [{"text": "zanzibar is far"}, {"text": "so it is"}])
    settings = {"input": "rows.jsonl", "output": "job", "segment": {"mode": "line"}, "detect": BLANK}
    (folder / "job.yaml").write_text(yaml.safe_dump(settings))
    assert "released; 2 rows, 2 points" in said(folder, "nightly", "job.yaml")
    return folder


def said(folder: Path, *words: str, code: int = 0) -> str:
    """What a command prints on standard output."""
    told = [str(folder / word) if (folder / word).exists() else word for word in words]
    done = CliRunner().invoke(app, told, terminal_width=400)
    assert done.exit_code == code, done.output
    return done.stdout


def test_nothing_new_is_said_and_is_no_error(folder: Path) -> None:
    assert "Nothing new." in said(folder, "nightly", "job.yaml")
    assert json.loads(said(folder, "nightly", "job.yaml", "--json"))["nights"][0]["state"] == "nothing new"


def test_the_runs_and_the_log_are_listed_without_text(folder: Path) -> None:
    listed, log = said(folder, "release", "list", "job"), said(folder, "release", "list", "job", "--log")
    assert "released" in listed
    assert "begun:" in log
    assert "released: 2 rows" in log
    assert "zanzibar" not in listed + log


def test_a_run_is_given_up_and_read_again(folder: Path) -> None:
    latest = (folder / "job" / "latest").resolve()
    words = ("--by", "Ann", "--reason", "wrong feed")
    assert f"{latest.name}: rejected. Latest: none" in said(folder, "release", "reject", str(latest), *words)
    assert not (folder / "job" / "latest").exists()
    assert "wrong feed (Ann)" in said(folder, "release", "list", "job")
    said(folder, "nightly", "job.yaml")
    again = RunFolder((folder / "job" / "latest").resolve())
    assert again.root != latest
    assert len(read_column(again.vault, "text")) == 2


def test_a_folder_that_is_no_job_is_refused(folder: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["release", "list", str(tmp_path)])
    assert "is not a job" in str(done.exception)


def test_a_hook_that_fails_takes_no_release_back_and_is_the_exit_code(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [{"text": "so it is"}])
    settings = {
        "input": "rows.jsonl",
        "output": "job",
        "segment": {"mode": "line"},
        "detect": BLANK,
        "nightly": {"hooks": {"on_release": ["/bin/false"]}},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(settings))
    assert "released; 1 row, 1 point " in said(tmp_path, "nightly", "job.yaml", code=1)
    assert (tmp_path / "job" / "latest" / "_SUCCESS").is_file()


def test_the_log_says_what_was_taken_out() -> None:
    body = {"run": "night", "time": "2026-11-22T03:00:00+00:00", "why": "takedown", "removed": {"points": 11}}
    assert in_words(Record(0, "reissued", body)) == "reissued: takedown, 11 points taken out"
    purged = {**body, "why": "purge", "removed": None, "what": ["vault"]}
    assert in_words(Record(0, "reissued", purged)) == "reissued: purge, vault"


def test_the_log_says_what_left_and_where_to() -> None:
    body = {"to": "/srv/out", "manifest": "0123456789abcdef", "models": ["crt"]}
    assert in_words(Record(0, "exported", body)) == "exported: crt, to /srv/out"
    mirrored = {"published": "s3://shards/night", "manifest": "0123456789abcdef"}
    assert in_words(Record(0, "exported", mirrored)) == "exported: s3://shards/night"
