"""Compute a user's local update: some steps of SGD over their own examples, then one clip of the whole change.

Clipped updates are rounded to the lattice of the noise, whose numbers float64 adds without rounding. So the sum
of a step has the same bits in any order, and a user who was not drawn changes
nothing, not even the last digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from redactory.foundation.stream import RandomStream
from redactory.training.data import TokenizedExamples, split_micro_batches
from redactory.training.mechanisms.lattice import choose_lattice_spacing
from redactory.training.models.network import Network
from redactory.training.numerics import use_deterministic_numerics
from redactory.training.steps import flatten_parameters, list_trainable_parameters, set_flat_parameters


@dataclass(frozen=True)
class LocalUpdateRule:
    """Constants of every local update: B, η, the clip β, and the number of tokens per micro-batch."""

    batch_size: int
    learning_rate: float
    clip_norm: float
    max_physical_batch_tokens: int


@dataclass(frozen=True)
class LocalUserData:
    """One user in one step: their examples, the weights of these (0: not used), and a derived stream."""

    examples: TokenizedExamples
    weights: NDArray[np.float64]
    stream: RandomStream


def sum_local_updates(network: Network, users: Sequence[LocalUserData], rule: LocalUpdateRule) -> Tensor:
    """Compute Σ_u ClipFn(Local-Update(u), β) in float64, flat in the order of the trainable parameters.

    ``network`` keeps its parameters.

    Formal guarantees: each term has norm at most β, over all tensors and all local steps together, and is a
    function of the parameters, of that user's examples and of draws that no other unit changes. Terms are multiples
    of one power of two, so sums of fewer than 2³⁰ are exact in any order. An update that is not finite is zero.
    """
    first = flatten_parameters(network).double()
    total = torch.zeros_like(first)
    with use_deterministic_numerics(1):
        for user in users:
            set_flat_parameters(network, first)
            run_local_update(network, user, rule)
            total += clip_and_round_update(flatten_parameters(network).double() - first, rule.clip_norm)
    set_flat_parameters(network, first)
    return total


def run_local_update(network: Network, user: LocalUserData, rule: LocalUpdateRule) -> None:
    """Run Algorithm 1, lines 21 to 27: θ ← θ − η·Σ (weight · ∇ loss) over the used examples of each batch.

    The paper's line 27 starts every batch from θ⁰, which would keep only the last one; this is the step of FedAvg,
    on which it builds. Batches are of all the user's examples, in a drawn order.
    """
    network.train()
    order = user.stream.permutation("local order", 0, len(user.examples))
    for batch, start in enumerate(range(0, len(order), rule.batch_size)):
        rows = order[start : start + rule.batch_size]
        network.begin_step(user.stream, "local step", batch)
        _take_local_step(network, user, rows[user.weights[rows] > 0.0], rule)


def _take_local_step(network: Network, user: LocalUserData, rows: NDArray[np.int64], rule: LocalUpdateRule) -> None:
    """Take one step along the gradient of the weighted loss; all its micro-batches use the same θ."""
    parameters, parts = list_trainable_parameters(network), []
    for piece in split_micro_batches(rows, user.examples.lengths, rule.max_physical_batch_tokens):
        losses = network.example_losses(user.examples.make_batch(piece).to(network.device))
        weights = torch.as_tensor(user.weights[piece]).to(losses)
        parts.append(torch.autograd.grad((weights * losses).sum(), parameters, allow_unused=True))
    with torch.no_grad():
        for gradients in parts:
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    parameter.sub_(gradient, alpha=rule.learning_rate)


def clip_update(update: Tensor, clip_norm: float) -> Tensor:
    """Clip a whole update, flat (ClipFn, line 30): ``update`` · min(1, β/‖update‖).

    Zero if its norm is not finite, or underflows to 0.
    """
    norm = float(torch.linalg.vector_norm(update))
    return update * min(1.0, clip_norm / norm) if 0.0 < norm < float("inf") else torch.zeros_like(update)


def clip_and_round_update(update: Tensor, clip_norm: float) -> Tensor:
    """Clip ``update`` to slightly less than β, then round it to the lattice: its norm is at most β."""
    unit = choose_lattice_spacing(clip_norm, update.numel())  # rounding to it moves a vector by at most 2⁻²¹·β
    return torch.round(clip_update(update, clip_norm * (1.0 - 2.0**-20)) / unit) * unit
