"""AWD-LSTM (Merity, Keskar and Socher 2018), the recurrent language model of the UeDP paper."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redactory.foundation.stream import RandomStream
from redactory.training.layers import Lstm
from redactory.training.models.network import Encoder, KeyedDropout, LanguageNetwork, Seeds, State, uniform_
from redactory.training.models.settings import AwdLstmSettings
from redactory.training.points import Batch

FORMAT = "redactory-awd-lstm/1"


class AwdLstmEncoder(Encoder):
    """Embedding [V, E] and LSTM layers of H units, of which the last has E.

    Its dropouts: of words (rows of the embedding), of recurrent weights, and variational (constant over a
    point's places) before, between and after the layers.  Masks of words and weights are one of a
    step, the others one of a point and a step; none looks at data.  Averaging of iterates and activation
    penalties, which AWD-LSTM also has, are left out.

    Formal guarantees: those of :class:`redactory.training.models.network.Encoder` and of
    :class:`redactory.training.models.network.KeyedDropout`.
    """

    def __init__(self, vocabulary: int, settings: AwdLstmSettings) -> None:
        super().__init__()
        own = settings
        self.settings = own
        self.embedding = nn.Embedding(vocabulary, own.embedding_size)
        widths = [own.embedding_size, *[own.hidden_size] * (own.layers - 1), own.embedding_size]
        self.layers = nn.ModuleList(Lstm(a, b) for a, b in pairwise(widths))
        self._widths = widths
        self._dropout = KeyedDropout()

    @property
    def width(self) -> int:
        """E, that of the last layer."""
        return self._widths[-1]

    def initialise(self, stream: RandomStream) -> None:
        """Draw every parameter from ``stream``: uniform within ±1/√H, embeddings within ±0.1."""
        for index, (name, parameter) in enumerate(self.named_parameters()):
            scale = 0.1 if name == "embedding.weight" else 1.0 / math.sqrt(self.settings.hidden_size)
            uniform_(parameter, scale, stream, index)

    def begin_step(self, stream: RandomStream, purpose: str, step: int) -> None:
        """Masks are those of this step from here on."""
        self._dropout.begin(stream, purpose, step)

    def step_seeds(self, rows: Iterable[int]) -> Seeds:
        """Of one mask of words, one of each layer's weights, and those of the points."""
        return self._dropout.seeds(rows, shared=1 + len(self.layers))

    def begin_with(self, seeds: Seeds) -> None:
        """Masks are drawn from ``seeds`` from here on."""
        self._dropout.begin_with(seeds)

    def hidden(self, batch: Batch) -> Tensor:
        """The last layer's states [B, T, E], zero before each row; with dropout while training."""
        own, dropped = self.settings, self.training
        states = self.embedding(batch.inputs)
        masks: list[Tensor | float] = [1.0] * len(self._widths)
        if dropped:
            words = self._dropout.shared((self.embedding.num_embeddings, 1), own.word_dropout, 0)
            states = states if words is None else states * words.to(states)[batch.inputs]
            between = [own.layer_dropout] * (own.layers - 1)
            masks = self._dropout.of_rows(
                batch.rows, self._widths, [own.input_dropout, *between, own.output_dropout]
            )
        for index, layer in self._each:
            states = layer(states * _like(masks[index], states), [self._weights(index, layer)])
        last: Tensor = states * _like(masks[-1], states)
        return last

    def _weights(self, index: int, layer: Lstm) -> Tensor | None:
        if not self.training:
            return None
        weight = layer.weights(0).weight_hh
        mask = self._dropout.shared(tuple(weight.shape), self.settings.weight_dropout, 1 + index)
        return mask if mask is None else mask.to(weight)

    @property
    def _each(self) -> Iterator[tuple[int, Lstm]]:
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, Lstm)
            yield index, layer

    def describe(self) -> dict[str, Any]:
        """The sizes and the dropouts."""
        return {
            "format": FORMAT,
            "vocabulary": self.embedding.num_embeddings,
            "settings": self.settings.model_dump(mode="json", exclude={"pooling"}),
        }


class AwdLstm(AwdLstmEncoder, LanguageNetwork):
    """The layers of :class:`AwdLstmEncoder`, and the embedding as output layer.

    Formal guarantees: those of :class:`redactory.training.models.network.Network` and of
    :class:`redactory.training.models.network.KeyedDropout`.
    """

    def __init__(self, vocabulary: int, settings: AwdLstmSettings) -> None:
        super().__init__(vocabulary, settings)
        self.output = nn.Linear(settings.embedding_size, vocabulary)
        self.output.weight = self.embedding.weight

    @property
    def head(self) -> nn.Module:
        """The output layer, whose weight is the embedding's."""
        return self.output

    def initial_state(self, batch: int) -> State:
        """The zero state: h and c of every layer, each [batch, its width]."""
        return tuple(
            self.embedding.weight.new_zeros(batch, width) for width in self._widths[1:] for _ in range(2)
        )

    @torch.no_grad()
    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token a row, ids [B], without dropout."""
        states, after = self.embedding(ids), []
        for index, layer in self._each:
            states, (h, c) = layer.step(states, (state[2 * index][None], state[2 * index + 1][None]))
            after += [h[0], c[0]]
        return F.log_softmax(self.output(states), -1), tuple(after)


def _like(mask: Tensor | float, other: Tensor) -> Tensor | float:
    return mask.to(other) if isinstance(mask, Tensor) else mask
