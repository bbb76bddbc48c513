"""Near-duplicates: texts that share a bucket, verified by their true similarity, grouped and chosen among.

Buckets are compared range by range (:func:`compare_buckets`), the pairs are joined to groups, however long
the chain between two texts (:func:`join_groups`), and of each group some stay (:func:`choose_range`).  All
within a side and a group of texts alone; across the split pairs are only listed.  With what earlier runs
kept, texts are compared in the same way (:func:`near_earlier`), so that every dropped text has a
near-duplicate in a shard of this run or an earlier one.  No bound on what one text changes is proved.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory.dedup.index import NOBODY, earlier_of
from redactory.dedup.plan import PAIR, Entries, read_range, write_entries
from redactory.dedup.signatures import BUCKET, Hashes, SignedFiles, SignedTexts, SomeTexts, jaccard

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


@dataclass
class Forest:
    """Texts joined by verified pairs: each points towards the lowest place of its tree."""

    parents: dict[int, int] = field(default_factory=dict)

    def root(self, point: int) -> int:
        """The lowest place that is joined to ``point``."""
        parents = self.parents
        root = point
        while (above := parents.get(root, root)) != root:
            root = above
        while point != root:
            parents[point], point = root, parents.get(point, point)
        return root

    def join(self, one: int, other: int) -> None:
        """Join the trees of two places."""
        low, high = sorted((self.root(one), self.root(other)))
        self.parents[low] = low
        self.parents[high] = low

    def pairs(self, ids: NDArray[np.int64]) -> Entries:
        """(id, first) of every text that is joined to another, by id; ``ids``, ascending, are the places'."""
        places = sorted(self.parents)
        pairs = np.empty(len(places), PAIR)
        pairs["id"] = ids[places]
        pairs["first"] = ids[[self.root(place) for place in places]]
        return pairs


@dataclass(frozen=True)
class Comparison:
    """What is compared: texts of the sides ``within``, and, if ``across``, those of one with the other's.

    ``pairs`` gets a forest of the near pairs within sides, where any is asked for; ``across_pairs`` a
    private text for each public one that it nearly duplicates.
    """

    threshold: float
    within: frozenset[int]
    across: bool
    pairs: Path
    across_pairs: Path


def compare_buckets(
    files: Sequence[SignedFiles], number: int, asked: Comparison, ranges: int = NEAR_RANGES
) -> Counter[str]:
    """Compare the texts that share a bucket of one of ``ranges`` hash ranges, in all partitions.

    Counts what was compared; ``crowded`` are texts that were not compared with all of a bucket of more
    than :data:`FEW`.  Needs memory for a piece of the range, the shingles of some texts, and about 150
    bytes a text with a near-duplicate.
    """
    texts, counts = SignedTexts(files), Counter[str]()
    joined, found = np.empty(0, PAIR), np.empty(0, ACROSS)
    for piece, pieces in _pieces_of(number, files, ranges):
        entries = _read(files, piece, pieces)
        if not len(entries):
            continue
        same = entries["high"][1:] == entries["high"][:-1]
        entries = entries[np.append(False, same) | np.append(same, False)]
        if not len(entries):
            continue
        # from here on a text is known by its place among those of the piece, which are in the order of ids
        ids, places = np.unique(entries["id"], return_inverse=True)
        some, bucket = texts.some(ids), entries["high"]
        forest = Forest()
        buckets = _of_one_side(bucket, places, some.rows, asked.within)
        for members in some.along(buckets, lambda members: members):
            _join_bucket(some, members, asked.threshold, forest, counts)
        joined = merged_forest(np.concatenate([joined, forest.pairs(ids)]))
        if asked.across:
            both = _of_both_sides(bucket, places, some.rows)
            pairs = np.fromiter(_pairs_across(some, both, asked.threshold, counts), ACROSS)
            pairs["public"], pairs["private"] = ids[pairs["public"]], ids[pairs["private"]]
            found = nearest(np.concatenate([found, pairs]))
    if asked.within:
        write_entries(asked.pairs, joined)
    if asked.across:
        write_entries(asked.across_pairs, found)
    return counts


def _pieces_of(number: int, files: Sequence[SignedFiles], ranges: int) -> Iterator[tuple[int, int]]:
    """The pieces that one of ``ranges`` is read in, and of how many: the same, whatever ``ranges`` is."""
    held = sum(len(np.load(one.buckets, mmap_mode="r")) for one in files)
    pieces = (NEAR_RANGES * PIECES if held > WHOLE else NEAR_RANGES) // ranges
    return ((piece, ranges * pieces) for piece in range(number * pieces, (number + 1) * pieces))


def _read(files: Sequence[SignedFiles], piece: int, pieces: int) -> Entries:
    """The entries of a piece, by bucket and id."""
    tables = [read_range(one.buckets, piece, pieces) for one in files]
    entries = np.concatenate([np.empty(0, BUCKET), *tables])
    return entries[np.lexsort((entries["id"], entries["high"]))]


def _of_one_side(
    bucket: Hashes, places: NDArray[np.int64], rows: Entries, within: frozenset[int]
) -> Iterator[list[int]]:
    """The places of each bucket's texts of one side and group, by rank, where there are two or more."""
    mine = np.isin(rows["side"], list(within))[places]
    bucket, places = bucket[mine], places[mine]
    side, group, rank = (rows[name][places] for name in ("side", "group", "rank"))
    order = np.lexsort((places, rank, group, side, bucket))
    ordered = places[order]
    for first, last in _equal(bucket[order], side[order], group[order]):
        if last - first > 1:
            yield ordered[first:last].tolist()


def _of_both_sides(
    bucket: Hashes, places: NDArray[np.int64], rows: Entries
) -> Iterator[tuple[list[int], list[int]]]:
    """The public and the private places, ascending, of each bucket that holds both."""
    side = rows["side"][places]
    order = np.lexsort((places, side, bucket))
    ordered, side = places[order], side[order]
    for first, last in _equal(bucket[order]):
        middle = first + int(np.searchsorted(side[first:last], PRIVATE_SIDE))
        if first < middle < last:
            yield ordered[first:middle].tolist(), ordered[middle:last].tolist()


def _equal(*keys: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """The (first, end) of each run of rows whose keys are equal."""
    if len(keys[0]):
        new = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
        yield from pairwise([0, *(np.flatnonzero(new) + 1).tolist(), len(keys[0])])


def _join_bucket(
    texts: SomeTexts, members: list[int], threshold: float, forest: Forest, counts: Counter[str]
) -> None:
    """Join the near pairs among one bucket's texts of one side and group, which come in order of rank.

    Up to :data:`FEW` texts are compared each with each, but for those that are joined already.  Of more,
    each is compared with those before it that were near none themselves, at most :data:`FEW` of them.
    Either way which texts end up in one group follows from the texts alone: not from the order of
    buckets or pieces, nor from what else is joined.
    """
    few = len(members) <= FEW
    asked: list[int] = []
    for member in members:
        near = False
        for other in asked:
            if few and forest.root(member) == forest.root(other):
                continue
            counts["compared"] += 1
            if texts.jaccard(member, other) >= threshold:
                forest.join(member, other)
                near = True
                if not few:
                    break
        if few or (not near and len(asked) < FEW):
            asked.append(member)
        elif not near:
            counts["crowded"] += 1


def _pairs_across(
    texts: SomeTexts,
    shared: Iterable[tuple[list[int], list[int]]],
    threshold: float,
    counts: Counter[str],
) -> Iterator[tuple[int, int, float]]:
    """(public, private, similarity): one near pair of each public text of the buckets that has any."""
    found: set[int] = set()
    for public, private in texts.along(shared, lambda both: [*both[0], *both[1][:FEW]]):
        for one in public:
            if one not in found and (pair := _first_near(texts, one, texts, private, threshold, counts)):
                found.add(one)
                yield one, *pair


def _first_near(
    texts: SomeTexts,
    place: int,
    others: SomeTexts,
    candidates: Sequence[int],
    threshold: float,
    counts: Counter[str],
) -> tuple[int, float] | None:
    """The first of the first :data:`FEW` candidates that is near the text at ``place``, and how similar."""
    own = texts.shingles_of(place)
    for candidate in candidates[:FEW]:
        counts["compared"] += 1
        if (similarity := jaccard(own, others.shingles_of(candidate))) >= threshold:
            return candidate, similarity
    counts["crowded"] += len(candidates) > FEW
    return None


def nearest(pairs: Entries) -> Entries:
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
        joined = merged_forest(np.concatenate([joined, np.load(path)]))
    place = ((joined["first"].astype(np.uint64) * _ODD) >> np.uint64(32)) % np.uint64(len(outs))
    for number, out in enumerate(outs):
        mine = joined[place == number]
        write_entries(out, mine[np.lexsort((mine["id"], mine["first"]))])
    sizes = np.unique(joined["first"], return_counts=True)[1]
    return len(joined), int(sizes.max(initial=0))


def merged_forest(pairs: Entries) -> Entries:
    """The forest of all ``pairs``: each id of theirs once, with the lowest id it is joined to."""
    # on first use: scipy takes a fifth of a second
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ids, places = np.unique(np.concatenate([pairs["id"], pairs["first"]]), return_inverse=True)
    arrows = np.ones(len(pairs), np.int8), (places[: len(pairs)], places[len(pairs) :])
    _, group = connected_components(coo_array(arrows, (len(ids), len(ids))), directed=False)
    out = np.empty(len(ids), PAIR)
    out["id"], out["first"] = ids, ids[np.unique(group, return_index=True)[1][group]]
    return out


def choose_range(
    files: Sequence[SignedFiles], groups: Path, threshold: float, out: Path, earlier: Sequence[Path] = ()
) -> int:
    """Choose who stays in each group of one file of :func:`join_groups`; the number of dropped texts.

    ``out`` gets (id, first) of the dropped, by id, for a :class:`~redactory.dedup.plan.DuplicatePlan`.
    Holds about 100 bytes a text of the range in memory, and half a kilobyte for each text of one group
    that stays.  Points that ``earlier`` names (``index.write_earlier``) are out before, and stand for none.
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


# What earlier runs kept.


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

    ``earlier`` are that run's texts of the same side.  Holds a piece of the range, like
    :func:`compare_buckets`.
    """
    own, theirs, counts, found = SignedTexts(files), SignedTexts(earlier), Counter[str](), set[int]()
    for piece, pieces in _pieces_of(number, [*files, *earlier], ranges):
        new, old = _read(files, piece, pieces), _read(earlier, piece, pieces)
        new, old = new[np.isin(new["high"], old["high"])], old[np.isin(old["high"], new["high"])]
        if not len(new):
            continue
        own_ids, places = np.unique(new["id"], return_inverse=True)
        their_ids, their_places = np.unique(old["id"], return_inverse=True)
        one, other = own.some(own_ids), theirs.some(their_ids)
        first, last = (
            np.searchsorted(old["high"], new["high"], side=end).tolist() for end in ("left", "right")
        )
        for place, begin, end in zip(places.tolist(), first, last, strict=True):
            point, mine = int(own_ids[place]), one.rows[place]
            if mine["side"] != side or point in found:
                continue
            same = [
                c
                for c in their_places[begin:end].tolist()
                if other.rows["side"][c] == side and other.rows["group"][c] == mine["group"]
            ]
            if _first_near(one, place, other, same, threshold, counts):
                found.add(point)
    return found, counts
