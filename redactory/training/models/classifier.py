"""Sequence classification with BERT: a label for every point."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from redactory.foundation.stream import RandomStream
from redactory.training.models.causal import initialise_transformer
from redactory.training.models.network import Network
from redactory.training.points import Batch


class ClassifierNetwork(Network):
    """Any ``transformers`` model for sequence classification that has no dropout.

    In a batch ``targets`` [B, 1] are class numbers and ``real`` says which of ``inputs`` are read.

    Formal guarantees: those of :class:`redactory.training.models.network.Network`.
    """

    def __init__(self, model: Any, pretrained: bool = False) -> None:
        super().__init__()
        self.model = model
        self.pretrained = pretrained

    def initialise(self, stream: RandomStream) -> None:
        """Fresh: as :func:`initialise_transformer`.  Pretrained: the head alone, which no folder holds."""
        initialise_transformer(self.model.classifier if self.pretrained else self, stream)

    def logits(self, batch: Batch) -> Tensor:
        """Unnormalised log probabilities of the classes, [B, labels]."""
        places = torch.arange(batch.inputs.shape[1], device=batch.inputs.device).expand_as(batch.inputs)
        found: Tensor = self.model(
            input_ids=batch.inputs,
            attention_mask=batch.real.long(),
            token_type_ids=torch.zeros_like(batch.inputs),
            position_ids=places,
        ).logits
        return found

    def point_losses(self, batch: Batch) -> Tensor:
        """−log probability (nats) of each point's label, [B]."""
        return F.cross_entropy(self.logits(batch), batch.targets[:, 0], reduction="none")

    def describe(self) -> dict[str, Any]:
        """The library's own configuration, which plain ``transformers`` reads."""
        config: dict[str, Any] = self.model.config.to_dict()
        return {key: value for key, value in config.items() if not key.startswith("_")}
