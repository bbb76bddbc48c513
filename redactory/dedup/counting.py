"""How many users gave each text: contributions bounded by user, counted by text, with noise and a threshold.

Two barriers over digests, each a hash range at a time.  What is counted may be anything that has a digest: a
redacted text, a word.  Proof and figures: ``docs/guarantees.md``, "Public by count".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from redactory.dedup.plan import DIGEST, Ids, mask_run_starts, plan_pieces, read_range, write_entries

CONTRIBUTION = np.dtype([*DIGEST.descr, ("rank", "<u8"), ("text_high", "<u8"), ("text_low", "<u8")])
"""A user (``high``, ``low``), a text of theirs, and where it stands among all their texts."""
COUNTED = np.dtype([*DIGEST.descr, ("users", "<i8")])
"""A text, and about how many users gave it."""
Noise = Callable[[int, int], Ids]
"""From the number of a piece and a count of texts to independent draws of whole numbers, one a text."""


def write_contributions(path: Path, users: Sequence[bytes], ranks: Sequence[bytes], texts: Sequence[bytes]) -> None:
    """Commit who gave what in one partition, by user; 16-byte keyed digests, a rank of user *and* text."""
    contributions = np.empty(len(users), CONTRIBUTION)
    columns = (("high", "low", users), ("rank", None, ranks), ("text_high", "text_low", texts))
    for high, low, digests in columns:
        words = np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2).T
        contributions[high] = words[0]
        if low is not None:
            contributions[low] = words[1]
    write_entries(path, contributions[np.lexsort((contributions["low"], contributions["high"]))])


def bound_range(files: Sequence[Path], number: int, ranges: int, most: int, out: Path) -> None:
    """Keep ``most`` distinct texts of each user of one hash range: those with the smallest ranks.

    Formal guarantees: what is kept of a user is a function of that user's texts and of the key, so a user
    exchanged moves at most ``most`` counts down by one and as many up, and one text of theirs exchanged moves
    at most one each way.
    """
    kept = [np.empty(0, DIGEST)]
    for piece, pieces in plan_pieces(files, number, ranges):
        entries = np.concatenate([read_range(path, piece, pieces) for path in files])
        entries = entries[np.lexsort([entries[name] for name in ("text_low", "text_high", "rank", "low", "high")])]
        keys = [entries[name] for name in ("high", "low", "rank", "text_high", "text_low")]
        entries = entries[mask_run_starts(*keys)]
        begin = np.flatnonzero(mask_run_starts(entries["high"], entries["low"]))
        place = np.arange(len(entries)) - np.repeat(begin, np.diff([*begin, len(entries)]))
        texts = np.empty(int((place < most).sum()), DIGEST)
        texts["high"], texts["low"] = entries["text_high"][place < most], entries["text_low"][place < most]
        kept.append(texts)
    bounded = np.concatenate(kept)
    write_entries(out, bounded[np.lexsort((bounded["low"], bounded["high"]))])


def count_range(files: Sequence[Path], number: int, ranges: int, threshold: int, noise: Noise, out: Path) -> None:
    """Write the texts of one hash range whose noisy count reaches ``threshold``, by digest, with that count.

    ``files`` are those of :func:`bound_range`.  Every text that anybody gave has a draw of its own, however
    many gave it; ``threshold`` is a constant, and no number of texts is written anywhere.
    """
    kept = [np.empty(0, COUNTED)]
    for piece, pieces in plan_pieces(files, number, ranges):
        entries = np.concatenate([read_range(path, piece, pieces) for path in files])
        entries = entries[np.lexsort((entries["low"], entries["high"]))]
        begin = np.flatnonzero(mask_run_starts(entries["high"], entries["low"]))
        counted = np.empty(len(begin), COUNTED)
        counted["high"], counted["low"] = entries["high"][begin], entries["low"][begin]
        counted["users"] = np.diff([*begin, len(entries)]) + noise(piece, len(begin))
        kept.append(counted[counted["users"] >= threshold])
    write_entries(out, np.concatenate(kept))
