"""The duplicate plan: for every repeated digest, the point that stands for it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from redactory.dedup.bloom import BloomFilter
from redactory.dedup.digests import Entries, in_order, read_range, write_entries

RANGES = 16
"""Hash ranges of a plan, a file each, where no other number is asked for."""
PIECES, WHOLE = 16, 1 << 24
"""Pieces that a range is read in, from this many digests in all on."""

PAIR = np.dtype([("id", "<i8"), ("first", "<i8")])


def plan_range(
    digest_files: Sequence[Path],
    number: int,
    out: Path,
    repeated: BloomFilter | None = None,
    ranges: int = RANGES,
) -> int:
    """Find the repeated digests of one of ``ranges`` hash ranges in all partitions; the number of repeats.

    ``out`` gets the (id, first) pairs sorted by id, where ``first`` is the point with the same digest
    that has the lowest rank, where the digests are ranked, and then the lowest id.  Needs memory for one
    piece of all partitions, about 100 bytes a digest, and for the pairs of the range; with a filter of the
    ``repeated`` digests (:func:`~redactory.dedup.bloom.repeated_digests`) only what that one holds is
    looked at, to the same effect.
    """
    digests = sum(len(np.load(path, mmap_mode="r")) for path in digest_files)
    pieces = PIECES if digests > WHOLE else 1
    found = [np.empty(0, PAIR)]
    for piece in range(number * pieces, (number + 1) * pieces):
        tables = [read_range(path, piece, ranges * pieces) for path in digest_files]
        if repeated is not None:
            tables = [table[repeated.holds(table)] for table in tables]
        found.append(_repeats(in_order(np.concatenate(tables))))
    pairs = np.concatenate(found)
    write_entries(out, pairs[np.argsort(pairs["id"], kind="stable")])
    return len(pairs)


def _repeats(entries: Entries) -> Entries:
    """(id, first) of every entry, in order, that has the digest of one before it."""
    new = np.ones(len(entries), dtype=bool)
    new[1:] = (entries["high"][1:] != entries["high"][:-1]) | (entries["low"][1:] != entries["low"][:-1])
    leaders = np.flatnonzero(new)
    pairs = np.empty(len(entries) - len(leaders), dtype=PAIR)
    pairs["id"] = entries["id"][~new]
    pairs["first"] = entries["id"][leaders[np.cumsum(new) - 1]][~new]
    return pairs


class DuplicatePlan:
    """All ranges of a plan, asked a partition at a time."""

    def __init__(self, range_files: Sequence[Path]) -> None:
        self._files = tuple(range_files)

    def first_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each of ``ids`` (sorted; all of a partition or some), the point that stands for it.

        A point that repeats none stands for itself.
        """
        first = ids.copy()
        if not len(ids):
            return first
        for path in self._files:
            pairs = np.load(path, mmap_mode="r")
            low, high = np.searchsorted(pairs["id"], [ids[0], ids[-1] + 1])
            found = np.array(pairs[low:high])
            places = np.searchsorted(ids, found["id"])
            asked = ids[places] == found["id"]
            first[places[asked]] = found["first"][asked]
        return first

    def first_of_any(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """:meth:`first_of` for ids in any order, some of them more than once."""
        distinct, places = np.unique(ids, return_inverse=True)
        return self.first_of(distinct)[places]
