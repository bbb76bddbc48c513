"""Exact per-example clipping: the sum of clipped gradients of the points of a step."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from redactory.training.network import LstmLanguageModel
from redactory.training.points import Batch, EncodedPoints, physical_batches
from redactory.training.tape import Tape


def clipped_sum(
    network: LstmLanguageModel, points: EncodedPoints, rows: NDArray[np.int64], clip_norm: float, tokens: int
) -> Tensor:
    """Σ_i g_i · min(1, C/‖g_i‖) over the points ``rows``, flat in the order of ``named_parameters``.

    A point's loss is the sum over its tokens, so g_i is the gradient of its −log probability; C is
    ``clip_norm``.  A point whose gradient is not finite contributes zero.  No rows give zero.
    ``tokens`` bounds what is held in memory at once and changes no result beyond rounding.

    Formal guarantees: exchanging one point changes the sum by at most 2C, taking one away by at
    most C, in exact arithmetic (``docs/guarantees.md``, "Substitution").
    """
    total = {name: torch.zeros_like(p, requires_grad=False) for name, p in network.named_parameters()}
    for piece in physical_batches(rows, points.lengths, tokens):
        _add_clipped(network, points.batch(piece), clip_norm, total)
    return torch.cat([gradient.flatten() for gradient in total.values()])


def _add_clipped(
    network: LstmLanguageModel, batch: Batch, clip_norm: float, total: dict[str, Tensor]
) -> None:
    tape = Tape(dict(network.named_parameters()))
    deltas = tape.deltas(network.recorded_losses(batch, tape).sum())
    pairs = list(zip(tape.sites, deltas, strict=True))
    squared = torch.stack([site.squared_norms(delta) for site, delta in pairs]).sum(0)
    weights = (clip_norm / squared.clamp(min=0.0).sqrt()).clamp(max=1.0)
    good = squared.isfinite()
    if not good.all():
        kept = good.nonzero().flatten()
        batch = Batch(batch.inputs[kept], batch.targets[kept], batch.real[kept])
        if len(kept):
            _add_clipped(network, batch, clip_norm, total)
        return
    for site, delta in pairs:
        site.add_gradients(delta * weights[:, None, None], total)
