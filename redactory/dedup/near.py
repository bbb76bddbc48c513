"""Near-duplicates: find texts that share a bucket, verify their similarity, group them and choose which to keep.

Buckets are compared range by range (:func:`compare_buckets`), pairs are joined to groups through chains of any length
(:func:`join_groups`), and most texts of each group are dropped (:func:`select_duplicates_to_drop`), always within one
split and group of texts; pairs across splits are only listed. Texts are also compared with what earlier runs kept
(:func:`find_earlier_near_duplicates`). So every dropped text has a near-duplicate in a shard of this run or an earlier
one. No bound on the effect of one text is proved.
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

from redactory.dedup.plan import PAIR, Entries, Ids, count_entries, mark_changed_rows, read_range, write_entries
from redactory.dedup.signatures import BUCKET, SignedFiles, SignedTexts, compute_jaccard

PUBLIC_SPLIT, PRIVATE_SPLIT = 0, 1
NEAR_RANGES, PIECES, MAX_UNDIVIDED_BUCKETS = 8, 32, 1 << 24
"""Number of hash ranges of the buckets; pieces per range, from this total number of buckets on."""
MAX_PAIRWISE_TEXTS = 32
"""Maximum texts of a bucket for comparing all pairs; in a larger one, maximum comparisons per text."""
MAX_SMALL_GROUP = 64
"""Maximum group size for comparing without first counting which shingles are rare."""
CROSS_SPLIT_PAIR = np.dtype([("public", "<i8"), ("private", "<i8"), ("similarity", "<f4")])
_ODD = np.uint64(0x9E3779B97F4A7C15)
_SLOTS = 1 << 16
Shingles = frozenset[int]


def find_root(parents: list[int], node: int) -> int:
    """Return what stands for the group of ``node`` in a union-find forest, and shorten the way to it."""
    while parents[node] != node:
        parents[node] = node = parents[parents[node]]
    return node


def compare_buckets(
    files: Sequence[SignedFiles],
    number: int,
    threshold: float,
    splits: Collection[int],
    compare_across: bool,
    ranges: int = NEAR_RANGES,
) -> tuple[Entries, Entries, Counter[str]]:
    """Compare the texts that share a bucket of one of ``ranges`` hash ranges, in all partitions.

    Compares texts of the splits ``splits`` and, if ``compare_across``, those of one split with the other's. Returns a
    forest of the near pairs within splits (``PAIR``), a private text for each public one that it nearly duplicates
    (``CROSS_SPLIT_PAIR``), and counts; ``crowded`` counts texts that were not compared with all of a bucket of more
    than :data:`MAX_PAIRWISE_TEXTS`. Needs memory for a piece of the range, the shingles of some texts, and about 150
    bytes per text with a near-duplicate.
    """
    counts, joined, cross_pairs = Counter[str](), np.empty(0, PAIR), np.empty(0, CROSS_SPLIT_PAIR)
    for piece, pieces in _iter_pieces(number, files, ranges):
        entries = _read_buckets(files, piece, pieces)
        bucket = entries["high"]
        shared = np.zeros(len(entries), bool)
        shared[1:] = bucket[1:] == bucket[:-1]
        shared[:-1] |= shared[1:]
        # from here on a text is its index in the piece, sorted by id
        ids, indices = np.unique(entries["id"][shared], return_inverse=True)
        texts, bucket, parents = SignedTexts(files, ids), bucket[shared], list(range(len(ids)))
        for members in _group_by_bucket(bucket, indices, texts.rows, splits):
            _join_near_pairs(texts, members, threshold, parents, counts)
        pairs = np.array([(ids[n], ids[parent]) for n, parent in enumerate(parents) if n != parent], PAIR)
        joined = merge_to_forest(np.concatenate([joined, pairs]))
        if compare_across:
            near = _find_cross_split_pairs(texts, bucket, indices, threshold, counts)
            across = np.array([(ids[one], ids[other], similarity) for one, other, similarity in near], CROSS_SPLIT_PAIR)
            cross_pairs = select_nearest_pairs(np.concatenate([cross_pairs, across]))
    return joined, cross_pairs, counts


def _iter_pieces(number: int, files: Sequence[SignedFiles], ranges: int) -> Iterator[tuple[int, int]]:
    """Return the pieces of one of ``ranges`` and their total, which does not depend on ``ranges``."""
    bucket_count = count_entries(file.get_path("buckets") for file in files)
    pieces = (NEAR_RANGES * PIECES if bucket_count > MAX_UNDIVIDED_BUCKETS else NEAR_RANGES) // ranges
    return ((piece, ranges * pieces) for piece in range(number * pieces, (number + 1) * pieces))


def _read_buckets(files: Sequence[SignedFiles], piece: int, pieces: int) -> Entries:
    tables = [read_range(file.get_path("buckets"), piece, pieces) for file in files]
    entries = np.concatenate([np.empty(0, BUCKET), *tables])
    return entries[np.lexsort((entries["id"], entries["high"]))]


def _group_by_bucket(
    bucket: NDArray[np.uint64], indices: Ids, rows: Entries, splits: Collection[int]
) -> Iterator[list[int]]:
    """Return the indices of each bucket's texts of one split and group, by rank, if there are two or more."""
    is_in_splits = np.isin(rows["split"], list(splits))[indices]
    bucket, indices = bucket[is_in_splits], indices[is_in_splits]
    split, group, rank = (rows[name][indices] for name in ("split", "group", "rank"))
    order = np.lexsort((indices, rank, group, split, bucket))
    ordered = indices[order]
    for first, last in _iter_equal_runs(bucket[order], split[order], group[order]):
        if last - first > 1:
            yield ordered[first:last].tolist()


def _iter_equal_runs(*keys: NDArray[Any]) -> Iterator[tuple[int, int]]:
    if len(keys[0]):
        yield from pairwise([*np.flatnonzero(mark_changed_rows(*keys)).tolist(), len(keys[0])])


def _join_near_pairs(
    texts: SignedTexts, members: list[int], threshold: float, parents: list[int], counts: Counter[str]
) -> None:
    """Join the near pairs among one bucket's texts of one split and group, which are sorted by rank.

    Up to :data:`MAX_PAIRWISE_TEXTS` texts are compared pairwise, except those already joined. In a larger bucket, each
    is compared with at most :data:`MAX_PAIRWISE_TEXTS` earlier texts that had no near-duplicate. Either way the groups
    are a function of the texts alone, not of the order of buckets or pieces, nor of other joins.
    """
    compare_all = len(members) <= MAX_PAIRWISE_TEXTS
    earlier: list[int] = []
    for member in members:
        has_duplicate = False
        for other in earlier:
            if compare_all and find_root(parents, member) == find_root(parents, other):
                continue
            counts["compared"] += 1
            if compute_jaccard(texts.get_shingles(member), texts.get_shingles(other)) >= threshold:
                parents[find_root(parents, member)] = find_root(parents, other)
                has_duplicate = True
                if not compare_all:
                    break
        if compare_all or (not has_duplicate and len(earlier) < MAX_PAIRWISE_TEXTS):
            earlier.append(member)
        elif not has_duplicate:
            counts["crowded"] += 1


def _find_cross_split_pairs(
    texts: SignedTexts, bucket: NDArray[np.uint64], indices: Ids, threshold: float, counts: Counter[str]
) -> Iterator[tuple[int, int, float]]:
    """Return (public, private, similarity): one near pair for each public text of the buckets that has any."""
    split = texts.rows["split"][indices]
    order = np.lexsort((indices, split, bucket))
    ordered, split = indices[order], split[order]
    seen: set[int] = set()
    for first, last in _iter_equal_runs(bucket[order]):
        middle = first + int(np.searchsorted(split[first:last], PRIVATE_SPLIT))
        private = ordered[middle:last].tolist()
        for public in ordered[first:middle].tolist() if private else ():
            if public in seen:
                continue
            if pair := _find_near_candidate(texts.get_shingles(public), texts, private, threshold, counts):
                seen.add(public)
                yield public, *pair


def _find_near_candidate(
    shingles: Shingles, others: SignedTexts, candidates: Sequence[int], threshold: float, counts: Counter[str]
) -> tuple[int, float] | None:
    for candidate in candidates[:MAX_PAIRWISE_TEXTS]:
        counts["compared"] += 1
        if (similarity := compute_jaccard(shingles, others.get_shingles(candidate))) >= threshold:
            return candidate, similarity
    counts["crowded"] += len(candidates) > MAX_PAIRWISE_TEXTS
    return None


def select_nearest_pairs(pairs: Entries) -> Entries:
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
        joined = merge_to_forest(np.concatenate([joined, np.load(path)]))
    file_number = ((joined["first"].astype(np.uint64) * _ODD) >> np.uint64(32)) % np.uint64(len(outs))
    for number, out in enumerate(outs):
        pairs = joined[file_number == number]
        write_entries(out, pairs[np.lexsort((pairs["id"], pairs["first"]))])
    sizes = np.unique(joined["first"], return_counts=True)[1]
    return len(joined), int(sizes.max(initial=0))


def merge_to_forest(pairs: Entries) -> Entries:
    """Return the forest of all ``pairs``: each id once, with the lowest id it is joined to."""
    # imported on first use: scipy takes a fifth of a second
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    ids, ends = np.unique(np.concatenate([pairs["id"], pairs["first"]]), return_inverse=True)
    graph = coo_array((np.ones(len(pairs), np.int8), (ends[: len(pairs)], ends[len(pairs) :])), (len(ids), len(ids)))
    group_numbers = connected_components(graph, directed=False)[1]
    lowest, groups = np.unique(group_numbers, return_index=True, return_inverse=True)[1:]
    forest = np.empty(len(ids), PAIR)
    forest["id"], forest["first"] = ids, ids[lowest[groups]]
    return forest


def select_duplicates_to_drop(files: Sequence[SignedFiles], pairs: Entries, threshold: float) -> Entries:
    """Choose which texts of each group of ``pairs`` (from :func:`join_groups`) are kept.

    Returns (id, first) of the dropped ones. Needs about 100 bytes per text, and half a kilobyte per kept text of one
    group.
    """
    texts = SignedTexts(files, pairs["id"])
    order = np.lexsort((texts.ids, texts.rows["rank"], pairs["first"]))
    near_pairs = [np.empty(0, PAIR)]
    for first, last in _iter_equal_runs(pairs["first"]):
        dropped = list(drop_near_duplicates(order[first:last].tolist(), texts.get_shingles, threshold))
        near_pairs.append(np.array(dropped, PAIR))
    chosen = np.concatenate(near_pairs)
    chosen["id"], chosen["first"] = texts.ids[chosen["id"]], texts.ids[chosen["first"]]
    return chosen


def drop_near_duplicates(
    group: Sequence[int], get_shingles: Callable[[int], Shingles], threshold: float
) -> Iterator[tuple[int, int]]:
    """Yield (text, kept text) for the dropped texts of ``group``, which are sorted by rank.

    Each is compared with all kept texts that share one of its rarest shingles: two sets A and B of similarity t have at
    least ⌈t|A|⌉ common shingles, so in any order of shingles one is among the first |A| − ⌈t|A|⌉ + 1 of both. Ordering
    by frequency avoids lookups of phrases that all texts share.
    """
    rarity = _make_rarity_key(group, get_shingles) if len(group) > MAX_SMALL_GROUP else None
    index: dict[int, list[int]] = {}
    for number, text in enumerate(group):
        shingles = get_shingles(text)
        ordered = sorted(shingles, key=rarity)
        rarest = ordered[: len(shingles) - math.ceil(threshold * len(shingles) - 1e-9) + 1]
        others = sorted({other for value in rarest for other in index.get(value, ())})
        near = (n for n in others if compute_jaccard(shingles, get_shingles(group[n])) >= threshold)
        nearest = next(near, None)
        if nearest is not None:
            yield text, group[nearest]
            continue
        for value in rarest:
            index.setdefault(value, []).append(number)


def _make_rarity_key(group: Sequence[int], get_shingles: Callable[[int], Shingles]) -> Callable[[int], tuple[int, int]]:
    """Order shingles by their approximate frequency in the group, counted in fixed memory."""
    counts = [0] * _SLOTS
    for text in group:
        for value in get_shingles(text):
            counts[value % _SLOTS] += 1
    return lambda value: (counts[value % _SLOTS], value)


def copy_signed_texts(files: SignedFiles, kept: Ids, split: int, out: SignedFiles) -> int:
    """Commit the signed texts of one partition that are of ``split`` and in ``kept``; return their number."""
    rows = np.load(files.get_path("rows"))
    rows = rows[(rows["split"] == split) & np.isin(rows["id"], kept)]
    counts = rows["count"].astype(np.int64)
    starts = np.cumsum(counts) - counts
    shingle_indices = np.repeat(rows["start"] - starts, counts) + np.arange(counts.sum())
    shingles = np.load(files.get_path("shingles"), mmap_mode="r")[shingle_indices]
    buckets = np.load(files.get_path("buckets"))
    rows["start"] = starts
    write_entries(out.get_path("buckets"), buckets[np.isin(buckets["id"], rows["id"])])
    write_entries(out.get_path("shingles"), shingles)
    write_entries(out.get_path("rows"), rows)
    return len(rows)


def find_earlier_near_duplicates(
    files: Sequence[SignedFiles],
    earlier: Sequence[SignedFiles],
    split: int,
    number: int,
    threshold: float,
    ranges: int = NEAR_RANGES,
) -> tuple[set[int], Counter[str]]:
    """Find examples of ``split`` that nearly duplicate a text of one earlier run, in one range of the buckets.

    ``earlier`` are that run's texts of the same split. Memory as for :func:`compare_buckets`.
    """
    counts, repeats = Counter[str](), set[int]()
    for piece, pieces in _iter_pieces(number, [*files, *earlier], ranges):
        new, old = _read_buckets(files, piece, pieces), _read_buckets(earlier, piece, pieces)
        new, old = new[np.isin(new["high"], old["high"])], old[np.isin(old["high"], new["high"])]
        new_ids, indices = np.unique(new["id"], return_inverse=True)
        old_ids, old_indices = np.unique(old["id"], return_inverse=True)
        new_texts, old_texts = SignedTexts(files, new_ids), SignedTexts(earlier, old_ids)
        first, last = (np.searchsorted(old["high"], new["high"], end).tolist() for end in ("left", "right"))
        for index, begin, end in zip(indices.tolist(), first, last, strict=True):
            example, row = int(new_ids[index]), new_texts.rows[index]
            if row["split"] != split or example in repeats:
                continue
            candidates = old_indices[begin:end]
            rows = old_texts.rows[candidates]
            comparable = candidates[(rows["split"] == split) & (rows["group"] == row["group"])].tolist()
            if _find_near_candidate(new_texts.get_shingles(index), old_texts, comparable, threshold, counts):
                repeats.add(example)
    return repeats, counts
