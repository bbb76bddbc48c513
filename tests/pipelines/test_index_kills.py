"""A run is killed around each commit in its index; that has it once, and not before ``_SUCCESS``."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from redactory.dedup.index import Entry, IndexFolder
from redactory.foundation.records import read_records
from redactory.redaction import RunFolder
from tests.pipelines import faults
from tests.pipelines.faults import KILLED, Fault
from tests.pipelines.support import read_data_bytes, write_rows

DRAFT = "index/pending/*"
CHAIN = [
    Fault("before", "journal index"),
    Fault("torn", "journal index"),
    Fault("before", f"{DRAFT}/begun.json"),
    Fault("torn", f"{DRAFT}/public.digests.npy"),
    Fault("after", f"{DRAFT}/public.digests.npy"),
    Fault("before", f"{DRAFT}/private.digests.npy"),
    Fault("torn", f"{DRAFT}/entry.json"),
    Fault("after", f"{DRAFT}/entry.json"),
    Fault("before", "_SUCCESS"),
    Fault("after", "_SUCCESS"),
    Fault("before", "index/runs/#-run"),
    Fault("after", "index/runs/#-run"),
]


def settings(folder: Path) -> dict[str, Any]:
    return {"config": {"dedup": {"index": {"path": str(folder / "index")}}}}


def entries(folder: Path) -> list[Entry]:
    return IndexFolder(folder / "index").list_entries()


def contents(folder: Path) -> tuple[list[Any], list[Path]]:
    """The later entries of the index in ``folder``, and the names of its files."""
    index = folder / "index"
    later = [(entry.name, entry.body["files"], entry.body["counts"]) for entry in entries(folder)[1:]]
    return later, sorted(path.relative_to(index) for path in index.rglob("*"))


@pytest.fixture(scope="module")
def whole(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index of one run, and an undisturbed second one."""
    folder = tmp_path_factory.mktemp("whole")
    first = [{"id": f"e{i}", "text": text} for i, text in enumerate(["hello there", "call 7 now", "never"])]
    assert faults.curated(write_rows(folder / "first.jsonl", first), folder / "first", **settings(folder)) == 0
    shutil.copytree(folder / "index", folder / "before")
    seen = folder / "moments"
    assert faults.curated(rows, folder / "run", Fault("none", str(seen)), **settings(folder)) == 0
    due, known = set(seen.read_text(encoding="utf-8").splitlines()), {fault.moment for fault in CHAIN}
    assert known <= due
    assert {moment for moment in due if moment.startswith("index/")} <= {*known, "index/index.json"}
    return folder


@pytest.mark.slow
def test_killed_around_every_commit_a_run_is_there_once_or_not_at_all(rows: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "before", tmp_path / "index")
    run = tmp_path / "run"
    for fault in CHAIN:
        assert faults.curated(rows, run, fault, **settings(tmp_path)) == KILLED, fault
        names = [entry.name for entry in entries(tmp_path)]
        assert names in (["000001-first"], ["000001-first", "000002-run"]), fault
        assert len(names) == 1 or (run / "_SUCCESS").is_file(), fault
    assert faults.curated(rows, run, **settings(tmp_path)) == 0
    assert read_data_bytes(run) == read_data_bytes(whole / "run")
    assert [record.type for record in read_records(RunFolder(run).journal)].count("index") == 1
    assert contents(tmp_path) == contents(whole)


def test_a_disk_that_is_full_amid_the_entry_leaves_none(rows: Path, whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "before", tmp_path / "index")
    for fault in (Fault("full", f"{DRAFT}/public.digests.npy"), Fault("denied", f"{DRAFT}/entry.json")):
        assert faults.curated(rows, tmp_path / "run", fault, **settings(tmp_path)) == faults.REFUSED
        assert len(entries(tmp_path)) == 1
        assert "number" not in faults.said(tmp_path / "run")
    assert faults.curated(rows, tmp_path / "run", **settings(tmp_path)) == 0
    assert len(entries(tmp_path)) == 2
    assert read_data_bytes(tmp_path / "run") == read_data_bytes(whole / "run")
