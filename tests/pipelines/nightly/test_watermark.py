"""What scheduled runs read, against an oracle: over all that were not rejected, every row exactly once."""

from __future__ import annotations

import dataclasses
import datetime
import gzip
import json
import os
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.keys import KEY_VARIABLE
from redactory.foundation.records import Record
from redactory.pipelines.curation.config import Config, InputSettings
from redactory.pipelines.curation.release_log import Event
from redactory.pipelines.operations.incremental import (
    FileSlice,
    ReadFile,
    find_changed_files,
    find_read_files,
    make_planned_sources,
    plan_reading,
    read_planned_slices,
)
from redactory.pipelines.readers import Document, Rejection, Source, find_sources_by_path, read_documents
from redactory.pipelines.readers.documents import RowCounts

SOON = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
"""When every file has been quiet for long."""
ROWS = {
    "a.jsonl": ['{"text": "r%d"}\n', '{"text": "r%d ü"}\r\n', "broken %d\n", "\n"],
    "b.csv": ["r%d,u\n", '"r%d\nmore ""words""",u\r\n', "r%d,too,many\n", '"open %d,u\n'],
}
MAX_BYTES = 200


def config(folder: Path) -> Config:
    settings = {"path": str(folder), "max_row_bytes": MAX_BYTES}
    return Config.model_validate({"input": settings, "nightly": {"partial_row_grace_minutes": 60}})


class World:
    """A job without its curations: files, the records of its log, and what was read for each run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.written = folder, 0
        self.records: list[Record] = []
        self.read: dict[str, Counter[tuple[str, int]]] = {}
        self.waiting: list[dict[str, Any]] = []

    def enter(self, event: Event, run: str, **body: Any) -> None:
        body = json.loads(json.dumps({"run": run, **body}))
        self.records.append(Record(len(self.records), event.value, body))

    def plan(self, now: datetime.datetime | None = None, reread: tuple[str, ...] = ()) -> list[FileSlice]:
        slices, self.waiting = plan_reading(config(self.folder), find_read_files(self.records), reread, now)
        return slices

    def night(
        self, now: datetime.datetime | None = None, crash: bool = False, reread: tuple[str, ...] = ()
    ) -> list[FileSlice]:
        self.finish()
        slices = self.plan(now, reread)
        if slices:
            run = f"run{len(self.read)}"
            self.read[run] = Counter()
            self.enter(Event.STARTED, run, plan={"slices": [dataclasses.asdict(piece) for piece in slices]})
            if not crash:
                self.finish()
        return slices

    def finish(self) -> None:
        ended = {r.body["run"] for r in self.records if r.type != Event.STARTED}
        for record in [r for r in self.records if r.type == Event.STARTED and r.body["run"] not in ended]:
            slices, run = read_planned_slices(record), record.body["run"]
            assert find_changed_files(slices) == []
            self.read[run] = rows_of(self.folder, make_planned_sources(slices, MAX_BYTES))
            self.enter(Event.RELEASED, run)

    def reject(self, number: int) -> None:
        if self.read:
            run = list(self.read)[number % len(self.read)]
            self.read[run] = Counter()
            self.enter(Event.REJECTED, run)

    def append(self, name: str, kinds: list[int], cut: int) -> None:
        """Add rows to a file; ``cut`` bytes of the last one are held back until the file is written again."""
        path, held = self.folder / name, self.folder / f"_{name}.held"
        data = held.read_bytes() if held.exists() else b""
        if name.endswith(".csv") and not path.exists():
            data = b"text,user_id\n"
        for kind in kinds:
            row = ROWS[name][kind % len(ROWS[name])]
            data += (row % self.written if "%" in row else row).encode()
            self.written += 1
        cut = min(cut, max(len(data) - 1, 0))
        held.write_bytes(data[len(data) - cut :])
        with path.open("ab") as file:
            file.write(data[: len(data) - cut])


def rows_of(folder: Path, sources: Any) -> Counter[tuple[str, int]]:
    """What a reader finds in these sources: the last part of each one's name, and the row."""
    found: Counter[tuple[str, int]] = Counter()
    for source in sources:
        for entry in RowCounts(config(folder).input).read_and_count(source):
            assert isinstance(entry, Document | Rejection)
            found[Path(source.url).name, entry.row] += 1
    return found


KINDS = st.lists(st.integers(0, 3), max_size=4)
APPEND = st.tuples(st.just("append"), st.sampled_from(sorted(ROWS)), KINDS, st.integers(0, 9))
REJECT = st.tuples(st.just("reject"), st.integers(0, 5))
steps = st.lists(st.one_of(APPEND, st.tuples(st.just("night")), st.tuples(st.just("crash")), REJECT), max_size=14)


@given(steps)
@settings(max_examples=60, deadline=None)
def test_every_row_is_read_exactly_once(what: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        (world.folder / "a.jsonl").touch()
        for name, *arguments in what:
            if name == "append":
                world.append(*arguments)
            elif name == "reject":
                world.finish()
                world.reject(*arguments)
            else:
                world.night(crash=name == "crash")
        for name in ROWS:
            if (world.folder / name).exists():
                world.append(name, [], 0)
        world.night()
        world.night(now=SOON)
        # what one reader finds that reads every file from its first byte to its last
        whole = rows_of(world.folder, find_sources_by_path((folder,), "auto"))
        assert sum(world.read.values(), Counter()) == whole
        assert not world.plan(SOON)


def test_a_gap_between_nights_is_read_with_what_is_new(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(3):
        world.append("b.csv", [0, 1], 0)
        world.night()
    world.reject(1)
    world.append("b.csv", [0], 0)
    slices = world.plan()
    assert [(piece.from_row, piece.rows) for piece in slices] == [(3, 2), (7, 1)]
    [source] = make_planned_sources(slices, MAX_BYTES)
    assert [entry.row for entry in read_documents(source, config(tmp_path).input)] == [4, 5, 8]


def test_a_last_row_waits_until_it_is_whole_or_nobody_writes(tmp_path: Path) -> None:
    file, world = tmp_path / "a.jsonl", World(tmp_path)
    file.write_bytes(b'{"text": "one"}\n{"text": "two"}')
    # an object that is whole is a row, with or without its line end
    assert (world.plan()[0].rows, world.waiting) == (2, [])
    file.write_bytes(b'{"text": "one"}\n{"text": "tw')
    assert [(piece.rows, piece.to_byte) for piece in world.plan()] == [(1, 16)]
    assert world.waiting == [{"path": str(file), "bytes": 12}]
    # after ten minutes the time of the last write is certain, and still too recent to give up the row
    soon = datetime.datetime.fromtimestamp(file.stat().st_mtime + 600, datetime.UTC)
    assert [piece.rows for piece in world.night(now=soon)] == [1]
    assert [(piece.from_row, piece.rows) for piece in world.night(now=SOON)] == [(1, 1)]
    assert world.read == {"run0": {("a.jsonl", 1): 1}, "run1": {("a.jsonl", 2): 1}}
    with file.open("ab") as more:
        more.write(b'o"}\n{"text": "three"}\n')
    with pytest.raises(InputError, match="its row 2 has grown"):
        world.plan()


@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        ("a.jsonl", '{"text": "r0"}\n{"text": "r1"}\n', '{"text": "s0"}\n{"text": "r1"}\n', "first 2 rows"),
        ("a.jsonl", '{"text": "r0"}\n{"text": "r1"}\n', '{"text": "r0"}\n', "first 2 rows"),
        ("note.txt", "one\n", "one\ntwo\n", "it can only be read completely"),
        ("note.txt", "one\n", "two\n", "it can only be read completely"),
        ("note.txt", "one\n", "", "it can only be read completely"),
    ],
)
def test_a_changed_file_is_refused_whatever_its_times_say(
    tmp_path: Path, name: str, before: str, after: str, message: str
) -> None:
    world, file = World(tmp_path), tmp_path / name
    file.write_text(before)
    os.utime(file, (1e9, 1e9))
    world.night(crash=True)
    with file.open("r+") as same:  # the inode stays
        same.write(after)
        same.truncate()
    os.utime(file, (1e9, 1e9))
    assert find_changed_files(read_planned_slices(world.records[0])) == [str(file)]
    world.enter(Event.RELEASED, "run0")
    with pytest.raises(InputError, match=rf"{name} \((its )?{message}\).*--reread FILE"):
        world.plan()
    if after:
        assert [(piece.reread, piece.from_row) for piece in world.night(reread=(str(file),))] == [(True, 0)]
        assert not world.plan()


def test_a_file_that_nobody_touched_is_not_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, file = World(tmp_path), tmp_path / "a.jsonl"
    file.write_text('{"text": "r0"}\n')
    (tmp_path / "note.txt").write_text("one\n")
    world.night(SOON)
    with monkeypatch.context() as patch:
        patch.setattr(Source, "_open_raw", lambda source: pytest.fail(f"{source.name} was opened"))
        assert not world.plan(SOON)
        # a file of this second may have been written again without a new time
        with pytest.raises(pytest.fail.Exception, match=r"a\.jsonl was opened"):
            world.plan()
        patch.setenv(KEY_VARIABLE, "another key of enough bytes")
        with pytest.raises(ConfigurationError, match="restore that key"):
            world.plan(SOON)
    with file.open("a") as more:
        more.write('{"text": "r1"}\n')
    world.night(SOON)
    world.reject(0)
    # what a rejected run returned, and no more
    assert [(Path(p.url).name, p.from_row, p.rows) for p in world.plan(SOON)] == [("a.jsonl", 0, 1), ("note.txt", 0, 0)]


@pytest.mark.parametrize("is_local", [True, False])
def test_a_file_that_was_rewritten_with_its_size_and_time_is_detected(tmp_path: Path, is_local: bool) -> None:
    path = tmp_path.as_uri() if is_local else f"memory://{tmp_path.name}"
    file = fsspec.open(f"{path}/a.jsonl", "wb")
    settings = config(tmp_path).model_copy(update={"input": InputSettings(path=path)})
    with file as stream:
        stream.write(b'{"text": "r0"}\n')
    [piece], _ = plan_reading(settings, {}, (), SOON)
    read = {piece.url: ReadFile(piece, [])}
    assert piece.stamp
    assert plan_reading(settings, read, (), SOON) == ([], [])
    # the clock of a file system has its steps
    time.sleep(0.05)
    with file as stream:
        stream.write(b'{"text": "s0"}\n')
    if is_local:
        os.utime(tmp_path / "a.jsonl", ns=(0, int(piece.stamp.split("-")[1])))
    with pytest.raises(InputError, match="its first 1 rows"):
        plan_reading(settings, read, (), SOON)


def test_a_compressed_file_that_is_still_written_waits_and_is_read_whole(tmp_path: Path) -> None:
    world, whole = World(tmp_path), gzip.compress(b'{"text": "hello"}\n' * 900)
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(whole[:-9])
    assert (world.night(), world.waiting) == ([], [{"path": str(path), "bytes": len(whole) - 9}])
    path.write_bytes(whole)
    world.night()
    assert world.read["run0"].total() == 900
    # one that nobody finishes is quarantined with its damage once it is quiet
    (tmp_path / "d.jsonl.gz").write_bytes(whole[:-9])
    world.night(SOON)
    assert world.read["run1"] == {("d.jsonl.gz", 1): 1}
    assert not world.night(SOON)


def test_a_link_out_of_the_folder_stops_no_night_and_is_counted_once(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    (tmp_path / "out.jsonl").write_text('{"text": "hello"}\n')
    (inside / "l.jsonl").symlink_to(tmp_path / "out.jsonl")
    (inside / "more").symlink_to(tmp_path)
    (inside / "a.jsonl").write_text('{"text": "hello"}\n')
    world = World(inside)
    world.night()
    assert world.read["run0"] == {("a.jsonl", 1): 1, ("l.jsonl", 1): 1, ("more", 1): 1}
    assert not world.night()
    # rejected, it is counted again; and a file in its place is new
    world.reject(0)
    assert len(world.night()) == 3
    (inside / "l.jsonl").unlink()
    (inside / "l.jsonl").write_text('{"text": "hello"}\n')
    assert [Path(piece.url).name for piece in world.night()] == ["l.jsonl"]
    assert not world.night()
