"""Rules that record each known kind of layer during one forward pass.

A rule replaces a module's ``forward`` by the same function with a backward pass that reports to a tape instead of
computing the parameters' gradients. :data:`_RULES` is the table of rules. Modules of an unknown kind use
:func:`record_opaque_module`, which computes the examples' gradients with ``torch.func`` on that module.
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
from redactory.training.clipping.gradients import InseparableExamplesError, Tape, use_tape
from redactory.training.clipping.layers import LstmWeights, run_lstm_layer
from redactory.training.clipping.matmul import (
    apply_affine,
    disable_autocast,
    get_product_dtype,
    is_autocast_enabled,
    to_float32,
)

ForwardFunction = Callable[..., Any]
RecordingRule = Callable[[Any, str, Tape], ForwardFunction]
"""Maps (module, its name, the tape) to the replacement of the module's ``forward``."""
OptionalGradients = tuple[Tensor | None, ...]
NamedTensors = dict[str, Tensor]


class RecordedLinear(torch.autograd.Function):
    """Multiply ``inputs`` [B, ..., I] by ``weight`` [O, I] transposed and add ``bias`` [O].

    A transposed ``weight`` is [I, O], as in the Conv1D of transformers. Autocast's casts are made here, because the
    casts that torch caches would be cached without a gradient.
    """

    @staticmethod
    def forward(ctx: Any, tape: Tape, inputs: Tensor, weight: Tensor, bias: Tensor | None, transposed: bool) -> Tensor:
        ctx.tape, ctx.parameters, ctx.turned = tape, (weight, bias), transposed
        dtype = get_product_dtype(weight)
        inputs, cast = inputs.to(dtype), weight.to(dtype)
        ctx.save_for_backward(inputs if weight.requires_grad else None)
        return apply_affine(inputs, cast.t() if transposed else cast, None if bias is None else bias.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> OptionalGradients:
        (weight, bias), rows = ctx.parameters, _flatten_positions(delta)
        if weight.requires_grad:
            factors = (rows, _flatten_positions(ctx.saved_tensors[0]))
            ctx.tape.report_outer_products(weight, *(reversed(factors) if ctx.turned else factors))
        if bias is not None:
            ctx.tape.report_dense_gradients(bias, rows.sum(1, dtype=weight.dtype))
        input_gradient = None
        if ctx.needs_input_grad[1]:
            cast = weight.to(delta.dtype)
            input_gradient = apply_affine(delta, cast if ctx.turned else cast.t(), None)
        return None, input_gradient, None, None, None


class RecordedEmbedding(torch.autograd.Function):
    """Look up rows ``ids`` [B, ...] of ``weight`` [V, E]; the padding row has no gradient."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, ids: Tensor, weight: Tensor, padding: int | None) -> Tensor:
        ctx.tape, ctx.parameter, ctx.padding = tape, weight, padding
        ctx.save_for_backward(ids)
        return F.embedding(ids, weight)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> OptionalGradients:
        ids, rows = ctx.saved_tensors[0].flatten(1), _flatten_positions(delta)
        if ctx.padding is not None:
            rows = rows.masked_fill((ids == ctx.padding)[:, :, None], 0.0)
        ctx.tape.report_embedding_rows(ctx.parameter, ids, rows)
        return None, None, None, None


class RecordedLayerNorm(torch.autograd.Function):
    """Normalise ``inputs`` [B, ..., shape] over ``shape``, multiply by ``weight`` and add ``bias``."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, inputs: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        ctx.tape, ctx.parameters = tape, (weight, bias)
        output, mean, scale = torch.native_layer_norm(inputs, weight.shape, weight, bias, eps)
        ctx.save_for_backward(inputs, mean, scale)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> OptionalGradients:
        (inputs, mean, scale), (weight, bias) = ctx.saved_tensors, ctx.parameters
        ctx.tape.report_dense_gradients(weight, _sum_positions((inputs - mean).mul_(scale).mul_(delta), weight.shape))
        ctx.tape.report_dense_gradients(bias, _sum_positions(delta, weight.shape))
        input_gradient = None
        if ctx.needs_input_grad[1]:
            input_gradient, _, _ = torch.ops.aten.native_layer_norm_backward(
                delta, inputs, weight.shape, mean, scale, weight, bias, [True, False, False]
            )
        return None, input_gradient, None, None, None


class RecordedScale(torch.autograd.Function):
    """Multiply ``inputs`` [B, ..., shape] by ``weight`` [shape], the parameter of an RMSNorm."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, inputs: Tensor, weight: Tensor) -> Tensor:
        ctx.tape, ctx.parameter = tape, weight
        ctx.save_for_backward(inputs)
        return inputs * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> OptionalGradients:
        ctx.tape.report_dense_gradients(
            ctx.parameter, _sum_positions(delta * ctx.saved_tensors[0], ctx.parameter.shape)
        )
        return None, delta * ctx.parameter if ctx.needs_input_grad[1] else None, None


def _make_single_input_rule(
    function: type[torch.autograd.Function],
    get_parameters: Callable[[Any], tuple[Any, ...]],
    preprocess: Callable[[Any, Tensor], Tensor] = lambda module, x: x,
    accepts_shared_row: bool = False,
) -> RecordingRule:
    def make_recorded_forward(module: Any, name: str, tape: Tape) -> ForwardFunction:
        def forward(*positional: Tensor, **keywords: Tensor) -> Tensor:
            (x,) = (*positional, *keywords.values())
            if accepts_shared_row:
                x = _expand_shared_row(x, tape)
            x, is_merged = _unmerge_input(x, name, tape)
            output: Tensor = function.apply(tape, preprocess(module, x), *get_parameters(module))  # type: ignore[no-untyped-call]
            return output.flatten(0, 1) if is_merged else output

        return forward

    return make_recorded_forward


def _record_lstm(module: nn.LSTM, name: str, tape: Tape) -> ForwardFunction:
    def forward(input: Tensor, hx: Any = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # noqa: A002
        if not isinstance(input, Tensor) or input.dim() != 3:
            raise ConfigurationError(f"{name}: takes padded batches [B, T, I], not packed ones")
        if hx is not None and any(state.requires_grad or bool(state.any()) for state in hx):
            raise ConfigurationError(f"{name}: receives a hidden state; every example must start from the zero state")
        states = input if module.batch_first else input.transpose(0, 1)
        tape.observe_batch_rows(len(states))
        last, cells = [], []
        for layer in range(module.num_layers):
            if layer:
                states = F.dropout(states, module.dropout, module.training)
            weights: Any = [getattr(module, f"{part}_l{layer}", None) for part in LstmWeights._fields]
            states, cell = run_lstm_layer(states, LstmWeights(*weights))
            last.append(states[:, -1])
            cells.append(cell)
        output = states if module.batch_first else states.transpose(0, 1)
        return output, (torch.stack(last), torch.stack(cells))

    return forward


def _normalise_by_rms(x: Tensor, eps: float) -> Tensor:
    """Divide x by its root mean square, in float32 for any x, as the RMSNorms of transformers do."""
    single = x.to(torch.float32)
    return (single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


_RULES: dict[Any, RecordingRule] = {
    nn.Linear.forward: _make_single_input_rule(RecordedLinear, lambda m: (m.weight, m.bias, False)),
    nn.Embedding.forward: _make_single_input_rule(
        RecordedEmbedding, lambda m: (m.weight, m.padding_idx), accepts_shared_row=True
    ),
    nn.LayerNorm.forward: _make_single_input_rule(
        RecordedLayerNorm, lambda m: (m.weight, m.bias, m.eps), lambda m, x: x.to(m.weight.dtype)
    ),
    nn.RMSNorm.forward: _make_single_input_rule(
        RecordedScale, lambda m: (m.weight,), lambda m, x: F.rms_norm(x, m.normalized_shape, None, m.eps)
    ),
    nn.LSTM.forward: _record_lstm,
    "Conv1D": _make_single_input_rule(RecordedLinear, lambda m: (m.weight, m.bias, True)),
    "RMSNorm": _make_single_input_rule(
        RecordedScale, lambda m: (m.weight,), lambda m, x: _normalise_by_rms(x, m.variance_epsilon)
    ),
}
"""Rules by the ``forward`` of the module's class, or by the name of a transformers class."""
_IS_STANDARD_RMS_NORM: dict[type, bool] = {}


def find_rule(module: nn.Module) -> RecordingRule | None:
    """Return the rule for a module of a known kind, None for any other.

    The ``forward`` of the class identifies the kind, so a subclass with another computation has another. A module with
    computed parameters (parametrizations, weight norm) is of no known kind.
    """
    if "forward" in module.__dict__ or next(module.children(), None) is not None:
        return None
    if isinstance(module, nn.LSTM) and (module.bidirectional or module.proj_size):
        return None
    name = type(module).__name__
    if type(module).__module__.startswith("transformers."):
        if name.endswith("RMSNorm") and _is_standard_rms_norm(module):
            return _RULES["RMSNorm"]
        if name == "Conv1D":
            return _RULES[name]
    return _RULES.get(type(module).forward)


@torch.no_grad()
def _is_standard_rms_norm(module: Any) -> bool:
    """Return whether a class named like an RMSNorm computes weight · x / rms(x); some add 1 to the weight."""
    if type(module) not in _IS_STANDARD_RMS_NORM:
        eps, weight = getattr(module, "variance_epsilon", None), getattr(module, "weight", None)
        is_plain = eps is not None and isinstance(weight, nn.Parameter)
        if is_plain:
            x = torch.linspace(-1.0, 2.0, module.weight.numel()).to(module.weight)[None]
            is_plain = torch.allclose(module(x), module.weight * _normalise_by_rms(x, module.variance_epsilon))
        _IS_STANDARD_RMS_NORM[type(module)] = is_plain
    return _IS_STANDARD_RMS_NORM[type(module)]


def _unmerge_input(x: Tensor, name: str, tape: Tape) -> tuple[Tensor, bool]:
    """Return a layer's input with the examples first, and whether it was [B·T, ...] before."""
    if x.dim() < 2:
        raise InseparableExamplesError(name, "its input has no dimension for the examples of a batch")
    is_merged = tape.observe_batch_rows(len(x))
    return _split_merged_batch(x, tape.example_count) if is_merged else x, is_merged


def _split_merged_batch(x: Tensor, batch_size: int) -> Tensor:
    return x.reshape(batch_size, len(x) // batch_size, *x.shape[1:])


def _expand_shared_row(x: Tensor, tape: Tape) -> Tensor:
    """Repeat one row that all examples share, such as positions, once per example."""
    return x.expand(tape.example_count, *x.shape[1:]) if x.dim() > 1 and len(x) == 1 and tape.example_count > 1 else x


def _flatten_positions(x: Tensor) -> Tensor:
    return x.reshape(len(x), -1, x.shape[-1])


def _sum_positions(x: Tensor, shape: torch.Size) -> Tensor:
    return x.reshape(len(x), -1, *shape).sum(1)


def record_opaque_module(module: nn.Module, name: str, tape: Tape) -> Callable[..., Any]:
    """Replace the ``forward`` of any module with parameters by a recorded one.

    The module runs once as a whole. In the backward pass it runs again on each example (all at once with
    ``torch.func.vmap``, otherwise one by one), and its outputs must equal those of the first run. So a module that
    mixes examples is refused with ``ConfigurationError``, as are modules that draw random numbers or write their
    buffers. Autocast is disabled, because half precision would hide the mixing.
    """

    original_forward = module.__dict__.get("forward")

    def forward(*args: Any, **kwargs: Any) -> Any:
        leaves, layout = pytree.tree_flatten((args, kwargs))
        tensor_positions = [position for position, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]
        if not tensor_positions or any(leaves[position].dim() < 2 for position in tensor_positions):
            raise InseparableExamplesError(name, "the first dimension of every tensor that it takes must be the batch")
        device = leaves[tensor_positions[0]].device.type
        for position in tensor_positions:
            leaves[position] = _expand_shared_row(leaves[position], tape)
            if is_autocast_enabled(device):
                leaves[position] = to_float32(leaves[position])
        merged_inputs = frozenset(
            position for position in tensor_positions if tape.observe_batch_rows(len(leaves[position]))
        )
        with use_forward(module, original_forward), disable_autocast(device):
            output = _run_module(module, name, *pytree.tree_unflatten(leaves, layout))
        flat, output_layout = pytree.tree_flatten(output)
        float_positions = [position for position, leaf in enumerate(flat) if _is_float_tensor(leaf)]
        outputs = [_expand_shared_row(flat[position], tape) for position in float_positions]
        merged_outputs = [value.dim() > 0 and tape.observe_batch_rows(len(value)) for value in outputs]
        call = _OpaqueCall(
            module,
            original_forward,
            name,
            leaves,
            layout,
            tensor_positions,
            tape.example_count,
            merged_inputs,
            merged_outputs,
        )
        anchor = next(p for p in module.parameters() if p.requires_grad)
        recorded_outputs = _GradientRecorder.apply(tape, call, anchor, *outputs)  # type: ignore[no-untyped-call]
        for position, value in zip(float_positions, recorded_outputs, strict=True):
            flat[position] = value
        return pytree.tree_unflatten(flat, output_layout)

    return forward


@contextmanager
def use_forward(module: Any, forward: ForwardFunction | None) -> Iterator[None]:
    """Give ``module`` the method ``forward`` inside the block, or that of its class if None."""
    previous = module.__dict__.get("forward")
    _set_forward(module, forward)
    try:
        yield
    finally:
        _set_forward(module, previous)


def _set_forward(module: Any, forward: ForwardFunction | None) -> None:
    module.__dict__.pop("forward", None)
    if forward is not None:
        module.forward = forward


def _run_module(module: nn.Module, name: str, args: Any, kwargs: Any) -> Any:
    buffers = [(buffer, buffer._version) for buffer in module.buffers()]
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    random_states = _get_random_states(module)
    try:
        for parameter in trainable:
            parameter.requires_grad_(False)
        with use_tape(None):
            output = module.forward(*args, **kwargs)
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)
    if any(buffer._version != version for buffer, version in buffers):
        raise InseparableExamplesError(name, "writes a buffer, which carries information from example to example")
    if not all(map(torch.equal, random_states, _get_random_states(module))):
        raise ConfigurationError(f"{name}: draws random numbers; make its dropout a separate module")
    return output


def _get_random_states(module: nn.Module) -> list[Tensor]:
    device = next(module.parameters()).device
    cuda_states = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *cuda_states]


@dataclass(frozen=True)
class _OpaqueCall:
    """One call of a module: the ``leaves`` of its arguments, those at ``tensor_positions`` tensors [B, ...].

    Inputs in ``merged_inputs``, and outputs in ``merged_outputs``, are [B·T, ...] for B examples.
    """

    module: nn.Module
    original_forward: ForwardFunction | None
    name: str
    leaves: list[Any]
    layout: Any
    tensor_positions: list[int]
    examples: int
    merged_inputs: frozenset[int]
    merged_outputs: list[bool]

    def compute_gradients(self, deltas: dict[int, Tensor]) -> tuple[NamedTensors, list[Tensor]]:
        """Return ∂loss/∂parameter of every example, and the used outputs, computed again.

        ``deltas`` maps an output's index to ∂loss/∂output [B, ...].
        """
        inputs = [
            self.split_if_merged(self.leaves[position].detach(), position in self.merged_inputs)
            for position in self.tensor_positions
        ]
        split_deltas = [
            self.split_if_merged(delta, self.merged_outputs[position]) for position, delta in deltas.items()
        ]
        if any(len(x) != len(split_deltas[0]) for x in [*inputs, *split_deltas]):
            raise InseparableExamplesError(self.name, "every input and output tensor must begin with the batch")
        parameters = {name: p.detach() for name, p in self.module.named_parameters() if p.requires_grad}

        def compute_example_gradients(
            inputs: list[Tensor], output_gradients: list[Tensor]
        ) -> tuple[NamedTensors, list[Tensor]]:
            differentiated: Any = vjp(
                lambda changed_parameters: self._select_outputs(
                    self._run_single_example(changed_parameters, inputs), deltas
                ),
                parameters,
            )
            outputs, pullback = differentiated
            return pullback(output_gradients)[0], outputs

        with use_forward(self.module, self.original_forward), use_tape(None):
            try:
                return vmap(compute_example_gradients)(inputs, split_deltas)
            except RuntimeError:
                rows = range(len(split_deltas[0]))
            try:
                pairs = [
                    self._compute_single_gradients(
                        [x[row] for x in inputs], {k: x[row] for k, x in zip(deltas, split_deltas, strict=True)}
                    )
                    for row in rows
                ]
            except RuntimeError:
                raise InseparableExamplesError(self.name, "cannot be run on a single example") from None
        gradients, outputs = zip(*pairs, strict=True)
        stacked = {
            name: torch.stack([example_gradients[name] for example_gradients in gradients]) for name in parameters
        }
        return stacked, [torch.stack(rows) for rows in zip(*outputs, strict=True)]

    @torch.enable_grad()
    def _compute_single_gradients(
        self, inputs: list[Tensor], output_gradients: dict[int, Tensor]
    ) -> tuple[NamedTensors, list[Tensor]]:
        """Compute the gradients of one example with plain autograd, which handles what ``torch.func`` cannot trace."""
        trainable = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
        outputs = self._select_outputs(self._run_single_example({}, inputs), output_gradients)
        parameter_gradients = torch.autograd.grad(
            outputs, list(trainable.values()), list(output_gradients.values()), allow_unused=True
        )
        pairs = zip(trainable.items(), parameter_gradients, strict=True)
        gradients = {name: torch.zeros_like(p) if g is None else g.detach() for (name, p), g in pairs}
        return gradients, [output.detach() for output in outputs]

    def _select_outputs(self, outputs: list[Tensor], positions: Iterable[int]) -> list[Tensor]:
        return [outputs[position] if self.merged_outputs[position] else outputs[position][0] for position in positions]

    def split_if_merged(self, x: Tensor, is_merged: bool) -> Tensor:
        if not x.dim():
            raise InseparableExamplesError(self.name, "every input and output tensor must begin with the batch")
        return _split_merged_batch(x, self.examples) if is_merged else x

    def _run_single_example(self, parameters: NamedTensors, inputs: list[Tensor]) -> list[Tensor]:
        leaves = list(self.leaves)
        for position, x in zip(self.tensor_positions, inputs, strict=True):
            leaves[position] = x if position in self.merged_inputs else x[None]
        args, kwargs = pytree.tree_unflatten(leaves, self.layout)
        flat, _ = pytree.tree_flatten(functional_call(self.module, parameters, args, kwargs))
        return [leaf for leaf in flat if _is_float_tensor(leaf)]


class _GradientRecorder(torch.autograd.Function):
    """Pass the outputs of a call through; their gradients yield the examples' gradients."""

    @staticmethod
    def forward(ctx: Any, tape: Tape, call: _OpaqueCall, anchor: Tensor, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.tape, ctx.call = tape, call
        ctx.save_for_backward(*outputs)
        ctx.set_materialize_grads(False)
        # copies, because the next layer may write in place
        return tuple(output.clone() for output in outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *deltas: Tensor | None) -> tuple[Tensor | None, ...]:
        used = {position: delta for position, delta in enumerate(deltas) if delta is not None}
        gradients, outputs = ctx.call.compute_gradients(used)
        for position, recomputed in zip(used, outputs, strict=True):
            first = ctx.call.split_if_merged(ctx.saved_tensors[position], ctx.call.merged_outputs[position])
            _check_equal_outputs(first, recomputed, ctx.call.name)
        parameters = dict(ctx.call.module.named_parameters())
        for name, gradient in gradients.items():
            ctx.tape.report_dense_gradients(parameters[name], gradient)
        return None, None, None, *deltas


def _is_float_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _check_equal_outputs(first: Tensor, recomputed: Tensor, name: str) -> None:
    if first.shape != recomputed.shape:
        raise InseparableExamplesError(name, "every input and output tensor must begin with the batch")
    is_finite = first.isfinite() & recomputed.isfinite()
    first, recomputed = first[is_finite], recomputed[is_finite]
    if len(first) and float((first - recomputed).abs().max()) > 1e-3 * float(first.abs().max()) + 1e-12:
        raise InseparableExamplesError(name, "its result for one example depends on the others in its batch")
