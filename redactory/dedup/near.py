"""Near-duplicates: find texts that share a bucket, verify their similarity, group them and choose which to keep.

Buckets are compared range by range (:func:`compare_buckets`), pairs are joined to groups through chains of any length
(:func:`join_groups`), and some texts of each group are kept (:func:`choose_kept`), always within one split and group of
texts; pairs across splits are only listed. Texts are also compared with what earlier runs kept
(:func:`find_near_earlier`). So every dropped text has a near-duplicate in a shard of this run or an earlier one. No
bound on the effect of one text is proved.
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
"""Number of hash ranges of the buckets; pieces per range, from this total number of buckets on."""
FEW = 32
"""Maximum texts of a bucket for comparing all pairs; in a larger one, maximum comparisons per text."""
SMALL = 64
"""Maximum group size for comparing without first counting which shingles are rare."""
ACROSS = np.dtype([("public", "<i8"), ("private", "<i8"), ("similarity", "<f4")])
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SLOTS = 1 << 16
Shingles = frozenset[int]


class UnionFind:
    """Union-find over verified pairs: each text points towards the lowest index of its tree."""

    def __init__(self) -> None:
        self._parents: dict[int, int] = {}

    def find_root(self, point: int) -> int:
        """The smallest member of the group that ``point`` belongs to."""
        parents = self._parents
        root = point
        while (above := parents.get(root, root)) != root:
            root = above
        while point != root:
            parents[point], point = root, parents.get(point, point)
        return root

    def join(self, one: int, other: int) -> None:
        """Join the groups of two members."""
        low, high = sorted((self.find_root(one), self.find_root(other)))
        self._parents[low] = self._parents[high] = low

    def pairs(self, ids: Ids) -> Entries:
        """Return (id, first) of every joined text, by id; ``ids`` are ascending, one per index."""
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

    Compares texts of the splits ``within`` and, if ``across``, those of one split with the other's. Returns a forest of
    the near pairs within splits (``PAIR``), a private text for each public one that it nearly duplicates (``ACROSS``),
    and counts; ``crowded`` counts texts that were not compared with all of a bucket of more than :data:`FEW`. Needs
    memory for a piece of the range, the shingles of some texts, and about 150 bytes per text with a near-duplicate.
    """
    counts, joined, cross_pairs = Counter[str](), np.empty(0, PAIR), np.empty(0, ACROSS)
    for piece, pieces in _plan_pieces(number, files, ranges):
        entries = _read_buckets(files, piece, pieces)
        bucket = entries["high"]
        shared = np.zeros(len(entries), bool)
        shared[1:] = bucket[1:] == bucket[:-1]
        shared[:-1] |= shared[1:]
        # from here on a text is its index in the piece, sorted by id
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
    """Return the pieces of one of ``ranges`` and their total, which does not depend on ``ranges``."""
    held = count_entries(one.path("buckets") for one in files)
    pieces = (NEAR_RANGES * PIECES if held > WHOLE else NEAR_RANGES) // ranges
    return ((piece, ranges * pieces) for piece in range(number * pieces, (number + 1) * pieces))


def _read_buckets(files: Sequence[SignedFiles], piece: int, pieces: int) -> Entries:
    tables = [read_range(one.path("buckets"), piece, pieces) for one in files]
    entries = np.concatenate([np.empty(0, BUCKET), *tables])
    return entries[np.lexsort((entries["id"], entries["high"]))]


def _group_by_bucket(
    bucket: NDArray[np.uint64], places: Ids, rows: Entries, within: Collection[int]
) -> Iterator[list[int]]:
    """Return the indices of each bucket's texts of one split and group, by rank, if there are two or more."""
    mine = np.isin(rows["split"], list(within))[places]
    bucket, places = bucket[mine], places[mine]
    side, group, rank = (rows[name][places] for name in ("split", "group", "rank"))
    order = np.lexsort((places, rank, group, side, bucket))
    ordered = places[order]
    for first, last in _equal_runs(bucket[order], side[order], group[order]):
        if last - first > 1:
            yield ordered[first:last].tolist()


def _equal_runs(*keys: NDArray[Any]) -> Iterator[tuple[int, int]]:
    if len(keys[0]):
        yield from pairwise([*np.flatnonzero(mask_run_starts(*keys)).tolist(), len(keys[0])])


def _join_bucket(
    texts: SignedTexts, members: list[int], threshold: float, forest: UnionFind, counts: Counter[str]
) -> None:
    """Join the near pairs among one bucket's texts of one split and group, which are sorted by rank.

    Up to :data:`FEW` texts are compared pairwise, except those already joined. In a larger bucket, each is compared
    with at most :data:`FEW` earlier texts that had no near-duplicate. Either way the groups are a function of the texts
    alone, not of the order of buckets or pieces, nor of other joins.
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
    """Return (public, private, similarity): one near pair for each public text of the buckets that has any."""
    side = texts.rows["split"][places]
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
    for candidate in candidates[:FEW]:
        counts["compared"] += 1
        if (similarity := jaccard(shingles, others.shingles_of(candidate))) >= threshold:
            return candidate, similarity
    counts["crowded"] += len(candidates) > FEW
    return None


def nearest_pairs(pairs: Entries) -> Entries:
    """Keep for each public text the pair of highest similarity, then of lowest private id."""
    ordered = pairs[np.lexsort((pairs["private"], -pairs["similarity"], pairs["public"]))]
    return ordered[np.unique(ordered["public"], return_index=True)[1]]


def join_groups(forests: Sequence[Path], outs: Sequence[Path]) -> tuple[int, int]:
    """Join the forests of all hash ranges; return the number of grouped texts and the largest group's size.

    Writes the (id, first) pairs of the groups to ``outs``, spread over the files by their lowest id, sorted by group
    and id. Needs about 150 bytes per text with a near-duplicate, for all ranges together.
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
    """Return the forest of all ``pairs``: each id once, with the lowest id it is joined to."""
    ids, places = np.unique(np.concatenate([pairs["id"], pairs["first"]]), return_inverse=True)
    one, other = places[: len(pairs)], places[len(pairs) :]
    lowest, changed = np.arange(len(ids)), True
    while changed:
        before = lowest.copy()
        least = np.minimum(before[before[one]], before[before[other]])
        # attach both ends and their parents to the lower one, then halve every chain
        for end in (one, other, before[one], before[other]):
            np.minimum.at(lowest, end, least)
        lowest = lowest[lowest]
        changed = not np.array_equal(lowest, before)
    out = np.empty(len(ids), PAIR)
    out["id"], out["first"] = ids, ids[lowest]
    return out


def choose_kept(files: Sequence[SignedFiles], pairs: Entries, threshold: float) -> Entries:
    """Choose which texts of each group of ``pairs`` (from :func:`join_groups`) are kept.

    Returns (id, first) of the dropped ones. Needs about 100 bytes per text, and half a kilobyte per kept text of one
    group.
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
    """Yield (text, kept text) for the dropped texts of ``group``, which are sorted by rank.

    Each is compared with all kept texts that share one of its rarest shingles: two sets A and B of similarity t have at
    least ⌈t|A|⌉ common shingles, so in any order of shingles one is among the first |A| − ⌈t|A|⌉ + 1 of both. Ordering
    by frequency avoids lookups of phrases that all texts share.
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
    """Order shingles by their approximate frequency in the group, counted in fixed memory."""
    seen = [0] * _SLOTS
    for text in group:
        for value in shingles_of(text):
            seen[value % _SLOTS] += 1
    return lambda value: (seen[value % _SLOTS], value)


def copy_signed(files: SignedFiles, kept: Ids, split: int, out: SignedFiles) -> int:
    """Commit the signed texts of one partition that are of ``side`` and in ``kept``; return their number."""
    rows = np.load(files.path("rows"))
    rows = rows[(rows["split"] == split) & np.isin(rows["id"], kept)]
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
    """Find examples of ``side`` that nearly duplicate a text of one earlier run, in one range of the buckets.

    ``earlier`` are that run's texts of the same split. Memory as for :func:`compare_buckets`.
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
            if mine["split"] != side or point in repeats:
                continue
            candidates = their_places[begin:end]
            rows = theirs.rows[candidates]
            same = candidates[(rows["split"] == side) & (rows["group"] == mine["group"])].tolist()
            if _nearest_candidate(new_texts.shingles_of(place), theirs, same, threshold, counts):
                repeats.add(point)
    return repeats, counts
