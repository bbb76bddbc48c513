"""What every network offers to training and to evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redactory.foundation.stream import RandomStream
from redactory.training.layers import vocabulary_losses
from redactory.training.models.dropout import Seeds
from redactory.training.points import NO_CLASS, Batch

State = tuple[Tensor, ...]
"""All that a network remembers of the tokens it has read: tensors whose first axis is the row."""


class Drawing(nn.Module, ABC):
    """A network, or a part of one, that draws dropout in a step; nothing here, where none is drawn."""

    def begin_step(self, stream: RandomStream, purpose: str, step: int) -> None:
        """Dropout of the step named (``purpose``, ``step``) is drawn from ``stream`` from here on."""

    def step_seeds(self, rows: Iterable[int]) -> Seeds:
        """What another process draws dropout of this step from, for the points ``rows``."""
        return {}

    def begin_with(self, seeds: Seeds) -> None:
        """Dropout is drawn from ``seeds``, which :meth:`step_seeds` gave elsewhere, from here on."""


class Network(Drawing, ABC):
    """A network that gives every point of a batch its own loss.

    Formal guarantees: no operation mixes two rows of a batch, so that the gradient of a point is a function
    of the point, the parameters and draws that do not look at data (``docs/guarantees.md``, "Side
    channels", items 6 and 11).
    """

    @abstractmethod
    def point_losses(self, batch: Batch) -> Tensor:
        """The loss of each point (nats), [B]: differentiable in every trainable parameter."""

    @abstractmethod
    def initialise(self, stream: RandomStream) -> None:
        """Set every parameter from ``stream`` and public constants, or leave it as it was read."""

    @property
    def device(self) -> torch.device:
        """Where the parameters lie."""
        return next(self.parameters()).device


class Encoder(Drawing, ABC):
    """The layers that read a text, below whatever is said of it: next words, or a class.

    Formal guarantees: a row's states are a function of that row, the parameters and draws that do not
    look at data; the state is zero before every row.
    """

    context: int | None = None
    """Inputs that it can read, begin and end token included; None where there is no bound."""

    @property
    @abstractmethod
    def width(self) -> int:
        """H, the width of a state."""

    @abstractmethod
    def hidden(self, batch: Batch) -> Tensor:
        """The state after each place of ``batch.inputs``: [B, T, H]."""

    @abstractmethod
    def initialise(self, stream: RandomStream) -> None:
        """Draw every parameter from ``stream``."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What the same layers are made from again, as JSON."""


class Classifier(Network):
    """A network that gives every point one of ``classes``.

    In a batch ``targets`` [B, 1] are class numbers and ``real`` says which of ``inputs`` are read.
    ``context`` is the number of inputs it can read, begin and end token included; ``None`` where there is
    no bound.

    Formal guarantees: those of :class:`Network`; a point without a class (``NO_CLASS``) has loss 0 and a
    gradient that is exactly 0, so it is a null point wherever it is drawn.
    """

    context: int | None = None

    @property
    @abstractmethod
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, by number: a public constant."""

    @abstractmethod
    def logits(self, batch: Batch) -> Tensor:
        """Unnormalised log probabilities of the classes, [B, classes]."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What the same architecture is made from again, as JSON."""

    def point_losses(self, batch: Batch) -> Tensor:
        """−log probability (nats) of each point's class, [B]; 0 for a point without a class."""
        return F.cross_entropy(
            self.logits(batch), batch.targets[:, 0], ignore_index=NO_CLASS, reduction="none"
        )


class LanguageNetwork(Network):
    """A network that foretells each token from those before it.

    ``context`` is the number of tokens it can read, ``None`` where there is no bound.
    """

    context: int | None = None

    @property
    @abstractmethod
    def head(self) -> nn.Module:
        """The layer from what a place knows, [..., H], to unnormalised log probabilities [..., V]."""

    @abstractmethod
    def hidden(self, batch: Batch) -> Tensor:
        """What each place of ``batch.inputs`` knows of the next token: [B, T, H]."""

    @abstractmethod
    def initial_state(self, batch: int) -> State:
        """The state before anything was read, ``batch`` rows of it."""

    @abstractmethod
    def step(self, ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token a row, ids [B]: log probabilities (nats) of the next [B, V], and the new state."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What :func:`redactory.training.models.build.rebuilt` makes the same architecture from, as JSON."""

    def point_losses(self, batch: Batch) -> Tensor:
        """−log probability (nats) of each point, [B]: the sum over its real targets."""
        return vocabulary_losses(self.head, self.hidden(batch), batch.targets, batch.real)


def uniform_(parameter: Tensor, scale: float, stream: RandomStream, index: int) -> None:
    """Fill ``parameter`` with draws of "initialise", uniform within ±``scale``."""
    draws = (2.0 * stream.uniform("initialise", 0, parameter.numel(), index) - 1.0) * scale
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(draws).view_as(parameter))


def normal_(parameter: Tensor, deviation: float, stream: RandomStream, index: int) -> None:
    """Fill ``parameter`` with draws of "initialise" from N(0, ``deviation``²)."""
    draws = deviation * stream.normal("initialise", 0, parameter.numel(), index)
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(draws).view_as(parameter))
