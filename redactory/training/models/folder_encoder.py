"""A local Hugging Face folder as frozen layers that read a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.stream import RandomStream
from redactory.training.data import Batch
from redactory.training.models.hugging_face import extend_vocabulary, get_context_length, read_folder_model
from redactory.training.models.network import Encoder
from redactory.training.tokenizer import FolderTokenizer, require_transformers

CONFIG = "config.json"
FOLDER_KINDS = ("bert", "distilbert", "electra", "mpnet", "roberta", "xlm-roberta")
"""Supported ``transformers`` kinds, which give a state for every token."""


class FolderEncoder(Encoder):
    """A model of ``transformers`` without a head, frozen, and without dropout.

    Formal guarantees: those of :class:`redactory.training.models.network.Encoder`.
    """

    FORMAT = "folder"

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.eval().requires_grad_(False)
        self.context = get_context_length(model)

    @property
    def width(self) -> int:
        """H."""
        return int(self.model.config.hidden_size)

    @torch.no_grad()
    def hidden_states(self, batch: Batch) -> Tensor:
        """The last layer's states [B, T, H]."""
        states: Tensor = self.model(batch.inputs, attention_mask=batch.real.long()).last_hidden_state
        return states

    def initialise(self, stream: RandomStream) -> None:
        """Draw nothing: the weights are the folder's."""

    def describe(self) -> dict[str, Any]:
        """The model's configuration without the library's versions and paths."""
        config: dict[str, Any] = self.model.config.to_dict()
        ignored_keys = ("transformers_version", "dtype", "torch_dtype", "architectures")
        model = {k: v for k, v in config.items() if not k.startswith("_") and k not in ignored_keys}
        return {"format": self.FORMAT, "model": model}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Build the encoder that :meth:`describe` describes, with arbitrary weights."""
        require_transformers()
        from transformers import AutoConfig, AutoModel

        build_model: Any = AutoModel.from_config
        return cls(build_model(AutoConfig.for_model(**config["model"])))


def read_encoder_folder(folder: Path, any_kind: bool = False) -> tuple[FolderTokenizer, FolderEncoder]:
    """Read tokenizer and frozen layers of ``folder``: of one of ``FOLDER_KINDS``, or of any kind.

    ``ConfigurationError`` if it is of another kind, lacks weights or a fast tokenizer, or records a training on a run
    or on labelled rows.
    """
    kind = read_json_or_empty(folder / CONFIG).get("model_type")
    if kind not in FOLDER_KINDS and not any_kind:
        raise ConfigurationError(f"{folder.name}: an encoder must be one of {', '.join(FOLDER_KINDS)}")
    require_transformers()
    from transformers import AutoModel

    tokenizer = FolderTokenizer.from_folder(folder)
    model, missing = read_folder_model(folder, AutoModel)
    if lacking := sorted(name for name in missing if "pooler" not in name):
        raise ConfigurationError(f"{folder.name}: weights are missing ({lacking[0]})")
    extend_vocabulary(model, tokenizer.size)
    return tokenizer, FolderEncoder(model)


def read_pooling(folder: Path) -> str:
    """Return "mean" or "first", as a sentence encoder's folder configures it; "mean" by default."""
    named = read_json_or_empty(folder / "1_Pooling" / "config.json")
    pools = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "first"}
    modes = [key for key, value in named.items() if key.startswith("pooling_mode") and value is True]
    if len(modes) > 1 or not set(modes) <= set(pools):
        raise ConfigurationError(f"{folder.name}: unsupported pooling; expected the mean or the first state")
    return pools[modes[0]] if modes else "mean"


def read_json_or_empty(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty if there is none."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}
