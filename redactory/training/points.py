"""Points as ids: encoded once, kept flat, padded only for the moment of a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from redactory.training.tokenizer import TextCodec

Rows = Sequence[int] | NDArray[np.int64]
NO_CLASS = -100
"""The class number of a point that has none of the classes: its loss is 0 and its gradient exactly 0."""


@dataclass(frozen=True)
class Batch:
    """``inputs`` and ``targets`` int64 [B, T]; ``real`` bool [B, T] is False where a row is padded.

    ``rows`` int64 [B], where given, are the points' numbers in their table: what dropout is drawn by.
    For classification ``targets`` [B, 1] are class numbers, and ``real`` says which inputs are read.
    """

    inputs: Tensor
    targets: Tensor
    real: Tensor
    rows: Tensor | None = None

    def to(self, device: torch.device) -> Batch:
        """The same batch on ``device``."""
        if self.inputs.device == device:
            return self
        rows = None if self.rows is None else self.rows.to(device)
        return Batch(self.inputs.to(device), self.targets.to(device), self.real.to(device), rows)

    def alone(self, place: int) -> Batch:
        """The point at ``place`` by itself, without padding."""
        own, length = slice(place, place + 1), int(self.real[place].sum())
        rows = None if self.rows is None else self.rows[own]
        return Batch(self.inputs[own, :length], self.targets[own, :length], self.real[own, :length], rows)


class Points(Protocol):
    """A table of encoded points."""

    def __len__(self) -> int: ...

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each point, int64 [n]: what it costs in memory."""

    def batch(self, rows: Rows) -> Batch:
        """The points ``rows`` (at least one), padded on the right to the longest of them."""


@dataclass(frozen=True)
class EncodedPoints:
    """The targets of every point, one after the other; point i is ``ids[offsets[i]:offsets[i + 1]]``.

    Formal guarantees: row i is a function of text i and public constants alone, so a point exchanged
    exchanges one row (``docs/guarantees.md``, "Side channels", item 5).
    """

    ids: NDArray[np.int32]
    offsets: NDArray[np.int64]
    begin_id: int
    pad_id: int

    @classmethod
    def from_texts(cls, texts: Iterable[str], tokenizer: TextCodec, max_tokens: int | None) -> EncodedPoints:
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

    def batch(self, rows: Rows) -> Batch:
        """The points ``rows`` (at least one), padded on the right to the longest of them."""
        longest = max(len(self.targets_of(int(row))) for row in rows)
        targets = np.full((len(rows), longest), self.pad_id, np.int64)
        real = np.zeros(targets.shape, bool)
        for place, row in enumerate(rows):
            own = self.targets_of(int(row))
            targets[place, : len(own)] = own
            real[place, : len(own)] = True
        inputs = np.concatenate([np.full((len(rows), 1), self.begin_id, np.int64), targets[:, :-1]], axis=1)
        numbers = torch.as_tensor(np.asarray(rows, np.int64))
        return Batch(torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(real), numbers)


@dataclass(frozen=True)
class Placed:
    """``points`` whose batches lie on ``device``."""

    points: Points
    device: torch.device

    def __len__(self) -> int:
        return len(self.points)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each point, int64 [n]."""
        return self.points.lengths

    def batch(self, rows: Rows) -> Batch:
        """The points ``rows``, on the device."""
        return self.points.batch(rows).to(self.device)


@dataclass(frozen=True)
class LabelledPoints:
    """Points with a class each: ``points`` as they are read, ``labels`` int64 [n], or ``NO_CLASS``.

    Formal guarantees: row i is a function of text i, class i and public constants alone.
    """

    points: EncodedPoints
    labels: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.points)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Inputs of each point, int64 [n]."""
        return self.points.lengths + 1

    def batch(self, rows: Rows) -> Batch:
        """The points ``rows``: their whole text as inputs, begin and end token included."""
        own = self.points.batch(rows)
        longer = torch.cat([own.inputs[:, :1], own.targets], dim=1)
        real = torch.cat([torch.ones_like(own.real[:, :1]), own.real], dim=1)
        labels = torch.as_tensor(self.labels[np.asarray(rows, np.int64)])
        return Batch(longer, labels[:, None], real, own.rows)


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
