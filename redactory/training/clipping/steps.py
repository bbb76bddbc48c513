"""The sum of a step: the clipped gradients of the points that were drawn, in batches that fit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from redactory.foundation.errors import ConfigurationError
from redactory.training.clipping.engine import ClippedGradient, clipped_gradient
from redactory.training.mechanism import LARGEST_CLIP, require_clip_norm
from redactory.training.pieces import Piece, PieceMap, alone, summed
from redactory.training.points import Batch, Points, physical_batches

APART = 1e-3
"""How far two gradients of one point may lie apart by rounding, of the largest norm beside them."""


class PointLosses(Protocol):
    """A network with a loss for each point."""

    def point_losses(self, batch: Batch) -> Tensor:
        """The loss of each point of ``batch``, [B]."""


@dataclass(frozen=True)
class ClippedSum:
    """The clipped gradients of a piece, summed; C is ``clip_norm``.

    A point that does not count in a padded row is tried again without padding: what a network makes of
    places that are not the point's own, which are there because another point is longer, decides nothing.
    """

    clip_norm: float

    def __call__(self, network: PointLosses, batch: Batch) -> Tensor:
        """Σ_i g_i · min(1, C/‖g_i‖) over the points of ``batch``, flat."""
        found = _gradient(network, batch, self.clip_norm)
        flat = found.flat
        for place in (~found.finite & ~batch.real.all(1)).nonzero().flatten().tolist():
            flat += _gradient(network, batch.alone(place), self.clip_norm).flat
        return flat


def _gradient(network: PointLosses, batch: Batch, clip_norm: float) -> ClippedGradient:
    assert isinstance(network, torch.nn.Module)
    return clipped_gradient(network, lambda: network.point_losses(batch), clip_norm)


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
    require_clip_norm(clip_norm)  # also where nothing was drawn
    work = ClippedSum(clip_norm)
    pieces = [Piece(points, piece, work) for piece in physical_batches(rows, points.lengths, tokens)]
    return summed(network, pieces, every)


def check_parts(network: PointLosses, points: Points, rows: NDArray[np.int64], tokens: int) -> bool:
    """``ConfigurationError`` where a batch of ``rows`` has other gradients than its two halves.

    A network that centres its activations over the batch, or weights its losses by something of the batch,
    also where no gradient passes through that, gives a point another gradient among other points: then one
    point moves all.  The norms of all points and their sum are compared, of one piece of at most ``tokens``
    tokens; False where it has less than two points, so that nothing was seen.  What moves a gradient by less
    than :data:`APART`, only in other batches, or from one batch to the next is not seen.
    """
    pieces = physical_batches(rows, points.lengths, tokens)
    piece = max(pieces, key=len, default=rows)
    if len(piece) < 2:
        return False
    half = len(piece) // 2
    whole, *parts = (
        _gradient(network, points.batch(part), LARGEST_CLIP) for part in (piece, piece[:half], piece[half:])
    )
    norms, finite = (torch.cat([getattr(part, name) for part in parts]) for name in ("norms", "finite"))
    known = whole.finite & finite
    largest = float(norms[known].max()) if bool(known.any()) else 0.0
    apart = [float((whole.norms - norms)[known].abs().max())] if bool(known.any()) else []
    if bool(known.all()):
        apart.append(float((whole.flat - sum(part.flat for part in parts)).norm()) / len(piece))
    # a gradient that has all but vanished is rounding alone
    if any(distance > APART * largest + 1e-5 for distance in apart):
        raise ConfigurationError(
            "the network gives a point another gradient among other points, so that one point would move "
            "all: nothing may be centred, normalised or weighted over a batch"
        )
    return True
