"""Groups: the texts that are joined by near pairs, however long the chain between two of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory.dedup.plan import PAIR, Entries, read_range, write_entries
from redactory.dedup.signatures import BUCKET, Hashes, SignedFiles, SignedTexts, SomeTexts

_ODD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(32)


def join_groups(forests: Sequence[Path], outs: Sequence[Path]) -> tuple[int, int]:
    """Join the forests of all hash ranges; how many texts are in groups, and how many in the largest.

    ``outs`` get the (id, first) pairs of the groups, spread over the files by their lowest id, sorted by
    group and id.  Needs about 150 bytes a text that has a near-duplicate, of all ranges together.
    """
    joined = np.empty(0, PAIR)
    for path in forests:
        joined = merged_forest(np.concatenate([joined, np.load(path)]))
    place = ((joined["first"].astype(np.uint64) * _ODD) >> _SHIFT) % np.uint64(len(outs))
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


# Near pairs: texts that share a bucket, verified by their true Jaccard similarity.


PUBLIC_SIDE, PRIVATE_SIDE = 0, 1
NEAR_RANGES, PIECES, WHOLE = 8, 32, 1 << 24
"""Hash ranges of the buckets; pieces that each is read in, from this many buckets in all on."""
FEW = 32
"""Texts of one bucket that are compared each with each; of a larger one, each with at most as many."""

ACROSS = np.dtype([("public", "<i8"), ("private", "<i8"), ("similarity", "<f4")])


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


def pieces_of(files: Sequence[SignedFiles], ranges: int) -> int:
    """How many pieces each of ``ranges`` is read in: of all texts as many, however many ranges there are."""
    held = sum(len(np.load(one.buckets, mmap_mode="r")) for one in files)
    return (NEAR_RANGES * PIECES if held > WHOLE else NEAR_RANGES) // ranges


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
    pieces = pieces_of(files, ranges)
    for piece in range(number * pieces, (number + 1) * pieces):
        entries = _shared([read_range(one.buckets, piece, ranges * pieces) for one in files])
        if not len(entries):
            continue
        # from here on a text is known by its place among those of the piece, which are in the order of ids
        ids, places = np.unique(entries["id"], return_inverse=True)
        some, bucket = texts.some(ids), entries["high"]
        forest = Forest()
        runs = _runs(bucket, places, some.rows, asked.within)
        for members in some.along(runs, lambda run: run):
            _join_bucket(some, members, asked.threshold, forest, counts)
        joined = merged_forest(np.concatenate([joined, forest.pairs(ids)]))
        if asked.across:
            both = _both_sides(bucket, places, some.rows)
            pairs = np.fromiter(_pairs_across(some, both, asked.threshold, counts), ACROSS)
            pairs["public"], pairs["private"] = ids[pairs["public"]], ids[pairs["private"]]
            found = nearest(np.concatenate([found, pairs]))
    if asked.within:
        write_entries(asked.pairs, joined)
    if asked.across:
        write_entries(asked.across_pairs, found)
    return counts


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
            if one in found:
                continue
            for other in private[:FEW]:
                counts["compared"] += 1
                if (similarity := texts.jaccard(one, other)) >= threshold:
                    found.add(one)
                    yield one, other, similarity
                    break
            else:
                counts["crowded"] += len(private) > FEW


def nearest(pairs: Entries) -> Entries:
    """Of each public text the pair of the highest similarity, and then of the lowest private id."""
    ordered = pairs[np.lexsort((pairs["private"], -pairs["similarity"], pairs["public"]))]
    return ordered[np.unique(ordered["public"], return_index=True)[1]]


def _shared(tables: list[Entries]) -> Entries:
    """The entries whose bucket holds another one too, by bucket and id."""
    entries = np.concatenate(tables) if tables else np.empty(0, BUCKET)
    entries = entries[np.lexsort((entries["id"], entries["high"]))]
    same = entries["high"][1:] == entries["high"][:-1]
    shared = np.zeros(len(entries), bool)
    shared[1:] |= same
    shared[:-1] |= same
    return entries[shared]


def _runs(
    bucket: Hashes, places: NDArray[np.int64], rows: Entries, within: frozenset[int]
) -> Iterator[list[int]]:
    """The places of each bucket's texts of one side and group, by rank, where there are two or more."""
    mine = np.isin(rows["side"], list(within))[places]
    bucket, places = bucket[mine], places[mine]
    side, group, rank = (rows[name][places] for name in ("side", "group", "rank"))
    order = np.lexsort((places, rank, group, side, bucket))
    ordered = places[order]
    for first, last in _pieces(bucket[order], side[order], group[order]):
        if last - first > 1:
            yield ordered[first:last].tolist()


def _both_sides(
    bucket: Hashes, places: NDArray[np.int64], rows: Entries
) -> Iterator[tuple[list[int], list[int]]]:
    """The public and the private places, ascending, of each bucket that holds both."""
    side = rows["side"][places]
    order = np.lexsort((places, side, bucket))
    ordered, side = places[order], side[order]
    for first, last in _pieces(bucket[order]):
        middle = first + int(np.searchsorted(side[first:last], PRIVATE_SIDE))
        if first < middle < last:
            yield ordered[first:middle].tolist(), ordered[middle:last].tolist()


def _pieces(*keys: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """The (first, end) of each run of rows whose keys are equal."""
    if not len(keys[0]):
        return
    new = np.zeros(len(keys[0]), bool)
    for key in keys:
        new[1:] |= key[1:] != key[:-1]
    bounds = [0, *np.flatnonzero(new).tolist(), len(new)]
    yield from pairwise(bounds)


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
