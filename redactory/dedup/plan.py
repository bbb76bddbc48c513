"""Exact duplicates: digest files by hash range, the plan of which example is kept, and the one-pass Bloom mode."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rbloom import Bloom

from redactory.foundation.files import commit_file
from redactory.foundation.keys import DIGEST_BYTES

DIGEST = np.dtype([("high", "<u8"), ("low", "<u8")])
ENTRY = np.dtype([*DIGEST.descr, ("id", "<i8")])
RANKED = np.dtype([*DIGEST.descr, ("rank_high", "<u8"), ("rank_low", "<u8"), ("id", "<i8")])
PAIR = np.dtype([("id", "<i8"), ("first", "<i8")])
"""An example, and what replaces it: another example, or the place of an earlier run."""
PIECES, MAX_UNDIVIDED_DIGESTS = 16, 1 << 24
"""Pieces per range, from this total number of digests on."""
TRACKED_DIGESTS = 100_000
"""Approximate number of digests per split that mode ``bloom`` remembers exactly, to measure false positives."""
Entries = NDArray[Any]
Ids = NDArray[np.int64]


def write_digests(path: Path, digests: Sequence[bytes], ids: Ids, ranks: Sequence[bytes] | None = None) -> None:
    """Commit the entries of one partition, sorted by digest, then rank (if given), then id.

    ``digests`` and ``ranks`` are 16 bytes each, as many as ``ids``; ``ValueError`` otherwise.
    """
    entries = np.empty(len(ids), ENTRY if ranks is None else RANKED)
    entries["high"], entries["low"] = split_digests(digests, len(ids))
    if ranks is not None:
        entries["rank_high"], entries["rank_low"] = split_digests(ranks, len(ids))
    entries["id"] = ids
    write_entries(path, sort_entries(entries))


def split_digests(digests: Sequence[bytes], count: int) -> Entries:
    """Return the high and the low words of ``count`` digests, [2, count]; ``ValueError`` for other digests."""
    if len(digests) != count or any(len(digest) != DIGEST_BYTES for digest in digests):
        raise ValueError(f"{len(digests)} digests of {DIGEST_BYTES} bytes do not match {count} ids")
    return np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2).T


def write_entries(path: Path, entries: Entries) -> None:
    """Commit a structured array of any type of this package."""
    with commit_file(path) as temporary, temporary.open("wb") as file:
        np.save(file, entries)


def count_entries(paths: Iterable[Path]) -> int:
    """The number of entries in these files together."""
    return sum(len(np.load(path, mmap_mode="r")) for path in paths)


def read_range(path: Path, number: int, ranges: int) -> Entries:
    """Read the entries whose digest is in hash range ``number`` of ``ranges`` (a power of two)."""
    entries = np.load(path, mmap_mode="r")
    size = (1 << 64) // ranges
    first = np.searchsorted(entries["high"], np.uint64(number * size))
    last = np.searchsorted(entries["high"], np.uint64((number + 1) * size - 1), "right")
    return np.array(entries[first:last])


def compute_hash_ranges(entries: Entries, ranges: int) -> Ids:
    """Return the hash range of each of ``entries``, of ``ranges`` (a power of two)."""
    # shift by one bit first: a 64-bit number cannot be shifted by 64
    return ((entries["high"] >> np.uint64(1)) >> np.uint64(63 - (ranges.bit_length() - 1))).astype(np.int64)


def sort_entries(entries: Entries, *fields: str) -> Entries:
    """Sort by ``fields``, the first one first; by default by all fields in their order."""
    return entries[np.lexsort([entries[name] for name in reversed(fields or entries.dtype.names or ())])]


def mark_changed_rows(*keys: NDArray[Any]) -> NDArray[np.bool_]:
    """Mark rows that differ in one of ``keys`` from the previous row; the first is marked too."""
    is_start = np.ones(len(keys[0]), bool)
    is_start[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return is_start


def read_pieces(files: Sequence[Path], number: int, ranges: int) -> Iterator[tuple[int, Entries]]:
    """Yield each piece of a hash range: its number over all ranges, and its sorted entries."""
    pieces = PIECES if count_entries(files) > MAX_UNDIVIDED_DIGESTS else 1
    for piece in range(number * pieces, (number + 1) * pieces):
        yield piece, sort_entries(np.concatenate([read_range(path, piece, ranges * pieces) for path in files]))


def find_repeats_in_range(digest_files: Sequence[Path], number: int, out: Path, ranges: int) -> int:
    """Find the repeated digests of one of ``ranges`` hash ranges in all partitions; return their number.

    Writes the (id, first) pairs, sorted by id, to ``out``. ``first`` is the example with the same digest and the lowest
    rank (if given), then the lowest id. Needs memory for one piece of all partitions, about 100 bytes per digest, and
    for the pairs of the range.
    """
    all_pairs = [np.empty(0, PAIR)]
    for _, entries in read_pieces(digest_files, number, ranges):
        is_first = mark_changed_rows(entries["high"], entries["low"])
        leaders = np.flatnonzero(is_first)
        pairs = np.empty(len(entries) - len(leaders), PAIR)
        pairs["id"] = entries["id"][~is_first]
        pairs["first"] = entries["id"][leaders[np.cumsum(is_first) - 1]][~is_first]
        all_pairs.append(pairs)
    return write_pairs(out, np.concatenate(all_pairs))


def write_pairs(path: Path, pairs: Entries | Iterable[tuple[int, int]]) -> int:
    """Commit pairs sorted by id; returns their number."""
    table = pairs if isinstance(pairs, np.ndarray) else np.array(list(pairs), PAIR)
    write_entries(path, sort_entries(table))
    return len(table)


def lookup_replacements(files: Sequence[Path], ids: Ids, default: int | None = None) -> Ids:
    """Return the lowest ``first`` for each of ``ids``, in any order; if missing, ``default`` or the id itself."""
    distinct_ids, indices = np.unique(ids, return_inverse=True)
    missing = np.iinfo(np.int64).max
    first_ids = np.full(len(distinct_ids), missing)
    for path in files if len(ids) else ():
        pairs = np.load(path, mmap_mode="r")
        low, high = np.searchsorted(pairs["id"], [distinct_ids[0], distinct_ids[-1] + 1])
        candidates = np.array(pairs[low:high])
        slots = np.searchsorted(distinct_ids, candidates["id"])
        is_present = distinct_ids[slots] == candidates["id"]
        np.minimum.at(first_ids, slots[is_present], candidates["first"][is_present])
    first: Ids = np.where(first_ids == missing, distinct_ids if default is None else default, first_ids)[indices]
    return first


def collect_distinct_digests(tables: Sequence[Entries]) -> Entries:
    """Return the distinct digests of all ``tables``, sorted, without ids."""
    entries = sort_entries(np.concatenate([np.empty(0, DIGEST), *(table[["high", "low"]] for table in tables)]))
    return entries[mark_changed_rows(entries["high"], entries["low"])]


def merge_digests(files: Sequence[Path], ranges: int, out: Path) -> int:
    """Commit the :func:`collect_distinct_digests` of all ``files``, one range at a time; return their number."""
    count = sum(len(collect_distinct_digests([read_range(path, n, ranges) for path in files])) for n in range(ranges))
    with commit_file(out) as temporary:
        table = np.lib.format.open_memmap(temporary, "w+", DIGEST, (count,))
        position = 0
        for number in range(ranges):
            digests = collect_distinct_digests([read_range(path, number, ranges) for path in files])
            table[position : position + len(digests)] = digests
            position += len(digests)
        table.flush()
    return count


def mark_known_digests(path: Path, entries: Entries) -> NDArray[np.bool_]:
    """Return which of ``entries`` are in a file of :func:`collect_distinct_digests`."""
    members = np.zeros(len(entries), bool)
    table = np.load(path, mmap_mode="r")
    high, low = table["high"], table["low"]
    position, end = (np.searchsorted(high, entries["high"], end_side) for end_side in ("left", "right"))
    # two digests with the same high word are rare but possible
    while (active := np.flatnonzero(position < end)).size:
        members[active] |= low[position[active]] == entries["low"][active]
        position[active] += 1
    return members


def digests_to_ints(entries: Entries) -> list[int]:
    """The digests as signed 128-bit integers, as the filters take them."""
    high, low = entries["high"].view("<i8").tolist(), entries["low"].tolist()
    return [(h << 64) | rest for h, rest in zip(high, low, strict=True)]


def make_bloom_filter(capacity: int, error_rate: float) -> Bloom:
    """Create a set of 16-byte digests in fixed memory, with false positives but no false negatives.

    The digests are keyed BLAKE2b (:class:`~redactory.foundation.keys.DigestKey`) as signed 128-bit integers
    (:func:`digests_to_ints`). Their own bits choose the positions, so no further hash is needed, and nobody without the
    key can make two texts collide. The false positive rate is at most ``error_rate`` for up to ``capacity`` digests.
    """
    return Bloom(max(1, capacity), error_rate, operator.index)


def read_bloom_filter(path: Path) -> Bloom:
    """Read a filter that was written with its method ``save_bytes``."""
    return Bloom.load_bytes(path.read_bytes(), operator.index)


class BloomPass:
    """Mode ``bloom`` on one split: drop an example whose digest is in the filter, else add it.

    A false positive loses a new text. The rate is measured on about :data:`TRACKED_DIGESTS` digests, which are
    remembered exactly: those whose highest 32 bits are below a limit. These bits choose no position in the filter, so
    these digests behave like all others.
    """

    def __init__(self, capacity: int, error_rate: float) -> None:
        self.filter, self.capacity = make_bloom_filter(capacity, error_rate), capacity
        self.added = self.tracked_new = self.tracked_lost = 0
        self._tracked_below = min(1 << 32, (TRACKED_DIGESTS << 32) // max(1, capacity))
        self._tracked_digests: set[int] = set()

    def mark_repeats(self, digests: Iterable[int]) -> list[bool]:
        """Return which examples, given by their digests in order, are dropped."""
        is_dropped = []
        for digest in digests:
            if not (is_repeat := digest in self.filter):
                self.filter.add(digest)
                self.added += 1
            is_dropped.append(is_repeat)
            if (digest >> 96) & 0xFFFFFFFF < self._tracked_below and digest not in self._tracked_digests:
                self._tracked_digests.add(digest)
                self.tracked_new += 1
                self.tracked_lost += is_repeat
        return is_dropped
