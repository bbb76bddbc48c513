"""The output layer over a vocabulary together with its loss: no matrix of logits is ever kept."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from redactory.training.layers.gradients import recorder
from redactory.training.layers.matmul import affine, product, transposed_product

CHUNK_BYTES = 8 << 20
"""Logits are made this many bytes at a time: they are used while a processor's cache holds them."""


def vocabulary_losses(head: nn.Module, hidden: Tensor, targets: Tensor, real: Tensor) -> Tensor:
    """Σ_t −log softmax(head(hidden_it))[targets_it] in nats over the ``real`` places of each point, [B].

    ``hidden`` [B, T, H], ``targets`` int64 and ``real`` bool [B, T].  Equal to cross entropy of the
    head's logits.  For a plain ``nn.Linear`` (tied or not) only real places are computed, a few at a
    time, and what is kept for the backward pass is softmax − one-hot in the place of the logits.
    """
    if type(head).forward is nn.Linear.forward:
        assert isinstance(head, nn.Linear)
        found: Tensor = _Losses.apply(hidden, head.weight, head.bias, targets, real)  # type: ignore[no-untyped-call]
        return found
    logits = head(hidden)
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view_as(targets).masked_fill(real.logical_not(), 0.0).sum(1)


class _Losses(torch.autograd.Function):
    """Softmax regression on the real places, laid out one point after the other."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, real: Tensor
    ) -> Tensor:
        inputs, learnt = hidden[real], any(ctx.needs_input_grad[1:3])
        losses, ctx.deltas, given = _chunks(
            inputs, weight, bias, targets[real], learnt, ctx.needs_input_grad[0]
        )
        ctx.counts, ctx.listener, ctx.parameters = real.sum(1).tolist(), recorder(), (weight, bias)
        ctx.save_for_backward(inputs, real, given)
        return (
            torch.stack([piece.sum() for piece in torch.split(losses, ctx.counts)]) if len(real) else losses
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        inputs, real, given = ctx.saved_tensors
        weight, bias = ctx.parameters
        each = scale.repeat_interleave(torch.tensor(ctx.counts, device=scale.device))[:, None]
        upstream = None
        if given is not None:
            upstream = given.new_zeros(*real.shape, given.shape[1])
            upstream[real] = given * each
        if ctx.deltas is None:
            return upstream, None, None, None, None
        deltas = ctx.deltas if bool((scale == 1).all()) else ctx.deltas * each
        if ctx.listener is None:
            of_weight = transposed_product(deltas, inputs) if ctx.needs_input_grad[1] else None
            of_bias = deltas.sum(0) if ctx.needs_input_grad[2] else None
            return upstream, of_weight, of_bias, None, None
        if weight.requires_grad:
            ctx.listener.outer(weight, deltas, inputs, counts=ctx.counts)
        if bias is not None:
            ctx.listener.dense(bias, torch.stack([piece.sum(0) for piece in torch.split(deltas, ctx.counts)]))
        if not ctx.listener.probing:
            ctx.deltas = None
        return upstream, None, None, None, None


def _chunks(
    inputs: Tensor, weight: Tensor, bias: Tensor | None, wanted: Tensor, learnt: bool, upstream: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Losses [N], ∂loss/∂logits [N, V] if ``learnt``, and ∂loss/∂inputs [N, H] if ``upstream``."""
    places, vocabulary = len(inputs), len(weight)
    losses = inputs.new_empty(places)
    deltas = inputs.new_empty(places, vocabulary) if learnt else None
    given = torch.empty_like(inputs) if upstream else None
    size = max(16, CHUNK_BYTES // (vocabulary * inputs.element_size()))
    for start in range(0, places, size):
        part = slice(start, start + size)
        logits = affine(inputs[part], weight, bias)
        target = wanted[part, None]
        highest, where = logits.max(1, keepdim=True)
        chosen = logits.gather(1, target)
        delta = torch.softmax(logits, 1, out=None if deltas is None else deltas[part])
        # log Σ exp = the highest logit − the logarithm of its own share, which is at least 1/V.
        losses[part] = (highest - delta.gather(1, where).log() - chosen)[:, 0]
        delta.scatter_add_(1, target, torch.full_like(chosen, -1.0))
        if given is not None:
            given[part] = product(delta, weight)
    return losses, deltas, given
