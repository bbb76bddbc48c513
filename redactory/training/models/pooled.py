"""A class for every text from the states of an LSTM: pooled over its places, then one linear layer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from redactory.foundation.stream import RandomStream
from redactory.training.models.network import Classifier, Encoder, uniform_
from redactory.training.models.settings import Pooling
from redactory.training.points import Batch

FORMAT = "redactory-pooled-classifier/1"


class PooledClassifier(Classifier):
    """The states of ``encoder``, pooled over the places that are read, and a linear layer to the classes.

    ``last-max-mean`` joins the state after the last token, the largest and the mean value of each unit
    (concat pooling: Howard and Ruder 2018, ULMFiT, section 3.3); the others are one of the three.  There is
    no output layer for words, so that no noise is spent on one.

    Formal guarantees: those of :class:`redactory.training.models.network.Classifier`; a padded place
    enters no pool.
    """

    def __init__(self, encoder: Encoder, classes: tuple[str, ...], pooling: Pooling) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.width * len(_parts(pooling)), len(classes))
        self._classes, self._pooling = classes, pooling

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by number."""
        return self._classes

    def initialise(self, stream: RandomStream) -> None:
        """Draw every parameter from ``stream``: the encoder's as ever, the head uniform within ±1/√inputs."""
        self.encoder.initialise(stream)
        after = sum(1 for _ in self.encoder.parameters())
        for index, parameter in enumerate(self.head.parameters(), after):
            uniform_(parameter, 1.0 / math.sqrt(self.head.in_features), stream, index)

    def begin_step(self, stream: RandomStream, purpose: str, step: int) -> None:
        """Dropout of this step is drawn from ``stream`` from here on."""
        self.encoder.begin_step(stream, purpose, step)

    def logits(self, batch: Batch) -> Tensor:
        """Unnormalised log probabilities of the classes, [B, classes]."""
        states = self.encoder.hidden(batch)
        pools = [_POOLS[part](states, batch.real) for part in _parts(self._pooling)]
        found: Tensor = self.head(torch.cat(pools, dim=1))
        return found

    def describe(self) -> dict[str, Any]:
        """The encoder, the pooling and the names of the classes."""
        return {
            "format": FORMAT,
            "encoder": self.encoder.describe(),
            "pooling": self._pooling,
            "classes": list(self._classes),
        }


def _parts(pooling: Pooling) -> list[str]:
    return pooling.split("-")


def _last(states: Tensor, real: Tensor) -> Tensor:
    rows = torch.arange(len(states), device=states.device)
    return states[rows, real.sum(1) - 1]


def _largest(states: Tensor, real: Tensor) -> Tensor:
    return states.masked_fill(~real[..., None], -math.inf).amax(1)


def _mean(states: Tensor, real: Tensor) -> Tensor:
    return (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)


_POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"last": _last, "max": _largest, "mean": _mean}
"""States [B, T, H] and which places are read, bool [B, T], at least the first of each row: to [B, H]."""
