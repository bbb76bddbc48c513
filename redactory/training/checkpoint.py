"""Checkpoints between epochs: a resumed training goes on from the last one, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from redactory.foundation.files import commit


def write_checkpoint(
    path: Path, binding: str, epochs: int, network: nn.Module, optimizers: Sequence[Optimizer]
) -> None:
    """Commit the state after ``epochs`` epochs; ``binding`` names the training it belongs to."""
    state = {
        "binding": binding,
        "epochs": epochs,
        "network": network.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in optimizers],
    }
    with commit(path) as temporary:
        torch.save(state, temporary)


def read_checkpoint(path: Path, binding: str, network: nn.Module, optimizers: Sequence[Optimizer]) -> int:
    """Load the checkpoint into ``network`` and ``optimizers``; the number of epochs that are done.

    0, and nothing is loaded, where there is none or it belongs to another training.
    """
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    if state["binding"] != binding:
        return 0
    network.load_state_dict(state["network"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return int(state["epochs"])
