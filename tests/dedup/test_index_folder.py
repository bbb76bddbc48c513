"""The folder of the index: what counts, what is removed, what is refused."""

from __future__ import annotations

import datetime
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from redactory.dedup.index import FORMAT, Entry, IndexFolder
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import write_json

PARAMETERS: dict[str, Any] = {
    "key": "0a",
    "modes": {"public": "exact", "private": "folded"},
    "near": {"threshold": 0.7},
}
NOW = datetime.datetime(2030, 1, 31, tzinfo=datetime.UTC)


def index_in(folder: Path) -> IndexFolder:
    index = IndexFolder(folder / "index")
    with index.alone():
        index.open(PARAMETERS)
    return index


def sealed(index: IndexFolder, token: str, days_old: float = 0, run: str = "night") -> Entry:
    """A pending entry with one file."""
    index.begin_draft(token, index.root.parent / run)
    (index.draft(token) / "public.bloom").write_bytes(token.encode())
    files = {"public.bloom": file_sha256(index.draft(token) / "public.bloom")}
    created = (NOW - datetime.timedelta(days=days_old)).isoformat()
    body = {"token": token, "run": run, "created": created, "files": files, "journal": token}
    write_json(index.draft(token) / "entry.json", body)
    return next(entry for entry in index.pending() if entry.folder.name == token)


def names(index: IndexFolder) -> list[str]:
    return [entry.name for entry in index.entries()]


def test_entries_are_numbered_by_their_commits_and_no_number_serves_twice(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    assert (index.root.stat().st_mode & 0o777, index.entries()) == (0o700, [])
    for token in ("b", "a"):
        index.promote(sealed(index, token))
    assert names(index) == ["000001-night", "000002-night"]
    assert [entry.body["token"] for entry in index.entries()] == ["b", "a"]
    assert not index.pending()
    assert index.retain(0, None, NOW) == ["000001-night", "000002-night"]
    index.promote(sealed(index, "c"))
    assert names(index) == ["000003-night"]


def test_a_number_counts_also_where_the_head_was_not_written_any_more(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    before = index.head.read_bytes()
    index.promote(sealed(index, "a"))
    index.head.write_bytes(before)
    index.promote(sealed(index, "b"))
    assert names(index) == ["000001-night", "000002-night"]


@pytest.mark.parametrize(
    ("keep_runs", "keep_days", "left"),
    [(None, None, 4), (1, None, 1), (3, None, 3), (9, None, 4), (None, 7, 2), (None, 100, 4), (3, 7, 2)],
)
def test_retention_goes_by_numbers_and_dates(
    tmp_path: Path, keep_runs: int | None, keep_days: int | None, left: int
) -> None:
    index = index_in(tmp_path)
    for token, days in (("a", 30), ("b", 8), ("c", 7), ("d", 0)):
        index.promote(sealed(index, token, days))
    everything = names(index)
    removed = index.retain(keep_runs, keep_days, NOW)
    assert names(index) == everything[4 - left :]
    assert removed == everything[: 4 - left]
    assert not list((index.root / "removed").iterdir())


def test_a_clock_that_is_years_ahead_empties_no_index(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    for token, days in (("a", 3), ("b", 2), ("c", 1)):
        index.promote(sealed(index, token, days))
    far = NOW + datetime.timedelta(days=3650)
    assert index.retain(None, 7, far) == []
    index.promote(sealed(index, "d", -3650))
    assert index.retain(None, 7, far) == []


def test_a_removal_that_is_cut_short_is_a_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = index_in(tmp_path)
    index.promote(sealed(index, "a"))

    def fail(_folder: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", fail)
        with pytest.raises(OSError, match="Input/output"):
            index.retain(0, None, NOW)
    assert names(index) == []
    with index.alone():
        index.open(PARAMETERS)
    assert not list((index.root / "removed").iterdir())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"key": "0b"}, "key 0a, and this run has key 0b"),
        ({"modes": {"public": "none", "private": "folded"}}, "modes.public exact, .* modes.public none"),
        ({"near": None}, "near.threshold 0.7, and this run has near.threshold None"),
        ({"versions": {"unicode": "15"}}, "versions.unicode None, .* versions.unicode 15"),
    ],
)
def test_other_parameters_are_refused_with_both_values(
    tmp_path: Path, change: dict[str, Any], said: str
) -> None:
    index = index_in(tmp_path)
    before = index.head.read_bytes()
    with pytest.raises(RunStateError, match=f"made with {said}: an index refuses to mix parameters.*another"):
        index.checked({**PARAMETERS, **change})
    with index.alone(), pytest.raises(RunStateError, match="refuses to mix"):
        index.open({**PARAMETERS, **change})
    assert index.head.read_bytes() == before


def test_another_format_and_a_folder_of_other_files_are_refused(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    body = json.loads(index.head.read_text())
    index.head.write_text(json.dumps({**body, "format": "redactory-index/0"}))
    with pytest.raises(RunStateError, match=f"redactory-index/0, and this version writes {FORMAT}"):
        index.read()
    other = IndexFolder(tmp_path / "other")
    other.root.mkdir()
    (other.root / "letters.txt").write_text("mine")
    with other.alone(), pytest.raises(RunStateError, match=r"letters\.txt, but no index"):
        other.open(PARAMETERS)
    with pytest.raises(RunStateError, match="is no index"):
        other.read()


def test_an_entry_that_is_not_what_was_written_is_noticed(tmp_path: Path) -> None:
    index = index_in(tmp_path)
    entry = index.promote(sealed(index, "a"))
    entry.check()
    (entry.folder / "public.bloom").write_bytes(b"b")
    with pytest.raises(CheckFailed, match=r"public\.bloom is not what was written"):
        entry.check()
    (entry.folder / "public.bloom").unlink()
    with pytest.raises(CheckFailed, match="is not what was written"):
        entry.check()
    (entry.folder / "entry.json").write_text("{")
    with pytest.raises(CheckFailed, match=r"entry\.json cannot be read"):
        index.entries()
