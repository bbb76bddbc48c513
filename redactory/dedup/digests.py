"""Digest files: sorted (digest, point id) pairs of one partition, readable by hash range."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.files import commit
from redactory.foundation.keys import DIGEST_BYTES

ENTRY = np.dtype([("high", "<u8"), ("low", "<u8"), ("id", "<i8")])
Entries = NDArray[np.void]


def write_digests(path: Path, digests: Sequence[bytes], ids: NDArray[np.int64]) -> None:
    """Commit the pairs of one partition, sorted by digest, then id.

    ``digests`` are 16 bytes each, as many as ``ids``; ``ValueError`` otherwise.
    """
    if len(digests) != len(ids) or any(len(digest) != DIGEST_BYTES for digest in digests):
        raise ValueError(f"{len(digests)} digests of {DIGEST_BYTES} bytes do not go with {len(ids)} ids")
    words = np.frombuffer(b"".join(digests), dtype=">u8").reshape(-1, 2)
    entries = np.empty(len(ids), dtype=ENTRY)
    entries["high"], entries["low"], entries["id"] = words[:, 0], words[:, 1], ids
    with commit(path) as temporary, temporary.open("wb") as file:
        np.save(file, in_order(entries))


def read_range(path: Path, number: int, ranges: int) -> Entries:
    """The pairs whose digest lies in hash range ``number`` of ``ranges`` (a power of two)."""
    entries = np.load(path, mmap_mode="r")
    shift = np.uint64(64 - (ranges.bit_length() - 1))
    bounds = (np.array([number, number + 1], dtype=object) * (1 << int(shift))).tolist()
    first = int(np.searchsorted(entries["high"], np.uint64(bounds[0])))
    if number + 1 == ranges:
        return np.array(entries[first:])
    return np.array(entries[first : int(np.searchsorted(entries["high"], np.uint64(bounds[1])))])


def in_order(entries: Entries) -> Entries:
    """``entries`` by digest, and by id where digests are equal."""
    return entries[np.lexsort((entries["id"], entries["low"], entries["high"]))]
