"""Count users per text: bound contributions per user, count per text, add noise, apply a threshold.

Two steps over digests, one hash range at a time, with a barrier after each. Anything with a digest can be counted: a
redacted text, a word. Proof and epsilon: ``docs/guarantees.md``, "Public by count".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from redactory.dedup.plan import DIGEST, Ids, mark_changed_rows, read_pieces, sort_entries, split_digests, write_entries

CONTRIBUTION = np.dtype([*DIGEST.descr, ("rank", "<u8"), ("text_high", "<u8"), ("text_low", "<u8")])
"""A user (``high``, ``low``), one of their texts, and its rank among them."""
COUNTED = np.dtype([*DIGEST.descr, ("users", "<i8")])
"""A text and its noisy number of users."""
NoiseFunction = Callable[[int, int], Ids]
"""Maps a piece number and a count of texts to independent integer draws, one per text."""


def write_contributions(path: Path, users: Sequence[bytes], ranks: Sequence[bytes], texts: Sequence[bytes]) -> None:
    """Commit the contributions of one partition, sorted by user; 16-byte keyed digests, rank of user *and* text."""
    contributions = np.empty(len(users), CONTRIBUTION)
    contributions["high"], contributions["low"] = split_digests(users, len(users))
    contributions["rank"], _ = split_digests(ranks, len(users))
    contributions["text_high"], contributions["text_low"] = split_digests(texts, len(users))
    write_entries(path, sort_entries(contributions, "high", "low"))


def bound_contributions(files: Sequence[Path], number: int, ranges: int, limit: int, out: Path) -> None:
    """Keep the ``limit`` distinct texts with the smallest ranks of each user of one hash range.

    Formal guarantees: what is kept of a user is a function of that user's texts and of the key. So exchanging a user
    lowers at most ``limit`` counts by one and raises as many by one, and exchanging one of their texts changes at most
    one count each way.
    """
    kept = [np.empty(0, DIGEST)]
    for _, entries in read_pieces(files, number, ranges):
        entries = entries[mark_changed_rows(*(entries[name] for name in CONTRIBUTION.names or ()))]
        starts = np.flatnonzero(mark_changed_rows(entries["high"], entries["low"]))
        position = np.arange(len(entries)) - np.repeat(starts, np.diff([*starts, len(entries)]))
        texts = np.empty(int((position < limit).sum()), DIGEST)
        texts["high"], texts["low"] = entries["text_high"][position < limit], entries["text_low"][position < limit]
        kept.append(texts)
    write_entries(out, sort_entries(np.concatenate(kept)))


def count_users(
    files: Sequence[Path], number: int, ranges: int, threshold: int, noise: NoiseFunction, out: Path
) -> None:
    """Write the texts of one hash range whose noisy count reaches ``threshold``, by digest, with that count.

    ``files`` come from :func:`bound_contributions`. Every text that anybody contributed has its own draw, whatever its
    count. ``threshold`` is a constant, and the number of texts is not written anywhere.
    """
    kept = [np.empty(0, COUNTED)]
    for piece, entries in read_pieces(files, number, ranges):
        starts = np.flatnonzero(mark_changed_rows(entries["high"], entries["low"]))
        counted = np.empty(len(starts), COUNTED)
        counted["high"], counted["low"] = entries["high"][starts], entries["low"][starts]
        counted["users"] = np.diff([*starts, len(entries)]) + noise(piece, len(starts))
        kept.append(counted[counted["users"] >= threshold])
    write_entries(out, np.concatenate(kept))
