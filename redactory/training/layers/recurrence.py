"""The LSTM's recurrence and its adjoint over whole sequences, in buffers that are written once.

With a_t = W_ih x_t + W_hh h_{t−1} + b in four blocks, i, f, o = σ(a_i, a_f, a_o), g = tanh(a_g):
c_t = f_t ∘ c_{t−1} + i_t ∘ g_t and h_t = o_t ∘ tanh(c_t), zero before the first (Hochreiter and
Schmidhuber 1997, in the block order of ``torch.nn.LSTM``: i, f, g, o).  Time comes first in every
buffer, so that a step's rows lie together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from redactory.training.layers.products import products_with


class Trace(NamedTuple):
    """What the adjoint needs of a forward pass.

    ``gates`` [T, B, 4H] after their nonlinearity; ``cells`` and ``states`` [T+1, B, H] with the zero
    state first; ``shown`` [T, B, H] is tanh of the cells.
    """

    gates: Tensor
    cells: Tensor
    states: Tensor
    shown: Tensor


def run(gates: Tensor, weight: Tensor) -> Trace:
    """The recurrence, from the input's share of the gates [T, B, 4H] (overwritten) and W_hh [4H, H]."""
    length, batch, width = gates.shape
    size = width // 4
    cells, states = gates.new_empty(length + 1, batch, size), gates.new_empty(length + 1, batch, size)
    cells[0], states[0] = 0.0, 0.0
    shown = gates.new_empty(length, batch, size)
    recurrent = products_with(weight.t(), batch)
    steps = zip(
        gates.unbind(0),
        gates[..., : 2 * size].unbind(0),
        *(gates[..., k * size : (k + 1) * size].unbind(0) for k in range(4)),
        cells.unbind(0)[1:],
        states.unbind(0)[1:],
        shown.unbind(0),
        strict=True,
    )
    c, h = cells[0], states[0]
    for place, (all_four, first_two, i, f, g, o, cell, state, seen) in enumerate(steps):
        if place:
            all_four.add_(recurrent(h))
        first_two.sigmoid_()
        g.tanh_()
        o.sigmoid_()
        torch.mul(f, c, out=cell).addcmul_(i, g)
        torch.tanh(cell, out=seen)
        torch.mul(o, seen, out=state)
        c, h = cell, state
    return Trace(gates, cells, states, shown)


def adjoint(trace: Trace, weight: Tensor, wanted: Tensor, wanted_cell: Tensor | None) -> Tensor:
    """∂loss/∂a [T, B, 4H] from ∂loss/∂h ``wanted`` [T, B, H] and ∂loss/∂c_T ``wanted_cell`` [B, H].

    ``trace.gates`` and ``trace.shown`` are overwritten; the answer lies in the memory of the gates.
    """
    gates, size = trace.gates, trace.shown.shape[2]
    kept = gates[..., size : 2 * size].clone()
    through = _factors(trace)
    backwards = products_with(weight, gates.shape[1])
    dh = wanted[-1]
    dc = torch.zeros_like(dh) if wanted_cell is None else wanted_cell.clone()
    deltas, earlier = gates.unbind(0), wanted.unbind(0)
    of_cell = gates[..., : 3 * size].view(*gates.shape[:2], 3, size).unbind(0)
    of_output, through_steps, kept_steps = gates[..., 3 * size :].unbind(0), through.unbind(0), kept.unbind(0)
    for place in range(len(gates) - 1, -1, -1):
        dc.addcmul_(dh, through_steps[place])
        of_cell[place].mul_(dc[:, None])
        of_output[place].mul_(dh)
        if place:
            dc.mul_(kept_steps[place])
            dh = backwards(deltas[place]).add_(earlier[place - 1])
    return gates


def _factors(trace: Trace) -> Tensor:
    """Each gate becomes what ∂loss/∂c (for o: ∂loss/∂h) is multiplied by to give its own gradient.

    Gives the factor [T, B, H] from ∂loss/∂h to ∂loss/∂c, in the memory of ``trace.shown``.
    """
    cells, shown, size = trace.cells, trace.shown, trace.shown.shape[2]
    for place, gates in enumerate(trace.gates):
        i, f, g, o = (gates[:, k * size : (k + 1) * size] for k in range(4))
        seen = shown[place]
        from_g = torch.addcmul(i, i * g, g, value=-1.0)
        from_i = torch.addcmul(g, g, i, value=-1.0).mul_(i)
        from_o = torch.addcmul(o, o, o, value=-1.0).mul_(seen)
        torch.addcmul(o, o * seen, seen, value=-1.0, out=seen)
        torch.addcmul(f, f, f, value=-1.0, out=f).mul_(cells[place])
        i.copy_(from_i)
        g.copy_(from_g)
        o.copy_(from_o)
    return shown
