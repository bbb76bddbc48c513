"""A local Hugging Face folder as the frozen layers that read a sentence."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.stream import RandomStream
from redactory.training.models.causal import CausalNetwork, ClassifierNetwork
from redactory.training.models.network import Classifier, Encoder, LanguageNetwork
from redactory.training.models.pooled import PooledClassifier, pooled
from redactory.training.models.pretrained import (
    FolderTokenizer,
    fit_vocabulary,
    read_in_part,
    require_transformers,
)
from redactory.training.points import Batch

KINDS = ("bert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")
"""Kinds of ``transformers`` that give a state for every token and are read here."""
_POOLING = Path("1_Pooling") / "config.json"
_POOLS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}


class FolderEncoder(Encoder):
    """A model of ``transformers`` without a head, frozen, and without dropout.

    Formal guarantees: those of :class:`redactory.training.models.network.Encoder`.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        # some kinds count their places from behind the padding token
        before = getattr(model.config, "pad_token_id", 0) + 1 if "roberta" in model.config.model_type else 0
        self.context = int(model.config.max_position_embeddings) - before

    @property
    def embedding(self) -> nn.Module:
        """The table of its tokens."""
        found: nn.Module = self.model.get_input_embeddings()
        return found

    @property
    def width(self) -> int:
        """H."""
        return int(self.model.config.hidden_size)

    def hidden(self, batch: Batch) -> Tensor:
        """The last layer's states [B, T, H]."""
        with torch.no_grad():
            found: Tensor = self.model(
                input_ids=batch.inputs, attention_mask=batch.real.long()
            ).last_hidden_state
        return found

    def initialise(self, stream: RandomStream) -> None:
        """Nothing is drawn: the weights are the folder's."""

    def describe(self) -> dict[str, Any]:
        """The kind; the weights lie beside it, as the library writes them."""
        return {"format": "folder", "model_type": self.model.config.model_type}

    def identity(self) -> dict[str, Any]:
        """The model's configuration without what the library notes of its own versions and places."""
        config: dict[str, Any] = self.model.config.to_dict()
        left_out = ("transformers_version", "dtype", "torch_dtype", "architectures", "vocab_size")
        return {k: v for k, v in config.items() if not k.startswith("_") and k not in left_out}


def is_hugging_face(folder: Path) -> bool:
    """Whether ``folder`` holds a model of one of :data:`KINDS`."""
    return _read(folder / "config.json").get("model_type") in KINDS


def read_folder(folder: Path) -> tuple[FolderTokenizer, FolderEncoder]:
    """Tokenizer and frozen layers of ``folder``.

    ``ConfigurationError`` where it is of another kind, lacks weights or a fast tokenizer, or says of itself
    that it was trained on a run or on labelled rows.
    """
    kind = _read(folder / "config.json").get("model_type")
    if kind not in KINDS:
        raise ConfigurationError(f"{folder.name}: an encoder must be one of {', '.join(KINDS)}")
    require_transformers()
    from transformers import AutoModel

    tokenizer = FolderTokenizer.from_folder(folder)
    model, missing = read_in_part(folder, kind, AutoModel)
    lacking = [name for name in missing if "pooler" not in name]
    if lacking:
        raise ConfigurationError(f"{folder.name}: weights are missing ({sorted(lacking)[0]})")
    fit_vocabulary(model, tokenizer.size)
    return tokenizer, FolderEncoder(model)


def pooling_of(folder: Path) -> str:
    """ "mean" or "first", as a sentence encoder's folder names it; the mean where it names none."""
    named = _read(folder / _POOLING)
    modes = [key for key, value in named.items() if key.startswith("pooling_mode") and value is True]
    if not modes:
        return "mean"
    if len(modes) > 1 or modes[0] not in _POOLS:
        raise ConfigurationError(f"{folder.name}: of its pooling only the mean or the first state is read")
    return _POOLS[modes[0]]


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


# What a network represents a text by: one vector, or one a token, at the network's own widths.


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
