"""Digest files: sorted (digest, point id) pairs of one partition, readable by hash range."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rbloom import Bloom

from redactory.foundation.canonical import canonical_json
from redactory.foundation.errors import CheckFailed, RunStateError
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


# Bloom filters over keyed digests: in front of an exact plan, and as a mode of their own.


SCREEN_ERROR_RATE = 0.01
"""Share of the unique texts that the filter in front of a plan lets into its digest table."""
TRACKED = 100_000
"""Digests of a side, about, that mode ``bloom`` remembers exactly, to measure its false positives."""


def bloom_filter(capacity: int, error_rate: float) -> Bloom:
    """A set of 16-byte digests in fixed memory: it never forgets one, and takes some others for its own.

    The digests are keyed BLAKE2b (:class:`~redactory.foundation.keys.DigestKey`), given as signed
    128-bit numbers (:func:`as_numbers`): their own bits choose the places, no further hash is needed, and
    whoever lacks the key cannot make two texts collide.  Of digests that were not added at most
    ``error_rate`` are taken for added ones, as long as no more than ``capacity`` were.
    """
    return Bloom(max(1, capacity), error_rate, operator.index)


def may_hold(bloom: Bloom, entries: Entries) -> NDArray[np.bool_]:
    """Which of ``entries`` may have been added."""
    return np.fromiter((digest in bloom for digest in as_numbers(entries)), bool, len(entries))


class OnePass:
    """Mode ``bloom`` on one side: a point whose digest the filter holds is dropped, any other is added.

    A new text that the filter takes for a repeat is lost.  How often that happens is measured on about
    :data:`TRACKED` of the digests, which are remembered exactly: those whose highest 32 bits lie under a
    limit, bits that choose no place in the filter, so that these digests fare like all others.
    """

    def __init__(self, capacity: int, error_rate: float) -> None:
        self.filter, self.capacity = bloom_filter(capacity, error_rate), capacity
        self.added = self.tracked_new = self.tracked_lost = 0
        self._limit = min(1 << 32, (TRACKED << 32) // max(1, capacity))
        self._known: set[int] = set()

    def repeats(self, digests: Iterable[int]) -> list[bool]:
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


# A Bloom filter in a file: every parameter stands in its head, and other parameters are refused.


FORMAT = "redactory-bloom/1"
HASH = "blake2b-128, keyed"


@dataclass(frozen=True)
class BloomParameters:
    """What makes a filter the one that is looked for.

    ``purpose`` names the digests' subkey and ``key`` the key itself by its fingerprint; ``side`` is
    public, private or both; ``policy`` is the hash of what decided texts and sides.
    """

    capacity: int
    error_rate: float
    purpose: str
    key: str
    side: str
    policy: str


def save_bloom(path: Path, bloom: Bloom, parameters: BloomParameters, added: int) -> None:
    """Commit ``bloom``: one line of JSON, then its bits.  ``added`` digests are in it, for the record."""
    content = bloom.save_bytes()
    head = {
        "format": FORMAT,
        "hash": HASH,
        **dataclasses.asdict(parameters),
        "added": added,
    }
    head["sha256"] = _digest(head, content)
    with commit(path) as temporary, temporary.open("wb") as file:
        file.write(canonical_json(head) + b"\n")
        file.write(content)


def load_bloom(path: Path, parameters: BloomParameters) -> Bloom:
    """The filter of ``path``, made with exactly ``parameters``.

    ``RunStateError`` names the first parameter that differs, and both values; ``CheckFailed`` is
    raised for a file that is no filter, is cut off, or holds other bits than were written.
    """
    head, content = _read(path)
    expected = {"format": FORMAT, "hash": HASH, **dataclasses.asdict(parameters)}
    for name, value in expected.items():
        if head.get(name) != value:
            raise RunStateError(
                f"{path.name} holds a filter with {name} {head.get(name)}, and {name} {value} is asked for; "
                "give the parameters that it was made with, or begin a new one"
            )
    sealed = head.pop("sha256", None)
    if _digest(head, content) != sealed:
        raise CheckFailed(f"{path.name} does not hold what was written: restore it, or begin a new one")
    return Bloom.load_bytes(content, operator.index)


def _digest(head: dict[str, Any], content: bytes) -> str:
    """Of the head and the bits together."""
    return hashlib.sha256(canonical_json(head) + b"\n" + content).hexdigest()


def _read(path: Path) -> tuple[dict[str, Any], bytes]:
    line, _, content = path.read_bytes().partition(b"\n")
    try:
        head = json.loads(line)
    except ValueError:
        head = None
    if not isinstance(head, dict) or "format" not in head:
        raise CheckFailed(f"{path.name} is not one of Redactory's Bloom filters")
    return head, content


# The duplicate plan: for every repeated digest, the point that stands for it.


RANGES = 16
"""Hash ranges of a plan, a file each, where no other number is asked for."""
PIECES, WHOLE = 16, 1 << 24
"""Pieces that a range is read in, from this many digests in all on."""

PAIR = np.dtype([("id", "<i8"), ("first", "<i8")])


def plan_range(
    digest_files: Sequence[Path],
    number: int,
    out: Path,
    ranges: int = RANGES,
) -> int:
    """Find the repeated digests of one of ``ranges`` hash ranges in all partitions; the number of repeats.

    ``out`` gets the (id, first) pairs sorted by id, where ``first`` is the point with the same digest
    that has the lowest rank, where the digests are ranked, and then the lowest id.  Needs memory for one
    piece of all partitions, about 100 bytes a digest, and for the pairs of the range.
    """
    digests = sum(len(np.load(path, mmap_mode="r")) for path in digest_files)
    pieces = PIECES if digests > WHOLE else 1
    found = [np.empty(0, PAIR)]
    for piece in range(number * pieces, (number + 1) * pieces):
        tables = [read_range(path, piece, ranges * pieces) for path in digest_files]
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
