"""Points as ids: encoded once, kept flat, padded only for the moment of a step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from redactory.foundation.errors import ConfigurationError
from redactory.redaction.shards import CLASS, read_batches
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


# Long texts for networks with a bounded context: overlapping windows, each token scored once.


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


# The class of every point, as the run's vault has it.


def class_numbers(found: Iterable[str | None], classes: Sequence[str]) -> NDArray[np.int64]:
    """The place of each of ``found`` in ``classes``, int64 [n]; ``NO_CLASS`` where it has none.

    Formal guarantees: number i is a function of class i and of the public ``classes`` alone; a point with
    ``NO_CLASS`` is a null point, whose gradient is exactly 0.
    """
    numbers = {name: number for number, name in enumerate(classes)}
    return np.fromiter((NO_CLASS if c is None else numbers.get(c, NO_CLASS) for c in found), np.int64)


def classes_in(folder: Path) -> Iterator[str | None]:
    """The class of every row of a data folder, in order, a row group at a time.

    ``ConfigurationError`` where the rows have none: only ``vault/`` has, of a run with ``input.label``.
    """
    for batch in read_batches(folder, ["point_id", CLASS]):
        if CLASS not in batch.schema.names:
            raise ConfigurationError(
                f"train.task: {folder.name}/ has no classes; curate with input.label, the column of each "
                "row's class"
            )
        yield from batch[CLASS].to_pylist()
