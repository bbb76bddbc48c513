"""Low-rank adapters through ``peft``: what they train, and whether it moved."""

from __future__ import annotations

import copy
import math
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.stream import RandomStream
from redactory.training.models.network import uniform_
from redactory.training.models.pretrained import quiet
from redactory.training.models.settings import LoraSettings

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
