"""Layers as functions whose backward pass reports to a tape in place of making a parameter's gradient."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from redactory.training.clipping.uses import Tape
from redactory.training.layers.products import affine


class Linear(torch.autograd.Function):
    """``inputs`` [B, ..., I] times ``weight`` [O, I] transposed, plus ``bias`` [O]."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.tape, ctx.parameters = tape, (weight, bias)
        ctx.save_for_backward(inputs if weight.requires_grad else None)
        return affine(inputs, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        weight, bias = ctx.parameters
        rows = _rows(delta)
        if weight.requires_grad:
            ctx.tape.outer(weight, rows, _rows(ctx.saved_tensors[0]))
        if bias is not None and bias.requires_grad:
            ctx.tape.dense(bias, rows.sum(1))
        return None, affine(delta, weight.t(), None) if ctx.needs_input_grad[1] else None, None, None


class TurnedLinear(torch.autograd.Function):
    """``inputs`` [B, ..., I] times ``weight`` [I, O], plus ``bias`` [O]: the Conv1D of transformers."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.tape, ctx.parameters = tape, (weight, bias)
        ctx.save_for_backward(inputs if weight.requires_grad else None)
        return affine(inputs, weight.t(), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        weight, bias = ctx.parameters
        rows = _rows(delta)
        if weight.requires_grad:
            ctx.tape.outer(weight, _rows(ctx.saved_tensors[0]), rows)
        if bias.requires_grad:
            ctx.tape.dense(bias, rows.sum(1))
        return None, affine(delta, weight, None) if ctx.needs_input_grad[1] else None, None, None


class Embedding(torch.autograd.Function):
    """Rows ``ids`` [B, ...] of ``weight`` [V, E]; the row ``padding`` has no gradient."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, ids: Tensor, weight: Tensor, padding: int | None) -> Tensor:
        ctx.tape, ctx.parameter, ctx.padding = tape, weight, padding
        ctx.save_for_backward(ids)
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> tuple[None, ...]:
        ids = ctx.saved_tensors[0].flatten(1)
        rows = _rows(delta)
        if ctx.padding is not None:
            rows = rows.masked_fill((ids == ctx.padding)[:, :, None], 0.0)
        ctx.tape.rows(ctx.parameter, ids, rows)
        return None, None, None, None


class LayerNorm(torch.autograd.Function):
    """``inputs`` [B, ..., shape] to mean 0 and variance 1 over ``shape``, times ``weight`` plus ``bias``."""

    @staticmethod
    def forward(
        ctx: Any, tape: Tape, inputs: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> Tensor:
        ctx.tape, ctx.parameters = tape, (weight, bias)
        output, mean, scale = torch.native_layer_norm(inputs, weight.shape, weight, bias, eps)
        ctx.save_for_backward(inputs, mean, scale)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        inputs, mean, scale = ctx.saved_tensors
        weight, bias = ctx.parameters
        if weight.requires_grad:
            ctx.tape.dense(weight, _summed((inputs - mean).mul_(scale).mul_(delta), weight.shape))
        if bias is not None and bias.requires_grad:
            ctx.tape.dense(bias, _summed(delta, weight.shape))
        given = None
        if ctx.needs_input_grad[1]:
            given, _, _ = torch.ops.aten.native_layer_norm_backward(
                delta, inputs, weight.shape, mean, scale, weight, bias, [True, False, False]
            )
        return None, given, None, None, None


class Scale(torch.autograd.Function):
    """``inputs`` [B, ..., shape] times ``weight`` [shape]: the parameter of an RMSNorm."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.tape, ctx.parameter = tape, weight
        ctx.save_for_backward(inputs)
        return inputs * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, ...]:
        ctx.tape.dense(ctx.parameter, _summed(delta * ctx.saved_tensors[0], ctx.parameter.shape))
        return None, delta * ctx.parameter if ctx.needs_input_grad[1] else None, None


def _rows(x: Tensor) -> Tensor:
    """[B, ..., N] to [B, T, N]."""
    return x.reshape(len(x), -1, x.shape[-1])


def _summed(x: Tensor, shape: torch.Size) -> Tensor:
    """[B, ..., shape] to [B, shape]: summed over what is between."""
    return x.reshape(len(x), -1, *shape).sum(1)
