"""One physical batch: every point's gradient clipped, their sum, by one forward and one backward pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError
from redactory.training.clipping.products import Grams, formed_squares, squared_norms
from redactory.training.clipping.support import check_supported, recorded, shared_parameters, sites
from redactory.training.clipping.tape import Tape
from redactory.training.layers.recorder import listening
from redactory.training.mechanism import require_clip_norm

CANCELLATION = {torch.float32: 16.0, torch.float64: 1e4}
"""How far the terms of a squared norm may cancel before they are not trusted: relative errors of the
norm stay near 10⁻⁶ (float32) and 10⁻¹² (float64)."""
_PROBED: WeakKeyDictionary[nn.Module, tuple[str, ...]] = WeakKeyDictionary()
"""The layers of every network that was probed, as they were then."""


@dataclass(frozen=True)
class ClippedGradient:
    """Σ_i g_i · min(1, C/‖g_i‖) as ``flat`` [P], the ``norms`` ‖g_i‖ [B] and which count: ``finite`` [B].

    ``norms`` and ``finite`` are facts about single points: they may reach nothing that is released.
    """

    flat: Tensor
    norms: Tensor
    finite: Tensor


def clipped_gradient(network: nn.Module, losses: Callable[[], Tensor], clip_norm: float) -> ClippedGradient:
    """The clipped gradients of the points of one batch, summed.

    ``losses`` runs the network and gives the loss of each point, [B]; C is ``clip_norm``.  ``flat``
    holds the trainable ``named_parameters`` in their order, a shared one once.  Book-keeping: the
    layers keep their inputs and their outputs' gradients of one backward pass, from which come the
    norms, and then the sum by one weighted product a layer.  ``ConfigurationError`` for a network
    whose points cannot be told apart, and for a C below 10⁻⁶ or above 10⁶.

    Formal guarantees: each term of ``flat`` has norm at most C in exact arithmetic and is a function
    of the parameters, the point and its own random numbers; a point whose gradient, or its squared
    norm, is not finite contributes zero, and so does one whose norm underflows to 0, or is so large that its
    weight C/‖g‖ would.
    """
    require_clip_norm(clip_norm)
    check_supported(network)
    learnt = {name: p for name, p in network.named_parameters() if p.requires_grad}
    tape = Tape({id(p): name for name, p in learnt.items()}, shared_parameters(network))
    found = sites(network)
    with recorded(found, tape), listening(tape):
        values = losses()
    if values.dim() != 1:
        raise ConfigurationError("the losses of a batch must have one dimension, the points")
    if not len(values) or not values.requires_grad:
        return _nothing(learnt, values)
    names = tuple(site.name for site in found)
    if len(values) > 1 and _PROBED.get(network) != names:
        _probe(tape, values, learnt)
        _PROBED[network] = names
    _backward(tape, values, torch.ones_like(values), learnt)
    return _clip(tape, learnt, len(values), clip_norm)


def _nothing(learnt: dict[str, nn.Parameter], values: Tensor) -> ClippedGradient:
    parameters = [p.new_zeros(p.numel(), requires_grad=False) for p in learnt.values()]
    zeros = values.detach().new_zeros(len(values), dtype=torch.float64)
    return ClippedGradient(torch.cat(parameters), zeros, torch.ones_like(zeros, dtype=torch.bool))


def _backward(
    tape: Tape, values: Tensor, each: Tensor, learnt: dict[str, nn.Parameter], again: bool = False
) -> None:
    """Run the backward pass of Σ_i each_i · values_i; what reaches a parameter by itself is refused."""
    found = torch.autograd.grad(values, list(learnt.values()), each, retain_graph=again, allow_unused=True)
    for name, gradient in zip(learnt, found, strict=True):
        if gradient is not None:
            raise ConfigurationError(f"{name}: used outside of its layer, where points cannot be told apart")
    tape.check_examples(len(values))


def _probe(tape: Tape, values: Tensor, learnt: dict[str, nn.Parameter]) -> None:
    """The losses of the first half of the points must move nothing in the rows of the others.

    Once for every network, on its first batch of two points or more; rows that are not finite say
    nothing.
    """
    first = torch.zeros_like(values)
    first[: len(values) // 2] = 1.0
    tape.probing = True
    _backward(tape, values, first, learnt, again=True)
    for key, uses in tape.uses.items():
        squared = squared_norms(uses, {}).total[len(values) // 2 :]
        if bool((squared.isfinite() & (squared != 0.0)).any()):
            raise ConfigurationError(f"{tape.names[key]}: one point's loss depends on another's row")
    tape.uses.clear()
    tape.probing = False


@torch.no_grad()
def _clip(tape: Tape, learnt: dict[str, nn.Parameter], examples: int, clip_norm: float) -> ClippedGradient:
    squared = _squared(tape, next(iter(learnt.values())), examples)
    norms = squared.clamp(min=0.0).sqrt()
    weights = (clip_norm / norms).clamp(max=1.0)
    # a subnormal weight has lost bits, up to all but one: it would not clip
    finite = squared.isfinite() & (weights >= torch.finfo(next(iter(learnt.values())).dtype).tiny)
    weights = weights.masked_fill(norms == 0.0, 0.0)
    if not bool(finite.all()):
        bad = finite.logical_not()
        weights = weights.masked_fill(bad, 0.0)
        tape.uses = {key: [use.without(bad) for use in uses] for key, uses in tape.uses.items()}
    return ClippedGradient(_weighted_sum(tape, learnt, weights), norms, finite)


def _squared(tape: Tape, like: Tensor, examples: int) -> Tensor:
    """‖g_i‖² of every point, [B] float64.

    Gram matrices give it as a sum of terms that may cancel.  Where so little is left that rounding
    would show, the gradients themselves are formed.
    """
    grams: Grams = {}
    squared = torch.zeros(examples, dtype=torch.float64, device=like.device)
    own = torch.zeros_like(squared)
    for uses in tape.uses.values():
        found = squared_norms(uses, grams)
        squared += found.total
        own += found.own
    doubtful = (squared * CANCELLATION[like.dtype] < own) & own.isfinite()
    rows = doubtful.nonzero().flatten().tolist()
    if rows:
        formed = [formed_squares(uses, rows) for uses in tape.uses.values()]
        squared[doubtful] = torch.stack(formed).sum(0)
    return squared


def _weighted_sum(tape: Tape, learnt: dict[str, nn.Parameter], weights: Tensor) -> Tensor:
    """Σ_i weights_i g_i, flat in the order of ``learnt``; the tape is emptied."""
    first = next(iter(learnt.values()))
    flat = first.new_empty(sum(p.numel() for p in learnt.values()), requires_grad=False)
    weights = weights.to(flat.dtype)
    start = 0
    for parameter in learnt.values():
        total = flat[start : start + parameter.numel()].view(parameter.shape)
        start += parameter.numel()
        uses = tape.uses.pop(id(parameter), [])
        if not uses:
            total.zero_()
        for place in range(len(uses)):
            uses.pop(0).add_to(total, weights, fresh=place == 0)
    return flat
