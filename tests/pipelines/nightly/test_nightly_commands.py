"""``redactory nightly`` and ``redactory release`` as an operator types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from redactory.foundation.records import Record
from redactory.pipelines.curation.release_log import describe_record
from redactory.redaction import RunFolder, read_column
from tests.pipelines.support import LINE_CONFIG, invoke_command, write_rows

ENGINES = {"tagger": None, "patterns": None, "spacy": {"model": "blank:en"}}
SETTINGS: dict[str, Any] = {
    **LINE_CONFIG,
    "input": "rows.jsonl",
    "output": "job",
    "detect": ENGINES,
    "nightly": {"approve": "never"},
}


def said(folder: Path, *words: str, code: int = 0) -> str:
    """What a command prints on standard output."""
    done = invoke_command(*(folder / word if (folder / word).exists() else word for word in words))
    assert done.exit_code == code, done.output
    return str(done.stdout)


def test_runs_and_log_are_listed_without_text_and_a_failing_hook_takes_no_release_back(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [{"text": "zanzibar is far"}, {"text": "so it is"}])
    (tmp_path / "job.yaml").write_text(
        yaml.safe_dump({**SETTINGS, "nightly": {**SETTINGS["nightly"], "hook": ["/bin/false"]}})
    )
    assert "released; 2 rows, 2 examples" in said(tmp_path, "nightly", "job.yaml", code=1)
    assert "Nothing new." in said(tmp_path, "nightly", "job.yaml")
    assert json.loads(said(tmp_path, "nightly", "job.yaml", "--json"))["nights"][0]["state"] == "nothing new"
    listed, log = said(tmp_path, "release", "list", "job"), said(tmp_path, "release", "list", "job", "--log")
    assert "released" in listed
    assert "begun:" in log
    assert "released: 2 rows" in log
    assert "zanzibar" not in listed + log
    latest = (tmp_path / "job" / "latest").resolve()
    # the hook of the night is called again
    words = ("--by", "Ann", "--reason", "wrong feed")
    rejected = said(tmp_path, "release", "reject", str(latest), *words, code=1)
    assert f"{latest.name}: rejected. Latest: none" in rejected
    assert "The hook failed: exit code 1" in rejected
    assert "wrong feed (Ann)" in said(tmp_path, "release", "list", "job")
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(SETTINGS))
    said(tmp_path, "nightly", "job.yaml")
    again = RunFolder((tmp_path / "job" / "latest").resolve())
    assert (again.root != latest, len(read_column(again.vault, "text"))) == (True, 2)
    assert "is not a job" in str(invoke_command("release", "list", tmp_path).exception)


def test_the_first_run_waits_for_a_person_and_says_what_to_type(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows.jsonl", [{"text": "zanzibar is far"}, {"text": "so it is"}])
    (tmp_path / "job.yaml").write_text(yaml.safe_dump({name: s for name, s in SETTINGS.items() if name != "nightly"}))
    page = said(tmp_path, "nightly", "job.yaml", code=1)
    why = "not compared with earlier runs: 0 released runs before it, and limits need 5, so a person decides"
    assert f"  {why} (nightly.approve is drift)\n" in page
    [run] = (path for path in (tmp_path / "job").iterdir() if path.name.startswith("20"))
    typed = f"redactory release approve (or reject) {tmp_path / 'job'}/{run.name} --by NAME --reason WHY"
    assert f"Held: {run.name}. Decide with {typed}" in page
    assert f"{run.name}: {why}" in said(tmp_path, "release", "list", "job")
    assert "Latest: none" in said(tmp_path, "release", "list", "job")
    said(tmp_path, "release", "approve", str(run), "--by", "Ann", "--reason", "the first one")
    assert "the first one (Ann)" in said(tmp_path, "release", "list", "job")


@pytest.mark.parametrize(
    ("type_", "body", "words"),
    [
        ("reissued", {"why": "erasure", "removed": {"examples": 11}}, "erasure, 11 examples removed"),
        ("reissued", {"why": "purge", "removed": None, "what": ["vault"]}, "purge, vault"),
        ("exported", {"to": "/srv/out", "manifest": "0123", "models": ["crt"]}, "crt, to /srv/out"),
        ("exported", {"published": "s3://shards/night", "manifest": "0123"}, "s3://shards/night"),
    ],
)
def test_the_log_says_what_was_taken_out_and_what_left(type_: str, body: dict[str, object], words: str) -> None:
    assert describe_record(Record(0, type_, {"run": "night", "time": "", **body})) == f"{type_}: {words}"
