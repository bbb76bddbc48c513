"""Test on synthetic examples whether the engine clips a network exactly.

There is no list of supported architectures. The network reads a few examples, in one batch and individually, and the
engine's result is compared with autograd. If a layer cannot separate examples (a convolution called by its weight,
relative positions that all examples share), the enclosing block is recorded as one, and so on outwards: that block runs
again on each example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError
from redactory.training.clipping.engine import (
    RECORD_AS_ONE,
    ClippedGradient,
    compute_clipped_gradient,
    find_recording_sites,
    get_trainable_parameters,
    require_supported_network,
    split_by_parameter,
)
from redactory.training.clipping.gradients import InseparableExamplesError

LossCallable = Callable[[], Tensor]
TEST_CLIP_NORM = 0.1
MAX_LOSS_DIFFERENCE, MAX_GRADIENT_DIFFERENCE = 1e-5, 1e-4
"""Largest error of a loss and of a gradient, relative to the largest: float32 rounding in a deep network."""


def check_exact_clipping(
    network: nn.Module,
    losses: LossCallable,
    single_losses: Sequence[LossCallable],
    long_batch_losses: LossCallable | None = None,
) -> None:
    """Raise ``ConfigurationError`` naming the cause unless the clipped sum equals that of autograd.

    ``losses`` runs the network on a batch of examples of different lengths and returns the loss of each, [B]. Each of
    ``single_losses`` returns the loss of one example, [1]. ``long_batch_losses`` returns the loss of the first of them
    next to an example of the training's full length: rotary positions may change at some length, for the whole batch.

    Use synthetic examples whose number and lengths are prime, so that no dimension is mistaken for another. Blocks that
    must be recorded as one are marked, and stay marked. All-zero parameters are perturbed during the comparison.

    Formal guarantees: none beyond what is compared. A network that computes differently on other examples, or in a
    batch of another shape, is not detected; :func:`~redactory.training.clipping.check_batch_independence` checks
    again on the examples of a training.
    """
    require_supported_network(network)
    with _perturb_zero_parameters(network):
        _check_loss_independence(network, losses, single_losses)
        if long_batch_losses is not None:
            _check_loss_independence(network, long_batch_losses, single_losses[:1])
        clipped = _clip_widening_blocks(network, losses, len(single_losses))
        expected, norms = _clip_by_autograd(network, single_losses)
    norm_difference = float((clipped.norms - norms).abs().max())
    parameters, largest = get_trainable_parameters(network), MAX_GRADIENT_DIFFERENCE * float(expected.norm())
    differences = split_by_parameter(parameters.values(), clipped.flat - expected)
    for name, (_, difference) in zip(parameters, differences, strict=True):
        if float(difference.norm()) > largest:
            raise ConfigurationError(f"{name}: its clipped gradient differs from that of autograd")
    if norm_difference > MAX_GRADIENT_DIFFERENCE * float(norms.max()):
        raise ConfigurationError("the norms of the examples' gradients differ from those of autograd")


def _check_loss_independence(network: nn.Module, losses: LossCallable, single_losses: Sequence[LossCallable]) -> None:
    """Check that an example's loss is reproducible, independent of longer examples in the batch, and stateless."""
    buffer_copies = {name: buffer.clone() for name, buffer in network.named_buffers()}
    with torch.no_grad():
        computed = []
        for loss in (losses, losses, *single_losses):
            computed.append(loss())
            for name, buffer in network.named_buffers():
                if not torch.equal(buffer_copies.setdefault(name, buffer.clone()), buffer):
                    raise ConfigurationError(
                        f"{name}: an example changes this buffer, and with it the results of later ones "
                        "(rotary positions that change with the length?)"
                    )
        first, repeated, *rest = (batch_losses[: len(single_losses)] for batch_losses in computed)
        single = torch.cat(rest)
    if not bool((first.isfinite() & single.isfinite()).all()):
        raise ConfigurationError("the network gives a non-finite loss for an example")
    if not torch.equal(first, repeated):
        raise ConfigurationError("the network draws random numbers (dropout?), or remembers the last batch")
    if float((first - single).abs().max()) > MAX_LOSS_DIFFERENCE * max(1.0, float(single.abs().max())):
        raise ConfigurationError(
            "the loss of an example changes beside a longer one: the network sees padding or other "
            "examples, so per-example gradients do not exist"
        )


def _clip_widening_blocks(network: nn.Module, losses: LossCallable, batch_size: int) -> ClippedGradient:
    """Return the clipped sum, marking ever larger blocks as one until examples can be separated."""
    first: InseparableExamplesError | None = None
    while True:
        try:
            return compute_clipped_gradient(network, losses, TEST_CLIP_NORM, batch_size)
        except InseparableExamplesError as problem:
            first = first or problem
            if not _record_enclosing_block(network, problem.name):
                raise ConfigurationError(f"{first}; and no block around it can be run on each example alone") from None


def _record_enclosing_block(network: nn.Module, name: str) -> bool:
    """Mark the block around ``name``, and all of its kind, to be recorded as one; False at the top."""
    inner_sites = [site.name for site in find_recording_sites(network) if f"{name}.".startswith(f"{site.name}.")]
    block_name = inner_sites[0].rpartition(".")[0] if inner_sites else ""
    while block_name and type(network.get_submodule(block_name)).forward is nn.Module.forward:
        block_name = block_name.rpartition(".")[0]
    if not block_name:
        return False
    kind = type(network.get_submodule(block_name))
    for module in network.modules():
        if type(module) is kind:
            setattr(module, RECORD_AS_ONE, True)
    return True


def _clip_by_autograd(network: nn.Module, single_losses: Sequence[LossCallable]) -> tuple[Tensor, Tensor]:
    """Return Σ_i g_i · min(1, C/‖g_i‖), flat, and the norms [B] float64, with one backward pass per example."""
    trainable, norms = list(get_trainable_parameters(network).values()), []
    total = torch.cat([torch.zeros_like(p.detach()).flatten() for p in trainable])
    for loss in single_losses:
        gradients = torch.autograd.grad(loss().sum(), trainable, allow_unused=True)
        pairs = zip(gradients, trainable, strict=True)
        gradient = torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs]).detach()
        norms.append(torch.linalg.vector_norm(gradient, dtype=torch.float64))
        total += gradient * min(1.0, TEST_CLIP_NORM / max(float(norms[-1]), 1e-300))
    return total, torch.stack(norms)


@contextmanager
def _perturb_zero_parameters(network: nn.Module) -> Iterator[None]:
    """Perturb all-zero parameters inside the block: an adapter's zero matrix hides its other matrix."""
    zero = [p for p in get_trainable_parameters(network).values() if not bool(p.any())]
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.no_grad():
            for parameter in zero:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        yield
    finally:
        with torch.no_grad():
            for parameter in zero:
                parameter.zero_()
