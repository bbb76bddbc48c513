"""Interface of every network for training and evaluation, and dropout that a replayed step draws again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redactory.foundation.stream import RandomStream
from redactory.training.clipping.layers import compute_vocabulary_losses
from redactory.training.clipping.matmul import to_float32
from redactory.training.data import NO_CLASS, Batch

State = tuple[Tensor, ...]
"""A network's state after reading tokens: tensors whose first dimension is the row."""


class NetworkPart(nn.Module, ABC):
    """A network, or a part of one.

    ``context`` is the number of inputs it can read, begin and end token included; ``None`` if unbounded.

    Formal guarantees: a dropout mask is a function of the root key, the step, the layer and the example's number, never
    of an example's text, its position in a batch or the other examples. A mask that all examples share (of weights, of
    words) is a function of the step.
    """

    context: int | None = None
    _step: tuple[RandomStream, str, int] | None = None

    @abstractmethod
    def initialise(self, stream: RandomStream) -> None:
        """Set every parameter from ``stream`` and public constants, or keep it as read."""

    def describe(self) -> dict[str, Any]:
        """Return the JSON from which :mod:`redactory.training.model` makes the same architecture."""
        raise NotImplementedError

    def begin_step(self, stream: RandomStream, purpose: str, step: int) -> None:
        """Draw dropout of the step (``purpose``, ``step``) from ``stream`` from now on."""
        for module in self.modules():
            if isinstance(module, NetworkPart):
                module._step = stream, purpose, step

    def draw_mask(self, name: str, index: int, shape: Sequence[int], rate: float) -> Tensor | None:
        """Draw this step's mask (``name``, ``index``): 0 with probability ``rate``, otherwise 1/(1 − rate).

        None without dropout: before the first step, in evaluation, or if ``rate`` is 0.
        """
        if self._step is None or not self.training or not rate:
            return None
        stream, purpose, step = self._step
        seed = stream.random_bytes(f"dropout of {purpose} {name}", step, 8, index)
        generator = torch.Generator().manual_seed(int.from_bytes(seed, "little") >> 1)
        return (torch.rand(*shape, generator=generator) >= rate).to(torch.get_default_dtype()) / (1.0 - rate)


class Network(NetworkPart):
    """A network that gives every example of a batch its own loss.

    Formal guarantees: no operation mixes two rows of a batch, so the gradient of an example is a function of the
    example, the parameters and draws that do not depend on data (``docs/guarantees.md``, "Side channels", items 6 and
    11).
    """

    @abstractmethod
    def example_losses(self, batch: Batch) -> Tensor:
        """Return the loss of each example (nats), [B]: differentiable in every trainable parameter."""

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return next(self.parameters()).device


class Encoder(NetworkPart):
    """The layers that read a text, below the output layer for words or classes.

    Formal guarantees: a row's states are a function of that row, the parameters and draws that do not depend on data;
    the state is zero before every row.
    """

    width: int
    """H, the width of a state."""

    @abstractmethod
    def hidden_states(self, batch: Batch) -> Tensor:
        """Return the state after each position of ``batch.inputs``: [B, T, H]."""


class ClassifierNetwork(Network):
    """A network that gives every example one of ``classes``.

    In a batch ``targets`` [B, 1] are class numbers and ``real`` marks the ``inputs`` to read.

    Formal guarantees: those of :class:`Network`; an example without a class (``NO_CLASS``) has loss 0 and a gradient of
    exactly 0, so it is a null example wherever it is drawn.
    """

    classes: tuple[str, ...]
    """The names of the classes, by number: a public constant."""

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor:
        """Return unnormalised log probabilities of the classes, [B, classes]."""

    def find_output_layer(self) -> nn.Module | None:
        """Find the trained linear layer whose outputs are the logits, the last of that size; None if there is none."""
        size = len(self.classes)
        layers = [m for m in self.modules() if isinstance(m, nn.Linear) and m.out_features == size]
        return layers[-1] if layers and layers[-1].weight.requires_grad else None

    def example_losses(self, batch: Batch) -> Tensor:
        """Return −log probability (nats) of each example's class, [B]; 0 for an example without a class."""
        return F.cross_entropy(
            to_float32(self.logits(batch)), batch.targets[:, 0], ignore_index=NO_CLASS, reduction="none"
        )


class LanguageNetwork(Network):
    """A network that predicts each token from those before it."""

    @property
    @abstractmethod
    def head(self) -> nn.Module:
        """The layer from a position's features [..., H] to unnormalised log probabilities [..., V]."""

    @abstractmethod
    def hidden_states(self, batch: Batch) -> Tensor:
        """Return the features from which each position of ``batch.inputs`` predicts the next token: [B, T, H]."""

    has_narrow_states = True
    """Whether :meth:`read_states` returns what the output layer reads; otherwise it returns logits."""

    def read_states(self, ids: Tensor) -> Tensor:
        """Return the features [B, T, H] after ``ids`` [B, T], for prediction; :meth:`compute_logits` reads them."""
        return self.hidden_states(Batch(ids, ids, torch.ones_like(ids, dtype=torch.bool)))

    def compute_logits(self, states: Tensor) -> Tensor:
        """Return unnormalised log probabilities [N, V] after ``states`` [N, H]."""
        logits: Tensor = self.head(states)
        return logits

    @property
    def kept_logits(self) -> int:
        """How many numbers per position, V or 0, :meth:`example_losses` keeps until the backward pass."""
        head: Any = self.head
        is_frozen_linear = type(head).forward is nn.Linear.forward and not head.weight.requires_grad
        return 0 if is_frozen_linear else len(head.weight)

    @abstractmethod
    def make_initial_state(self, batch: int) -> State:
        """Return the state before any token, with ``batch`` rows."""

    @abstractmethod
    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token per row, ids [B]: log probabilities (nats) of the next [B, V], and the new state."""

    def read_tokens(self, ids: Tensor, state: State) -> State:
        """Return the state after ``ids`` [B, N]."""
        for column in ids.unbind(1):
            _, state = self.step(column, state)
        return state

    def example_losses(self, batch: Batch) -> Tensor:
        """Return −log probability (nats) of each example, [B]: the sum over its trained targets."""
        loss_mask = batch.real if batch.loss_mask is None else batch.loss_mask
        return compute_vocabulary_losses(self.head, self.hidden_states(batch), batch.targets, loss_mask)


@torch.no_grad()
def fill_uniform(parameter: Tensor, scale: float, stream: RandomStream, index: int) -> None:
    """Fill ``parameter`` with draws of "initialise", uniform within ±``scale``."""
    draws = (2.0 * stream.uniform("initialise", 0, parameter.numel(), index) - 1.0) * scale
    parameter.copy_(torch.from_numpy(draws).view_as(parameter))


@torch.no_grad()
def fill_normal(parameter: Tensor, deviation: float, stream: RandomStream, index: int) -> None:
    """Fill ``parameter`` with draws of "initialise" from N(0, ``deviation``²)."""
    draws = deviation * stream.normal("initialise", 0, parameter.numel(), index)
    parameter.copy_(torch.from_numpy(draws).view_as(parameter))
