"""What earlier runs saw: digests of a side's texts, a Bloom filter in front of them, and who asks.

The filter alone would let its false positives, which hang on every text that was ever added, decide over
later texts; so what it may hold is looked up among the digests, and the answer is exact
(``docs/guarantees.md``, "Earlier runs").  Mode ``bloom`` keeps no digests and goes by the filters.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from redactory.dedup.bloom import BloomFilter
from redactory.dedup.bloom_file import BloomParameters, load_bloom, save_bloom
from redactory.dedup.digests import Entries, as_numbers, write_entries
from redactory.foundation.files import commit

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
    bloom = BloomFilter(files.parameters.capacity, files.parameters.error_rate)
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
        asked = asked[_filter(one.bloom, one.parameters, one.bloom.stat().st_mtime_ns).holds(entries[asked])]
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
def _filter(path: Path, parameters: BloomParameters, written: int) -> BloomFilter:
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
