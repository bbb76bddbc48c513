"""A class for every text from the states of an LSTM: pooled over its places, then one linear layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from redactory.foundation.stream import RandomStream
from redactory.training.layers import Lstm
from redactory.training.models.network import Classifier, Encoder, Seeds, uniform_
from redactory.training.models.settings import BiLstmSettings
from redactory.training.points import Batch

FORMAT = "redactory-pooled-classifier/1"


class PooledClassifier(Classifier):
    """The states of ``encoder``, pooled over the places that are read, and a linear layer to the classes.

    ``last-max-mean`` joins the state after the last token, the largest and the mean value of each unit
    (concat pooling: Howard and Ruder 2018, ULMFiT, section 3.3); the others are some of the three.  There is
    no output layer for words, so that no noise is spent on one.  With ``bottleneck`` a linear layer of that
    width stands before the last one.

    Formal guarantees: those of :class:`redactory.training.models.network.Classifier`; a padded place
    enters no pool.
    """

    def __init__(
        self, encoder: Encoder, classes: tuple[str, ...], pooling: str, bottleneck: int | None = None
    ) -> None:
        super().__init__()
        self.encoder = encoder
        pooled = encoder.width * len(_parts(pooling))
        self.bottleneck = nn.Identity() if bottleneck is None else nn.Linear(pooled, bottleneck)
        self.width = bottleneck or pooled
        self.context = encoder.context
        self.head = nn.Linear(self.width, len(classes))
        self._classes, self._pooling = classes, pooling

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by number."""
        return self._classes

    def initialise(self, stream: RandomStream) -> None:
        """Draw every parameter from ``stream``: the encoder's as ever, the rest uniform within ±1/√inputs."""
        self.encoder.initialise(stream)
        index = sum(1 for _ in self.encoder.parameters())
        for layer in (self.bottleneck, self.head):
            for parameter in layer.parameters():
                assert isinstance(layer, nn.Linear)
                uniform_(parameter, 1.0 / math.sqrt(layer.in_features), stream, index)
                index += 1

    def begin_step(self, stream: RandomStream, purpose: str, step: int) -> None:
        """Dropout of this step is drawn from ``stream`` from here on."""
        self.encoder.begin_step(stream, purpose, step)

    def step_seeds(self, rows: Iterable[int]) -> Seeds:
        """The encoder's."""
        return self.encoder.step_seeds(rows)

    def begin_with(self, seeds: Seeds) -> None:
        """Dropout of the encoder is drawn from ``seeds`` from here on."""
        self.encoder.begin_with(seeds)

    def logits(self, batch: Batch) -> Tensor:
        """Unnormalised log probabilities of the classes, [B, classes]."""
        found: Tensor = self.head(self.latent(batch))
        return found

    def latent(self, batch: Batch) -> Tensor:
        """What each text is represented by, [B, ``width``]: what the classes are told from."""
        found: Tensor = self.bottleneck(self.pools(batch))
        return found

    def pools(self, batch: Batch) -> Tensor:
        """The pooled states of the encoder, below the bottleneck: [B, H times the pools]."""
        return pooled(self.encoder.hidden(batch), batch.real, self._pooling)

    def describe(self) -> dict[str, Any]:
        """The encoder, the pooling and the names of the classes."""
        narrow = {"bottleneck": self.width} if isinstance(self.bottleneck, nn.Linear) else {}
        return {
            "format": FORMAT,
            "encoder": self.encoder.describe(),
            "pooling": self._pooling,
            **narrow,
            "classes": list(self._classes),
        }


def pooled(states: Tensor, real: Tensor, pooling: str) -> Tensor:
    """``states`` [B, T, H] over the places that are ``real``, bool [B, T]: [B, H times the pools named]."""
    return torch.cat([_POOLS[part](states, real) for part in _parts(pooling)], dim=1)


def _parts(pooling: str) -> list[str]:
    return pooling.split("-")


def _last(states: Tensor, real: Tensor) -> Tensor:
    rows = torch.arange(len(states), device=states.device)
    return states[rows, real.sum(1) - 1]


def _first(states: Tensor, real: Tensor) -> Tensor:
    return states[:, 0]


def _largest(states: Tensor, real: Tensor) -> Tensor:
    return states.masked_fill(~real[..., None], -math.inf).amax(1)


def _mean(states: Tensor, real: Tensor) -> Tensor:
    return (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)


_POOLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "first": _first,
    "last": _last,
    "max": _largest,
    "mean": _mean,
}
"""States [B, T, H] and which places are read, bool [B, T], at least the first of each row: to [B, H]."""


# LSTMs in both directions: the user-side encoder of the LDP-NLP paper (appendix A.3).


BILSTM_FORMAT = "redactory-bilstm/1"


class BiLstmEncoder(Encoder):
    """Embedding [V, E], an LSTM of H units over a text, and one over its reversal.

    Formal guarantees: those of :class:`redactory.training.models.network.Encoder`; a row is reversed within
    its own length, so that no padded place comes before a real one.
    """

    def __init__(self, vocabulary: int, embedding_size: int, hidden_size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding_size)
        self.ahead = Lstm(embedding_size, hidden_size)
        self.back = Lstm(embedding_size, hidden_size)

    @classmethod
    def of(cls, vocabulary: int, settings: BiLstmSettings) -> BiLstmEncoder:
        """The encoder that ``settings`` describe."""
        return cls(vocabulary, settings.embedding_size, settings.hidden_size)

    @property
    def width(self) -> int:
        """2H."""
        return 2 * self.ahead.hidden_size

    def initialise(self, stream: RandomStream) -> None:
        """Draw every parameter from ``stream``: uniform within ±1/√H, embeddings within ±0.1."""
        for index, (name, parameter) in enumerate(self.named_parameters()):
            scale = 0.1 if name == "embedding.weight" else 1.0 / math.sqrt(self.ahead.hidden_size)
            uniform_(parameter, scale, stream, index)

    def hidden(self, batch: Batch) -> Tensor:
        """At each place the states of the text up to it and from it on, side by side: [B, T, 2H]."""
        read = self.embedding(batch.inputs)
        places = _reversed(batch.real)
        back = self.back(_at(read, places))
        return torch.cat([self.ahead(read), _at(back, places)], dim=2)

    def describe(self) -> dict[str, Any]:
        """The sizes."""
        return {
            "format": BILSTM_FORMAT,
            "vocabulary": self.embedding.num_embeddings,
            "embedding_size": self.embedding.embedding_dim,
            "hidden_size": self.ahead.hidden_size,
        }


def _reversed(real: Tensor) -> Tensor:
    """For each row of ``real``, bool [B, T], its real places from the last to the first, then the others."""
    places = torch.arange(real.shape[1], device=real.device).expand(real.shape)
    return torch.where(real, real.sum(1, keepdim=True) - 1 - places, places)


def _at(states: Tensor, places: Tensor) -> Tensor:
    """Of each row of ``states`` [B, T, H] what stands at its ``places``, int64 [B, T]."""
    return states.gather(1, places[..., None].expand(states.shape))
