"""The two kinds of epoch that every trainer is made of: without noise, and with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from redactory.foundation.progress import Progress
from redactory.foundation.stream import RandomStream
from redactory.training.clipping import clipped_sum
from redactory.training.ledger import Admission
from redactory.training.mechanism import PoissonGaussian
from redactory.training.network import LstmLanguageModel
from redactory.training.points import EncodedPoints
from redactory.training.sampling import PoissonSampler


class Phase(Protocol):
    """A part of an epoch."""

    optimizer: Optimizer

    def epoch(self, number: int, progress: Progress) -> None:
        """Run epoch ``number``, counted from 0."""


@dataclass
class PlainPhase:
    """SGD over points that may be learnt without noise, in an order from the stream.

    A pass goes through ``rows``, which may name a row more than once.  An epoch is one pass (CRT,
    Algorithm 1, line 6), or as many whole passes as give ``minimum_steps``: after deduplication a
    public side can be a few dozen points.

    Formal guarantees: none.  It may see public points only, wherever a guarantee is claimed.
    """

    network: LstmLanguageModel
    optimizer: Optimizer
    points: EncodedPoints
    rows: NDArray[np.int64]
    batch_size: int
    minimum_steps: int
    stream: RandomStream

    def epoch(self, number: int, progress: Progress) -> None:
        """Whole passes over the points in batches of ``batch_size``, each pass in its own order."""
        steps_a_pass = math.ceil(len(self.rows) / self.batch_size)
        passes = math.ceil(self.minimum_steps / steps_a_pass) if steps_a_pass else 0
        for index in range(passes):
            order = self.rows[self.stream.permutation("plain order", number, len(self.rows), index)]
            for place in range(steps_a_pass):
                self.step(order[place * self.batch_size : (place + 1) * self.batch_size])
                done = index * steps_a_pass + place + 1
                progress(f"epoch {number + 1}, without noise", done, passes * steps_a_pass, "steps")

    def step(self, rows: NDArray[np.int64]) -> None:
        """One optimizer step on the mean over ``rows`` of a point's loss, the sum over its tokens."""
        self.optimizer.zero_grad()
        loss = self.network.token_losses(self.points.batch(rows)).sum() / len(rows)
        torch.autograd.backward(loss)
        self.optimizer.step()


@dataclass
class NoisyPhase:
    """DP-SGD: ⌈1/q⌉ Poisson-sampled steps an epoch (CRT, Algorithm 1, line 7 and footnote 3).

    Formal guarantees: a step reads ``points`` only through ``mechanism.noisy_mean`` of the clipped
    sum of the points its sampler drew; the sum is admitted by the ledger before noise is drawn; no
    step is left out, whatever was drawn.  Everything else (optimizer, later phases) is
    post-processing.
    """

    network: LstmLanguageModel
    optimizer: Optimizer
    points: EncodedPoints
    mechanism: PoissonGaussian
    sampler: PoissonSampler
    steps_per_epoch: int
    physical_tokens: int
    stream: RandomStream
    ledger: Admission
    clipped_sum: Callable[..., Tensor] = clipped_sum

    def epoch(self, number: int, progress: Progress) -> None:
        """The noisy steps of one epoch; their numbers count through all epochs."""
        for done in range(self.steps_per_epoch):
            self.step(number * self.steps_per_epoch + done)
            progress(f"epoch {number + 1}, with noise", done + 1, self.steps_per_epoch, "steps")

    def step(self, step: int) -> None:
        """Sample, clip and sum, admit, add noise, divide by the constant, and take an optimizer step."""
        rows = self.sampler.rows(self.stream, step, len(self.points))
        total = self.clipped_sum(
            self.network, self.points, rows, self.mechanism.clip_norm, self.physical_tokens
        )
        self.ledger.admit(step, total)
        self._descend(self.mechanism.noisy_mean(total, self.stream, step))

    def _descend(self, gradient: Tensor) -> None:
        parameters = list(self.network.parameters())
        shares = torch.split(gradient, [parameter.numel() for parameter in parameters])
        for parameter, share in zip(parameters, shares, strict=True):
            parameter.grad = share.view_as(parameter)
        self.optimizer.step()


def make_optimizer(network: LstmLanguageModel, rule: str, learning_rate: float) -> Optimizer:
    """A fresh optimizer over every parameter; ``rule`` is "adam" or "sgd"."""
    if rule == "adam":
        return torch.optim.Adam(network.parameters(), lr=learning_rate)
    return torch.optim.SGD(network.parameters(), lr=learning_rate)
