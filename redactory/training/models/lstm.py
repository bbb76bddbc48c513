"""The language model of the CRT paper (appendix A.3): LSTM layers over learnt embeddings."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redactory.foundation.stream import RandomStream
from redactory.training.layers import Lstm
from redactory.training.models.network import Encoder, LanguageNetwork, State, uniform_
from redactory.training.points import Batch

FORMAT = "redactory-lstm/2"


class LstmEncoder(Encoder):
    """Embedding [V, E] and ``layers`` LSTM layers of H units; the state is zero before every point.

    Formal guarantees: those of :class:`redactory.training.models.network.Encoder`.
    """

    def __init__(self, vocabulary: int, embedding_size: int, hidden_size: int, layers: int = 1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, embedding_size)
        self.lstm = Lstm(embedding_size, hidden_size, layers)

    @property
    def width(self) -> int:
        """H."""
        return self.lstm.hidden_size

    def initialise(self, stream: RandomStream) -> None:
        """Draw every parameter from ``stream``: uniform within ±1/√H, embeddings within ±0.1."""
        for index, (name, parameter) in enumerate(self.named_parameters()):
            scale = 0.1 if name == "embedding.weight" else 1.0 / math.sqrt(self.lstm.hidden_size)
            uniform_(parameter, scale, stream, index)

    def hidden(self, batch: Batch) -> Tensor:
        """The last LSTM layer's states [B, T, H], zero before each row."""
        states: Tensor = self.lstm(self.embedding(batch.inputs))
        return states

    def describe(self) -> dict[str, Any]:
        """The sizes."""
        return {
            "format": FORMAT,
            "vocabulary": self.embedding.num_embeddings,
            "embedding_size": self.embedding.embedding_dim,
            "hidden_size": self.lstm.hidden_size,
            "layers": self.lstm.num_layers,
        }


class LstmLanguageModel(LstmEncoder, LanguageNetwork):
    """The layers of :class:`LstmEncoder` and an output layer [V, H].

    Formal guarantees: those of :class:`redactory.training.models.network.Network`.
    """

    def __init__(self, vocabulary: int, embedding_size: int, hidden_size: int, layers: int = 1) -> None:
        super().__init__(vocabulary, embedding_size, hidden_size, layers)
        self.output = nn.Linear(hidden_size, vocabulary)

    @property
    def head(self) -> nn.Module:
        """The output layer."""
        return self.output

    def initial_state(self, batch: int) -> State:
        """The zero state (h, c), each [batch, layers, H]."""
        h, c = self.lstm.initial_state(batch)
        return h.transpose(0, 1), c.transpose(0, 1)

    @torch.no_grad()
    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token a row, ids [B]."""
        output, (h, c) = self.lstm.step(
            self.embedding(ids), (state[0].transpose(0, 1), state[1].transpose(0, 1))
        )
        return F.log_softmax(self.output(output), -1), (h.transpose(0, 1), c.transpose(0, 1))
