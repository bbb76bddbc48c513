"""The gloo group of one training: on the loopback interface, with no state of its own in ``torch``."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import FileStore, ProcessGroupGloo  # type: ignore[attr-defined]

from redactory.training.phases import trainable

_LOOPBACK = "127.0.0.1"


class Group:
    """``size`` processes that meet at the file ``meeting``, and have ``patience`` seconds for it.

    No default group is set up or taken: a program that uses ``torch.distributed`` keeps its own.
    ``RuntimeError`` where not all have come.
    """

    def __init__(self, meeting: Path, rank: int, size: int, patience: float) -> None:
        gloo: Any = ProcessGroupGloo
        options = gloo._Options()
        # the default would be the interface that the machine's name stands for: one that others can reach
        options._devices = [gloo.create_device(hostname=_LOOPBACK)]
        options._timeout = timedelta(seconds=patience)
        store = FileStore(str(meeting), size)
        store.set_timeout(options._timeout)
        self._gloo = gloo(store, rank, size, options)

    def send(self, values: Tensor, rank: int, tag: int) -> Message:
        """Begin to send ``values``, which must stay as they are until it is waited for."""
        return Message(self._gloo.send([values], rank, tag), values)

    def receive(self, values: Tensor, rank: int, tag: int) -> Message:
        """Begin to receive into ``values``, of the size and kind that is sent."""
        return Message(self._gloo.recv([values], rank, tag), values)


@dataclass(frozen=True)
class Message:
    """``values`` on their way."""

    work: Any
    values: Tensor

    def wait(self, patience: float | None = None) -> Tensor:
        """The values, arrived; ``RuntimeError`` where the other process is gone or too slow."""
        if patience is None:
            self.work.wait()
        else:
            self.work.wait(timedelta(seconds=patience))
        return self.values


def octets_of(value: Any) -> Tensor:
    """``value`` pickled, as a tensor of octets."""
    return torch.frombuffer(bytearray(pickle.dumps(value, pickle.HIGHEST_PROTOCOL)), dtype=torch.uint8)


@torch.no_grad()
def flat(network: nn.Module) -> Tensor:
    """The trainable parameters, one after the other, as they are."""
    return torch.cat([parameter.detach().flatten() for parameter in trainable(network)])
