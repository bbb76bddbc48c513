"""Low-rank adapters through ``peft``: what they train, and whether it moved."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.stream import RandomStream
from redactory.training.models.network import Classifier, LanguageNetwork, State, normal_, uniform_
from redactory.training.models.pretrained import quiet
from redactory.training.models.settings import LoraSettings
from redactory.training.points import Batch

ATTENTION = {"gpt2": ("c_attn",), "llama": ("q_proj", "v_proj"), "bert": ("query", "value")}
"""The attention's projections, by kind of model: what gets an adapter where nothing else is said."""


def with_adapters(model: Any, settings: LoraSettings) -> Any:
    """``model`` with adapters, everything else frozen; ``ConfigurationError`` where none fits."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ConfigurationError(
            "lora needs peft, not installed here: pip install 'redactory[lora]'"
        ) from None
    kind = model.config.model_type
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=0.0,
        target_modules=list(settings.targets or ATTENTION.get(kind, ())),
        fan_in_fan_out=kind == "gpt2",
        bias="none",
    )
    try:
        with quiet():
            return get_peft_model(model, config)
    except ValueError:
        raise ConfigurationError("lora.targets: no layer of the model has such a name") from None


def has_adapters(model: Any) -> bool:
    """Whether ``model`` was made by :func:`with_adapters`."""
    return hasattr(model, "merge_and_unload")


def merged(model: Any) -> Any:
    """A copy of the model with its adapters added to its weights: an ordinary one of ``transformers``."""
    return copy.deepcopy(model).merge_and_unload()


def initialise_adapters(network: Any, stream: RandomStream) -> None:
    """Draw each adapter's first matrix from ``stream``, uniform within ±1/√(inputs); the second is zero.

    So the network starts as the pretrained one.
    """
    import torch

    for index, (name, parameter) in enumerate(network.named_parameters()):
        if parameter.requires_grad and ".lora_A." in name:
            uniform_(parameter, 1.0 / math.sqrt(parameter.shape[1]), stream, index)
        elif parameter.requires_grad:
            torch.nn.init.zeros_(parameter)


# Causal transformers of Hugging Face (GPT-2, Llama), with explicit positions and a key-value cache.


class CausalNetwork(LanguageNetwork):
    """Any ``transformers`` model for causal language modelling that has no dropout.

    Points are padded on the right, and a place sees only places before it: so no attention mask is needed,
    and padding changes nothing.  Position ids are given for every row ([B, T]): left to itself the library
    looks up one row of positions for the whole batch, of which no point has a gradient of its own.

    Formal guarantees: those of :class:`redactory.training.models.network.Network`.
    """

    def __init__(self, model: Any, pretrained: bool = False) -> None:
        super().__init__()
        self.model = model
        self.pretrained = pretrained
        config = model.config
        self.context = int(config.max_position_embeddings)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._cache_shape = (int(heads), 0, int(width))
        self._layers = int(config.num_hidden_layers)

    def initialise(self, stream: RandomStream) -> None:
        """Fresh: weights from N(0, 0.02²), norms one, biases zero.  Pretrained: as read, adapters drawn."""
        if has_adapters(self.model):
            initialise_adapters(self, stream)
        elif not self.pretrained:
            initialise_transformer(self, stream)

    @property
    def head(self) -> nn.Module:
        """The output layer; its weight may be the embedding's."""
        found: nn.Module = self._plain.get_output_embeddings()
        return found

    @property
    def _plain(self) -> Any:
        return self.model.get_base_model() if has_adapters(self.model) else self.model

    def hidden(self, batch: Batch) -> Tensor:
        """The last block's output [B, T, H], after its norm."""
        places = torch.arange(batch.inputs.shape[1], device=batch.inputs.device).expand_as(batch.inputs)
        found: Tensor = self._plain.base_model(
            input_ids=batch.inputs, position_ids=places, attention_mask=None, use_cache=False
        ).last_hidden_state
        return found

    def initial_state(self, batch: int) -> State:
        """An empty cache: keys and values [batch, heads, 0, width] of every layer."""
        like = next(self.parameters())
        return tuple(like.new_zeros(batch, *self._cache_shape) for _ in range(2 * self._layers))

    @torch.no_grad()
    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token a row, ids [B]; ``ValueError`` beyond the context."""
        from transformers import DynamicCache

        cache: Any = DynamicCache()
        seen = state[0].shape[2]
        if self.context is not None and seen >= self.context:
            raise ValueError("the model's context is full")
        if seen:
            for layer in range(self._layers):
                cache.update(state[2 * layer], state[2 * layer + 1], layer)
        logits = self.model(
            input_ids=ids[:, None],
            position_ids=torch.full_like(ids[:, None], seen),
            past_key_values=cache,
            use_cache=True,
        ).logits
        after = [part for layer in cache.layers for part in (layer.keys, layer.values)]
        return F.log_softmax(logits[:, -1], -1), tuple(after)

    def describe(self) -> dict[str, Any]:
        """The library's own configuration, which plain ``transformers`` reads."""
        config: dict[str, Any] = self.model.config.to_dict()
        return {key: value for key, value in config.items() if not key.startswith("_")}


def initialise_transformer(network: torch.nn.Module, stream: RandomStream) -> None:
    """GPT-2's rule for every trainable parameter: matrices N(0, 0.02²), vectors of norms 1, biases 0."""
    for index, (name, parameter) in enumerate(network.named_parameters()):
        if parameter.requires_grad:
            initialise_transformer_parameter(name, parameter, stream, index)


def initialise_transformer_parameter(
    name: str, parameter: torch.nn.Parameter, stream: RandomStream, index: int
) -> None:
    """The same rule for one parameter, by its name; ``index`` names its draws."""
    if parameter.ndim > 1:
        normal_(parameter, 0.02, stream, index)
    else:
        torch.nn.init.constant_(parameter, 0.0 if name.endswith("bias") else 1.0)


# Sequence classification with BERT: a class for every point.


class ClassifierNetwork(Classifier):
    """Any ``transformers`` model for sequence classification that has no dropout.

    ``drawn`` are the parameters that a pretrained folder does not hold, by the names of the model: the head,
    and the pooler where the folder was pretrained without one.

    Formal guarantees: those of :class:`redactory.training.models.network.Classifier`.
    """

    def __init__(
        self, model: Any, pretrained: bool = False, drawn: frozenset[str] = frozenset({"classifier"})
    ) -> None:
        super().__init__()
        self.model = model
        self.pretrained = pretrained
        self.context = int(model.config.max_position_embeddings)
        self._drawn = drawn

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by number."""
        names = self.model.config.id2label
        return tuple(str(names[number]) for number in sorted(names))

    def initialise(self, stream: RandomStream) -> None:
        """Fresh: as :func:`initialise_transformer`.  Pretrained: what no folder holds, and adapters."""
        if not self.pretrained:
            initialise_transformer(self, stream)
            return
        if has_adapters(self.model):
            initialise_adapters(self, stream)
        for index, (name, parameter) in enumerate(self._plain.named_parameters()):
            if is_drawn(name, self._drawn):
                initialise_transformer_parameter(name, parameter, stream, index)

    @property
    def _plain(self) -> Any:
        return self.model.get_base_model() if has_adapters(self.model) else self.model

    def logits(self, batch: Batch) -> Tensor:
        """Unnormalised log probabilities of the classes, [B, classes]."""
        places = torch.arange(batch.inputs.shape[1], device=batch.inputs.device).expand_as(batch.inputs)
        found: Tensor = self.model(
            input_ids=batch.inputs,
            attention_mask=batch.real.long(),
            token_type_ids=torch.zeros_like(batch.inputs),
            position_ids=places,
        ).logits
        return found

    def describe(self) -> dict[str, Any]:
        """The library's own configuration, which plain ``transformers`` reads."""
        config: dict[str, Any] = self.model.config.to_dict()
        return {key: value for key, value in config.items() if not key.startswith("_")}


def is_drawn(name: str, drawn: frozenset[str]) -> bool:
    """Whether the parameter ``name`` is one of ``drawn``: itself, or in a module that is named there."""
    own = name.replace(".base_layer", "")
    return any(own == one or own.startswith(f"{one}.") for one in drawn)
