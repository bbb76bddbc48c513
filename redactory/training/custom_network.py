"""A network that somebody else wrote: as the steps of a training need it, and what is asked of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from redactory.foundation.canonical import json_sha256
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.stream import RandomStream
from redactory.training.data import Batch
from redactory.training.models.hugging_face import (
    CausalNetwork,
    HuggingFaceNetwork,
    SequenceClassifier,
    require_exact_on_trial,
)
from redactory.training.models.network import Network
from redactory.training.settings import TrainSettings
from redactory.training.tokenizer import TextCodec

CUSTOM_KIND = "own"
"""The kind of a network that nobody but its author can build again."""
LossFunction = Callable[[Any, Batch], Tensor]
"""From a network and a batch to the loss of each of its points, [B]."""


class CustomNetwork(Network):
    """Any ``model`` with ``losses``, which gives the loss of each point of a batch.

    Formal guarantees: those of :class:`redactory.training.models.network.Network`, as far as they are
    checked (:func:`require_trainable_network`).
    """

    FORMAT = "redactory-own-network/1"

    def __init__(self, model: nn.Module, losses: LossFunction) -> None:
        super().__init__()
        self.model, self._loss_function = model, losses

    def initialise(self, stream: RandomStream) -> None:
        """Leave the weights as they are."""

    def describe(self) -> dict[str, Any]:
        """The class; whoever wrote it can build it again."""
        return {"format": self.FORMAT, "network": get_qualified_name(self.model)}

    def example_losses(self, batch: Batch) -> Tensor:
        """The loss of each point, [B]."""
        return self._loss_function(self.model, batch)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """That of the model by itself: it is what a folder holds."""
        return self.model.state_dict(*args, **kwargs)


def wrap_network(network: nn.Module, task: str, losses: LossFunction | None) -> Network:
    """``network`` as the steps need it."""
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
    """``ConfigurationError`` where ``network`` is elsewhere, too small, or not clipped exactly."""
    if network.device.type != settings.device:
        raise ConfigurationError(
            f"train.device: the network is on {network.device.type}, but {settings.device} is configured: "
            "move it there, or change train.device"
        )
    needed = settings.max_tokens + (settings.task == "classify")
    if network.context is not None and needed > network.context:
        raise ConfigurationError(f"train.max_tokens: the network reads {network.context} tokens, but needs {needed}")
    known, classes = tokenizer.size, len(settings.classes)
    if isinstance(network, HuggingFaceNetwork):
        known = len(network.model.get_input_embeddings().weight)
    if known < tokenizer.size:
        raise ConfigurationError(
            f"the network has {known} tokens, but the vocabulary has {tokenizer.size}: call "
            "network.resize_token_embeddings(loop.tokenizer.size) before creating the optimizer"
        )
    if isinstance(network, SequenceClassifier) and network.classes != settings.classes:
        raise ConfigurationError(
            "train.classes: the network's id2label has other classes: create it with "
            "id2label=dict(enumerate(settings.classes))"
        )
    require_exact_on_trial(
        network, tokenizer.pad_id, tokenizer.end_id, needed, known, classes, type(_unwrap(network)).__name__
    )


def describe_network(network: Network) -> dict[str, Any]:
    """What a ledger says of the network; it must be the same when a loop is begun again."""
    inner = _unwrap(network)
    kind = network.model.config.model_type if isinstance(network, HuggingFaceNetwork) else None
    shapes = {name: list(p.shape) for name, p in network.named_parameters() if p.requires_grad}
    return {
        "network": get_qualified_name(inner),
        "model_type": kind or getattr(getattr(inner, "encoder", inner), "KIND", CUSTOM_KIND),
        "trained": json_sha256(shapes),
    }


def get_qualified_name(thing: object) -> str:
    """The class of ``thing``, with its module."""
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _unwrap(network: Network) -> Any:
    return network.model if isinstance(network, CustomNetwork | HuggingFaceNetwork) else network
