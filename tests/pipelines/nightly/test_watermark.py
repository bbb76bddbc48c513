"""What scheduled runs read, against an oracle: over all that were not rejected, every row exactly once."""

from __future__ import annotations

import datetime
import gzip
import json
import os
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.errors import InputError
from redactory.foundation.records import Record
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.release_log import Event
from redactory.pipelines.operations import incremental as folding
from redactory.pipelines.operations.incremental import (
    ReadingPlan,
    find_changed_files,
    make_planned_sources,
    plan_reading,
)
from redactory.pipelines.readers import Document, Rejection, find_sources_by_path, read_documents
from redactory.pipelines.readers.documents import RowCounts

SOON = datetime.datetime(2100, 1, 1, tzinfo=datetime.UTC)
"""When every file has been quiet for long."""
ROWS = {
    "a.jsonl": ['{"text": "r%d"}\n', '{"text": "r%d ü"}\r\n', "broken %d\n", "\n"],
    "b.csv": ["r%d,u\n", '"r%d\nmore ""words""",u\r\n', "r%d,too,many\n", '"open %d,u\n'],
}


def config(folder: Path) -> Config:
    settings = {"path": str(folder), "max_row_bytes": 200}
    return Config.model_validate({"input": settings, "nightly": {"partial_row_grace_minutes": 60}})


class World:
    """A job without its curations: files, the records of its log, and what was read for each run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.written = folder, 0
        self.records: list[Record] = []
        self.read: dict[str, Counter[tuple[str, int]]] = {}

    def enter(self, event: Event, run: str, **body: Any) -> None:
        body = json.loads(json.dumps({"run": run, **body}))
        self.records.append(Record(len(self.records), event.value, body))

    def plan(self, now: datetime.datetime | None = None, again: tuple[str, ...] = ()) -> ReadingPlan:
        return plan_reading(config(self.folder), folding.compute_watermark(self.records), again, now)

    def night(self, now: datetime.datetime | None = None, crash: bool = False) -> None:
        self.finish()
        plan = self.plan(now)
        if plan.slices:
            run = f"run{len(self.read)}"
            self.read[run] = Counter()
            self.enter(Event.STARTED, run, plan=plan.to_json(), date=None)
            if not crash:
                self.finish()

    def finish(self) -> None:
        ended = {r.body["run"] for r in self.records if r.type != Event.STARTED}
        for record in [r for r in self.records if r.type == Event.STARTED and r.body["run"] not in ended]:
            pieces, run = folding.read_planned_slices(record), record.body["run"]
            assert find_changed_files(pieces) == []
            self.read[run] = rows_of(self.folder, make_planned_sources(pieces))
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


def all_rows(folder: Path) -> Counter[tuple[str, int]]:
    """What one reader finds that reads every file from its first byte to its last."""
    return rows_of(folder, find_sources_by_path((str(folder),), "auto"))


KINDS = st.lists(st.integers(0, 3), max_size=4)
APPEND = st.tuples(st.just("append"), st.sampled_from(sorted(ROWS)), KINDS, st.integers(0, 9))
REJECT = st.tuples(st.just("reject"), st.integers(0, 5))
steps = st.lists(st.one_of(APPEND, st.tuples(st.just("night")), st.tuples(st.just("crash")), REJECT), max_size=14)


def live(world: World, what: list[tuple[Any, ...]]) -> None:
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


@given(steps)
@settings(max_examples=60, deadline=None)
def test_every_row_is_read_exactly_once(what: list[tuple[Any, ...]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        (world.folder / "a.jsonl").touch()
        live(world, what)
        assert sum(world.read.values(), Counter()) == all_rows(world.folder)
        assert not world.plan(SOON).slices


def test_the_oracle_notices_a_fold_that_forgets_rejections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = folding.compute_watermark
    monkeypatch.setattr(
        folding, "compute_watermark", lambda records: real(r for r in records if r.type != Event.REJECTED)
    )
    world = World(tmp_path)
    live(world, [("append", "a.jsonl", [0, 0], 0), ("night",), ("reject", 0)])
    assert sum(world.read.values(), Counter()) != all_rows(tmp_path)


def test_a_gap_between_nights_is_read_with_what_is_new(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(3):
        world.append("b.csv", [0, 1], 0)
        world.night()
    world.reject(1)
    world.append("b.csv", [0], 0)
    pieces = world.plan().slices
    assert [(piece.from_row, piece.rows) for piece in pieces] == [(3, 2), (7, 1)]
    [source] = make_planned_sources(pieces)
    assert [entry.row for entry in read_documents(source, config(tmp_path).input)] == [4, 5, 8]


def test_a_last_row_waits_until_it_is_whole_or_nobody_writes(tmp_path: Path) -> None:
    file, world = tmp_path / "a.jsonl", World(tmp_path)
    file.write_bytes(b'{"text": "one"}\n{"text": "two"}')
    # an object that is whole is a row, with or without its line end
    assert (world.plan().slices[0].rows, world.plan().waiting) == (2, {})
    file.write_bytes(b'{"text": "one"}\n{"text": "tw')
    plan = world.plan()
    assert [(piece.rows, piece.to_byte) for piece in plan.slices] == [(1, 16)]
    assert plan.waiting == {str(file): 12}
    world.night(now=SOON)
    assert world.read["run0"] == {("a.jsonl", 1): 1, ("a.jsonl", 2): 1}
    with file.open("ab") as more:
        more.write(b'o"}\n{"text": "three"}\n')
    with pytest.raises(InputError, match="its row 2 has grown"):
        world.plan()


@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        ("a.jsonl", '{"text": "r0"}\n{"text": "r1"}\n', '{"text": "s0"}\n{"text": "r1"}\n', "rows 1 to 2"),
        ("a.jsonl", '{"text": "r0"}\n{"text": "r1"}\n', '{"text": "r0"}\n', "rows 1 to 2"),
        ("note.txt", "one\n", "one\ntwo\n", "it can only be read completely"),
    ],
)
def test_a_changed_file_is_refused(tmp_path: Path, name: str, before: str, after: str, message: str) -> None:
    world, file = World(tmp_path), tmp_path / name
    file.write_text(before)
    world.night()
    assert not world.plan().slices
    file.write_text(after)
    with pytest.raises(InputError, match=rf"{name} \((its )?{message}\).*--reread FILE"):
        world.plan()
    plan = world.plan(again=(str(file),))
    assert [(piece.again, piece.from_row) for piece in plan.slices] == [(True, 0)]
    world.enter(Event.STARTED, "again", plan=plan.to_json(), date=None)
    assert not world.plan().slices


def test_a_file_is_not_read_again_while_its_stamp_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    world.append("a.jsonl", [0, 0], 0)
    world.night(SOON)

    def unread(*_: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(folding.FileSlice, "matches_source", unread)
    assert not world.plan(SOON).slices
    os.utime(tmp_path / "a.jsonl", (2e9, 2e9))
    with pytest.raises(AssertionError):
        world.plan(SOON)


@pytest.mark.parametrize("name", ["a.jsonl", "note.txt"])
def test_an_edit_whose_size_and_time_were_put_back_is_noticed(tmp_path: Path, name: str) -> None:
    world, file = World(tmp_path), tmp_path / name
    file.write_text('{"text": "r1"}\n')
    os.utime(file, (1e9, 1e9))
    world.night(SOON)
    before = file.stat()
    with file.open("r+b") as part:
        part.seek(10)
        part.write(b"s")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_size, file.stat().st_ino) == (before.st_size, before.st_ino)
    with pytest.raises(InputError, match="changed since an earlier run"):
        world.plan(SOON)


def test_a_compressed_file_that_is_still_written_waits_and_is_read_whole(tmp_path: Path) -> None:
    world, whole = World(tmp_path), gzip.compress(b'{"text": "hello"}\n' * 900)
    path = tmp_path / "c.jsonl.gz"
    path.write_bytes(whole[:-9])
    assert world.plan().waiting == {str(path): len(whole) - 9}
    world.night()
    assert world.read == {}
    path.write_bytes(whole)
    world.night()
    assert world.read["run0"].total() == 900
    # one that nobody finishes is quarantined with its damage once it is quiet
    (tmp_path / "d.jsonl.gz").write_bytes(whole[:-9])
    world.night(SOON)
    assert world.read["run1"] == {("d.jsonl.gz", 1): 1}
    world.night(SOON)
    assert len(world.read) == 2


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
    world.night()
    assert len(world.read) == 1
