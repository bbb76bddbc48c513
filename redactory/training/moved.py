"""How far training moved each layer: adapters that stay where they were are a failure, not a result."""

from __future__ import annotations

from collections import defaultdict

from torch import nn

from redactory.foundation.errors import CheckFailed


def update_norms(before: nn.Module, after: nn.Module) -> dict[str, float]:
    """L2 norm of what training changed in each layer that it could change, by the layer's name.

    ``before`` is the network as it was initialised.  ``CheckFailed`` where no layer moved or a weight is
    no number: such a model is not what the summary would say it is.  The norms are functions of the
    released weights and of the first ones.
    """
    first = dict(before.named_parameters())
    squared: defaultdict[str, float] = defaultdict(float)
    for name, parameter in after.named_parameters():
        if parameter.requires_grad:
            change = parameter.detach().cpu().double() - first[name].detach().cpu().double()
            squared[name.rpartition(".")[0]] += float(change.square().sum())
    norms = {layer: value**0.5 for layer, value in squared.items()}
    if not all(value < float("inf") for value in norms.values()):
        raise CheckFailed("a weight is no finite number: train anew with smaller learning rates")
    if norms and not any(norms.values()):
        raise CheckFailed("no weight moved: nothing was trained")
    return norms
