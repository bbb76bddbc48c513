"""Signed texts: what near-duplicates are found and verified by, on disk, and without any text.

A partition leaves three files: its ``buckets`` (band hashes, by hash range like the exact plan's
digests), the ``rows`` of its texts, and their ``shingles``, which rows point into.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from redactory.dedup.banding import Banding, Signer, buckets
from redactory.dedup.digests import Entries, write_entries
from redactory.dedup.shingles import ShingleSets

Run = TypeVar("Run")
BUCKET = np.dtype([("high", "<u8"), ("id", "<i8")])
ROW = np.dtype(
    [("id", "<i8"), ("start", "<i8"), ("count", "<i4"), ("side", "u1"), ("group", "<u8"), ("rank", "<u8")]
)
SETS_HELD, SETS_READ, FILES_MAPPED = 1 << 16, 1 << 13, 64
"""Sets of shingles that are held at a time, that are read at once, and files of each kind."""


@dataclass(frozen=True)
class SignedFiles:
    """Where one partition's signed texts lie."""

    buckets: Path
    rows: Path
    shingles: Path


@dataclass(frozen=True)
class TextFacts:
    """Of each text: its point ``ids`` (sorted), ``sides`` (0 or 1), ``groups`` and ``ranks``.

    Texts are near-duplicates within a side and a group only; of two, the one of the lower rank stays.
    """

    ids: NDArray[np.int64]
    sides: NDArray[np.uint8]
    groups: NDArray[np.uint64]
    ranks: NDArray[np.uint64]


def write_signed(files: SignedFiles, facts: TextFacts, sets: ShingleSets, banding: Banding) -> None:
    """Commit the signed texts of one partition."""
    columns = buckets(Signer(banding.permutations).signatures(sets), banding)
    held = np.empty(len(facts.ids) * banding.bands, BUCKET)
    held["high"] = np.concatenate(columns)
    held["id"] = np.tile(facts.ids, banding.bands)
    rows = np.empty(len(facts.ids), ROW)
    rows["id"], rows["start"], rows["count"] = facts.ids, sets.offsets[:-1], np.diff(sets.offsets)
    rows["side"], rows["group"], rows["rank"] = facts.sides, facts.groups, facts.ranks
    write_entries(files.buckets, held[np.lexsort((held["id"], held["high"]))])
    write_entries(files.shingles, sets.values)
    write_entries(files.rows, rows)


class SignedTexts:
    """The signed texts of all partitions; a few files are mapped at a time."""

    def __init__(self, files: Sequence[SignedFiles]) -> None:
        self._files: list[SignedFiles] = []
        begin = []
        for one in files:
            table = np.load(one.rows, mmap_mode="r")
            if len(table):
                self._files.append(one)
                begin.append(int(table["id"][0]))
        self._begin = np.array(begin, np.int64)
        # a mapped file keeps a descriptor, and there can be more partitions than descriptors
        self.shingles = lru_cache(FILES_MAPPED)(self._shingles)
        """All shingles of a partition, by its place among those that hold texts."""

    def some(self, ids: NDArray[np.int64]) -> SomeTexts:
        """The texts of ``ids``, all of which are signed, in this order."""
        rows = np.empty(len(ids), ROW)
        partitions = np.searchsorted(self._begin, ids, side="right") - 1
        order = np.argsort(partitions, kind="stable")
        begin = np.unique(partitions[order], return_index=True)[1].tolist()
        for first, last in pairwise([*begin, len(ids)]):
            mine = order[first:last]
            table = np.load(self._files[partitions[mine[0]]].rows, mmap_mode="r")
            rows[mine] = table[np.searchsorted(table["id"], ids[mine])]
        return SomeTexts(self, rows, partitions)

    def _shingles(self, number: int) -> NDArray[np.uint64]:
        return np.asarray(np.load(self._files[number].shingles, mmap_mode="r"))


class SomeTexts:
    """Some signed texts, each known by its place: their ``rows``, and their shingles when asked for."""

    def __init__(self, texts: SignedTexts, rows: Entries, partitions: NDArray[np.int64]) -> None:
        self.rows = rows
        self._texts, self._partitions = texts, partitions
        self._start, self._count = np.ascontiguousarray(rows["start"]), np.ascontiguousarray(rows["count"])
        self._lone = lru_cache(SETS_HELD)(self._set)
        self._read: dict[int, frozenset[int]] = {}

    def shingles_of(self, place: int) -> frozenset[int]:
        """The shingles of the text at a place."""
        read = self._read.get(place)
        return self._lone(place) if read is None else read

    def along(self, runs: Iterable[Run], places_of: Callable[[Run], Sequence[int]]) -> Iterator[Run]:
        """``runs`` as they come, the shingles of the texts of many small ones read at once beforehand."""
        block: list[Run] = []
        places: list[int] = []
        for run in runs:
            mine = places_of(run)
            if len(places) + len(mine) > SETS_READ:
                yield from self._reading(block, places)
                block, places = [], []
            block.append(run)
            # a run that is too large is read text by text
            places += mine if len(mine) <= SETS_READ else []
        yield from self._reading(block, places)

    def jaccard(self, one: int, other: int) -> float:
        """The true Jaccard similarity of the shingles of two texts."""
        return jaccard(self.shingles_of(one), self.shingles_of(other))

    def _reading(self, block: list[Run], places: list[int]) -> Iterator[Run]:
        self._read = dict(self._sets(np.unique(np.array(places, np.int64))))
        yield from block
        self._read = {}

    def _sets(self, places: NDArray[np.int64]) -> Iterator[tuple[int, frozenset[int]]]:
        """(place, its shingles), one partition after the other."""
        order = places[np.argsort(self._partitions[places], kind="stable")]
        begin = np.unique(self._partitions[order], return_index=True)[1].tolist()
        for first, last in pairwise([*begin, len(order)]):
            mine = order[first:last]
            start, ends = self._start[mine], np.cumsum(self._count[mine], dtype=np.int64)
            index = np.arange(ends[-1]) + np.repeat(start - ends + self._count[mine], self._count[mine])
            values = self._texts.shingles(int(self._partitions[mine[0]]))[index].tolist()
            for place, (begins, ends_) in zip(mine.tolist(), pairwise([0, *ends.tolist()]), strict=True):
                yield place, frozenset(values[begins:ends_])

    def _set(self, place: int) -> frozenset[int]:
        start = int(self._start[place])
        shingles = self._texts.shingles(int(self._partitions[place]))
        return frozenset(shingles[start : start + int(self._count[place])].tolist())


def jaccard(one: frozenset[int], other: frozenset[int]) -> float:
    """|A ∩ B| / |A ∪ B| of two sets that are not both empty."""
    common = len(one & other)
    return common / (len(one) + len(other) - common)
