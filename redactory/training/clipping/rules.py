"""Which layers the engine knows, and how each is recorded for the time of one forward pass.

A rule gives what stands in for a module's ``forward``: the same layer as a function whose backward pass
reports to a tape in place of making a parameter's gradient.  :data:`_RULES` is the table of them; a module of
no known kind falls to :func:`opaque`: its examples' gradients come from ``torch.func``, on the module alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call, vjp, vmap
from torch.utils import _pytree as pytree

from redactory.foundation.errors import ConfigurationError
from redactory.training.clipping.gradients import Inseparable, Tape, listening
from redactory.training.clipping.layers import LayerWeights, lstm_layer
from redactory.training.clipping.matmul import affine, is_cast, multiplied_in, wide, without_autocast

Forward = Callable[..., Any]
Rule = Callable[[Any, str, Tape], Forward]
"""(module, its name, the tape) to what stands in for the module's ``forward``."""
Gradients = tuple[Tensor | None, ...]
Named = dict[str, Tensor]


class Linear(torch.autograd.Function):
    """``inputs`` [B, ..., I] times ``weight`` [O, I] transposed, plus ``bias`` [O].

    ``turned``: ``weight`` is [I, O], as in the Conv1D of transformers.  The casts of autocast are made here:
    those that torch keeps would be kept without a gradient.
    """

    @staticmethod
    def forward(ctx: Any, tape: Tape, inputs: Tensor, weight: Tensor, bias: Tensor | None, turned: bool) -> Tensor:
        ctx.tape, ctx.parameters, ctx.turned = tape, (weight, bias), turned
        kind = multiplied_in(weight)
        inputs, cast = inputs.to(kind), weight.to(kind)
        ctx.save_for_backward(inputs if weight.requires_grad else None)
        return affine(inputs, cast.t() if turned else cast, None if bias is None else bias.to(kind))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> Gradients:
        (weight, bias), rows = ctx.parameters, _rows(delta)
        if weight.requires_grad:
            factors = (rows, _rows(ctx.saved_tensors[0]))
            ctx.tape.outer(weight, *(reversed(factors) if ctx.turned else factors))
        if bias is not None:
            ctx.tape.dense(bias, rows.sum(1, dtype=weight.dtype))
        given = None
        if ctx.needs_input_grad[1]:
            cast = weight.to(delta.dtype)
            given = affine(delta, cast if ctx.turned else cast.t(), None)
        return None, given, None, None, None


class Embedding(torch.autograd.Function):
    """Rows ``ids`` [B, ...] of ``weight`` [V, E]; the row ``padding`` has no gradient."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, ids: Tensor, weight: Tensor, padding: int | None) -> Tensor:
        ctx.tape, ctx.parameter, ctx.padding = tape, weight, padding
        ctx.save_for_backward(ids)
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> Gradients:
        ids, rows = ctx.saved_tensors[0].flatten(1), _rows(delta)
        if ctx.padding is not None:
            rows = rows.masked_fill((ids == ctx.padding)[:, :, None], 0.0)
        ctx.tape.rows(ctx.parameter, ids, rows)
        return None, None, None, None


class LayerNorm(torch.autograd.Function):
    """``inputs`` [B, ..., shape] to mean 0 and variance 1 over ``shape``, times ``weight`` plus ``bias``."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, inputs: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        ctx.tape, ctx.parameters = tape, (weight, bias)
        output, mean, scale = torch.native_layer_norm(inputs, weight.shape, weight, bias, eps)
        ctx.save_for_backward(inputs, mean, scale)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> Gradients:
        (inputs, mean, scale), (weight, bias) = ctx.saved_tensors, ctx.parameters
        ctx.tape.dense(weight, _summed((inputs - mean).mul_(scale).mul_(delta), weight.shape))
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
    def backward(ctx: Any, delta: Tensor) -> Gradients:
        ctx.tape.dense(ctx.parameter, _summed(delta * ctx.saved_tensors[0], ctx.parameter.shape))
        return None, delta * ctx.parameter if ctx.needs_input_grad[1] else None, None


def _of_one_input(
    function: type[torch.autograd.Function],
    parameters: Callable[[Any], tuple[Any, ...]],
    before: Callable[[Any, Tensor], Tensor] = lambda module, x: x,
) -> Rule:
    """A layer that is ``function`` of its input, after ``before``, and of the module's ``parameters``."""

    def rule(module: Any, name: str, tape: Tape) -> Forward:
        def forward(*given: Tensor, **named: Tensor) -> Tensor:
            (x,) = (*given, *named.values())
            x, joined = _batched(x, name, tape)
            output = _apply(function, tape, before(module, x), *parameters(module))
            return output.flatten(0, 1) if joined else output

        return forward

    return rule


def _embedding(module: nn.Embedding, name: str, tape: Tape) -> Forward:
    def forward(input: Tensor) -> Tensor:  # noqa: A002 - the name that torch gives it
        ids, joined = _batched(_each_its_own(input, tape), name, tape)
        output = _apply(Embedding, tape, ids, module.weight, module.padding_idx)
        return output.flatten(0, 1) if joined else output

    return forward


def _lstm(module: nn.LSTM, name: str, tape: Tape) -> Forward:
    def forward(input: Tensor, hx: Any = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # noqa: A002
        if not isinstance(input, Tensor) or input.dim() != 3:
            raise ConfigurationError(f"{name}: takes padded batches [B, T, I], not packed ones")
        if hx is not None and any(state.requires_grad or bool(state.any()) for state in hx):
            raise ConfigurationError(f"{name}: receives a hidden state; every example must start from the zero state")
        states = input if module.batch_first else input.transpose(0, 1)
        tape.joined(len(states))
        last, cells = [], []
        for layer in range(module.num_layers):
            if layer:
                states = F.dropout(states, module.dropout, module.training)
            weights: Any = [getattr(module, f"{part}_l{layer}", None) for part in LayerWeights._fields]
            states, cell = lstm_layer(states, LayerWeights(*weights))
            last.append(states[:, -1])
            cells.append(cell)
        output = states if module.batch_first else states.transpose(0, 1)
        return output, (torch.stack(last), torch.stack(cells))

    return forward


def _their_normalised(x: Tensor, eps: float) -> Tensor:
    """x over its root mean square, in float32 whatever x is: what transformers' RMSNorms compute."""
    single = x.to(torch.float32)
    return (single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


_RULES: dict[Any, Rule] = {
    nn.Linear.forward: _of_one_input(Linear, lambda m: (m.weight, m.bias, False)),
    nn.Embedding.forward: _embedding,
    nn.LayerNorm.forward: _of_one_input(
        LayerNorm, lambda m: (m.weight, m.bias, m.eps), lambda m, x: x.to(m.weight.dtype)
    ),
    nn.RMSNorm.forward: _of_one_input(
        Scale, lambda m: (m.weight,), lambda m, x: F.rms_norm(x, m.normalized_shape, None, m.eps)
    ),
    nn.LSTM.forward: _lstm,
    "Conv1D": _of_one_input(Linear, lambda m: (m.weight, m.bias, True)),
    "RMSNorm": _of_one_input(Scale, lambda m: (m.weight,), lambda m, x: _their_normalised(x, m.variance_epsilon)),
}
"""By the ``forward`` of the module's class, or by the name of a class of transformers."""
_PLAIN: dict[type, bool] = {}
"""Of each class of transformers named like an RMSNorm, whether it is a plain one."""


def rule_of(module: nn.Module) -> Rule | None:
    """The rule for a module of a known kind, None for any other.

    A kind is known by the ``forward`` of its class: a subclass that computes something else has
    another.  A module whose parameters are computed (parametrizations, weight norm) is of no known kind.
    """
    if "forward" in module.__dict__ or next(module.children(), None) is not None:
        return None
    if isinstance(module, nn.LSTM) and (module.bidirectional or module.proj_size):
        return None
    name = type(module).__name__
    if type(module).__module__.startswith("transformers."):
        if name.endswith("RMSNorm") and _is_plain_rms_norm(module):
            return _RULES["RMSNorm"]
        if name == "Conv1D":
            return _RULES[name]
    return _RULES.get(type(module).forward)


@torch.no_grad()
def _is_plain_rms_norm(module: Any) -> bool:
    """Whether a class named like one computes weight · x / rms(x): some add 1 to the weight."""
    if type(module) not in _PLAIN:
        eps, weight = getattr(module, "variance_epsilon", None), getattr(module, "weight", None)
        plain = eps is not None and isinstance(weight, nn.Parameter)
        if plain:
            x = torch.linspace(-1.0, 2.0, module.weight.numel()).to(module.weight)[None]
            plain = torch.allclose(module(x), module.weight * _their_normalised(x, module.variance_epsilon))
        _PLAIN[type(module)] = plain
    return _PLAIN[type(module)]


def _batched(x: Tensor, name: str, tape: Tape) -> tuple[Tensor, bool]:
    """``x``, the input of a layer, with the points first, and whether it was [B·T, ...] before."""
    if x.dim() < 2:
        raise Inseparable(name, "its input has no dimension for the examples of a batch")
    joined = tape.joined(len(x))
    return _split(x, tape.examples) if joined else x, joined


def _split(x: Tensor, points: int) -> Tensor:
    """[B·T, ...] to [B, T, ...]."""
    return x.reshape(points, len(x) // points, *x.shape[1:])


def _each_its_own(x: Tensor, tape: Tape) -> Tensor:
    """One row that all points share (of positions, say) as often as there are points: each reads its own."""
    return x.expand(tape.examples, *x.shape[1:]) if x.dim() > 1 and len(x) == 1 and tape.examples > 1 else x


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    output: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return output


def _rows(x: Tensor) -> Tensor:
    """[B, ..., N] to [B, T, N]."""
    return x.reshape(len(x), -1, x.shape[-1])


def _summed(x: Tensor, shape: torch.Size) -> Tensor:
    """[B, ..., shape] to [B, shape]: summed over what is between."""
    return x.reshape(len(x), -1, *shape).sum(1)


# Modules of no known kind.


def opaque(module: nn.Module, name: str, tape: Tape) -> Callable[..., Any]:
    """Stands in for the ``forward`` of a module with parameters, whatever it computes.

    The module runs once as a whole; in the backward pass it runs again on each example alone (all
    at once by ``torch.func.vmap``, one by one where that is not possible), and its outputs must be
    those of the first run: so a module that mixes examples is refused with ``ConfigurationError``.
    Refused are also modules that draw random numbers or write their buffers.  Autocast ends before it: half
    of the precision would hide what mixes.
    """

    own = module.__dict__.get("forward")

    def forward(*args: Any, **kwargs: Any) -> Any:
        leaves, layout = pytree.tree_flatten((args, kwargs))
        moving = [place for place, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        if not moving or any(leaves[place].dim() < 2 for place in moving):
            raise Inseparable(name, "the first dimension of every tensor that it takes must be the batch")
        device = leaves[moving[0]].device.type
        for place in moving:
            leaves[place] = _each_its_own(leaves[place], tape)
            if is_cast(device):
                leaves[place] = wide(leaves[place])
        joined = frozenset(place for place in moving if tape.joined(len(leaves[place])))
        with _itself(module, own), without_autocast(device):
            output = _run(module, name, *pytree.tree_unflatten(leaves, layout))
        flat, shape = pytree.tree_flatten(output)
        found = [place for place, leaf in enumerate(flat) if _is_real(leaf)]
        outputs = [_each_its_own(flat[place], tape) for place in found]
        together = [value.dim() > 0 and tape.joined(len(value)) for value in outputs]
        call = _Call(module, own, name, leaves, layout, moving, tape.examples, joined, together)
        anchor = next(p for p in module.parameters() if p.requires_grad)
        tagged = _Tag.apply(tape, call, anchor, *outputs)  # type: ignore[no-untyped-call]
        for place, value in zip(found, tagged, strict=True):
            flat[place] = value
        return pytree.tree_unflatten(flat, shape)

    return forward


@contextmanager
def _itself(module: Any, own: Forward | None) -> Iterator[None]:
    """The module computes what it does when nobody records: by its class, or a ``forward`` of its ``own``."""
    stands_in = module.__dict__.pop("forward", None)
    if own is not None:
        module.forward = own
    try:
        yield
    finally:
        module.__dict__.pop("forward", None)
        if stands_in is not None:
            module.forward = stands_in


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
        raise Inseparable(name, "writes a buffer, which carries information from example to example")
    if not all(map(torch.equal, random, _random_states(module))):
        raise ConfigurationError(f"{name}: draws random numbers; make its dropout a separate module")
    return output


def _random_states(module: nn.Module) -> list[Tensor]:
    """What random numbers are drawn from next: on the processor, and on the GPU where the module lies."""
    device = next(module.parameters()).device
    own = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *own]


@dataclass(frozen=True)
class _Call:
    """One call of a module: ``leaves`` of its arguments, those at ``moving`` tensors [B, ...].

    Those at ``joined``, and the outputs that are ``together``, are [B·T, ...] for B ``examples``.
    """

    module: nn.Module
    own: Forward | None
    name: str
    leaves: list[Any]
    layout: Any
    moving: list[int]
    examples: int
    joined: frozenset[int]
    together: list[bool]

    def gradients(self, deltas: dict[int, Tensor]) -> tuple[Named, list[Tensor]]:
        """∂loss/∂parameter of every example from ∂loss/∂output [B, ...] of the outputs that were used.

        ``deltas`` by the output's place.  These outputs are given back, computed once more.
        """
        inputs = [self.apart(self.leaves[place].detach(), place in self.joined) for place in self.moving]
        wanted = [self.apart(delta, self.together[place]) for place, delta in deltas.items()]
        if any(len(x) != len(wanted[0]) for x in [*inputs, *wanted]):
            raise Inseparable(self.name, "every input and output tensor must begin with the batch")
        parameters = {name: p.detach() for name, p in self.module.named_parameters() if p.requires_grad}

        def one(inputs: list[Tensor], wanted: list[Tensor]) -> tuple[Named, list[Tensor]]:
            found: Any = vjp(lambda own: self._used(self._alone(own, inputs), deltas), parameters)
            outputs, back = found
            return back(wanted)[0], outputs

        with _itself(self.module, self.own), listening(None):
            try:
                return vmap(one)(inputs, wanted)
            except RuntimeError:
                rows = range(len(wanted[0]))
            try:
                pairs = [
                    self._of_one([x[row] for x in inputs], {k: x[row] for k, x in zip(deltas, wanted, strict=True)})
                    for row in rows
                ]
            except RuntimeError:
                raise Inseparable(self.name, "cannot be run on a single example") from None
        gradients, outputs = zip(*pairs, strict=True)
        stacked = {name: torch.stack([own[name] for own in gradients]) for name in parameters}
        return stacked, [torch.stack(rows) for rows in zip(*outputs, strict=True)]

    @torch.enable_grad()
    def _of_one(self, inputs: list[Tensor], wanted: dict[int, Tensor]) -> tuple[Named, list[Tensor]]:
        """The same of one example by plain autograd, which takes what ``torch.func`` cannot trace."""
        learnt = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        found = self._used(self._alone({}, inputs), wanted)
        back = torch.autograd.grad(found, list(learnt.values()), list(wanted.values()), allow_unused=True)
        pairs = zip(learnt.items(), back, strict=True)
        own = {name: torch.zeros_like(p) if g is None else g.detach() for (name, p), g in pairs}
        return own, [output.detach() for output in found]

    def _used(self, outputs: list[Tensor], wanted: Iterable[int]) -> list[Tensor]:
        return [outputs[place] if self.together[place] else outputs[place][0] for place in wanted]

    def apart(self, x: Tensor, joined: bool) -> Tensor:
        """``x`` with the points in a dimension of their own."""
        if not x.dim():
            raise Inseparable(self.name, "every input and output tensor must begin with the batch")
        return _split(x, self.examples) if joined else x

    def _alone(self, parameters: Named, inputs: list[Tensor]) -> list[Tensor]:
        leaves = list(self.leaves)
        for place, x in zip(self.moving, inputs, strict=True):
            leaves[place] = x if place in self.joined else x[None]
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
        # copies, for what comes next may write in them
        return tuple(output.clone() for output in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *deltas: Tensor | None) -> tuple[Tensor | None, ...]:
        used = {place: delta for place, delta in enumerate(deltas) if delta is not None}
        gradients, outputs = ctx.call.gradients(used)
        for place, again in zip(used, outputs, strict=True):
            first = ctx.call.apart(ctx.saved_tensors[place], ctx.call.together[place])
            _check_equal(first, again, ctx.call.name)
        own = dict(ctx.call.module.named_parameters())
        for name, gradient in gradients.items():
            ctx.tape.dense(own[name], gradient)
        return None, None, None, *deltas


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _check_equal(first: Tensor, again: Tensor, name: str) -> None:
    """A module's outputs on a batch must be those on each example alone, but for rounding."""
    if first.shape != again.shape:
        raise Inseparable(name, "every input and output tensor must begin with the batch")
    known = first.isfinite() & again.isfinite()
    first, again = first[known], again[known]
    if len(first) and float((first - again).abs().max()) > 1e-3 * float(first.abs().max()) + 1e-12:
        raise Inseparable(name, "its result for one example depends on the others in its batch")
