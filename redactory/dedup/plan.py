"""Repeated texts, exactly: digest files by hash range, the plan of who stands for whom, Bloom's one pass."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rbloom import Bloom

from redactory.foundation.files import commit
from redactory.foundation.keys import DIGEST_BYTES

DIGEST = np.dtype([("high", "<u8"), ("low", "<u8")])
ENTRY = np.dtype([*DIGEST.descr, ("id", "<i8")])
RANKED = np.dtype([*DIGEST.descr, ("rank_high", "<u8"), ("rank_low", "<u8"), ("id", "<i8")])
PAIR = np.dtype([("id", "<i8"), ("first", "<i8")])
"""A point, and what stands for it: another point, or the place of an earlier run."""
RANGES = 16
"""Hash ranges of a plan, a file each, where no other number is asked for."""
PIECES, WHOLE = 16, 1 << 24
"""Pieces that a range is read in, from this many digests in all on."""
TRACKED = 100_000
"""Digests of a side, about, that mode ``bloom`` remembers exactly, to measure its false positives."""
Entries = NDArray[Any]
Ids = NDArray[np.int64]


def write_digests(path: Path, digests: Sequence[bytes], ids: Ids, ranks: Sequence[bytes] | None = None) -> None:
    """Commit the pairs of one partition, sorted by digest, then rank where there are ranks, then id.

    ``digests`` and ``ranks`` are 16 bytes each, as many as ``ids``; ``ValueError`` otherwise.
    """
    entries = np.empty(len(ids), ENTRY if ranks is None else RANKED)
    entries["high"], entries["low"] = _digest_words(digests, len(ids))
    if ranks is not None:
        entries["rank_high"], entries["rank_low"] = _digest_words(ranks, len(ids))
    entries["id"] = ids
    write_entries(path, _sort_entries(entries))


def _digest_words(digests: Sequence[bytes], count: int) -> Entries:
    if len(digests) != count or any(len(digest) != DIGEST_BYTES for digest in digests):
        raise ValueError(f"{len(digests)} digests of {DIGEST_BYTES} bytes do not match {count} ids")
    return np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2).T


def write_entries(path: Path, entries: Entries) -> None:
    """Commit an array of any of this room's types as it is."""
    with commit(path) as temporary, temporary.open("wb") as file:
        np.save(file, entries)


def count_entries(paths: Iterable[Path]) -> int:
    """How many entries these files hold together."""
    return sum(len(np.load(path, mmap_mode="r")) for path in paths)


def read_range(path: Path, number: int, ranges: int) -> Entries:
    """The entries whose digest lies in hash range ``number`` of ``ranges`` (a power of two)."""
    entries = np.load(path, mmap_mode="r")
    size = (1 << 64) // ranges
    first = np.searchsorted(entries["high"], np.uint64(number * size))
    last = np.searchsorted(entries["high"], np.uint64((number + 1) * size - 1), "right")
    return np.array(entries[first:last])


def hash_ranges(entries: Entries, ranges: int) -> Ids:
    """The hash range of each of ``entries``, of ``ranges`` (a power of two)."""
    # by one bit first: no number of 64 bits can be shifted by 64
    return ((entries["high"] >> np.uint64(1)) >> np.uint64(63 - (ranges.bit_length() - 1))).astype(np.int64)


def _sort_entries(entries: Entries) -> Entries:
    """``entries`` by digest, where digests are equal by rank if they have one, and then by id."""
    ranks = ("rank_low", "rank_high") if entries.dtype == RANKED else ()
    return entries[np.lexsort([entries[name] for name in ("id", *ranks, "low", "high")])]


def mask_run_starts(*keys: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows differ in one of ``keys`` from the row before; so does the first."""
    new = np.ones(len(keys[0]), bool)
    new[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return new


def plan_pieces(files: Sequence[Path], number: int, ranges: int) -> list[tuple[int, int]]:
    """The pieces that a hash range is read in, and of how many in all: memory is that of one piece."""
    pieces = PIECES if count_entries(files) > WHOLE else 1
    return [(piece, ranges * pieces) for piece in range(number * pieces, (number + 1) * pieces)]


# The plan: for every repeated digest, the point that stands for it.


def plan_range(digest_files: Sequence[Path], number: int, out: Path, ranges: int = RANGES) -> int:
    """Find the repeated digests of one of ``ranges`` hash ranges in all partitions; the number of repeats.

    ``out`` gets the (id, first) pairs sorted by id, where ``first`` is the point with the same digest
    that has the lowest rank, where the digests are ranked, and then the lowest id.  Needs memory for one
    piece of all partitions, about 100 bytes a digest, and for the pairs of the range.
    """
    all_pairs = [np.empty(0, PAIR)]
    for piece, pieces in plan_pieces(digest_files, number, ranges):
        entries = _sort_entries(np.concatenate([read_range(p, piece, pieces) for p in digest_files]))
        new = mask_run_starts(entries["high"], entries["low"])
        leaders = np.flatnonzero(new)
        pairs = np.empty(len(entries) - len(leaders), PAIR)
        pairs["id"] = entries["id"][~new]
        pairs["first"] = entries["id"][leaders[np.cumsum(new) - 1]][~new]
        all_pairs.append(pairs)
    return write_pairs(out, np.concatenate(all_pairs))


def write_pairs(path: Path, pairs: Entries | Iterable[tuple[int, int]]) -> int:
    """Commit pairs, sorted by id; how many there are."""
    table = pairs if isinstance(pairs, np.ndarray) else np.array(list(pairs), PAIR)
    write_entries(path, table[np.lexsort((table["first"], table["id"]))])
    return len(table)


def lookup_first(files: Sequence[Path], ids: Ids, default: int | None = None) -> Ids:
    """For each of ``ids``, in any order, the lowest ``first`` that these files of pairs have for it.

    What they do not have gives ``default``, or else itself.
    """
    distinct_ids, places = np.unique(ids, return_inverse=True)
    nothing = np.iinfo(np.int64).max
    first_ids = np.full(len(distinct_ids), nothing)
    for path in files if len(ids) else ():
        pairs = np.load(path, mmap_mode="r")
        low, high = np.searchsorted(pairs["id"], [distinct_ids[0], distinct_ids[-1] + 1])
        mine = np.array(pairs[low:high])
        at = np.searchsorted(distinct_ids, mine["id"])
        is_present = distinct_ids[at] == mine["id"]
        np.minimum.at(first_ids, at[is_present], mine["first"][is_present])
    first: Ids = np.where(first_ids == nothing, distinct_ids if default is None else default, first_ids)[places]
    return first


# Digests that earlier runs saw.


def distinct_digests(tables: Sequence[Entries]) -> Entries:
    """The digests of all ``tables``, sorted, each once, without ids."""
    entries = np.concatenate([np.empty(0, DIGEST), *(table[["high", "low"]] for table in tables)])
    entries = entries[np.lexsort((entries["low"], entries["high"]))]
    return entries[mask_run_starts(entries["high"], entries["low"])]


def merge_digests(files: Sequence[Path], ranges: int, out: Path) -> int:
    """Commit the digests of all ``files`` as :func:`distinct_digests` has them, one range at a time; how
    many."""
    count = sum(len(distinct_digests([read_range(path, n, ranges) for path in files])) for n in range(ranges))
    with commit(out) as temporary:
        table = np.lib.format.open_memmap(temporary, "w+", DIGEST, (count,))
        place = 0
        for number in range(ranges):
            digests = distinct_digests([read_range(path, number, ranges) for path in files])
            table[place : place + len(digests)] = digests
            place += len(digests)
        table.flush()
    return count


def is_member(path: Path, entries: Entries) -> NDArray[np.bool_]:
    """Which of ``entries`` are among the digests that :func:`distinct_digests` gave and a file holds."""
    members = np.zeros(len(entries), bool)
    table = np.load(path, mmap_mode="r")
    high, low = table["high"], table["low"]
    place, end = (np.searchsorted(high, entries["high"], side) for side in ("left", "right"))
    # two digests with one high word hardly ever meet, but they may
    while (live := np.flatnonzero(place < end)).size:
        members[live] |= low[place[live]] == entries["low"][live]
        place[live] += 1
    return members


# Mode ``bloom``: sets of digests in fixed memory.


def digests_to_int(entries: Entries) -> list[int]:
    """The digests as signed 128-bit numbers, as the filters take them."""
    high, low = entries["high"].view("<i8").tolist(), entries["low"].tolist()
    return [(h << 64) | rest for h, rest in zip(high, low, strict=True)]


def make_bloom_filter(capacity: int, error_rate: float) -> Bloom:
    """A set of 16-byte digests in fixed memory: it never forgets one, and takes some others for its own.

    The digests are keyed BLAKE2b (:class:`~redactory.foundation.keys.DigestKey`), given as signed
    128-bit numbers (:func:`digests_to_int`): their own bits choose the places, no further hash is needed, and
    whoever lacks the key cannot make two texts collide.  Of digests that were not added at most
    ``error_rate`` are taken for added ones, as long as no more than ``capacity`` were.
    """
    return Bloom(max(1, capacity), error_rate, operator.index)


def read_bloom(path: Path) -> Bloom:
    """A filter that was written with its method ``save_bytes``."""
    return Bloom.load_bytes(path.read_bytes(), operator.index)


class BloomPass:
    """Mode ``bloom`` on one side: a point whose digest the filter holds is dropped, any other is added.

    A new text that the filter takes for a repeat is lost.  How often that happens is measured on about
    :data:`TRACKED` of the digests, which are remembered exactly: those whose highest 32 bits lie under a
    limit, bits that choose no place in the filter, so that these digests fare like all others.
    """

    def __init__(self, capacity: int, error_rate: float) -> None:
        self.filter, self.capacity = make_bloom_filter(capacity, error_rate), capacity
        self.added = self.tracked_new = self.tracked_lost = 0
        self._limit = min(1 << 32, (TRACKED << 32) // max(1, capacity))
        self._known: set[int] = set()

    def drop_repeats(self, digests: Iterable[int]) -> list[bool]:
        """Which of the points, given by their digests in order, are dropped."""
        dropped = []
        for digest in digests:
            if not (seen := digest in self.filter):
                self.filter.add(digest)
                self.added += 1
            dropped.append(seen)
            if (digest >> 96) & 0xFFFFFFFF < self._limit and digest not in self._known:
                self._known.add(digest)
                self.tracked_new += 1
                self.tracked_lost += seen
        return dropped
