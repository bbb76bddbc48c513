"""Sequence classification with BERT: a class for every point."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from redactory.foundation.stream import RandomStream
from redactory.training.models.causal import initialise_transformer, initialise_transformer_parameter
from redactory.training.models.lora import has_adapters, initialise_adapters
from redactory.training.models.network import Classifier
from redactory.training.points import Batch


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
