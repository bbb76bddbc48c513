"""Where the engine listens in a network, and which networks it refuses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm

from redactory.foundation.errors import ConfigurationError
from redactory.training.clipping.opaque import opaque
from redactory.training.clipping.rules import Rule, rule_of
from redactory.training.clipping.tape import Tape
from redactory.training.layers.lstm import Lstm


class Site(NamedTuple):
    """A module that is recorded by ``rule``; ``rule`` is None where it reports by itself."""

    name: str
    module: nn.Module
    rule: Rule | None


def check_supported(network: nn.Module) -> None:
    """``ConfigurationError`` naming the module that stands in the way of exact per-example clipping.

    Refused before anything runs: batch normalisation, running statistics, embeddings with
    ``max_norm`` or ``scale_grad_by_freq``, parameters of the network that belong to no layer, and
    parameters that share memory without being one.  Refused when they run: a hidden state handed
    to an LSTM, a layer whose input does not begin with the batch, a parameter used outside of its
    layer, and, on the first batch of two points or more, a loss whose gradient passes through another
    point's row.  What mixes points without a gradient (a batch centred or weighted by detached numbers)
    shows where a batch is held against its halves: :func:`check_parts`, which a training asks at its first
    step and every 1,000th.  ``clipped_gradient`` and ``clipped_backward`` know no halves and do not ask it.

    Not checked, and not to be seen from outside: what mixes points in some batches alone, or less than
    rounding does; what a module carries from one batch to the next in an attribute; and draws that look at
    data.
    """
    for name, module in network.named_modules():
        if isinstance(module, _BatchNorm):
            raise ConfigurationError(f"{name}: batch normalisation mixes points; use LayerNorm")
        if isinstance(module, _InstanceNorm) and module.track_running_stats:
            raise ConfigurationError(f"{name}: running statistics carry something from point to point")
        if isinstance(module, nn.Embedding) and (module.max_norm is not None or module.scale_grad_by_freq):
            raise ConfigurationError(f"{name}: max_norm and scale_grad_by_freq mix the points of a batch")
    kinds = {p.dtype for p in network.parameters() if p.requires_grad}
    if not kinds <= {torch.float32} and not kinds <= {torch.float64}:
        raise ConfigurationError("the trained parameters must all be float32, or all float64")
    own = [name for name, p in network.named_parameters(recurse=False) if p.requires_grad]
    if own:
        raise ConfigurationError(f"{own[0]}: a parameter of the network itself; make it part of a layer")
    places: dict[int, str] = {}
    for name, parameter in network.named_parameters():
        if parameter.requires_grad and parameter.numel():
            start = parameter.untyped_storage().data_ptr()
            if start in places:
                raise ConfigurationError(f"{name} and {places[start]} share memory but are two parameters")
            places[start] = name


def sites(network: nn.Module) -> list[Site]:
    """The modules of ``network`` with trainable parameters of their own, outermost first."""
    return [site for name, child in network.named_children() for site in _sites(child, name)]


def _sites(module: nn.Module, name: str) -> Iterator[Site]:
    if any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
        yield Site(name, module, None if isinstance(module, Lstm) else rule_of(module) or opaque)
        return
    for child_name, child in module.named_children():
        yield from _sites(child, f"{name}.{child_name}")


def shared_parameters(network: nn.Module) -> frozenset[int]:
    """The identities of the parameters that stand in more than one module."""
    held = Counter(
        id(p) for module in network.modules() for p in module._parameters.values() if p is not None
    )
    return frozenset(key for key, times in held.items() if times > 1)


@contextmanager
def recorded(found: list[Site], tape: Tape) -> Iterator[None]:
    """The modules report to ``tape`` for the time of a forward pass."""
    before = {id(site.module): site.module.__dict__.get("forward") for site in found}
    try:
        for site in found:
            if site.rule is not None:
                site.module.forward = site.rule(site.module, site.name, tape)
        yield
    finally:
        for site in found:
            forward = before[id(site.module)]
            if forward is not None:
                site.module.forward = forward
            elif "forward" in site.module.__dict__:
                del site.module.forward
