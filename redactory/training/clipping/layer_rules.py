"""Rules that record each known kind of layer during one forward pass.

A rule replaces a module's ``forward`` by one that treats the parameters as constants and reports their gradients to a
tape in the backward pass. :data:`_RULES` is the table of rules. Modules of an unknown kind use
:func:`record_opaque_module`, which computes the examples' gradients with ``torch.func`` on that module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
from redactory.training.clipping.gradients import InseparableExamplesError, Tape, record_gradients, use_tape
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
NamedTensors = dict[str, Tensor]


class _ConstantLinear(torch.autograd.Function):
    """Multiply ``inputs`` [N, I] by ``weight`` [O, I] transposed and add ``bias`` [O]; only the inputs have a gradient.

    Both passes use the fastest product of the machine, and autocast's type.
    """

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        dtype = get_product_dtype(weight)
        return apply_affine(inputs.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, delta: Tensor) -> tuple[Tensor | None, None, None]:
        weight = ctx.saved_tensors[0]
        return apply_affine(delta, weight.to(delta.dtype).t(), None) if ctx.needs_input_grad[0] else None, None, None


def _multiply_by_weight(module: Any, inputs: Tensor) -> Tensor:
    weight = module.weight.t() if _is_transposed(module) else module.weight
    output: Tensor = _ConstantLinear.apply(inputs, weight, module.bias)  # type: ignore[no-untyped-call]
    return output


def _report_linear(module: Any, tape: Tape, examples: int, inputs: Tensor, delta: Tensor) -> None:
    rows, inputs = (x.reshape(examples, -1, x.shape[-1]) for x in (delta, inputs))
    inputs = inputs.to(rows.dtype)  # autocast rounded the factors of the product
    tape.report_outer_products(module.weight, *((inputs, rows) if _is_transposed(module) else (rows, inputs)))
    if module.bias is not None:
        tape.report_dense_gradients(module.bias, rows.sum(1, dtype=module.bias.dtype))


def _report_embedding(module: nn.Embedding, tape: Tape, examples: int, ids: Tensor, delta: Tensor) -> None:
    rows, ids = delta.reshape(examples, -1, delta.shape[-1]), ids.reshape(examples, -1)
    if module.padding_idx is not None:
        rows = rows.masked_fill((ids == module.padding_idx)[:, :, None], 0.0)
    tape.report_embedding_rows(module.weight, ids, rows)


def _report_layer_norm(module: nn.LayerNorm, tape: Tape, examples: int, inputs: Tensor, delta: Tensor) -> None:
    normalised = F.layer_norm(inputs.to(module.weight.dtype), module.normalized_shape, eps=module.eps)
    for parameter, gradients in ((module.weight, normalised.mul_(delta)), (module.bias, delta)):
        tape.report_dense_gradients(parameter, gradients.reshape(examples, -1, *module.weight.shape).sum(1))


def _report_rms_norm(module: Any, tape: Tape, examples: int, inputs: Tensor, delta: Tensor) -> None:
    # the RMSNorms of transformers have variance_epsilon
    eps = module.eps if isinstance(module, nn.RMSNorm) else module.variance_epsilon
    gradients = to_float32(F.rms_norm(inputs, module.weight.shape, None, eps)) * delta
    tape.report_dense_gradients(module.weight, gradients.reshape(examples, -1, *module.weight.shape).sum(1))


def _make_rule(report: Callable[[Any, Tape, int, Tensor, Tensor], None]) -> RecordingRule:
    """Make the rule for a module of one input.

    ``report`` computes the gradients of a number of examples from the input and the gradient of the output.
    """

    def make_recorded_forward(module: Any, name: str, tape: Tape) -> ForwardFunction:
        anchor, is_linear = next(p for p in module.parameters() if p.requires_grad), report is _report_linear

        def forward(*positional: Tensor, **keywords: Tensor) -> Tensor:
            (x,) = (*positional, *keywords.values())
            if isinstance(module, nn.Embedding):
                x = _expand_shared_row(x, tape)
            if x.dim() < 2:
                raise InseparableExamplesError(name, "its input has no dimension for the examples of a batch")
            examples, shape = tape.example_count if tape.observe_batch_rows(len(x)) else len(x), x.shape
            if is_linear:
                x = x.flatten(0, -2)

            def report_gradients(saved: Sequence[Tensor], deltas: Sequence[Tensor | None]) -> None:
                assert deltas[0] is not None
                report(module, tape, examples, saved[0], deltas[0])

            with _use_constant_parameters(module):
                # the layer itself may return a view, which autograd copies to record it
                output = _multiply_by_weight(module, x) if is_linear else type(module).forward(module, x)
            (recorded,) = record_gradients(report_gradients, [x.detach()], anchor, output)
            return recorded.view(*shape[:-1], recorded.shape[-1]) if is_linear else recorded

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


_record_linear, _record_rms_norm = _make_rule(_report_linear), _make_rule(_report_rms_norm)
_RULES: dict[Any, RecordingRule] = {
    nn.Linear.forward: _record_linear,
    nn.Embedding.forward: _make_rule(_report_embedding),
    nn.LayerNorm.forward: _make_rule(_report_layer_norm),
    nn.RMSNorm.forward: _record_rms_norm,
    nn.LSTM.forward: _record_lstm,
}
"""Rules by the ``forward`` of the module's class."""
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
            return _record_rms_norm
        if _is_transposed(module):
            return _record_linear
    return _RULES.get(type(module).forward)


@torch.no_grad()
def _is_standard_rms_norm(module: Any) -> bool:
    """Return whether a class named like an RMSNorm computes weight · x / rms(x); some add 1 to the weight."""
    if type(module) not in _IS_STANDARD_RMS_NORM:
        eps, weight = getattr(module, "variance_epsilon", None), getattr(module, "weight", None)
        is_plain = eps is not None and isinstance(weight, nn.Parameter)
        if is_plain:
            x = torch.linspace(-1.0, 2.0, module.weight.numel()).to(module.weight)[None]
            is_plain = torch.allclose(module(x), module.weight * F.rms_norm(x, x.shape[1:], None, eps))
        _IS_STANDARD_RMS_NORM[type(module)] = is_plain
    return _IS_STANDARD_RMS_NORM[type(module)]


def _is_transposed(module: nn.Module) -> bool:
    """Whether the weight of a linear layer is [inputs, outputs], as in the Conv1D of transformers."""
    return type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")


def _expand_shared_row(x: Tensor, tape: Tape) -> Tensor:
    """Repeat one row that all examples share, such as positions, once per example."""
    return x.expand(tape.example_count, *x.shape[1:]) if x.dim() > 1 and len(x) == 1 and tape.example_count > 1 else x


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
            tape,
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
        # copies, because the next layer may write in place
        copies = [value.clone() for value in outputs]
        recorded = record_gradients(call.report_gradients, [value.detach() for value in outputs], anchor, *copies)
        for position, value in zip(float_positions, recorded, strict=True):
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


@contextmanager
def _use_constant_parameters(module: nn.Module) -> Iterator[None]:
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    try:
        for parameter in trainable:
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


def _run_module(module: nn.Module, name: str, args: Any, kwargs: Any) -> Any:
    buffers = [(buffer, buffer._version) for buffer in module.buffers()]
    random_states = read_generator_states()
    with _use_constant_parameters(module), use_tape(None):
        output = module.forward(*args, **kwargs)
    if any(buffer._version != version for buffer, version in buffers):
        raise InseparableExamplesError(name, "writes a buffer, which carries information from example to example")
    if not all(map(torch.equal, random_states, read_generator_states())):
        raise ConfigurationError(f"{name}: draws random numbers; make its dropout a separate module")
    return output


def read_generator_states() -> list[Tensor]:
    """Read the states of torch's random generators, of the processor and of every GPU that is in use."""
    cuda: Any = torch.cuda
    return [torch.get_rng_state(), *(cuda.get_rng_state_all() if cuda.is_initialized() else ())]


@dataclass(frozen=True)
class _OpaqueCall:
    """One call of a module: the ``leaves`` of its arguments, those at ``tensor_positions`` tensors [B, ...].

    Inputs in ``merged_inputs``, and outputs in ``merged_outputs``, are [B·T, ...] for B examples.
    """

    tape: Tape
    module: nn.Module
    original_forward: ForwardFunction | None
    name: str
    leaves: list[Any]
    layout: Any
    tensor_positions: list[int]
    examples: int
    merged_inputs: frozenset[int]
    merged_outputs: list[bool]

    def report_gradients(self, saved: Sequence[Tensor], deltas: Sequence[Tensor | None]) -> None:
        """Report the examples' gradients, and check that the outputs equal ``saved``, those of the first run."""
        used = {position: delta for position, delta in enumerate(deltas) if delta is not None}
        gradients, outputs = self._compute_gradients(used)
        for position, recomputed in zip(used, outputs, strict=True):
            first = self._split_if_merged(saved[position], self.merged_outputs[position])
            _check_equal_outputs(first, recomputed, self.name)
        parameters = dict(self.module.named_parameters())
        for name, gradient in gradients.items():
            self.tape.report_dense_gradients(parameters[name], gradient)

    def _compute_gradients(self, deltas: dict[int, Tensor]) -> tuple[NamedTensors, list[Tensor]]:
        """Return ∂loss/∂parameter of every example, and the used outputs, computed again.

        ``deltas`` maps an output's index to ∂loss/∂output [B, ...].
        """
        inputs = [
            self._split_if_merged(self.leaves[position].detach(), position in self.merged_inputs)
            for position in self.tensor_positions
        ]
        split_deltas = [
            self._split_if_merged(delta, self.merged_outputs[position]) for position, delta in deltas.items()
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

    def _split_if_merged(self, x: Tensor, is_merged: bool) -> Tensor:
        if not x.dim():
            raise InseparableExamplesError(self.name, "every input and output tensor must begin with the batch")
        return x.reshape(self.examples, len(x) // self.examples, *x.shape[1:]) if is_merged else x

    def _run_single_example(self, parameters: NamedTensors, inputs: list[Tensor]) -> list[Tensor]:
        leaves = list(self.leaves)
        for position, x in zip(self.tensor_positions, inputs, strict=True):
            leaves[position] = x if position in self.merged_inputs else x[None]
        args, kwargs = pytree.tree_unflatten(leaves, self.layout)
        flat, _ = pytree.tree_flatten(functional_call(self.module, parameters, args, kwargs))
        return [leaf for leaf in flat if _is_float_tensor(leaf)]


def _is_float_tensor(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point()


def _check_equal_outputs(first: Tensor, recomputed: Tensor, name: str) -> None:
    if first.shape != recomputed.shape:
        raise InseparableExamplesError(name, "every input and output tensor must begin with the batch")
    is_finite = first.isfinite() & recomputed.isfinite()
    first, recomputed = first[is_finite], recomputed[is_finite]
    if len(first) and float((first - recomputed).abs().max()) > 1e-3 * float(first.abs().max()) + 1e-12:
        raise InseparableExamplesError(name, "its result for one example depends on the others in its batch")
