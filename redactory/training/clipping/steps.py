"""The sum of a step: the clipped gradients of the points that were drawn, in batches that fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from redactory.training.clipping.engine import clipped_gradient
from redactory.training.pieces import Piece, PieceMap, alone, summed
from redactory.training.points import Batch, Points, physical_batches


class PointLosses(Protocol):
    """A network with a loss for each point."""

    def point_losses(self, batch: Batch) -> Tensor:
        """The loss of each point of ``batch``, [B]."""


@dataclass(frozen=True)
class ClippedSum:
    """The clipped gradients of a piece, summed; C is ``clip_norm``."""

    clip_norm: float

    def __call__(self, network: PointLosses, batch: Batch) -> Tensor:
        """Σ_i g_i · min(1, C/‖g_i‖) over the points of ``batch``, flat."""
        assert isinstance(network, torch.nn.Module)
        return clipped_gradient(network, lambda: network.point_losses(batch), self.clip_norm).flat


def clipped_sum(
    network: PointLosses,
    points: Points,
    rows: NDArray[np.int64],
    clip_norm: float,
    tokens: int,
    every: PieceMap = alone,
) -> Tensor:
    """Σ_i g_i · min(1, C/‖g_i‖) over the points ``rows``, flat in the order of the trainable parameters.

    A point's loss is the sum over its tokens, so g_i is the gradient of its −log probability; C is
    ``clip_norm``.  A point whose gradient is not finite contributes zero.  No rows give zero.
    ``tokens`` bounds what is held in memory at once and changes no result beyond rounding; ``every`` says
    where the pieces are computed and changes no bit.

    Formal guarantees: exchanging one point changes the sum by at most 2C, taking one away by at
    most C, in exact arithmetic (``docs/guarantees.md``, "Substitution").
    """
    assert isinstance(network, torch.nn.Module)
    work = ClippedSum(clip_norm)
    pieces = [Piece(points, piece, work) for piece in physical_batches(rows, points.lengths, tokens)]
    return summed(network, pieces, every)
