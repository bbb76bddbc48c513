"""Wraps a network from outside the package for the training steps, and checks its requirements."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from redactory.foundation.canonical import json_sha256
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.stream import RandomStream
from redactory.training.data import Batch
from redactory.training.models.hugging_face import (
    CausalNetwork,
    HuggingFaceNetwork,
    SequenceClassifier,
    require_exact_clipping,
)
from redactory.training.models.network import Network
from redactory.training.settings import TrainSettings
from redactory.training.tokenizer import TextCodec

CUSTOM_KIND = "own"
"""The kind of a network that only its author can rebuild."""
LossFunction = Callable[[Any, Batch], Tensor]
"""From a network and a batch to the loss of each example, [B]."""


class CustomNetwork(Network):
    """Any ``model`` with ``losses``, which returns the loss of each example of a batch.

    Formal guarantees: those of :class:`~redactory.training.models.network.Network` if :func:`require_trainable_network`
    passes.
    """

    FORMAT = "redactory-own-network/1"

    def __init__(self, model: nn.Module, losses: LossFunction) -> None:
        super().__init__()
        self.model, self._loss_function = model, losses

    def initialise(self, stream: RandomStream) -> None:
        """Leave the weights unchanged."""

    def describe(self) -> dict[str, Any]:
        """Return the class name, from which its author can rebuild it."""
        return {"format": self.FORMAT, "network": get_qualified_class_name(self.model)}

    def example_losses(self, batch: Batch) -> Tensor:
        """Return the loss of each example, [B]."""
        return self._loss_function(self.model, batch)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the inner model's state, which the model folder stores."""
        return self.model.state_dict(*args, **kwargs)


def wrap_network(network: nn.Module, task: str, losses: LossFunction | None) -> Network:
    """Wrap ``network`` in the interface of the training steps."""
    if isinstance(network, Network) and losses is None:
        return network
    if hasattr(network, "get_input_embeddings") and hasattr(network, "config"):
        kind = SequenceClassifier if task == "classify" else CausalNetwork
        wrapped = kind(network, pretrained=True)
        if losses is not None:
            vars(wrapped)["example_losses"] = partial(losses, network)
        return wrapped
    if losses is None:
        raise ConfigurationError(
            f"{type(network).__name__} is not a Hugging Face network: pass losses, a function from the "
            "network and a batch to the loss of each example, [B]"
        )
    return CustomNetwork(network, losses)


def require_trainable_network(network: Network, tokenizer: TextCodec, settings: TrainSettings) -> None:
    """Raise ``ConfigurationError`` if ``network`` has another device or type, is too small, or not clipped exactly."""
    if network.device.type != settings.device:
        raise ConfigurationError(
            f"train.device: the network is on {network.device.type}, but {settings.device} is configured: "
            "move it there, or change train.device"
        )
    for name, value in (*network.named_parameters(), *network.named_buffers()):
        is_weight = isinstance(value, nn.Parameter) or value.is_floating_point()
        if is_weight and value.dtype not in (torch.float32, torch.float64):
            raise ConfigurationError(
                f"{name}: is {value.dtype}, but noisy steps need every weight in float32, trained or not: load the "
                "network with dtype=torch.float32"
            )
    required_tokens = settings.max_tokens + (settings.task == "classify")
    if network.context is not None and required_tokens > network.context:
        raise ConfigurationError(
            f"train.max_tokens: the network reads {network.context} tokens, but needs {required_tokens}"
        )
    embedding = network.model.get_input_embeddings() if isinstance(network, HuggingFaceNetwork) else None
    if embedding is not None and (token_count := len(embedding.weight)) < tokenizer.size:
        raise ConfigurationError(
            f"the network has {token_count} tokens, but the vocabulary has {tokenizer.size}: call "
            "network.resize_token_embeddings(loop.tokenizer.size) before creating the optimizer"
        )
    if isinstance(network, SequenceClassifier) and network.classes != settings.classes:
        raise ConfigurationError(
            "train.classes: the network's id2label has other classes: create it with "
            "id2label=dict(enumerate(settings.classes))"
        )
    classes = len(settings.classes)
    require_exact_clipping(network, tokenizer.pad_id, tokenizer.end_id, required_tokens, tokenizer.size, classes)


def describe_network(network: Network) -> dict[str, Any]:
    """Describe the network for the ledger; must be equal when a loop resumes."""
    inner: Any = network.model if isinstance(network, CustomNetwork | HuggingFaceNetwork) else network
    kind = inner.config.model_type if isinstance(network, HuggingFaceNetwork) else None
    shapes = {name: list(p.shape) for name, p in network.named_parameters() if p.requires_grad}
    return {
        "network": get_qualified_class_name(inner),
        "model_type": kind or getattr(getattr(inner, "encoder", inner), "KIND", CUSTOM_KIND),
        "trained": json_sha256(shapes),
    }


def get_qualified_class_name(value: object) -> str:
    """Return the class name of ``value`` with its module."""
    return f"{type(value).__module__}.{type(value).__qualname__}"
