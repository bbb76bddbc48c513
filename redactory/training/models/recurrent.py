"""LSTMs of the CRT, UeDP and LDP-NLP papers, a bag of embeddings, and the models built from them.

An encoder reads a text. A language model adds an output layer over words; a :class:`PooledClassifier` adds a linear
layer over pooled states.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redactory.foundation.stream import RandomStream
from redactory.training.clipping.layers import Lstm, LstmWeights
from redactory.training.data import Batch
from redactory.training.models.network import ClassifierNetwork, Encoder, LanguageNetwork, State, fill_uniform
from redactory.training.models.settings import AwdLstmSettings, BagSettings, BiLstmSettings, LstmSettings


class EmbeddingEncoder(Encoder):
    """An embedding [V, E] and the layers above it, as configured in ``settings``.

    Formal guarantees: those of :class:`redactory.training.models.network.Encoder`.
    """

    FORMAT: ClassVar[str]
    KIND: ClassVar[str]
    SETTINGS: ClassVar[type[LstmSettings | AwdLstmSettings | BiLstmSettings | BagSettings]]

    def __init__(self, vocabulary: int, settings: Any) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, settings.embedding_size)
        self.settings, self.width = settings, settings.embedding_size
        self.make_layers(settings)

    def make_layers(self, settings: Any) -> None:
        """Make the layers above the embedding, if any, and set the ``width`` of the last."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Make the encoder that :meth:`describe` returned ``config`` for."""
        return cls(config["vocabulary"], cls.SETTINGS.model_validate(config["settings"]))

    def initialise(self, stream: RandomStream) -> None:
        """Draw every parameter from ``stream``: uniform within ±1/√H, embeddings within ±0.1."""
        for index, (name, parameter) in enumerate(self.named_parameters()):
            scale = 0.1 if name == "embedding.weight" else 1.0 / math.sqrt(self.settings.hidden_size)
            fill_uniform(parameter, scale, stream, index)

    def describe(self) -> dict[str, Any]:
        """The sizes."""
        return {
            "format": self.FORMAT,
            "vocabulary": self.embedding.num_embeddings,
            "settings": self.settings.model_dump(mode="json"),
        }


class LstmEncoder(EmbeddingEncoder):
    """``layers`` LSTM layers of H units."""

    FORMAT = "redactory-lstm/3"
    KIND = "lstm"
    SETTINGS: ClassVar[type[LstmSettings | AwdLstmSettings]] = LstmSettings
    is_tuned_for_noise = True
    """Whether embeddings are multiplied by √E, and forget gates start open (their bias is about 1).

    Noise of one size reaches every parameter: embeddings have to learn faster than recurrent weights can. With an open
    forget gate the first words of a text count from the start (Jozefowicz, Zaremba and Sutskever 2015, section 2.2).
    """

    def make_layers(self, settings: Any) -> None:
        """One module for all layers."""
        self.lstm = Lstm(settings.embedding_size, settings.hidden_size, settings.layers)
        self.width = settings.hidden_size

    def list_layer_weights(self) -> list[LstmWeights]:
        """List the parameters of each layer."""
        lstms = (module for module in self.modules() if isinstance(module, Lstm))
        return [weights for lstm in lstms for weights in lstm.list_layer_weights()]

    def initialise(self, stream: RandomStream) -> None:
        """Draw every parameter as other encoders do; see ``is_tuned_for_noise``."""
        super().initialise(stream)
        if self.is_tuned_for_noise:
            with torch.no_grad():
                for name, parameter in self.lstm.named_parameters():
                    if name.startswith("bias_ih"):
                        parameter.view(4, -1)[1] += 1.0

    def hidden_states(self, batch: Batch) -> Tensor:
        """The last LSTM layer's states [B, T, H], starting from zero in each row."""
        embedded = self.embedding(batch.inputs)
        states: Tensor = self.lstm(embedded * math.sqrt(embedded.shape[-1]) if self.is_tuned_for_noise else embedded)
        return states


class LstmLanguageModel(LstmEncoder, LanguageNetwork):
    """The language model of the CRT paper (appendix A.3): an LSTM and an output layer [V, H]."""

    is_tuned_for_noise = False

    def __init__(self, vocabulary: int, settings: Any) -> None:
        super().__init__(vocabulary, settings)
        self.output = nn.Linear(self.width, vocabulary)

    @property
    def head(self) -> nn.Module:
        """The output layer."""
        return self.output

    def make_initial_state(self, batch: int) -> State:
        """The zero state: h and c of each layer, each [batch, its width]."""
        zeros = self.embedding.weight.new_zeros
        return tuple(
            zeros(batch, weights.weight_hh.shape[1]) for weights in self.list_layer_weights() for _ in range(2)
        )

    @torch.no_grad()
    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token per row, ids [B], without dropout."""
        states, new_state = self.embedding(ids), list[Tensor]()
        for index, weights in enumerate(self.list_layer_weights()):
            states, cells = torch.lstm_cell(states, state[2 * index : 2 * index + 2], *weights)
            new_state += [states, cells]
        return F.log_softmax(self.output(states), -1), tuple(new_state)


class AwdLstmEncoder(LstmEncoder):
    """LSTM layers of H units, the last with E (Merity, Keskar and Socher 2018).

    Dropout applies to words (rows of the embedding) and recurrent weights, and variationally (constant over an
    example's positions) before, between and after the layers. Masks of words and weights are drawn per step, the others
    per example and step; none depends on data. AWD-LSTM's averaging of iterates and activation penalties are left out.
    """

    FORMAT = "redactory-awd-lstm/1"
    KIND, SETTINGS = "awd-lstm", AwdLstmSettings
    is_tuned_for_noise = False

    def make_layers(self, settings: AwdLstmSettings) -> None:
        """One module per layer."""
        inner = [settings.hidden_size] * (settings.layers - 1)
        widths = [settings.embedding_size, *inner, settings.embedding_size]
        self.layers = nn.ModuleList(Lstm(a, b) for a, b in pairwise(widths))

    def hidden_states(self, batch: Batch) -> Tensor:
        """The last layer's states [B, T, E], starting from zero in each row; with dropout in training."""
        settings, states = self.settings, self.embedding(batch.inputs)
        word_mask = self.draw_mask("words", 0, (self.embedding.num_embeddings, 1), settings.word_dropout)
        if word_mask is not None:
            states = states * word_mask.to(states)[batch.inputs]
        rates = [settings.input_dropout, *[settings.layer_dropout] * (settings.layers - 1), settings.output_dropout]
        for index, layer in enumerate(self.layers):
            states = self._drop_units(states, index, batch.rows, rates[index])
            weight = layer.get_parameter("weight_hh_l0")
            mask = self.draw_mask("weights", index, weight.shape, settings.weight_dropout)
            states = layer(states, [None if mask is None else mask.to(weight)])
        return self._drop_units(states, len(self.layers), batch.rows, rates[-1])

    def _drop_units(self, states: Tensor, index: int, rows: Tensor | None, rate: float) -> Tensor:
        """Drop units of ``states`` [B, T, H] of the examples numbered ``rows``, the same at every position."""
        numbers = [] if rows is None else rows.tolist()
        masks = [self.draw_mask(f"units {index} of rows", row, states.shape[2:], rate) for row in numbers]
        drawn = [mask for mask in masks if mask is not None]
        return states * torch.stack(drawn)[:, None].to(states) if drawn else states


class AwdLstm(AwdLstmEncoder, LstmLanguageModel):
    """The layers of :class:`AwdLstmEncoder`, with the embedding as output layer."""

    def __init__(self, vocabulary: int, settings: Any) -> None:
        super().__init__(vocabulary, settings)
        self.output.weight = self.embedding.weight


class BiLstmEncoder(EmbeddingEncoder):
    """An LSTM of H units over a text, and one over its reversal (LDP-NLP, appendix A.3).

    Formal guarantees: a row is reversed within its own length, so that no padded position precedes a real one.
    """

    FORMAT = "redactory-bilstm/1"
    KIND, SETTINGS = "bilstm", BiLstmSettings

    def make_layers(self, settings: BiLstmSettings) -> None:
        """One module per direction."""
        self.ahead, self.back = (Lstm(settings.embedding_size, settings.hidden_size) for _ in range(2))
        self.width = 2 * settings.hidden_size

    def hidden_states(self, batch: Batch) -> Tensor:
        """Return each position's states from both directions, concatenated: [B, T, 2H]."""
        embedded, real = self.embedding(batch.inputs), batch.real
        # each row's real positions in reverse order, then the others
        positions = torch.arange(real.shape[1], device=real.device).expand(real.shape)
        positions = torch.where(real, real.sum(1, keepdim=True) - 1 - positions, positions)
        reversed_states = self.back(_gather_positions(embedded, positions))
        return torch.cat([self.ahead(embedded), _gather_positions(reversed_states, positions)], dim=2)


def _gather_positions(states: Tensor, positions: Tensor) -> Tensor:
    return states.gather(1, positions[..., None].expand(states.shape))


class BagEncoder(EmbeddingEncoder):
    """An embedding [V, E] and nothing above it; the mean over its positions ignores order.

    Formal guarantees: those of :class:`redactory.training.models.network.Encoder`.
    """

    FORMAT = "redactory-bag/1"
    SETTINGS = BagSettings

    def hidden_states(self, batch: Batch) -> Tensor:
        """The embedding of each position, [B, T, E]."""
        states: Tensor = self.embedding(batch.inputs)
        return states


# Text classification: an encoder's states, pooled over positions, then one linear layer.


_POOLING_FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "first": lambda states, real: states[:, 0],
    "last": lambda states, real: states[torch.arange(len(states), device=states.device), real.sum(1) - 1],
    "max": lambda states, real: states.masked_fill(~real[..., None], -math.inf).amax(1),
    "mean": lambda states, real: (states * real[..., None]).sum(1) / real.sum(1, keepdim=True),
}
"""Pool states [B, T, H] over real positions, bool [B, T] with at least the first of each row, to [B, H]."""


def pool_states(states: Tensor, real: Tensor, pooling: str) -> Tensor:
    """Pool ``states`` [B, T, H] over the ``real`` positions, bool [B, T]: [B, H times the pools]."""
    return torch.cat([_POOLING_FUNCTIONS[part](states, real) for part in pooling.split("-")], dim=1)


class PooledClassifier(ClassifierNetwork):
    """The states of ``encoder``, pooled over the real positions, and a linear layer to the classes.

    ``last-max-mean`` joins the state after the last token and the largest and mean value of each unit (concat pooling:
    Howard and Ruder 2018, ULMFiT, section 3.3); ``max-mean`` joins the last two. There is no output layer for words, so
    no noise is spent on one. With ``bottleneck`` a linear layer of that width precedes the last one.

    Formal guarantees: those of :class:`redactory.training.models.network.ClassifierNetwork`; a padded position enters
    no pool.
    """

    FORMAT = "redactory-pooled-classifier/1"

    def __init__(self, encoder: Encoder, classes: tuple[str, ...], pooling: str, bottleneck: int | None = None) -> None:
        super().__init__()
        self.encoder, self.context = encoder, encoder.context
        pooled_width = encoder.width * len(pooling.split("-"))
        self.bottleneck = nn.Identity() if bottleneck is None else nn.Linear(pooled_width, bottleneck)
        self.width = bottleneck or pooled_width
        self.head: nn.Module = nn.Linear(self.width, len(classes)) if classes else nn.Identity()
        self.classes, self._pooling = classes, pooling

    def initialise(self, stream: RandomStream) -> None:
        """Draw every parameter from ``stream``: the encoder's by its rule, the rest uniform within ±1/√inputs."""
        self.encoder.initialise(stream)
        encoder_parameter_count = sum(1 for _ in self.encoder.parameters())
        layers = [layer for layer in (self.bottleneck, self.head) if isinstance(layer, nn.Linear)]
        linear_parameters = [(p, layer.in_features) for layer in layers for p in layer.parameters()]
        for index, (parameter, inputs) in enumerate(linear_parameters, encoder_parameter_count):
            fill_uniform(parameter, 1.0 / math.sqrt(inputs), stream, index)

    def logits(self, batch: Batch) -> Tensor:
        """Unnormalised log probabilities of the classes, [B, classes]."""
        logits: Tensor = self.head(self.compute_representation(batch))
        return logits

    def compute_representation(self, batch: Batch) -> Tensor:
        """Return the features from which the class of each text is predicted, [B, ``width``]."""
        representation: Tensor = self.bottleneck(self.pool_encoder_states(batch))
        return representation

    def pool_encoder_states(self, batch: Batch) -> Tensor:
        """Return the encoder's pooled states, before the bottleneck: [B, H times the pools]."""
        return pool_states(self.encoder.hidden_states(batch), batch.real, self._pooling)

    def describe(self) -> dict[str, Any]:
        """The encoder, the pooling and the names of the classes."""
        bottleneck_config = {"bottleneck": self.width} if isinstance(self.bottleneck, nn.Linear) else {}
        header = {"format": self.FORMAT, "encoder": self.encoder.describe(), "pooling": self._pooling}
        return {**header, **bottleneck_config, "classes": list(self.classes)}
