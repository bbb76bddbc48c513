"""The two kinds of step that every trainer is made of: without noise, and with it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from redactory.foundation.stream import RandomStream
from redactory.training.clipping import check_parts, clipped_sum
from redactory.training.ledger import Admission
from redactory.training.mechanism import Mechanism
from redactory.training.models.network import Network
from redactory.training.points import Points
from redactory.training.sampling import Sampler

_CHECKED_EVERY = 1000


class Phase(Protocol):
    """One kind of step; its steps are numbered from 0 through all epochs."""

    descent: Descent

    def fall_over(self, steps: int) -> None:
        """Let the step size fall to zero over ``steps`` steps."""

    def step(self, number: int) -> None:
        """Carry out step ``number``: a function of the number, the parameters, the data and the stream."""


@dataclass
class Descent:
    """An optimizer, which two kinds of step may share, at the ``learning_rate`` of one of them.

    With ``steps``, the number of steps of this kind, the rate falls linearly to zero over them: a function
    of the step's number and of constants alone.
    """

    optimizer: Optimizer
    learning_rate: float
    steps: int | None = None

    def step(self, number: int) -> None:
        """Move the parameters by the gradients that lie on them, in step ``number`` of this kind."""
        left = 1.0 if self.steps is None else 1.0 - number / self.steps
        for group in self.optimizer.param_groups:
            group["lr"] = self.learning_rate * left
        self.optimizer.step()


@dataclass
class PlainPhase:
    """SGD over points that may be learnt without noise, in an order from the stream.

    A pass goes through ``rows``, which may name a row more than once; step k is batch k of all passes,
    one after the other, each in its own order.  ``purpose`` tells the draws of two such phases of one
    training apart.

    Formal guarantees: none.  It may see public points only, wherever a guarantee is claimed.
    """

    network: Network
    descent: Descent
    points: Points
    rows: NDArray[np.int64]
    batch_size: int
    stream: RandomStream
    purpose: str = field(default="plain", kw_only=True)
    _order: tuple[int, NDArray[np.int64]] = field(default=(-1, np.empty(0, np.int64)), init=False)

    def fall_over(self, steps: int) -> None:
        """Let the step size fall to zero over ``steps`` steps."""
        self.descent = replace(self.descent, steps=steps)

    @property
    def steps_a_pass(self) -> int:
        """Steps that go once through ``rows``."""
        return math.ceil(len(self.rows) / self.batch_size)

    def rows_of(self, number: int) -> NDArray[np.int64]:
        """The rows of step ``number``, at least one."""
        this, place = divmod(number, self.steps_a_pass)
        if self._order[0] != this:
            drawn = self.stream.permutation(f"{self.purpose} order", this, len(self.rows))
            self._order = this, self.rows[drawn]
        return self._order[1][place * self.batch_size : (place + 1) * self.batch_size]

    def step(self, number: int) -> None:
        """One optimizer step on the mean over the step's rows of a point's loss."""
        rows = self.rows_of(number)
        self.network.train()
        self.network.begin_step(self.stream, f"{self.purpose} step", number)
        self.descent.optimizer.zero_grad()
        losses = self.network.point_losses(self.points.batch(rows))
        torch.autograd.backward(losses.sum() / len(rows))
        self.descent.step(number)


@dataclass
class NoisyPhase:
    """DP-SGD: Poisson-sampled steps (CRT, Algorithm 1, line 7 and footnote 3).

    ``dropped``, where given, marks points that contribute a zero gradient wherever they are drawn.
    Where the pieces of ``clipped_sum`` are computed changes no bit of it.  At the first step and every
    1,000th after it a batch is held against its halves (:func:`check_parts`).

    Formal guarantees: a step reads ``points`` only through ``mechanism.noisy_mean`` of the clipped
    sum of the points its sampler drew; the sum is admitted by the ledger before noise is drawn; no
    step is left out, whatever was drawn.  Everything else (optimizer, later steps) is
    post-processing.
    """

    network: Network
    descent: Descent
    points: Points
    mechanism: Mechanism
    sampler: Sampler
    physical_tokens: int
    stream: RandomStream
    ledger: Admission
    dropped: NDArray[np.bool_] | None = None
    clipped_sum: Callable[..., Tensor] = clipped_sum
    _checked: int = field(default=-1, init=False)

    def fall_over(self, steps: int) -> None:
        """Let the step size fall to zero over ``steps`` steps."""
        self.descent = replace(self.descent, steps=steps)

    def step(self, number: int) -> None:
        """Sample, clip and sum, admit, add noise, divide by the constant, and take an optimizer step."""
        rows = self.sampler.rows(self.stream, number, len(self.points))
        if self.dropped is not None:
            rows = rows[~self.dropped[rows]]
        self.network.train()
        self.network.begin_step(self.stream, "noisy step", number)
        thousand = number // _CHECKED_EVERY
        if thousand > self._checked and check_parts(self.network, self.points, rows, self.physical_tokens):
            self._checked = thousand
        total = self.clipped_sum(
            self.network, self.points, rows, self.mechanism.clip_norm, self.physical_tokens
        )
        self.ledger.admit(number, total)
        descend(self.network, self.descent, self.mechanism.noisy_mean(total, self.stream, number), number)


def descend(network: nn.Module, descent: Descent, gradient: Tensor, number: int) -> None:
    """Step ``number`` along ``gradient``, flat in the order of the trainable ``named_parameters``."""
    for parameter, share in _shared_out(network, gradient):
        parameter.grad = share
    descent.step(number)


@torch.no_grad()
def load(network: nn.Module, values: Tensor) -> None:
    """Set the trainable parameters from ``values``, flat in their order."""
    for parameter, share in _shared_out(network, values):
        parameter.copy_(share)


def _shared_out(network: nn.Module, values: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Each trainable parameter with its share of ``values``, in its shape."""
    parameters = trainable(network)
    shares = torch.split(values, [parameter.numel() for parameter in parameters])
    for parameter, share in zip(parameters, shares, strict=True):
        yield parameter, share.view_as(parameter)


def trainable(network: nn.Module) -> list[nn.Parameter]:
    """The parameters that training moves, in the order of ``named_parameters``, a shared one once."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def make_optimizer(network: nn.Module, rule: str) -> Optimizer:
    """A fresh optimizer over every trainable parameter; ``rule`` is "adam" or "sgd"."""
    if rule == "adam":
        return torch.optim.Adam(trainable(network))
    return torch.optim.SGD(trainable(network), lr=1.0)
