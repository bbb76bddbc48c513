"""Our clipping under the optimizer of Opacus: its sampling, its noise, its accountant, our sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError
from redactory.training.clipping.engine import clipped_gradient


def clipped_backward(optimizer: Any, network: nn.Module, losses: Callable[[], Tensor]) -> Tensor:
    """In place of ``loss.backward()``: lay Σ_i g_i · min(1, C/‖g_i‖) on the parameters for ``optimizer``.

    ``optimizer`` is Opacus' ``DPOptimizerFastGradientClipping`` over exactly the trainable parameters of
    ``network``, which no ``GradSampleModule`` is around; C is its ``max_grad_norm``.  ``losses`` runs the
    network and gives the loss of each example, [B]; so does this function, detached.  Where a batch is cut
    into pieces (``BatchMemoryManager``) it is called for each.  ``optimizer.step()`` then adds Opacus' noise,
    divides by its ``expected_batch_size`` and calls its accountant's hook.

    Raises ``ConfigurationError`` for another optimizer, for other parameters, where the sum of the last step
    is still there (``optimizer.zero_grad()`` was left out, and it would be released twice), for a bound below
    10⁻⁶ or above 10⁶, and for a network whose examples cannot be told apart, as far as one pass shows it.

    Formal guarantees: one example there or not moves what lies on the parameters by at most C, in exact
    arithmetic; an example whose gradient is not finite adds zero.  Everything after that is Opacus'.
    """
    _check_optimizer(optimizer)
    parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
    if {id(p) for p in optimizer.params} != {id(p) for p in parameters.values()}:
        raise ConfigurationError(
            "the optimizer moves other parameters than those that the network trains: make it of "
            "[p for p in network.parameters() if p.requires_grad]"
        )
    told: list[Tensor] = []

    def kept() -> Tensor:
        told.append(losses())
        return told[0]

    found = clipped_gradient(network, kept, float(optimizer.max_grad_norm)).flat
    shares = torch.split(found, [p.numel() for p in parameters.values()])
    for parameter, share in zip(parameters.values(), shares, strict=True):
        parameter.grad = share.view_as(parameter)
    return told[0].detach()


def _check_optimizer(optimizer: Any) -> None:
    from opacus.optimizers import DPOptimizerFastGradientClipping

    if not isinstance(optimizer, DPOptimizerFastGradientClipping):
        raise ConfigurationError(
            f"{type(optimizer).__name__} clips by itself, or not at all: give Opacus' "
            "DPOptimizerFastGradientClipping, which adds noise to sums that were clipped before"
        )
    if not isinstance(optimizer.max_grad_norm, int | float):
        raise ConfigurationError("max_grad_norm must be one number: the bound of an example's whole gradient")
    if not optimizer._is_last_step_skipped and any(p.summed_grad is not None for p in optimizer.params):
        raise ConfigurationError(
            "the sum of the last step is still there: call optimizer.zero_grad() before each step"
        )
