"""Bloom filters over keyed digests: in front of an exact plan, and as a mode of their own."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rbloom import Bloom

from redactory.dedup.digests import Entries, as_numbers

SCREEN_ERROR_RATE = 0.01
"""Share of the unique texts that the filter in front of a plan lets into its digest table."""
TRACKED = 100_000
"""Digests of a side, about, that mode ``bloom`` remembers exactly, to measure its false positives."""


class BloomFilter:
    """A set of 16-byte digests in fixed memory: it never forgets one, and takes some others for its own.

    The digests are keyed BLAKE2b (:class:`~redactory.foundation.keys.DigestKey`), given as signed
    128-bit numbers (:func:`~redactory.dedup.digests.as_numbers`): their own bits choose the places, no
    further hash is needed, and whoever lacks the key cannot make two texts collide.  Of digests that were
    not added at most ``error_rate`` are taken for added ones, as long as no more than ``capacity`` were.
    """

    def __init__(self, capacity: int, error_rate: float, bits: Bloom | None = None) -> None:
        self.capacity, self.error_rate = capacity, error_rate
        self._bits = Bloom(max(1, capacity), error_rate, operator.index) if bits is None else bits

    @classmethod
    def from_bytes(cls, capacity: int, error_rate: float, content: bytes) -> BloomFilter:
        """The filter of :meth:`to_bytes`."""
        return cls(capacity, error_rate, Bloom.load_bytes(content, operator.index))

    def to_bytes(self) -> bytes:
        """The number of places a digest has, and the bits."""
        return self._bits.save_bytes()

    def add(self, digest: int) -> bool:
        """Add ``digest``; whether it was there already, as far as the filter can tell."""
        if digest in self._bits:
            return True
        self._bits.add(digest)
        return False

    def size(self) -> float:
        """About how many different digests were added."""
        return self._bits.approx_items

    def __contains__(self, digest: int) -> bool:
        return digest in self._bits

    def holds(self, entries: Entries) -> NDArray[np.bool_]:
        """Which of ``entries`` may have been added."""
        bits = self._bits
        return np.fromiter((digest in bits for digest in as_numbers(entries)), bool, len(entries))


def repeated_digests(digest_files: Sequence[Path]) -> BloomFilter:
    """A filter that holds every digest occurring twice or more: what it does not hold is unique.

    One pass over all partitions: a first filter remembers what occurred, the second what occurred again.
    Neither ever forgets, so a repeated digest is always held; some unique ones are held besides.
    """
    capacity = sum(len(np.load(path, mmap_mode="r")) for path in digest_files)
    once, again = (BloomFilter(capacity, SCREEN_ERROR_RATE) for _ in range(2))
    for path in digest_files:
        for digest in as_numbers(np.load(path)):
            if once.add(digest):
                again.add(digest)
    return again


class OnePass:
    """Mode ``bloom`` on one side: a point whose digest the filter holds is dropped, any other is added.

    A new text that the filter takes for a repeat is lost.  How often that happens is measured on about
    :data:`TRACKED` of the digests, which are remembered exactly: those whose highest 32 bits lie under a
    limit, bits that choose no place in the filter, so that these digests fare like all others.
    """

    def __init__(self, capacity: int, error_rate: float) -> None:
        self.filter = BloomFilter(capacity, error_rate)
        self.added = self.tracked_new = self.tracked_lost = 0
        self._limit = min(1 << 32, (TRACKED << 32) // max(1, capacity))
        self._known: set[int] = set()

    def repeats(self, digests: Iterable[int]) -> list[bool]:
        """Which of the points, given by their digests in order, are dropped."""
        dropped = []
        for digest in digests:
            seen = self.filter.add(digest)
            self.added += not seen
            dropped.append(seen)
            if (digest >> 96) & 0xFFFFFFFF < self._limit and digest not in self._known:
                self._known.add(digest)
                self.tracked_new += 1
                self.tracked_lost += seen
        return dropped
