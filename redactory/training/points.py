"""Points as ids: encoded once, kept flat, padded only for the moment of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from redactory.training.tokenizer import Tokenizer


@dataclass(frozen=True)
class Batch:
    """``inputs`` and ``targets`` int64 [B, T]; ``real`` bool [B, T] is False where a row is padded."""

    inputs: Tensor
    targets: Tensor
    real: Tensor


@dataclass(frozen=True)
class EncodedPoints:
    """The targets of every point, one after the other; point i is ``ids[offsets[i]:offsets[i + 1]]``."""

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    begin_id: int
    pad_id: int

    @classmethod
    def from_texts(cls, texts: Iterable[str], tokenizer: Tokenizer, max_tokens: int | None) -> EncodedPoints:
        """Each text's ids with the end token, cut to its own first ``max_tokens``.

        One text is one row: nothing is packed or joined, so no text moves another one's tokens.
        """
        pieces = [np.empty(0, np.int32)]
        offsets = [0]
        for text in texts:
            ids = [*tokenizer.encode(text), tokenizer.end_id][:max_tokens]
            pieces.append(np.asarray(ids, np.int32))
            offsets.append(offsets[-1] + len(ids))
        return cls(
            np.concatenate(pieces), np.asarray(offsets, np.int64), tokenizer.begin_id, tokenizer.pad_id
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Targets of each point, int64 [n]."""
        return np.diff(self.offsets)

    def targets_of(self, row: int) -> NDArray[np.int32]:
        """The target ids of one point."""
        return self.ids[self.offsets[row] : self.offsets[row + 1]]

    def batch(self, rows: Sequence[int] | NDArray[np.int64]) -> Batch:
        """The points ``rows`` (at least one), padded on the right to the longest of them."""
        longest = max(len(self.targets_of(int(row))) for row in rows)
        targets = np.full((len(rows), longest), self.pad_id, np.int64)
        real = np.zeros(targets.shape, bool)
        for place, row in enumerate(rows):
            own = self.targets_of(int(row))
            targets[place, : len(own)] = own
            real[place, : len(own)] = True
        inputs = np.concatenate([np.full((len(rows), 1), self.begin_id, np.int64), targets[:, :-1]], axis=1)
        return Batch(torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(real))


def physical_batches(
    rows: NDArray[np.int64], lengths: NDArray[np.int64], tokens: int
) -> list[NDArray[np.int64]]:
    """``rows`` cut into pieces of at most ``tokens`` padded tokens (or one row), longest rows first.

    A piece ends where a row is under three quarters of its longest, so that little is padding.  How
    a batch is cut changes no gradient: a sum of clipped gradients does not know its pieces.
    """
    ordered = rows[np.argsort(-lengths[rows], kind="stable")]
    pieces: list[NDArray[np.int64]] = []
    start = 0
    for place in range(1, len(ordered) + 1):
        longest = int(lengths[ordered[start]])
        full = place < len(ordered) and (place - start + 1) * longest > tokens
        ragged = place < len(ordered) and place - start >= 8 and 4 * lengths[ordered[place]] < 3 * longest
        if place == len(ordered) or full or ragged:
            pieces.append(ordered[start:place])
            start = place
    return pieces if len(ordered) else []
