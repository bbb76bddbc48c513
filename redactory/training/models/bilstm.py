"""LSTMs in both directions: the user-side encoder of the LDP-NLP paper (appendix A.3)."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from redactory.foundation.stream import RandomStream
from redactory.training.layers import Lstm
from redactory.training.models.network import Encoder, uniform_
from redactory.training.models.settings import BiLstmSettings
from redactory.training.points import Batch

FORMAT = "redactory-bilstm/1"


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
            "format": FORMAT,
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
