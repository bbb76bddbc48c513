"""The index that lives across runs, as a folder: one entry a run, counted once its run is finished.

::

    FOLDER/                          mode 0700
      index.json                     format, id, and everything that its digests stand on
      runs/000001-NAME/              the entries that count, in the order in which they were committed
      pending/TOKEN/                 drafts of unfinished runs; sealed by entry.json just before _SUCCESS
      removed/                       entries on their way out
      lock                           held while an entry is committed or removed

An entry moves from ``pending/`` to ``runs/`` by one rename.  Whether its run is finished is not known in
this room: who calls :meth:`IndexFolder.promote` knows.
"""

from __future__ import annotations

import datetime
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rbloom import Bloom

from redactory.dedup.plan import (
    BloomParameters,
    Entries,
    as_numbers,
    bloom_filter,
    load_bloom,
    may_hold,
    save_bloom,
    write_entries,
)
from redactory.foundation.canonical import file_sha256, flat
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import (
    commit,
    make_private_folder,
    only_one,
    read_json,
    remove_leftovers,
    sync,
    write_json,
)
from redactory.foundation.records import ages

FORMAT = "redactory-index/1"
PATIENCE = 60.0
"""Seconds that a run waits for another one that commits: its own text lies on the disk by then."""
_BEGUN = "begun.json"
_NAME = re.compile(r"(\d{6,})-.+")


@dataclass(frozen=True)
class Entry:
    """One run's entry: its folder, and what ``entry.json`` says of it."""

    folder: Path
    body: dict[str, Any]

    @property
    def name(self) -> str:
        """Its number, which counts commits, and its run's name."""
        return self.folder.name

    @property
    def number(self) -> int:
        """Its number; 0 while it is pending."""
        named = _NAME.fullmatch(self.folder.name)
        return int(named[1]) if named else 0

    @property
    def created(self) -> datetime.datetime:
        """When it was written."""
        return datetime.datetime.fromisoformat(self.body["created"])

    def check(self) -> None:
        """``CheckFailed`` where a file of it is not the one that was written."""
        for name, digest in self.body["files"].items():
            path = self.folder / name
            if not path.is_file() or file_sha256(path) != digest:
                raise CheckFailed(f"{path} is not what was written: restore it, or begin a new index")


class IndexFolder:
    """``FOLDER/``; methods that change it are called while :meth:`alone` is held."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.head, self.runs, self.waiting = root / "index.json", root / "runs", root / "pending"
        self.lock, self._removed = root / "lock", root / "removed"

    def exists(self) -> bool:
        """Whether an index was begun here."""
        return self.head.is_file()

    def alone(self) -> AbstractContextManager[None]:
        """Be the one that changes the index; ``RunStateError`` where another process does not end."""
        make_private_folder(self.root)
        # the folder is the user's own to link to
        return only_one(self.lock.parent.resolve() / self.lock.name, str(self.root), PATIENCE)

    def open(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """What ``index.json`` says; begin the index where there is none.

        ``RunStateError`` for other ``parameters`` than it was made with, and for a folder of other files.
        """
        if not self.exists():
            strange = [
                p.name for p in self.root.iterdir() if p.name != "lock" and not p.name.startswith(".tmp-")
            ]
            if strange:
                raise RunStateError(
                    f"{self.root} holds {min(strange)}, but no index: give an empty folder (dedup.index.path)"
                )
            body = {"format": FORMAT, "id": secrets.token_hex(8), "last": 0, "parameters": parameters}
            write_json(self.head, body)
        for folder in (self.runs, self.waiting, self._removed):
            make_private_folder(folder)
        remove_leftovers(self.root)
        self._empty_removed()
        return self.checked(parameters)

    def read(self) -> dict[str, Any]:
        """What ``index.json`` says; ``RunStateError`` where there is none, or one of another format."""
        if not self.exists():
            raise RunStateError(f"{self.root} is not an index: {self.head.name} is missing")
        body: dict[str, Any] = read_json(self.head)
        if body.get("format") != FORMAT:
            raise RunStateError(
                f"{self.root} has the format {body.get('format')}, and this version writes {FORMAT}: "
                "begin a new index in another folder (dedup.index.path)"
            )
        return body

    def checked(self, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """:meth:`read`, and refuse (``RunStateError``) to mix its parameters with others."""
        body = self.read()
        made_with, asked = flat(body["parameters"]), flat(parameters)
        for key in {**asked, **made_with}:
            if made_with.get(key) != asked.get(key):
                raise RunStateError(
                    f"{self.root} was made with {key} {made_with.get(key)}, and this run has {key} "
                    f"{asked.get(key)}: an index refuses to mix parameters. Go back to the former, or begin "
                    "a new index in another folder (dedup.index.path)"
                )
        return body

    def entries(self) -> list[Entry]:
        """The entries that count, in the order of their commits."""
        found = [_entry(folder) for folder in sorted(self.runs.glob("*-*")) if _NAME.fullmatch(folder.name)]
        return sorted(found, key=lambda entry: entry.number)

    def pending(self) -> list[Entry]:
        """The entries that are sealed and do not count yet."""
        folders = sorted(self.waiting.glob("*/entry.json")) if self.waiting.is_dir() else []
        return [_entry(path.parent) for path in folders]

    def draft(self, token: str) -> Path:
        """The folder that a run writes its entry in."""
        return self.waiting / token

    def begin_draft(self, token: str, run: Path) -> None:
        """Make that folder, and note in it whose it is: without a run it would be anybody's."""
        write_json(make_private_folder(self.draft(token)) / _BEGUN, {"path": str(run)})

    def drafts(self) -> dict[Path, Path]:
        """The run folder that each folder in ``pending/`` belongs to, sealed or not."""
        found = sorted(self.waiting.glob(f"*/{_BEGUN}")) if self.waiting.is_dir() else []
        return {path.parent: Path(read_json(path)["path"]) for path in found}

    def promote(self, entry: Entry) -> Entry:
        """Let a pending entry count, as the last one.  Its run must be finished."""
        body = self.read()
        number = max([body["last"], *(other.number for other in self.entries())]) + 1
        target = self.runs / f"{number:06d}-{entry.body['run']}"
        entry.folder.replace(target)
        sync(self.runs)
        sync(self.waiting)
        write_json(self.head, {**body, "last": number})
        return _entry(target)

    def retain(self, keep_runs: int | None, keep_days: int | None, now: datetime.datetime) -> list[str]:
        """Remove all but the last ``keep_runs`` entries, and what is older than ``keep_days``; their names.

        What is kept follows from numbers and dates alone: never from what an entry holds.
        """
        entries = self.entries()
        gone = entries[: max(0, len(entries) - keep_runs)] if keep_runs is not None else []
        if keep_days is not None:
            # by their own times too: a clock that is years ahead would empty the index
            old = ages([*(entry.created for entry in entries), now])
            limit = datetime.timedelta(days=keep_days)
            gone += [e for e, age in zip(entries, old, strict=False) if age > limit and e not in gone]
        for entry in gone:
            self.remove(entry.folder)
        return sorted(entry.name for entry in gone)

    def remove(self, folder: Path) -> None:
        """Remove an entry, counted or pending: at once, or not at all."""
        make_private_folder(self._removed)
        folder.replace(self._removed / f"{secrets.token_hex(4)}-{folder.name}")
        sync(folder.parent)
        self._empty_removed()

    def _empty_removed(self) -> None:
        for folder in self._removed.iterdir():
            shutil.rmtree(folder)


def _entry(folder: Path) -> Entry:
    try:
        return Entry(folder, read_json(folder / "entry.json"))
    except (OSError, ValueError):
        raise CheckFailed(f"{folder}/entry.json cannot be read: restore it, or begin a new index") from None


# What earlier runs saw: digests of a side's texts, a Bloom filter in front of them, and who asks.


EARLIER = np.dtype([("id", "<i8"), ("entry", "<i8")])
"""A point, and the place of the first earlier run that has its text, among the runs that are asked."""
NOBODY = -1
FILTERS_HELD = 64
_DIGEST = np.dtype([("high", "<u8"), ("low", "<u8")])


@dataclass(frozen=True)
class SeenFiles:
    """Where the digests of one side of one run lie; ``digests`` is None where the filter has to do."""

    bloom: Path
    parameters: BloomParameters
    digests: Path | None


def distinct(tables: Sequence[Entries]) -> Entries:
    """The digests of all ``tables``, sorted, each once, without ids."""
    entries = np.empty(sum(len(table) for table in tables), _DIGEST)
    for name in ("high", "low"):
        entries[name] = np.concatenate([np.empty(0, "<u8"), *(table[name] for table in tables)])
    entries = entries[np.lexsort((entries["low"], entries["high"]))]
    new = np.ones(len(entries), bool)
    new[1:] = (entries["high"][1:] != entries["high"][:-1]) | (entries["low"][1:] != entries["low"][:-1])
    return entries[new]


def write_seen(files: SeenFiles, ranges: Sequence[Path], added: int) -> None:
    """Commit the digests of all hash ranges, in their order, and the filter of them.

    ``added`` is how many there are; the file holds uint64 [2, added], high words and low ones: a look-up
    then reads the pages it needs.  Holds one range and the filter in memory.
    """
    bloom = bloom_filter(files.parameters.capacity, files.parameters.error_rate)
    for path in ranges:
        for digest in as_numbers(np.load(path)):
            bloom.add(digest)
    save_bloom(files.bloom, bloom, files.parameters, added)
    if files.digests is None:
        return
    with commit(files.digests) as temporary:
        table = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint64, shape=(2, added))
        place = 0
        for path in ranges:
            entries = np.load(path)
            table[0, place : place + len(entries)] = entries["high"]
            table[1, place : place + len(entries)] = entries["low"]
            place += len(entries)
        table.flush()


def first_that_saw(files: Sequence[SeenFiles], entries: Entries) -> NDArray[np.int64]:
    """For each of ``entries`` the place of the first of ``files`` that holds its digest, or ``NOBODY``."""
    first = np.full(len(entries), NOBODY, np.int64)
    for number, one in enumerate(files):
        asked = np.flatnonzero(first == NOBODY)
        asked = asked[
            may_hold(_filter(one.bloom, one.parameters, one.bloom.stat().st_mtime_ns), entries[asked])
        ]
        if one.digests is not None:
            asked = asked[_looked_up(one.digests, entries[asked])]
        first[asked] = number
    return first


def write_earlier(path: Path, pairs: Iterable[tuple[int, int]]) -> int:
    """Commit (point, place of the earlier run) pairs, by point; how many there are."""
    table = np.array(sorted(pairs), EARLIER)
    write_entries(path, table)
    return len(table)


def earlier_of(files: Sequence[Path], ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each of ``ids``, in any order, the first run that ``write_earlier`` wrote of it, or ``NOBODY``."""
    if not len(ids):
        return np.empty(0, np.int64)
    distinct_ids, places = np.unique(ids, return_inverse=True)
    found = np.full(len(distinct_ids), np.iinfo(np.int64).max)
    for path in files:
        table = np.load(path)
        at = np.searchsorted(distinct_ids, table["id"])
        at[at == len(distinct_ids)] = 0
        mine = distinct_ids[at] == table["id"]
        np.minimum.at(found, at[mine], table["entry"][mine])
    found[found == np.iinfo(np.int64).max] = NOBODY
    return found[places]


@lru_cache(maxsize=FILTERS_HELD)
def _filter(path: Path, parameters: BloomParameters, written: int) -> Bloom:
    # a process asks for one partition's texts after the other; an entry never changes once it counts
    return load_bloom(path, parameters)


def _looked_up(path: Path, entries: Entries) -> NDArray[np.bool_]:
    """Which of ``entries`` are among the digests of a file."""
    found = np.zeros(len(entries), bool)
    if not len(entries):
        return found
    high, low = np.load(path, mmap_mode="r")
    place = np.searchsorted(high, entries["high"], side="left")
    end = np.searchsorted(high, entries["high"], side="right")
    # two digests with one high word hardly ever meet, but they may
    while (live := np.flatnonzero(place < end)).size:
        found[live] |= low[place[live]] == entries["low"][live]
        place[live] += 1
    return found
