"""Digest files: sorted (digest, point id) pairs of one partition, readable by hash range."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.files import commit
from redactory.foundation.keys import DIGEST_BYTES

ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("id", "<i8")])
RANKED = np.dtype([("high", "<u8"), ("low", "<u8"), ("rank_high", "<u8"), ("rank_low", "<u8"), ("id", "<i8")])
Entries = NDArray[Any]


def write_digests(
    path: Path, digests: Sequence[bytes], ids: NDArray[np.int64], ranks: Sequence[bytes] | None = None
) -> None:
    """Commit the pairs of one partition, sorted by digest, then rank where there are ranks, then id.

    ``digests`` and ``ranks`` are 16 bytes each, as many as ``ids``; ``ValueError`` otherwise.
    """
    entries = np.empty(len(ids), dtype=ENTRY if ranks is None else RANKED)
    entries["high"], entries["low"] = _words(digests, len(ids))
    if ranks is not None:
        entries["rank_high"], entries["rank_low"] = _words(ranks, len(ids))
    entries["id"] = ids
    write_entries(path, in_order(entries))


def write_entries(path: Path, entries: Entries) -> None:
    """Commit an array of any of this room's types as it is."""
    with commit(path) as temporary, temporary.open("wb") as file:
        np.save(file, entries)


def read_range(path: Path, number: int, ranges: int) -> Entries:
    """The entries whose digest lies in hash range ``number`` of ``ranges`` (a power of two)."""
    entries = np.load(path, mmap_mode="r")
    shift = np.uint64(64 - (ranges.bit_length() - 1))
    bounds = (np.array([number, number + 1], dtype=object) * (1 << int(shift))).tolist()
    first = int(np.searchsorted(entries["high"], np.uint64(bounds[0])))
    if number + 1 == ranges:
        return np.array(entries[first:])
    return np.array(entries[first : int(np.searchsorted(entries["high"], np.uint64(bounds[1])))])


def ranges_of(entries: Entries, ranges: int) -> NDArray[np.int64]:
    """The hash range of each of ``entries``, of ``ranges`` (a power of two)."""
    # by one bit first: no number of 64 bits can be shifted by 64
    return ((entries["high"] >> np.uint64(1)) >> np.uint64(63 - (ranges.bit_length() - 1))).astype(np.int64)


def in_order(entries: Entries) -> Entries:
    """``entries`` by digest, where digests are equal by rank if they have one, and then by id."""
    ranks = ("rank_low", "rank_high") if entries.dtype == RANKED else ()
    names = ("id", *ranks, "low", "high")
    return entries[np.lexsort([entries[name] for name in names])]


def as_numbers(entries: Entries) -> list[int]:
    """The digests as signed 128-bit numbers."""
    high, low = entries["high"].view("<i8").tolist(), entries["low"].tolist()
    return [(h << 64) | rest for h, rest in zip(high, low, strict=True)]


def _words(digests: Sequence[bytes], count: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    if len(digests) != count or any(len(digest) != DIGEST_BYTES for digest in digests):
        raise ValueError(f"{len(digests)} digests of {DIGEST_BYTES} bytes do not go with {count} ids")
    words = np.frombuffer(b"".join(digests), dtype=">u8").reshape(-1, 2)
    return words[:, 0], words[:, 1]
