"""The server's networks: from noisy representations to classes.  All they see is post-processing."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from redactory.training.ldp.settings import LdpSettings


class Head(nn.Module, ABC):
    """Logits of the classes from the mean messages of slots, in units of what was received."""

    centre: Tensor
    scale: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))

    def measure(self, rows: Tensor) -> None:
        """Take mean and deviation of each coordinate from ``rows`` [n, ..., width]."""
        flat = rows.flatten(0, -2)
        self.centre.copy_(flat.mean(0))
        self.scale.copy_(flat.std(0, correction=0).clamp(min=1e-6))

    def forward(self, rows: Tensor) -> Tensor:
        """[n, classes] of ``rows`` [n, \\*shape]."""
        return self.logits((rows - self.centre) / self.scale)

    @abstractmethod
    def logits(self, rows: Tensor) -> Tensor:
        """The same of standardised rows."""


class LatentHead(Head):
    """One hidden layer over a vector [n, d]."""

    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__(width)
        self.layers = _two_layers(width, hidden, classes)

    def logits(self, rows: Tensor) -> Tensor:
        found: Tensor = self.layers(rows)
        return found


class PairHead(Head):
    """One hidden layer over [u, v, |u−v|, u·v] of two vectors [n, 2, d] (text matching)."""

    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__(width)
        self.layers = _two_layers(4 * width, hidden, classes)

    def logits(self, rows: Tensor) -> Tensor:
        u, v = rows.unbind(1)
        found: Tensor = self.layers(torch.cat([u, v, (u - v).abs(), u * v], 1))
        return found


class TokenHead(Head):
    """A BiLSTM over noisy token vectors [n, L, e]; its states' mean over all L, padding and all."""

    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__(width)
        self.reader = nn.LSTM(width, hidden, batch_first=True, bidirectional=True)
        self.last = nn.Linear(2 * hidden, classes)

    def logits(self, rows: Tensor) -> Tensor:
        states, _ = self.reader(rows)
        found: Tensor = self.last(states.mean(1))
        return found


def head_of(settings: LdpSettings, shape: tuple[int, ...]) -> Head:
    """The network for messages of ``shape``, with weights drawn by torch."""
    kind: type[LatentHead] | type[PairHead] | type[TokenHead] = LatentHead
    if len(shape) == 2:
        kind = PairHead if settings.pairs else TokenHead
    return kind(shape[-1], settings.head.hidden_size, len(settings.classes))


def _two_layers(width: int, hidden: int, classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))
