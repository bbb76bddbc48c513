"""The server's networks: from noisy representations to classes.  All they see is post-processing."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redactory.foundation.progress import Progress
from redactory.training.ldp.settings import HeadSettings, LdpSettings


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


class VectorHead(Head):
    """One hidden layer over a vector [n, d]; of ``pairs`` [n, 2, d] over [u, v, |u−v|, u·v]."""

    def __init__(self, width: int, hidden: int, classes: int, pairs: bool) -> None:
        super().__init__(width)
        self._pairs = pairs
        first = nn.Linear(4 * width if pairs else width, hidden)
        self.layers = nn.Sequential(first, nn.ReLU(), nn.Linear(hidden, classes))

    def logits(self, rows: Tensor) -> Tensor:
        if self._pairs:
            u, v = rows.unbind(1)
            rows = torch.cat([u, v, (u - v).abs(), u * v], 1)
        found: Tensor = self.layers(rows)
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
    sizes = (shape[-1], settings.head.hidden_size, len(settings.classes))
    if len(shape) == 2 and not settings.pairs:
        return TokenHead(*sizes)
    return VectorHead(*sizes, pairs=len(shape) == 2)


# How a head is trained: Adam over the slots, and the epoch that predicts held-out slots best stands.


_WEIGHT_DECAY = 1e-2
_HELD_OUT, _LEAST_HELD_OUT = 10, 5


def fit(
    head: Head,
    rows: Tensor,
    labels: Tensor,
    settings: HeadSettings,
    generator: torch.Generator,
    say: Progress,
) -> dict[str, Any]:
    """Train ``head`` on ``rows`` [n, \\*shape] and ``labels`` [n]; ``epochs``, ``best_epoch`` and ``loss``.

    A tenth of the slots is held out, if that is five at least, and the epoch with the least loss there
    stands (``loss`` in nats, of those slots; of the slots trained on where none are held out).
    """
    order = torch.randperm(len(rows), generator=generator)
    held = len(rows) // _HELD_OUT if len(rows) >= _HELD_OUT * _LEAST_HELD_OUT else 0
    judged, learnt = (order[:held] if held else order), order[held:]
    head.measure(rows[learnt])
    optimizer = torch.optim.AdamW(head.parameters(), settings.learning_rate, weight_decay=_WEIGHT_DECAY)
    best: dict[str, Any] = {"loss": math.inf, "best_epoch": 0}
    kept = _copy(head)
    for epoch in range(1, settings.epochs + 1):
        head.train()
        for batch in _batches(learnt[torch.randperm(len(learnt), generator=generator)], settings.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(head(rows[batch]), labels[batch]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        loss = _loss(head, rows, labels, judged, settings.batch_size)
        # where none are held out the last epoch stands, as long as it is finite
        if loss < best["loss"] or (not held and math.isfinite(loss)):
            best, kept = {"loss": loss, "best_epoch": epoch}, _copy(head)
        say("training the server's network", epoch, settings.epochs, "epochs")
    head.load_state_dict(kept)
    head.eval()
    return {"epochs": settings.epochs, **best}


@torch.no_grad()
def _loss(head: Head, rows: Tensor, labels: Tensor, judged: Tensor, batch_size: int) -> float:
    head.eval()
    parts = [
        F.cross_entropy(head(rows[batch]), labels[batch], reduction="sum")
        for batch in _batches(judged, batch_size)
    ]
    return float(torch.stack(parts).sum()) / len(judged)


def _batches(places: Tensor, size: int) -> list[Tensor]:
    return [places[start : start + size] for start in range(0, len(places), size)]


def _copy(head: Head) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in head.state_dict().items()}
