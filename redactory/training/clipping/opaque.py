"""Modules of no known kind: their examples' gradients by ``torch.func``, on the module alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call, vjp, vmap
from torch.utils import _pytree as pytree

from redactory.foundation.errors import ConfigurationError
from redactory.training.layers.gradients import Tape, listening

Gradients = dict[str, Tensor]


def opaque(module: nn.Module, name: str, tape: Tape) -> Callable[..., Any]:
    """Stands in for the ``forward`` of a module with parameters, whatever it computes.

    The module runs once as a whole; in the backward pass it runs again on each example alone (all
    at once by ``torch.func.vmap``, one by one where that is not possible), and its outputs must be
    those of the first run: so a module that mixes examples is refused with ``ConfigurationError``.
    Refused are also modules that draw random numbers or write their buffers.
    """

    def forward(*args: Any, **kwargs: Any) -> Any:
        leaves, layout = pytree.tree_flatten((args, kwargs))
        moving = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        if not moving or any(leaves[place].dim() < 2 for place in moving):
            raise ConfigurationError(f"{name}: every tensor that it takes must begin with the batch")
        tape.examples = max(tape.examples, *(len(leaves[place]) for place in moving))
        del module.forward
        try:
            output = _run(module, name, args, kwargs)
        finally:
            module.forward = forward
        flat, shape = pytree.tree_flatten(output)
        found = [place for place, leaf in enumerate(flat) if _is_real(leaf)]
        call = _Call(module, name, leaves, layout, moving)
        anchor = next(p for p in module.parameters() if p.requires_grad)
        tagged = _Tag.apply(tape, call, anchor, *(flat[place] for place in found))  # type: ignore[no-untyped-call]
        for place, value in zip(found, tagged, strict=True):
            flat[place] = value
        return pytree.tree_unflatten(flat, shape)

    return forward


def _run(module: nn.Module, name: str, args: Any, kwargs: Any) -> Any:
    """The module's outputs, differentiable by its inputs only."""
    buffers = [(buffer, buffer._version) for buffer in module.buffers()]
    learnt = [parameter for parameter in module.parameters() if parameter.requires_grad]
    random = _random_states(module)
    try:
        for parameter in learnt:
            parameter.requires_grad_(False)
        with listening(None):
            output = module.forward(*args, **kwargs)
    finally:
        for parameter in learnt:
            parameter.requires_grad_(True)
    if any(buffer._version != version for buffer, version in buffers):
        raise ConfigurationError(f"{name}: writes a buffer, which carries something from point to point")
    if not all(map(torch.equal, random, _random_states(module))):
        raise ConfigurationError(f"{name}: draws random numbers; make its dropout a module outside of it")
    return output


def _random_states(module: nn.Module) -> list[Tensor]:
    """What random numbers are drawn from next: on the processor, and on the GPU where the module lies."""
    device = next(module.parameters()).device
    own = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *own]


@dataclass(frozen=True)
class _Call:
    """One call of a module: ``leaves`` of its arguments, those at ``moving`` tensors [B, ...]."""

    module: nn.Module
    name: str
    leaves: list[Any]
    layout: Any
    moving: list[int]

    def gradients(self, deltas: dict[int, Tensor]) -> tuple[Gradients, list[Tensor]]:
        """∂loss/∂parameter of every example from ∂loss/∂output [B, ...] of the outputs that were used.

        ``deltas`` by the output's place.  These outputs are given back, computed once more.
        """
        inputs, wanted = [self.leaves[place].detach() for place in self.moving], list(deltas.values())
        if any(len(x) != len(wanted[0]) for x in [*inputs, *wanted]):
            raise ConfigurationError(f"{self.name}: every tensor in and out must begin with the batch")
        parameters = {name: p.detach() for name, p in self.module.named_parameters() if p.requires_grad}

        def one(inputs: list[Tensor], wanted: list[Tensor]) -> tuple[Gradients, list[Tensor]]:
            def used(own: Gradients) -> list[Tensor]:
                outputs = self._alone(own, inputs)
                return [outputs[place][0] for place in deltas]

            found: Any = vjp(used, parameters)
            outputs, back = found
            return back(wanted)[0], outputs

        with listening(None):
            try:
                return vmap(one)(inputs, wanted)
            except RuntimeError:
                rows = range(len(wanted[0]))
            try:
                pairs = [one([x[row] for x in inputs], [x[row] for x in wanted]) for row in rows]
            except RuntimeError:
                raise ConfigurationError(f"{self.name}: cannot be run on one point alone") from None
        gradients, outputs = zip(*pairs, strict=True)
        stacked = {name: torch.stack([own[name] for own in gradients]) for name in gradients[0]}
        return stacked, [torch.stack(rows) for rows in zip(*outputs, strict=True)]

    def _alone(self, parameters: Gradients, inputs: list[Tensor]) -> list[Tensor]:
        leaves = list(self.leaves)
        for place, x in zip(self.moving, inputs, strict=True):
            leaves[place] = x[None]
        args, kwargs = pytree.tree_unflatten(leaves, self.layout)
        flat, _ = pytree.tree_flatten(functional_call(self.module, parameters, args, kwargs))
        return [leaf for leaf in flat if _is_real(leaf)]


class _Tag(torch.autograd.Function):
    """The outputs of a call as they are; their gradients make the examples' gradients."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, call: _Call, anchor: Tensor, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.tape, ctx.call = tape, call
        ctx.save_for_backward(*outputs)
        ctx.set_materialize_grads(False)
        return tuple(output.view_as(output) for output in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *deltas: Tensor | None) -> tuple[Tensor | None, ...]:
        used = {place: delta for place, delta in enumerate(deltas) if delta is not None}
        gradients, outputs = ctx.call.gradients(used)
        for place, again in zip(used, outputs, strict=True):
            _check_equal(ctx.saved_tensors[place], again, ctx.call.name)
        own = dict(ctx.call.module.named_parameters())
        for name, gradient in gradients.items():
            ctx.tape.dense(own[name], gradient)
        return None, None, None, *deltas


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _check_equal(first: Tensor, again: Tensor, name: str) -> None:
    """A module's outputs on a batch must be those on each example alone, but for rounding."""
    if first.shape != again.shape:
        raise ConfigurationError(f"{name}: every tensor in and out must begin with the batch")
    known = first.isfinite() & again.isfinite()
    first, again = first[known], again[known]
    if len(first) and float((first - again).abs().max()) > 1e-3 * float(first.abs().max()) + 1e-12:
        raise ConfigurationError(f"{name}: what it computes for one point depends on the others in its batch")
