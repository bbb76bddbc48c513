"""Files are whole or absent, and nobody else can read them."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import (
    commit_file,
    file_lock,
    is_locked,
    list_irregular_paths,
    make_private_folder,
    open_no_follow,
    read_json,
    remove_leftovers,
    remove_path,
    stage_commits,
    write_json,
    write_text,
)
from redactory.foundation.records import RecordLog
from redactory.redaction.encryption import shred_file


def _locks(path: Path) -> None:
    with file_lock(path, "the folder"):
        pass


def _records(path: Path) -> None:
    with RecordLog(path) as log:
        log.append("type", {})


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("old", encoding="utf-8")
    for name in ("old", "new"):
        with suppress(KeyError), commit_file(tmp_path / name) as temporary:
            temporary.write_text("half of", encoding="utf-8")
            raise KeyError
    assert {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()} == {"old": "old"}


def test_a_killed_process_leaves_no_half_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old", encoding="utf-8")
    source = (
        "import os, pathlib, sys; from redactory.foundation.files import commit_file\n"
        "with commit_file(pathlib.Path(sys.argv[1])) as t:\n"
        "    t.write_text('half of'); os._exit(9)\n"
    )
    done = subprocess.run([sys.executable, "-c", source, str(tmp_path / "file")], check=False)
    assert done.returncode == 9
    assert (tmp_path / "file").read_text(encoding="utf-8") == "old"
    assert all(p.name == "file" or p.name.startswith(".tmp-") for p in tmp_path.iterdir())


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left = (".tmp-1-file", ".tmp-4194304-file.json", ".tmp-1-other")
    kept = ("file", ".tmp-file", ".tmp-x-file", ".tmp-1", "tmp-1-file")
    for name in (*left, *kept):
        (tmp_path / name).touch()
    remove_leftovers(tmp_path, "file*")
    assert {p.name for p in tmp_path.iterdir()} == {*kept, ".tmp-1-other"}
    remove_leftovers(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {*kept}
    remove_leftovers(tmp_path / "absent")
    (tmp_path / "deep" / ".tmp-8-folder").mkdir(parents=True)
    deep = ("deep/.tmp-7-train-a.key", "deep/.tmp-7-other", "deep/.tmp-8-folder/x", ".tmp-9-train-b")
    for name in deep:
        (tmp_path / name).touch()
    remove_leftovers(tmp_path, exclude="train-*")
    assert all((tmp_path / name).exists() for name in deep)
    remove_leftovers(tmp_path, exclude="train-*", recursive=True)
    assert {p.name for p in (tmp_path / "deep").iterdir()} == {".tmp-7-train-a.key"}
    assert (tmp_path / ".tmp-9-train-b").exists()


def test_a_link_that_was_left_goes_and_what_it_leads_to_stays(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "part").touch()
    (tmp_path / "here").mkdir()
    for number, to in enumerate(("../run", "nowhere", "../run/part")):
        (tmp_path / "here" / f".tmp-{number}-latest").symlink_to(to)
    remove_leftovers(tmp_path / "here")
    assert (list((tmp_path / "here").iterdir()), (tmp_path / "run" / "part").exists()) == ([], True)


def test_two_that_write_one_file_at_once_do_not_meet(tmp_path: Path) -> None:
    # nor do two machines: a process has the same number on both
    with commit_file(tmp_path / "file") as first, commit_file(tmp_path / "file") as second:
        first.write_text("one", encoding="utf-8")
        second.write_text("two", encoding="utf-8")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_once_its_staging_is_taken_away_a_commit_changes_nothing(tmp_path: Path) -> None:
    root, staging, elsewhere = tmp_path / "run", tmp_path / "run" / "staging", tmp_path / "index"
    staging.mkdir(parents=True)
    with stage_commits(root, staging):
        write_text(root / "parts" / "first", "in time")
        write_text(elsewhere / "entry", "no part of it")
        with pytest.raises(FileNotFoundError):
            _taken_away_amid(root / "parts" / "second", staging)
        with pytest.raises(FileNotFoundError):
            write_text(root / "new" / "third", "late")
        write_text(elsewhere / "entry", "still no part of it")
    write_text(root / "after", "as ever")
    found = {p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*") if p.is_file()}
    assert found == {"run/parts/first", "run/after", "index/entry"}
    assert not (root / "new").exists()


def _taken_away_amid(path: Path, staging: Path) -> None:
    with commit_file(path) as temporary:
        assert temporary.parent == staging
        temporary.write_text("begun in time", encoding="utf-8")
        remove_path(staging)


def test_data_is_synced_before_its_name_and_a_name_after(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watched_sync(descriptor: int) -> None:
        steps.append(re.sub(r"-\d+-", "-N-", os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))))
        fsync(descriptor)

    def watched_replace(self: Path, target: Path) -> Path:
        steps.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", watched_sync)
    monkeypatch.setattr(Path, "replace", watched_replace)
    make_private_folder(tmp_path / "a" / "b")
    assert steps == [tmp_path.name, "a"]
    make_private_folder(tmp_path / "a" / "b")
    write_text(tmp_path / "a" / "b" / "c" / "file", "text")
    assert steps[2:] == ["b", ".tmp-N-file", "rename", "c"]


@pytest.fixture
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


@pytest.mark.usefixtures("_open_umask")
def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    with commit_file(tmp_path / "deep" / "private") as temporary:
        assert mode(temporary) == 0o600
        temporary.write_bytes(b"x")
    assert mode(tmp_path / "deep" / "private") == 0o600
    with commit_file(tmp_path / "public", 0o644) as temporary:
        assert mode(temporary) == 0o600, "open to all only once it is whole"
    assert mode(tmp_path / "public") == 0o644
    write_json(tmp_path / "value.json", {"a": 1})
    assert mode(tmp_path / "value.json") == 0o600
    (tmp_path / "open").mkdir(mode=0o777)
    assert mode(make_private_folder(tmp_path / "open")) == mode(make_private_folder(tmp_path / "a" / "b")) == 0o700


def test_json_has_no_infinity_and_escapes_what_utf_8_cannot_hold(tmp_path: Path) -> None:
    write_json(tmp_path / "value.json", {"path": "a\udcff.jsonl"})
    assert read_json(tmp_path / "value.json") == {"path": "a\udcff.jsonl"}
    write_json(tmp_path / "value.json", {"epsilon": None, "text": "é"})
    for number in (math.inf, math.nan):
        with pytest.raises(ValueError, match="JSON compliant"):
            write_json(tmp_path / "value.json", {"epsilon": number})
    assert read_json(tmp_path / "value.json") == {"epsilon": None, "text": "é"}
    assert [p.name for p in tmp_path.iterdir()] == ["value.json"]


def _by_a_linked_folder(mine: Path, place: Path) -> None:
    mine.rename(mine.with_name(place.name))
    place.parent.rmdir()
    place.parent.symlink_to(mine.parent)


@pytest.mark.parametrize("write", [_locks, _records, shred_file])
@pytest.mark.parametrize(
    "put",
    [
        lambda mine, place: place.symlink_to(mine),
        lambda mine, place: place.symlink_to(mine.with_name("absent")),
        os.link,
        lambda _mine, place: os.mkfifo(place),
        lambda _mine, place: place.mkdir(),
        _by_a_linked_folder,
    ],
    ids=["link", "broken link", "hard link", "pipe", "folder", "linked folder"],
)
def test_no_lock_log_or_shredding_reaches_a_file_of_somebody_else(
    tmp_path: Path, write: Callable[[Path], None], put: Callable[[Path, Path], None]
) -> None:
    others, state = tmp_path / "others", tmp_path / "state"
    others.mkdir()
    state.mkdir()
    (others / "letter.txt").write_text("mine")
    place = state / "lock"
    put(others / "letter.txt", place)
    with pytest.raises(RunStateError, match="remove it"):
        write(place)
    assert not is_locked(place)
    [left] = others.iterdir()
    assert left.read_text() == "mine"


def test_a_file_is_made_once_and_by_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with pytest.raises(FileNotFoundError):
        open_no_follow(path, os.O_RDONLY)
    for _ in range(2):
        descriptor = open_no_follow(path, os.O_RDWR | os.O_CREAT)
        assert os.fstat(descriptor).st_mode & 0o777 == 0o600
        os.close(descriptor)
    with pytest.raises(FileNotFoundError):
        open_no_follow(tmp_path / "absent" / "lock", os.O_RDWR | os.O_CREAT)


def test_what_is_no_file_or_folder_is_found_and_no_link_followed(tmp_path: Path) -> None:
    for name in ("run/public/a", "run/state/prefect/b", "outside/c"):
        (tmp_path / name).mkdir(parents=True)
    run = tmp_path / "run"
    (run / "public" / "part").write_text("x")
    os.mkfifo(tmp_path / "outside" / "pipe")
    assert list_irregular_paths(run) == []
    os.mkfifo(run / "public" / "pipe")
    (run / "more").symlink_to(tmp_path / "outside")
    (run / "state" / "prefect" / "link").symlink_to("nowhere")
    found = [run / "more", run / "public" / "pipe"]
    assert list_irregular_paths(run, [run / "state" / "prefect"]) == found
    assert list_irregular_paths(run) == [*found, run / "state" / "prefect" / "link"]


def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    """As root, ``--out /dev/null`` would replace the device."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigurationError, match="is a device or a pipe"):
        write_text(pipe, "x")
    assert [path.name for path in tmp_path.iterdir() if path.is_fifo()] == ["pipe"]
