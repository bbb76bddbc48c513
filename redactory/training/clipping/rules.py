"""Which layers the engine knows, and how each is recorded for the time of one forward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError
from redactory.training.clipping.functions import Embedding, LayerNorm, Linear, Scale, TurnedLinear
from redactory.training.clipping.uses import Tape
from redactory.training.layers.lstm import LayerWeights, lstm_layer

Forward = Callable[..., Any]
_PLAIN: dict[type, bool] = {}
Rule = Callable[[Any, str, Tape], Forward]
"""(module, its name, the tape) to what stands in for the module's ``forward``."""


def rule_of(module: nn.Module) -> Rule | None:
    """The rule for a module of a known kind, None for any other.

    A kind is known by the ``forward`` of its class: a subclass that computes something else has
    another.  A module whose parameters are computed (parametrizations, weight norm) is of no known kind.
    """
    if "forward" in module.__dict__ or next(module.children(), None) is not None:
        return None
    forward = type(module).forward
    if forward is nn.LSTM.forward:
        assert isinstance(module, nn.LSTM)
        return None if module.bidirectional or module.proj_size else _lstm
    if forward in _RULES:
        return _RULES[forward]
    if type(module).__module__.startswith("transformers."):
        return _of_transformers(module)
    return None


def _of_transformers(module: nn.Module) -> Rule | None:
    name = type(module).__name__
    if name == "Conv1D":
        return _conv1d
    if name.endswith("RMSNorm") and _is_plain_rms_norm(module):
        return _their_rms_norm
    return None


def _linear(module: nn.Linear, name: str, tape: Tape) -> Forward:
    def forward(input: Tensor) -> Tensor:  # noqa: A002 - the name that torch gives it
        return _apply(Linear, tape, _batched(input, name, tape), module.weight, module.bias)

    return forward


def _conv1d(module: Any, name: str, tape: Tape) -> Forward:
    def forward(x: Tensor) -> Tensor:
        return _apply(TurnedLinear, tape, _batched(x, name, tape), module.weight, module.bias)

    return forward


def _embedding(module: nn.Embedding, name: str, tape: Tape) -> Forward:
    if module.max_norm is not None or module.scale_grad_by_freq:
        raise ConfigurationError(
            f"{name}: max_norm and scale_grad_by_freq let one point move another's gradient"
        )

    def forward(input: Tensor) -> Tensor:  # noqa: A002 - the name that torch gives it
        ids = _batched(input, name, tape)
        if len(ids) == 1 and tape.examples > 1:
            # One row of position ids for all: every example reads it, so every example gets its own.
            ids = ids.expand(tape.examples, *ids.shape[1:])
        return _apply(Embedding, tape, ids, module.weight, module.padding_idx)

    return forward


def _layer_norm(module: nn.LayerNorm, name: str, tape: Tape) -> Forward:
    def forward(input: Tensor) -> Tensor:  # noqa: A002 - the name that torch gives it
        return _apply(LayerNorm, tape, _batched(input, name, tape), module.weight, module.bias, module.eps)

    return forward


def _rms_norm(module: nn.RMSNorm, name: str, tape: Tape) -> Forward:
    def forward(x: Tensor) -> Tensor:
        plain = F.rms_norm(_batched(x, name, tape), module.normalized_shape, None, module.eps)
        return _apply(Scale, tape, plain, module.weight)

    return forward


def _their_rms_norm(module: Any, name: str, tape: Tape) -> Forward:
    def forward(hidden_states: Tensor) -> Tensor:
        plain = _their_normalised(_batched(hidden_states, name, tape), module.variance_epsilon)
        return _apply(Scale, tape, plain, module.weight)

    return forward


def _their_normalised(x: Tensor, eps: float) -> Tensor:
    """x over its root mean square, in float32 whatever x is: what transformers' RMSNorms compute."""
    single = x.to(torch.float32)
    return (single * torch.rsqrt(single.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


@torch.no_grad()
def _is_plain_rms_norm(module: Any) -> bool:
    """Whether a class named like one computes weight · x / rms(x): some add 1 to the weight."""
    kind = type(module)
    if kind not in _PLAIN:
        _PLAIN[kind] = _computes_rms_norm(module)
    return _PLAIN[kind]


def _computes_rms_norm(module: Any) -> bool:
    eps = getattr(module, "variance_epsilon", None)
    if eps is None or not isinstance(getattr(module, "weight", None), nn.Parameter):
        return False
    x = torch.linspace(-1.0, 2.0, module.weight.numel()).to(module.weight)[None]
    return torch.allclose(module(x), module.weight * _their_normalised(x, eps))


def _lstm(module: nn.LSTM, name: str, tape: Tape) -> Forward:
    def forward(input: Tensor, hx: Any = None) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # noqa: A002
        if not isinstance(input, Tensor) or input.dim() != 3:
            raise ConfigurationError(f"{name}: takes padded batches [B, T, I], not packed ones")
        if hx is not None and any(state.requires_grad or bool(state.any()) for state in hx):
            raise ConfigurationError(
                f"{name}: a hidden state is handed in; every point must start from the zero state"
            )
        states = _batched(input if module.batch_first else input.transpose(0, 1), name, tape)
        last, cells = [], []
        for layer in range(module.num_layers):
            if layer:
                states = F.dropout(states, module.dropout, module.training)
            weights = [getattr(module, f"{part}_l{layer}", None) for part in LayerWeights._fields]
            states, cell = lstm_layer(states, LayerWeights(*weights))  # type: ignore[arg-type]
            last.append(states[:, -1])
            cells.append(cell)
        output = states if module.batch_first else states.transpose(0, 1)
        return output, (torch.stack(last), torch.stack(cells))

    return forward


_RULES: dict[Any, Rule] = {
    nn.Linear.forward: _linear,
    nn.Embedding.forward: _embedding,
    nn.LayerNorm.forward: _layer_norm,
    nn.RMSNorm.forward: _rms_norm,
}


def _batched(x: Tensor, name: str, tape: Tape) -> Tensor:
    """``x``, noted as the input of a layer; it needs a dimension for the examples besides its own."""
    if x.dim() < 2:
        raise ConfigurationError(f"{name}: its input has no dimension for the points of a batch")
    tape.examples = max(tape.examples, len(x))
    return x


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> Tensor:
    output: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return output
