"""A local Hugging Face folder as the frozen layers that read a sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.stream import RandomStream
from redactory.training.models.network import Encoder
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
