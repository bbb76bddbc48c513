"""What the processes of one training tell each other."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from redactory.training.models.dropout import Seeds
from redactory.training.pieces import Piece, Work
from redactory.training.points import Batch

LEADER = 0


class Tag(IntEnum):
    """Keeps the kinds of message of one connection apart."""

    TASKS = 1
    PARAMETERS = 2
    RESULTS = 3
    GREETING = 4


@dataclass(frozen=True)
class Setup:
    """What a process is told when it starts; ``greeting`` proves to the leader who it is talking to.

    ``network`` is pickled, without a stream.  No key, no folder of the run and no text is in it.
    """

    meeting: Path
    rank: int
    size: int
    threads: int
    network: bytes
    greeting: bytes


@dataclass(frozen=True)
class Order:
    """The tasks of one dealing, the ``number``-th: so many octets of them follow, then the parameters."""

    number: int
    octets: int


@dataclass(frozen=True)
class Task:
    """A piece as another process needs it; ``place`` is its number among the pieces of the dealing."""

    place: int
    work: Work
    arrays: tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_], NDArray[np.int64] | None]
    seeds: Seeds

    @classmethod
    def of(cls, place: int, piece: Piece, seeds: Seeds) -> Task:
        """The task of ``piece``: its points as ids."""
        batch = piece.batch()
        rows = None if batch.rows is None else batch.rows.numpy()
        arrays = (batch.inputs.numpy(), batch.targets.numpy(), batch.real.numpy(), rows)
        return cls(place, piece.work, arrays, seeds)

    def batch(self) -> Batch:
        """The points again."""
        inputs, targets, real, rows = self.arrays
        numbers = None if rows is None else torch.from_numpy(rows)
        return Batch(torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(real), numbers)


@dataclass(frozen=True)
class Done:
    """A task was carried out on so many ``points``; its result is on the way."""

    number: int
    place: int
    points: int


@dataclass(frozen=True)
class Failed:
    """A task was not carried out: the ``kind`` of error alone, since its words may quote a point."""

    kind: str
