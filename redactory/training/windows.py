"""Long texts for networks with a bounded context: overlapping windows, each token scored once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redactory.training.points import EncodedPoints


@dataclass(frozen=True)
class Windows:
    """``points``, one row a window; window i belongs to text ``owner[i]`` and repeats ``known[i]`` tokens.

    Without a bound, and for texts that fit, a text is one window.
    """

    points: EncodedPoints
    owner: NDArray[np.int64]
    known: NDArray[np.int64]

    @classmethod
    def of(cls, texts: EncodedPoints, context: int | None) -> Windows:
        """Windows of at most ``context`` tokens; a further one begins half a context on."""
        rows = [(row, 0, int(length), 0) for row, length in enumerate(texts.lengths)]
        if context is not None and len(texts) and texts.lengths.max() > context:
            rows = [window for row, _, length, _ in rows for window in _cut(row, length, context)]
        pieces = [texts.targets_of(row)[start:end] for row, start, end, _ in rows]
        offsets = np.cumsum([0, *map(len, pieces)]).astype(np.int64)
        ids = np.concatenate(pieces) if pieces else np.empty(0, np.int32)
        points = EncodedPoints(ids, offsets, texts.begin_id, texts.pad_id)
        owner = np.asarray([row for row, *_ in rows], np.int64)
        return cls(points, owner, np.asarray([known for *_, known in rows], np.int64))

    def __len__(self) -> int:
        return len(self.points)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each window, int64."""
        return self.points.lengths

    def joined(self, scores: list[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
        """The scores of each text, from those of every window."""
        count = int(self.owner[-1]) + 1 if len(self.owner) else 0
        found: list[list[NDArray[np.float64]]] = [[] for _ in range(count)]
        for row, known, own in zip(self.owner, self.known, scores, strict=True):
            found[int(row)].append(own[int(known) :])
        return [np.concatenate(own) for own in found]


def _cut(row: int, length: int, context: int) -> list[tuple[int, int, int, int]]:
    """(row, start, end, known) of each window of one text."""
    if length <= context:
        return [(row, 0, length, 0)]
    half = max(context // 2, 1)
    found, end = [(row, 0, context, 0)], context
    while end < length:
        start = end - (context - half)
        found.append((row, start, min(start + context, length), end - start))
        end = min(start + context, length)
    return found
