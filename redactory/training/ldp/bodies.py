"""What a network represents a text by: one vector, or one a token, at the network's own widths."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from redactory.foundation.errors import InputError
from redactory.training.ldp.folder_body import FolderEncoder
from redactory.training.models.causal import CausalNetwork
from redactory.training.models.classifier import ClassifierNetwork
from redactory.training.models.network import Classifier, Encoder, LanguageNetwork
from redactory.training.models.pooled import PooledClassifier, pooled
from redactory.training.points import Batch


@dataclass(frozen=True)
class Body:
    """``network`` frozen: ``latent`` gives [B, ``width``], ``tokens`` [B, T, ``token_width``] of a batch.

    ``context`` bounds the inputs, begin and end token included; None where there is no bound.  ``described``
    is what besides the weights decides the result.

    Formal guarantees: a row of either is a function of that row of the batch and of frozen parameters.
    """

    network: nn.Module
    latent: Callable[[Batch], Tensor]
    width: int
    token_width: int
    table: nn.Module
    context: int | None
    described: dict[str, Any]

    def tokens(self, batch: Batch) -> Tensor:
        """The embedding of every input, before any layer that mixes places."""
        found: Tensor = self.table(batch.inputs)
        return found


def body_of(network: LanguageNetwork | Classifier) -> Body:
    """What a model of Redactory represents a text by.

    A classifier's latent vector is what it tells the classes from; a language model's, and BERT's, is the
    mean of its last states.  ``InputError`` where the kind is not known.
    """
    if isinstance(network, PooledClassifier):
        described = network.describe()
        return _body(network, network.encoder, network.latent, network.width, described)
    if isinstance(network, ClassifierNetwork):
        return replace(folder_body(FolderEncoder(network.model.base_model), "mean"), network=network)
    if isinstance(network, LanguageNetwork):
        below: nn.Module = network.model if isinstance(network, CausalNetwork) else network

        def latent(batch: Batch) -> Tensor:
            return pooled(network.hidden(batch), batch.real, "mean")

        table = table_of(below)
        with torch.no_grad():
            one = torch.ones(1, 1, dtype=torch.int64)
            width = latent(Batch(one, one, one.bool())).shape[1]
        described = {"network": network.describe(), "pooling": "mean"}
        return Body(network, latent, width, _width(table), table, network.context, described)
    raise InputError("this kind of model represents no text")


def folder_body(encoder: FolderEncoder, pooling: str) -> Body:
    """What a frozen folder represents a text by: the "mean" of its states, or the "first" of them."""

    def latent(batch: Batch) -> Tensor:
        return pooled(encoder.hidden(batch), batch.real, pooling)

    described = {"network": encoder.identity(), "pooling": pooling}
    return _body(encoder, encoder, latent, encoder.width, described)


def table_of(below: nn.Module) -> nn.Module:
    """The table of embeddings in ``below``."""
    found = getattr(below, "embedding", None)
    if found is None:
        found = below.get_input_embeddings()  # type: ignore[operator]
    assert isinstance(found, nn.Module)
    return found


def _body(
    network: nn.Module,
    encoder: Encoder,
    latent: Callable[[Batch], Tensor],
    width: int,
    described: dict[str, Any],
) -> Body:
    table = table_of(encoder)
    return Body(network, latent, width, _width(table), table, encoder.context, described)


def _width(table: nn.Module) -> int:
    return int(next(table.parameters()).shape[1])
