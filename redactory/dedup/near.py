"""Near-duplicates: texts that share a bucket, verified by their true similarity, grouped and chosen among.

Buckets are compared range by range (:func:`compare_buckets`), the pairs are joined to groups, however long
the chain between two texts (:func:`join_groups`), and of each group some stay (:func:`choose_kept`).  All
within a side and a group of texts alone; across the split pairs are only listed.  With what earlier runs
kept, texts are compared in the same way (:func:`find_near_earlier`), so that every dropped text has a
near-duplicate in a shard of this run or an earlier one.  No bound on what one text changes is proved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory.dedup.plan import PAIR, Entries, Ids, count_entries, mask_run_starts, read_range, write_entries
from redactory.dedup.signatures import BUCKET, SignedFiles, SignedTexts, jaccard

PUBLIC_SIDE, PRIVATE_SIDE = 0, 1
NEAR_RANGES, PIECES, WHOLE = 8, 32, 1 << 24
"""Hash ranges of the buckets; pieces that each is read in, from this many buckets in all on."""
FEW = 32
"""Texts of one bucket that are compared each with each; of a larger one, each with at most as many."""
SMALL = 64
"""Groups of up to so many texts are compared without asking first which shingles are rare."""
ACROSS = np.dtype([("public", "<i8"), ("private", "<i8"), ("similarity", "<f4")])
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SLOTS = 1 << 16
Shingles = frozenset[int]


class UnionFind:
    """Texts joined by verified pairs: each points towards the lowest place of its tree."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def find_root(self, point: int) -> int:
        """The lowest place that is joined to ``point``."""
        parents = self._parents
        root = point
        while (above := parents.get(root, root)) != root:
            root = above
        while point != root:
            parents[point], point = root, parents.get(point, point)
        return root

    def join(self, one: int, other: int) -> None:
        """Join the trees of two places."""
        low, high = sorted((self.find_root(one), self.find_root(other)))
        self._parents[low] = self._parents[high] = low

    def pairs(self, ids: Ids) -> Entries:
        """(id, first) of every text that is joined to another, by id; ``ids``, ascending, are the places'."""
        return np.array([(ids[place], ids[self.find_root(place)]) for place in sorted(self._parents)], PAIR)


def compare_buckets(
    files: Sequence[SignedFiles],
    number: int,
    threshold: float,
    within: Collection[int],
    across: bool,
    ranges: int = NEAR_RANGES,
) -> tuple[Entries, Entries, Counter[str]]:
    """Compare the texts that share a bucket of one of ``ranges`` hash ranges, in all partitions.

    Those of the sides ``within``, and, if ``across``, those of one side with the other's.  Returns a forest
    of the near pairs within sides (``PAIR``), a private text for each public one that it nearly duplicates
    (``ACROSS``), and counts; ``crowded`` are texts that were not compared with all of a bucket of more than
    :data:`FEW`.  Needs memory for a piece of the range, the shingles of some texts, and about 150 bytes a
    text with a near-duplicate.
    """
    counts, joined, cross_pairs = Counter[str](), np.empty(0, PAIR), np.empty(0, ACROSS)
    for piece, pieces in _plan_pieces(number, files, ranges):
        entries = _read_buckets(files, piece, pieces)
        bucket = entries["high"]
        shared = np.zeros(len(entries), bool)
        shared[1:] = bucket[1:] == bucket[:-1]
        shared[:-1] |= shared[1:]
        # from here on a text is known by its place among those of the piece, which are in the order of ids
        ids, places = np.unique(entries["id"][shared], return_inverse=True)
        texts, bucket, forest = SignedTexts(files, ids), bucket[shared], UnionFind()
        for members in _group_by_bucket(bucket, places, texts.rows, within):
            _join_bucket(texts, members, threshold, forest, counts)
        joined = merge_pairs(np.concatenate([joined, forest.pairs(ids)]))
        if across:
            near = _cross_split_pairs(texts, bucket, places, threshold, counts)
            pairs = [(ids[one], ids[other], similarity) for one, other, similarity in near]
            cross_pairs = nearest_pairs(np.concatenate([cross_pairs, np.array(pairs, ACROSS)]))
    return joined, cross_pairs, counts


def _plan_pieces(number: int, files: Sequence[SignedFiles], ranges: int) -> Iterator[tuple[int, int]]:
    """The pieces that one of ``ranges`` is read in, and of how many: the same, whatever ``ranges`` is."""
    held = count_entries(one.path("buckets") for one in files)
    pieces = (NEAR_RANGES * PIECES if held > WHOLE else NEAR_RANGES) // ranges
    return ((piece, ranges * pieces) for piece in range(number * pieces, (number + 1) * pieces))


def _read_buckets(files: Sequence[SignedFiles], piece: int, pieces: int) -> Entries:
    """The entries of a piece, by bucket and id."""
    tables = [read_range(one.path("buckets"), piece, pieces) for one in files]
    entries = np.concatenate([np.empty(0, BUCKET), *tables])
    return entries[np.lexsort((entries["id"], entries["high"]))]


def _group_by_bucket(
    bucket: NDArray[np.uint64], places: Ids, rows: Entries, within: Collection[int]
) -> Iterator[list[int]]:
    """The places of each bucket's texts of one side and group, by rank, where there are two or more."""
    mine = np.isin(rows["side"], list(within))[places]
    bucket, places = bucket[mine], places[mine]
    side, group, rank = (rows[name][places] for name in ("side", "group", "rank"))
    order = np.lexsort((places, rank, group, side, bucket))
    ordered = places[order]
    for first, last in _equal_runs(bucket[order], side[order], group[order]):
        if last - first > 1:
            yield ordered[first:last].tolist()


def _equal_runs(*keys: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """The (first, end) of each run of rows whose keys are equal."""
    if len(keys[0]):
        yield from pairwise([*np.flatnonzero(mask_run_starts(*keys)).tolist(), len(keys[0])])


def _join_bucket(
    texts: SignedTexts, members: list[int], threshold: float, forest: UnionFind, counts: Counter[str]
) -> None:
    """Join the near pairs among one bucket's texts of one side and group, which come in order of rank.

    Up to :data:`FEW` texts are compared each with each, but for those that are joined already.  Of more,
    each is compared with those before it that were near none themselves, at most :data:`FEW` of them.
    Either way which texts end up in one group follows from the texts alone: not from the order of
    buckets or pieces, nor from what else is joined.
    """
    few = len(members) <= FEW
    rows: list[int] = []
    for member in members:
        near = False
        for other in rows:
            if few and forest.find_root(member) == forest.find_root(other):
                continue
            counts["compared"] += 1
            if jaccard(texts.shingles_of(member), texts.shingles_of(other)) >= threshold:
                forest.join(member, other)
                near = True
                if not few:
                    break
        if few or (not near and len(rows) < FEW):
            rows.append(member)
        elif not near:
            counts["crowded"] += 1


def _cross_split_pairs(
    texts: SignedTexts, bucket: NDArray[np.uint64], places: Ids, threshold: float, counts: Counter[str]
) -> Iterator[tuple[int, int, float]]:
    """(public, private, similarity): one near pair of each public text of the buckets that has any."""
    side = texts.rows["side"][places]
    order = np.lexsort((places, side, bucket))
    ordered, side = places[order], side[order]
    seen: set[int] = set()
    for first, last in _equal_runs(bucket[order]):
        middle = first + int(np.searchsorted(side[first:last], PRIVATE_SIDE))
        private = ordered[middle:last].tolist()
        for one in ordered[first:middle].tolist() if private else ():
            if one in seen:
                continue
            if pair := _nearest_candidate(texts.shingles_of(one), texts, private, threshold, counts):
                seen.add(one)
                yield one, *pair


def _nearest_candidate(
    shingles: Shingles, others: SignedTexts, candidates: Sequence[int], threshold: float, counts: Counter[str]
) -> tuple[int, float] | None:
    """The first of the first :data:`FEW` candidates that is near a text, and how similar."""
    for candidate in candidates[:FEW]:
        counts["compared"] += 1
        if (similarity := jaccard(shingles, others.shingles_of(candidate))) >= threshold:
            return candidate, similarity
    counts["crowded"] += len(candidates) > FEW
    return None


def nearest_pairs(pairs: Entries) -> Entries:
    """Of each public text the pair of the highest similarity, and then of the lowest private id."""
    ordered = pairs[np.lexsort((pairs["private"], -pairs["similarity"], pairs["public"]))]
    return ordered[np.unique(ordered["public"], return_index=True)[1]]


def join_groups(forests: Sequence[Path], outs: Sequence[Path]) -> tuple[int, int]:
    """Join the forests of all hash ranges; how many texts are in groups, and how many in the largest.

    ``outs`` get the (id, first) pairs of the groups, spread over the files by their lowest id, sorted by
    group and id.  Needs about 150 bytes a text that has a near-duplicate, of all ranges together.
    """
    joined = np.empty(0, PAIR)
    for path in forests:
        joined = merge_pairs(np.concatenate([joined, np.load(path)]))
    place = ((joined["first"].astype(np.uint64) * _ODD) >> np.uint64(32)) % np.uint64(len(outs))
    for number, out in enumerate(outs):
        mine = joined[place == number]
        write_entries(out, mine[np.lexsort((mine["id"], mine["first"]))])
    sizes = np.unique(joined["first"], return_counts=True)[1]
    return len(joined), int(sizes.max(initial=0))


def merge_pairs(pairs: Entries) -> Entries:
    """The forest of all ``pairs``: each id of theirs once, with the lowest id it is joined to."""
    ids, places = np.unique(np.concatenate([pairs["id"], pairs["first"]]), return_inverse=True)
    one, other = places[: len(pairs)], places[len(pairs) :]
    lowest, changed = np.arange(len(ids)), True
    while changed:
        before = lowest.copy()
        least = np.minimum(before[before[one]], before[before[other]])
        # both ends, and what they hung from, come to hang from the lower one; then every chain is halved
        for end in (one, other, before[one], before[other]):
            np.minimum.at(lowest, end, least)
        lowest = lowest[lowest]
        changed = not np.array_equal(lowest, before)
    out = np.empty(len(ids), PAIR)
    out["id"], out["first"] = ids, ids[lowest]
    return out


def choose_kept(files: Sequence[SignedFiles], pairs: Entries, threshold: float) -> Entries:
    """Choose who stays in each group of ``pairs`` (as :func:`join_groups` wrote them).

    Gives (id, first) of the dropped.  Holds about 100 bytes a text in memory, and half a kilobyte for each
    text of one group that stays.
    """
    texts = SignedTexts(files, pairs["id"])
    order = np.lexsort((texts.ids, texts.rows["rank"], pairs["first"]))
    near_pairs = [np.empty(0, PAIR)]
    for first, last in _equal_runs(pairs["first"]):
        dropped = list(select_greedily(order[first:last].tolist(), texts.shingles_of, threshold))
        near_pairs.append(np.array(dropped, PAIR))
    chosen = np.concatenate(near_pairs)
    chosen["id"], chosen["first"] = texts.ids[chosen["id"]], texts.ids[chosen["first"]]
    return chosen


def select_greedily(
    group: Sequence[int], shingles_of: Callable[[int], Shingles], threshold: float
) -> Iterator[tuple[int, int]]:
    """(text, the one that stays for it) of the dropped texts of ``group``, which come in order of rank.

    Each is compared with all that stay and that share one of its rarest shingles: of two sets A and B of
    similarity t at least ⌈t|A|⌉ shingles are common, so in any order of shingles one is among the first
    |A| − ⌈t|A|⌉ + 1 of both.  In the order of their frequency a phrase that all use is hardly asked for.
    """
    rarity = _rarity_order(group, shingles_of) if len(group) > SMALL else None
    index: dict[int, list[int]] = {}
    for number, text in enumerate(group):
        shingles = shingles_of(text)
        ordered = sorted(shingles, key=rarity)
        rarest = ordered[: len(shingles) - math.ceil(threshold * len(shingles) - 1e-9) + 1]
        others = sorted({other for value in rarest for other in index.get(value, ())})
        near = (n for n in others if jaccard(shingles, shingles_of(group[n])) >= threshold)
        nearest = next(near, None)
        if nearest is not None:
            yield text, group[nearest]
            continue
        for value in rarest:
            index.setdefault(value, []).append(number)


def _rarity_order(group: Sequence[int], shingles_of: Callable[[int], Shingles]) -> Callable[[int], tuple[int, int]]:
    """The order of shingles by how often about they occur in the group, counted in fixed memory."""
    seen = [0] * _SLOTS
    for text in group:
        for value in shingles_of(text):
            seen[value % _SLOTS] += 1
    return lambda value: (seen[value % _SLOTS], value)


# What earlier runs kept.


def copy_signed(files: SignedFiles, kept: Ids, side: int, out: SignedFiles) -> int:
    """Commit the signed texts of one partition that are of ``side`` and among ``kept``; how many."""
    rows = np.load(files.path("rows"))
    rows = rows[(rows["side"] == side) & np.isin(rows["id"], kept)]
    counts = rows["count"].astype(np.int64)
    begin = np.cumsum(counts) - counts
    places = np.repeat(rows["start"] - begin, counts) + np.arange(counts.sum())
    shingles, held = np.load(files.path("shingles"), mmap_mode="r")[places], np.load(files.path("buckets"))
    rows["start"] = begin
    write_entries(out.path("buckets"), held[np.isin(held["id"], rows["id"])])
    write_entries(out.path("shingles"), shingles)
    write_entries(out.path("rows"), rows)
    return len(rows)


def find_near_earlier(
    files: Sequence[SignedFiles],
    earlier: Sequence[SignedFiles],
    side: int,
    number: int,
    threshold: float,
    ranges: int = NEAR_RANGES,
) -> tuple[set[int], Counter[str]]:
    """The points of ``side`` that nearly duplicate a text of one earlier run, by one range of the buckets.

    ``earlier`` are that run's texts of the same side.  Holds a piece of the range, like
    :func:`compare_buckets`.
    """
    counts, repeats = Counter[str](), set[int]()
    for piece, pieces in _plan_pieces(number, [*files, *earlier], ranges):
        new, old = _read_buckets(files, piece, pieces), _read_buckets(earlier, piece, pieces)
        new, old = new[np.isin(new["high"], old["high"])], old[np.isin(old["high"], new["high"])]
        own_ids, places = np.unique(new["id"], return_inverse=True)
        their_ids, their_places = np.unique(old["id"], return_inverse=True)
        new_texts, theirs = SignedTexts(files, own_ids), SignedTexts(earlier, their_ids)
        first, last = (np.searchsorted(old["high"], new["high"], end).tolist() for end in ("left", "right"))
        for place, begin, end in zip(places.tolist(), first, last, strict=True):
            point, mine = int(own_ids[place]), new_texts.rows[place]
            if mine["side"] != side or point in repeats:
                continue
            candidates = their_places[begin:end]
            rows = theirs.rows[candidates]
            same = candidates[(rows["side"] == side) & (rows["group"] == mine["group"])].tolist()
            if _nearest_candidate(new_texts.shingles_of(place), theirs, same, threshold, counts):
                repeats.add(point)
    return repeats, counts
