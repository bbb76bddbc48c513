"""A step's points in pieces: what is computed at once, and what processes deal among each other.

How a batch is cut is a function of the batch and of settings that the ledger holds, never of how many
processes there are.  What the pieces give is added in their order, by one process, so a sum has the bits
of one process however many computed its terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from redactory.training.points import Batch, Points

Work = Callable[[Any, Batch], Tensor]
"""From a network and a batch to one number for each of its trainable parameters, flat; can be pickled."""


@dataclass(frozen=True)
class Piece:
    """``work`` on the points ``rows``."""

    points: Points
    rows: NDArray[np.int64]
    work: Work

    def batch(self) -> Batch:
        """The piece's points, padded to the longest of them."""
        return self.points.batch(self.rows)


class PieceMap(Protocol):
    """Carries out pieces with the parameters of ``network`` as they are; results in the pieces' order."""

    def __call__(self, network: nn.Module, pieces: Sequence[Piece], /) -> Iterator[Tensor]: ...


def alone(network: nn.Module, pieces: Sequence[Piece], /) -> Iterator[Tensor]:
    """One piece after the other, in this process."""
    for piece in pieces:
        yield piece.work(network, piece.batch())


def summed(network: nn.Module, pieces: Sequence[Piece], every: PieceMap) -> Tensor:
    """What ``pieces`` give, added in their order, flat in the order of the trainable parameters."""
    learnt = [p.detach() for p in network.parameters() if p.requires_grad]
    total = torch.cat([torch.zeros_like(p).flatten() for p in learnt])
    for part in every(network, pieces):
        total += part
    return total
