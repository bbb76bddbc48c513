"""Layers with an explicit backward pass, which report the parts of each example's gradient to a tape.

Without a tape they are ordinary differentiable layers for noise-free training and prediction: an LSTM over whole
examples, each from the zero state, and the output layer over a vocabulary combined with its loss.

With a_t = W_ih x_t + W_hh h_{t−1} + b in four blocks, i, f, o = σ(a_i, a_f, a_o), g = tanh(a_g): c_t = f_t ∘ c_{t−1} +
i_t ∘ g_t and h_t = o_t ∘ tanh(c_t), from zero (Hochreiter and Schmidhuber 1997, in the block order of
``torch.nn.LSTM``: i, f, g, o). Time is the first dimension of every buffer, so the rows of a step are contiguous.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from redactory.training.clipping.gradients import get_tape
from redactory.training.clipping.matmul import (
    apply_affine,
    disable_autocast,
    get_product_dtype,
    multiply_matrices,
    multiply_transposed,
    prepare_matmul,
    to_float32,
)


class LstmWeights(NamedTuple):
    """One layer's ``weight_ih`` [4H, I], ``weight_hh`` [4H, H] and biases [4H], named as in nn.LSTM."""

    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None


class Lstm(nn.Module):
    """LSTM layers with the parameters of ``nn.LSTM(batch_first=True)``; its state_dicts load.

    Formal guarantees: a row's outputs depend only on that row, from the zero state on; no state passes from one call to
    the next (``docs/guarantees.md``, "Side channels").
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1) -> None:
        super().__init__()
        self.num_layers = num_layers
        for layer in range(num_layers):
            width = input_size if layer == 0 else hidden_size
            shapes = ((4 * hidden_size, width), (4 * hidden_size, hidden_size), *[(4 * hidden_size,)] * 2)
            for name, shape in zip(LstmWeights._fields, shapes, strict=True):
                self.register_parameter(f"{name}_l{layer}", nn.Parameter(torch.empty(shape)))
        bound = 1.0 / math.sqrt(hidden_size)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, inputs: Tensor, recurrent_masks: Sequence[Tensor | None] | None = None) -> Tensor:
        """Return states of the last layer [B, T, H] for ``inputs`` [B, T, I]; takes one mask or None per layer."""
        masks = recurrent_masks or [None] * self.num_layers
        for weights, mask in zip(self.list_layer_weights(), masks, strict=True):
            inputs, _ = run_lstm_layer(inputs, weights, mask)
        return inputs

    def list_layer_weights(self) -> list[LstmWeights]:
        """List the parameters of each layer."""
        names = LstmWeights._fields
        return [LstmWeights(*(getattr(self, f"{n}_l{layer}") for n in names)) for layer in range(self.num_layers)]


def run_lstm_layer(inputs: Tensor, weights: LstmWeights, recurrent_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Run one layer over ``inputs`` [B, T, I] from the zero state; return states [B, T, H] and last cells [B, H].

    ``recurrent_mask`` [4H, H] multiplies ``weight_hh`` (weight-drop: entries are 0 or 1/(1−p)) and its gradient.
    Autocast has no effect here, because a state accumulates over all positions.
    """
    with disable_autocast(inputs.device.type):
        states, cells = _LstmFunction.apply(to_float32(inputs), *weights, recurrent_mask)  # type: ignore[no-untyped-call]
    return states, cells


class _LstmFunction(torch.autograd.Function):
    """One layer whose backward pass reports to a tape in place of autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        inputs: Tensor,
        weight_ih: Tensor,
        weight_hh: Tensor,
        bias_ih: Tensor | None,
        bias_hh: Tensor | None,
        mask: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        bias = None if bias_ih is None or bias_hh is None else bias_ih + bias_hh
        masked_weight = weight_hh if mask is None else weight_hh * mask
        time_major_inputs = inputs.transpose(0, 1).contiguous()
        ctx.trace = run_lstm_recurrence(apply_affine(time_major_inputs, weight_ih, bias), masked_weight)
        ctx.listener = get_tape()
        ctx.save_for_backward(time_major_inputs, weight_ih, masked_weight, mask)
        ctx.parameters = LstmWeights(weight_ih, weight_hh, bias_ih, bias_hh)
        ctx.set_materialize_grads(False)
        return ctx.trace.states[1:].transpose(0, 1), ctx.trace.cells[-1].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, state_gradient: Tensor | None, cell_gradient: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, weight_ih, masked_weight, mask = ctx.saved_tensors
        if ctx.trace is None:
            raise RuntimeError("the backward pass of this LSTM runs once per forward pass")
        trace, tape = ctx.trace, ctx.listener
        state_gradient = (
            torch.zeros_like(trace.tanh_cells)
            if state_gradient is None
            else state_gradient.transpose(0, 1).contiguous()
        )
        if tape is not None and tape.probing:
            trace = LstmTrace(trace.gates.clone(), trace.cells, trace.states, trace.tanh_cells.clone())
        else:
            ctx.trace = None
        deltas = run_lstm_adjoint(trace, masked_weight, state_gradient, cell_gradient)
        previous_states = trace.states[:-1]
        input_gradient = None
        if ctx.needs_input_grad[0]:
            input_gradient = apply_affine(deltas, weight_ih.t(), None).transpose(0, 1)
        if tape is None:
            return (
                input_gradient,
                *_compute_weight_gradients(ctx.needs_input_grad, deltas, inputs, previous_states, mask),
                None,
            )
        parameters: LstmWeights = ctx.parameters
        example_deltas, read, states = (x.transpose(0, 1) for x in (deltas, inputs, previous_states))
        tape.report_outer_products(parameters.weight_ih, example_deltas, read)
        tape.report_outer_products(parameters.weight_hh, example_deltas, states, mask=mask)
        summed = example_deltas.sum(1)
        tape.report_dense_gradients(parameters.bias_ih, summed)
        tape.report_dense_gradients(parameters.bias_hh, summed)
        return input_gradient, None, None, None, None, None


def _compute_weight_gradients(
    needs_gradient: Sequence[bool], deltas: Tensor, inputs: Tensor, previous_states: Tensor, mask: Tensor | None
) -> list[Tensor | None]:
    flat = deltas.flatten(0, 1)
    input_weight_gradient = multiply_transposed(flat, inputs.flatten(0, 1)) if needs_gradient[1] else None
    state_weight_gradient = multiply_transposed(flat, previous_states.flatten(0, 1)) if needs_gradient[2] else None
    if state_weight_gradient is not None and mask is not None:
        state_weight_gradient *= mask
    bias = flat.sum(0) if any(needs_gradient[3:5]) else None
    return [input_weight_gradient, state_weight_gradient, *(bias if needed else None for needed in needs_gradient[3:5])]


# The recurrence and its adjoint over whole sequences.


class LstmTrace(NamedTuple):
    """The values of a forward pass that the adjoint needs.

    ``gates`` [T, B, 4H] after their nonlinearity; ``cells`` and ``states`` [T+1, B, H] with the zero state first;
    ``tanh_cells`` [T, B, H] is tanh of the cells.
    """

    gates: Tensor
    cells: Tensor
    states: Tensor
    tanh_cells: Tensor


def run_lstm_recurrence(gates: Tensor, weight: Tensor) -> LstmTrace:
    """Run the recurrence from the input's share of the gates [T, B, 4H] (overwritten) and W_hh [4H, H]."""
    length, batch, width = gates.shape
    size = width // 4
    cells, states = gates.new_empty(length + 1, batch, size), gates.new_empty(length + 1, batch, size)
    cells[0], states[0] = 0.0, 0.0
    tanh_cells = gates.new_empty(length, batch, size)
    multiply_by_weight = prepare_matmul(weight.t(), batch)
    steps = zip(
        gates.unbind(0),
        gates[..., : 2 * size].unbind(0),
        *(gates[..., k * size : (k + 1) * size].unbind(0) for k in range(4)),
        cells.unbind(0)[1:],
        states.unbind(0)[1:],
        tanh_cells.unbind(0),
        strict=True,
    )
    c, h = cells[0], states[0]
    for index, (all_four, first_two, i, f, g, o, cell, state, cell_tanh) in enumerate(steps):
        if index:
            all_four.add_(multiply_by_weight(h))
        first_two.sigmoid_()
        g.tanh_()
        o.sigmoid_()
        torch.mul(f, c, out=cell).addcmul_(i, g)
        torch.tanh(cell, out=cell_tanh)
        torch.mul(o, cell_tanh, out=state)
        c, h = cell, state
    return LstmTrace(gates, cells, states, tanh_cells)


def run_lstm_adjoint(trace: LstmTrace, weight: Tensor, state_gradient: Tensor, cell_gradient: Tensor | None) -> Tensor:
    """Return ∂loss/∂a [T, B, 4H] from ∂loss/∂h ``state_gradient`` [T, B, H] and ∂loss/∂c_T ``cell_gradient`` [B, H].

    Overwrites ``trace.gates`` and ``trace.tanh_cells``; the result shares the memory of the gates.
    """
    gates, size = trace.gates, trace.tanh_cells.shape[2]
    forget_gates = gates[..., size : 2 * size].clone().unbind(0)
    cell_factors = _compute_gate_factors(trace).unbind(0)
    multiply_by_weight = prepare_matmul(weight, gates.shape[1])
    dh = state_gradient[-1]
    dc = torch.zeros_like(dh) if cell_gradient is None else cell_gradient.clone()
    cell_gate_deltas = gates[..., : 3 * size].view(*gates.shape[:2], 3, size).unbind(0)
    deltas, output_gate_deltas = gates.unbind(0), gates[..., 3 * size :].unbind(0)
    state_gradients = state_gradient.unbind(0)
    for index in range(len(gates) - 1, -1, -1):
        dc.addcmul_(dh, cell_factors[index])
        cell_gate_deltas[index].mul_(dc[:, None])
        output_gate_deltas[index].mul_(dh)
        if index:
            dc.mul_(forget_gates[index])
            dh = multiply_by_weight(deltas[index]).add_(state_gradients[index - 1])
    return gates


def _compute_gate_factors(trace: LstmTrace) -> Tensor:
    """Replace each gate by the factor of its gradient: times ∂loss/∂c, or ∂loss/∂h for o.

    Returns the factor [T, B, H] from ∂loss/∂h to ∂loss/∂c, in the memory of ``trace.tanh_cells``.
    """
    cells, tanh_cells, size = trace.cells, trace.tanh_cells, trace.tanh_cells.shape[2]
    for index, gates in enumerate(trace.gates):
        i, f, g, o = (gates[:, k * size : (k + 1) * size] for k in range(4))
        cell_tanh = tanh_cells[index]
        from_g = torch.addcmul(i, i * g, g, value=-1.0)
        from_i = torch.addcmul(g, g, i, value=-1.0).mul_(i)
        from_o = torch.addcmul(o, o, o, value=-1.0).mul_(cell_tanh)
        torch.addcmul(o, o * cell_tanh, cell_tanh, value=-1.0, out=cell_tanh)
        torch.addcmul(f, f, f, value=-1.0, out=f).mul_(cells[index])
        i.copy_(from_i)
        g.copy_(from_g)
        o.copy_(from_o)
    return tanh_cells


# The output layer over a vocabulary combined with its loss: no matrix of logits is kept.


CHUNK_BYTES = 8 << 20
"""Size of a chunk of logits in bytes, small enough for a processor's cache."""
_MIN_CHUNK_ROWS, _MAX_CHUNK_BYTES = 64, 64 << 20
"""Rows of a larger chunk if the vocabulary is large: each chunk reads the whole weight. Their limit in bytes."""


def compute_vocabulary_losses(head: nn.Module, hidden: Tensor, targets: Tensor, real: Tensor) -> Tensor:
    """Return Σ_t −log softmax(head(hidden_it))[targets_it] in nats over the ``real`` positions of each example, [B].

    ``hidden`` [B, T, H], ``targets`` int64 and ``real`` bool [B, T]. Equals cross entropy of the head's logits. For a
    plain ``nn.Linear`` (tied or not) only real positions are computed, a few at a time, and the backward pass keeps
    softmax − one-hot in place of the logits.
    """
    if type(head).forward is nn.Linear.forward:
        assert isinstance(head, nn.Linear)
        summed_losses: Tensor = _VocabularyLossFunction.apply(hidden, head.weight, head.bias, targets, real)  # type: ignore[no-untyped-call]
        return summed_losses
    logits = to_float32(head(hidden))
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none")
    return losses.view_as(targets).masked_fill(real.logical_not(), 0.0).sum(1)


class _VocabularyLossFunction(torch.autograd.Function):
    """Softmax regression on the real positions, with the examples concatenated."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, real: Tensor) -> Tensor:
        inputs, is_trained = hidden[real].to(get_product_dtype(weight)), any(ctx.needs_input_grad[1:3])
        losses, ctx.deltas, input_gradient = _compute_losses_in_chunks(
            inputs, weight, bias, targets[real], is_trained, ctx.needs_input_grad[0]
        )
        ctx.counts, ctx.listener, ctx.parameters = real.sum(1).tolist(), get_tape(), (weight, bias)
        ctx.save_for_backward(inputs, real, input_gradient)
        return (
            torch.stack([example_losses.sum() for example_losses in torch.split(losses, ctx.counts)])
            if len(real)
            else losses
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        inputs, real, input_gradient = ctx.saved_tensors
        weight, bias = ctx.parameters
        position_scales = scale.repeat_interleave(torch.tensor(ctx.counts, device=scale.device))[:, None]
        upstream = None
        if input_gradient is not None:
            upstream = input_gradient.new_zeros(*real.shape, input_gradient.shape[1])
            upstream[real] = input_gradient * position_scales.to(input_gradient.dtype)
        if ctx.deltas is None:
            return upstream, None, None, None, None
        deltas = ctx.deltas if bool((scale == 1).all()) else ctx.deltas * position_scales
        if ctx.listener is None:
            weight_gradient = multiply_transposed(deltas, to_float32(inputs)) if ctx.needs_input_grad[1] else None
            bias_gradient = deltas.sum(0) if ctx.needs_input_grad[2] else None
            return upstream, weight_gradient, bias_gradient, None, None
        ctx.listener.report_outer_products(weight, deltas, inputs, counts=ctx.counts)
        if bias is not None:
            ctx.listener.report_dense_gradients(
                bias, torch.stack([example_deltas.sum(0) for example_deltas in torch.split(deltas, ctx.counts)])
            )
        if not ctx.listener.probing:
            ctx.deltas = None
        return upstream, None, None, None, None


def _compute_losses_in_chunks(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    target_ids: Tensor,
    is_trained: bool,
    needs_input_gradient: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return losses [N], ∂loss/∂logits [N, V] if ``is_trained``, and ∂loss/∂inputs [N, H] if needed.

    Products use the type of ``inputs``; everything else is at least single precision.
    """
    positions, vocabulary = len(inputs), len(weight)
    dtype, cast = torch.promote_types(weight.dtype, torch.float32), weight.to(inputs.dtype)
    losses = inputs.new_empty(positions, dtype=dtype)
    deltas = inputs.new_empty(positions, vocabulary, dtype=dtype) if is_trained else None
    bias = None if bias is None else bias.to(inputs.dtype)
    input_gradient = torch.empty_like(inputs) if needs_input_gradient else None
    row_bytes = vocabulary * inputs.element_size()
    size = max(CHUNK_BYTES // row_bytes, min(_MIN_CHUNK_ROWS, _MAX_CHUNK_BYTES // row_bytes), 1)
    for start in range(0, positions, size):
        chunk = slice(start, start + size)
        logits = apply_affine(inputs[chunk], cast, bias).to(dtype)
        target = target_ids[chunk, None]
        max_logits, max_indices = logits.max(1, keepdim=True)
        target_logits = logits.gather(1, target)
        delta = torch.softmax(logits, 1, out=None if deltas is None else deltas[chunk])
        # log Σ exp = the highest logit − the logarithm of its own share, which is at least 1/V.
        losses[chunk] = (max_logits - delta.gather(1, max_indices).log() - target_logits)[:, 0]
        delta.scatter_add_(1, target, torch.full_like(target_logits, -1.0))
        if input_gradient is not None:
            input_gradient[chunk] = multiply_matrices(delta.to(inputs.dtype), cast)
    return losses, deltas, input_gradient
