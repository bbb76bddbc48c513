"""Groups: the texts that are joined by near pairs, however long the chain between two of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from redactory.dedup.digests import Entries, write_entries
from redactory.dedup.plan import PAIR

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
    ids, places = np.unique(np.concatenate([pairs["id"], pairs["first"]]), return_inverse=True)
    one, other = places[: len(pairs)], places[len(pairs) :]
    lowest = np.arange(len(ids))
    while len(one):
        # the higher of two roots is put under the lower one, and then every place under its root
        one, other = lowest[one], lowest[other]
        apart = one != other
        one, other = one[apart], other[apart]
        np.minimum.at(lowest, np.maximum(one, other), np.minimum(one, other))
        while ((above := lowest[lowest]) != lowest).any():
            lowest = above
    out = np.empty(len(ids), PAIR)
    out["id"], out["first"] = ids, ids[lowest]
    return out
