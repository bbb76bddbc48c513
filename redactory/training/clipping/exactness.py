"""Whether the engine clips a network exactly, found out by looking at it: on points that mean nothing.

No list says which architectures are clipped.  The network reads a few points, together and each alone, and
what the engine makes of them is held against autograd.  Where a layer cannot tell points apart by itself (a
convolution that is called by its weight, relative positions that all points share), the block around it is
recorded as one, and so on outwards: it runs again on each point alone.
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
    check_supported,
    compute_clipped_gradient,
    find_recording_sites,
    trainable_parameters,
)
from redactory.training.clipping.gradients import InseparableExamples

LossCallable = Callable[[], Tensor]
TEST_CLIP_NORM = 0.1
MAX_LOSS_DIFFERENCE, MAX_GRADIENT_DIFFERENCE = 1e-5, 1e-4
"""How far, relative to the largest, a loss or a gradient may lie from what it should be: float32's rounding
in a deep network, and no more."""


def check_exact(
    network: nn.Module,
    losses: LossCallable,
    single_losses: Sequence[LossCallable],
    long_batch_losses: LossCallable | None = None,
) -> None:
    """``ConfigurationError`` naming what stands in the way unless the clipped sum is that of autograd.

    ``losses`` runs the network on a batch of points of different lengths and gives the loss of each, [B]; ``alone``
    gives the loss of each by itself, [1].  Take points that mean nothing: their number and lengths should be prime, so
    that a layer is not taken for another.  ``beside_long`` gives the loss of the first of them beside a point as long
    as a training has: rotary positions may change at some length, for all of a batch.  Blocks that must be recorded as
    one are marked so, and stay marked.  A parameter that is all zero is moved for the time of the comparison.

    Formal guarantees: none beyond what is compared.  A network that computes otherwise on other points, or in
    a batch of another shape, is not seen; :func:`redactory.training.clipping.check_parts` looks again at the
    points of a training.
    """
    check_supported(network)
    with _perturb_zero_parameters(network):
        _check_loss_independence(network, losses, single_losses)
        if long_batch_losses is not None:
            _check_loss_independence(network, long_batch_losses, single_losses[:1])
        clipped = _clip_and_widen(network, losses, len(single_losses))
        expected, norms = _clip_by_autograd(network, single_losses)
    distance = float((clipped.norms - norms).abs().max())
    parameters = trainable_parameters(network)
    sizes = [parameter.numel() for parameter in parameters.values()]
    shares = zip(torch.split(clipped.flat, sizes), torch.split(expected, sizes), strict=True)
    for (name, parameter), (share, expected_share) in zip(parameters.items(), shares, strict=True):
        if parameter.numel() and float((share - expected_share).norm()) > MAX_GRADIENT_DIFFERENCE * float(
            expected.norm()
        ):
            raise ConfigurationError(f"{name}: its clipped gradient differs from that of autograd")
    if distance > MAX_GRADIENT_DIFFERENCE * float(norms.max()):
        raise ConfigurationError("the norms of the examples' gradients differ from those of autograd")


def _check_loss_independence(network: nn.Module, losses: LossCallable, single_losses: Sequence[LossCallable]) -> None:
    """A point's loss is the same each time, whatever longer point stands beside it, and leaves no trace."""
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
        first, repeated, *rest = (point_losses[: len(single_losses)] for point_losses in computed)
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


def _clip_and_widen(network: nn.Module, losses: LossCallable, batch_size: int) -> ClippedGradient:
    """The clipped sum, after marking blocks as one until their points can be told apart."""
    first: InseparableExamples | None = None
    while True:
        try:
            return compute_clipped_gradient(network, losses, TEST_CLIP_NORM, batch_size)
        except InseparableExamples as problem:
            first = first or problem
            if not _record_enclosing_block(network, problem.name):
                raise ConfigurationError(f"{first}; and no block around it can be run on each example alone") from None


def _record_enclosing_block(network: nn.Module, name: str) -> bool:
    """Mark the block around what is recorded at ``name`` as one, and all of its kind; False at the top."""
    inside = [site.name for site in find_recording_sites(network) if f"{name}.".startswith(f"{site.name}.")]
    outer = inside[0].rpartition(".")[0] if inside else ""
    while outer and type(network.get_submodule(outer)).forward is nn.Module.forward:
        outer = outer.rpartition(".")[0]  # a list of blocks is never run itself
    if not outer:
        return False
    kind = type(network.get_submodule(outer))
    for module in network.modules():
        if type(module) is kind:
            setattr(module, RECORD_AS_ONE, True)
    return True


def _clip_by_autograd(network: nn.Module, single_losses: Sequence[LossCallable]) -> tuple[Tensor, Tensor]:
    """Σ_i g_i · min(1, C/‖g_i‖), flat, and the norms [B] float64: one backward pass a point."""
    trainable, norms = list(trainable_parameters(network).values()), []
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
    """Trainable parameters that are all zero (an adapter's second matrix hides its first) are not, inside."""
    zero = [p for p in trainable_parameters(network).values() if not bool(p.any())]
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
