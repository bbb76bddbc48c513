"""Near-duplicates of what earlier runs kept: found by their bands, verified by their true similarity.

Within a side and a group only, as within a run (:mod:`redactory.dedup.near`).  What is compared with are
texts that were kept, so that every dropped text has a near-duplicate in a shard of this run or an earlier
one.  No bound on what one text changes is proved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from redactory.dedup.index import NOBODY, earlier_of
from redactory.dedup.near import FEW, NEAR_RANGES, pieces_of
from redactory.dedup.plan import PAIR, Entries, read_range, write_entries
from redactory.dedup.signatures import BUCKET, SignedFiles, SignedTexts, jaccard


def copy_signed(files: SignedFiles, kept: NDArray[np.int64], side: int, out: SignedFiles) -> int:
    """Commit the signed texts of one partition that are of ``side`` and among ``kept``; how many."""
    rows = np.load(files.rows)
    rows = rows[(rows["side"] == side) & np.isin(rows["id"], kept)]
    counts = rows["count"].astype(np.int64)
    begin = np.cumsum(counts) - counts
    places = np.repeat(rows["start"] - begin, counts) + np.arange(counts.sum())
    shingles = np.load(files.shingles, mmap_mode="r")[places]
    held = np.load(files.buckets)
    rows["start"] = begin
    write_entries(out.buckets, held[np.isin(held["id"], rows["id"])])
    write_entries(out.shingles, shingles)
    write_entries(out.rows, rows)
    return len(rows)


def near_earlier(
    files: Sequence[SignedFiles],
    earlier: Sequence[SignedFiles],
    side: int,
    number: int,
    threshold: float,
    ranges: int = NEAR_RANGES,
) -> tuple[set[int], Counter[str]]:
    """The points of ``side`` that nearly duplicate a text of one earlier run, by one range of the buckets.

    ``earlier`` are that run's texts of the same side.  Holds a piece of the range, like ``compare_buckets``.
    """
    own, theirs, counts = SignedTexts(files), SignedTexts(earlier), Counter[str]()
    pieces, found = pieces_of((*files, *earlier), ranges), set[int]()
    for piece in range(number * pieces, (number + 1) * pieces):
        new, old = _meeting(*(_piece(some, piece, ranges * pieces) for some in (files, earlier)))
        if not len(new):
            continue
        own_ids, theirs_ids = np.unique(new["id"]), np.unique(old["id"])
        one, other = own.some(own_ids), theirs.some(theirs_ids)
        for place, candidates in _candidates(new, old, own_ids, theirs_ids):
            point = int(own_ids[place])
            if one.rows["side"][place] != side or point in found:
                continue
            same = [
                c
                for c in candidates
                if other.rows["side"][c] == side and other.rows["group"][c] == one.rows["group"][place]
            ]
            for candidate in same[:FEW]:
                counts["compared"] += 1
                if jaccard(one.shingles_of(place), other.shingles_of(candidate)) >= threshold:
                    found.add(point)
                    break
            else:
                counts["crowded"] += len(same) > FEW
    return found, counts


def _piece(files: Sequence[SignedFiles], piece: int, ranges: int) -> Entries:
    tables = [read_range(one.buckets, piece, ranges) for one in files]
    entries = np.concatenate([np.empty(0, BUCKET), *tables])
    return entries[np.lexsort((entries["id"], entries["high"]))]


def _meeting(new: Entries, old: Entries) -> tuple[Entries, Entries]:
    """The entries of both whose bucket the other has too."""
    return new[np.isin(new["high"], old["high"])], old[np.isin(old["high"], new["high"])]


def _candidates(
    new: Entries, old: Entries, own_ids: NDArray[np.int64], theirs_ids: NDArray[np.int64]
) -> Iterator[tuple[int, list[int]]]:
    """(a text's place, the places of the earlier texts of its bucket), once for each of its buckets."""
    places = np.searchsorted(own_ids, new["id"]).tolist()
    theirs = np.searchsorted(theirs_ids, old["id"])
    first = np.searchsorted(old["high"], new["high"], side="left").tolist()
    last = np.searchsorted(old["high"], new["high"], side="right").tolist()
    for place, begin, end in zip(places, first, last, strict=True):
        yield place, theirs[begin:end].tolist()


# The choice: which texts of a group of near-duplicates stay.


SMALL = 64
"""Groups of up to so many texts are compared without asking first which shingles are rare."""
_SLOTS = 1 << 16
Shingles = frozenset[int]


def choose_range(
    files: Sequence[SignedFiles], groups: Path, threshold: float, out: Path, earlier: Sequence[Path] = ()
) -> int:
    """Choose who stays in each group of one file of ``groups.join_groups``; the number of dropped texts.

    ``out`` gets (id, first) of the dropped, by id, for a :class:`~redactory.dedup.plan.DuplicatePlan`.
    Holds about 100 bytes a text of the range in memory, and half a kilobyte for each text of one group
    that stays.  Points that ``earlier`` names (``earlier.write_earlier``) are out before, and stand for none.
    """
    pairs = np.load(groups)
    pairs = pairs[earlier_of(earlier, pairs["id"]) == NOBODY]
    texts = SignedTexts(files).some(pairs["id"])
    order = np.lexsort((texts.rows["id"], texts.rows["rank"], pairs["first"]))
    bounds = [*np.unique(pairs["first"], return_index=True)[1].tolist(), len(pairs)]
    found = [np.empty(0, PAIR)]
    ranked = (order[first:last].tolist() for first, last in pairwise(bounds))
    for group in texts.along(ranked, lambda group: group):
        if dropped := list(greedy(group, texts.shingles_of, threshold)):
            found.append(np.array(dropped, PAIR))
    chosen = np.concatenate(found)
    chosen["id"], chosen["first"] = pairs["id"][chosen["id"]], pairs["id"][chosen["first"]]
    write_entries(out, np.sort(chosen, order="id"))
    return len(chosen)


def greedy(
    group: Sequence[int], shingles_of: Callable[[int], Shingles], threshold: float
) -> Iterator[tuple[int, int]]:
    """(text, the one that stays for it) of the dropped texts of ``group``, which come in order of rank.

    Each is compared with all that stay and that share one of its rarest shingles: of two sets A and B of
    similarity t at least ⌈t|A|⌉ shingles are common, so in any order of shingles one is among the first
    |A| − ⌈t|A|⌉ + 1 of both.  In the order of their frequency a phrase that all use is hardly asked for.
    """
    rarity = _rarity(group, shingles_of) if len(group) > SMALL else None
    index: dict[int, list[int]] = {}
    for number, text in enumerate(group):
        shingles = shingles_of(text)
        ordered = sorted(shingles, key=rarity)
        rarest = ordered[: len(shingles) - math.ceil(threshold * len(shingles) - 1e-9) + 1]
        asked = sorted({other for value in rarest for other in index.get(value, ())})
        near = (n for n in asked if jaccard(shingles, shingles_of(group[n])) >= threshold)
        own = next(near, None)
        if own is not None:
            yield text, group[own]
            continue
        for value in rarest:
            index.setdefault(value, []).append(number)


def _rarity(group: Sequence[int], shingles_of: Callable[[int], Shingles]) -> Callable[[int], tuple[int, int]]:
    """The order of shingles by how often about they occur in the group, counted in fixed memory."""
    seen = [0] * _SLOTS
    for text in group:
        for value in shingles_of(text):
            seen[value % _SLOTS] += 1
    return lambda value: (seen[value % _SLOTS], value)
