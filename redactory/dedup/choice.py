"""The choice: which texts of a group of near-duplicates stay.

Greedy in the order of ranks: a text is dropped if a text of a lower rank that stays is its
near-duplicate, and the first such one stands for it.  So every dropped text has a near-duplicate that
stays.  Ranks are keyed hashes of the texts, which makes the choice a function of the set of texts: the
order of the input is nothing.  No bound on what one text changes is proved
(``docs/guarantees.md``, "Deduplication"): a text can drop out and bring back all its near-duplicates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from redactory.dedup.digests import write_entries
from redactory.dedup.earlier import NOBODY, earlier_of
from redactory.dedup.plan import PAIR
from redactory.dedup.signed import SignedFiles, SignedTexts, jaccard

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
