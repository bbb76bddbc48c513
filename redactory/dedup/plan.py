"""The duplicate plan: for every repeated digest, the point that held it first."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from redactory.dedup.digests import in_order, read_range
from redactory.foundation.files import commit

RANGES = 64
"""Hash ranges of every plan: a constant, so that a plan never depends on the machine."""

PAIR = np.dtype([("id", "<i8"), ("first", "<i8")])


def plan_range(digest_files: Sequence[Path], number: int, out: Path) -> int:
    """Find the repeated digests of one hash range in all partitions; the number of repeats.

    ``out`` gets the (id, first) pairs sorted by id, where ``first`` is the lowest id with the same
    digest.  Holds one range of all partitions in memory, 24 bytes a point of it.
    """
    entries = in_order(np.concatenate([read_range(path, number, RANGES) for path in digest_files]))
    new = np.ones(len(entries), dtype=bool)
    new[1:] = (entries["high"][1:] != entries["high"][:-1]) | (entries["low"][1:] != entries["low"][:-1])
    leaders = np.flatnonzero(new)
    pairs = np.empty(len(entries) - len(leaders), dtype=PAIR)
    pairs["id"] = entries["id"][~new]
    pairs["first"] = entries["id"][leaders[np.cumsum(new) - 1]][~new]
    with commit(out) as temporary, temporary.open("wb") as file:
        np.save(file, pairs[np.argsort(pairs["id"], kind="stable")])
    return len(pairs)


class DuplicatePlan:
    """All ranges of a plan, asked a partition at a time."""

    def __init__(self, range_files: Sequence[Path]) -> None:
        self._files = tuple(range_files)

    def first_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each of ``ids`` (sorted; all of a partition or some), the first point with the same digest.

        A point that repeats none is its own first.
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
