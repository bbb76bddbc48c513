"""The kinds of step that every trainer uses: noise-free, and with noise on a sample of examples."""

from __future__ import annotations

import inspect
import math
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import Optimizer

from redactory.foundation.stream import RandomStream
from redactory.training.clipping import check_batch_independence, compute_clipped_sum, use_precision
from redactory.training.clipping.engine import split_by_parameter
from redactory.training.data import IntArray, TokenizedExamples, split_micro_batches
from redactory.training.mechanisms.ledger import Admission
from redactory.training.mechanisms.mechanism import Mechanism
from redactory.training.models.network import Network
from redactory.training.numerics import limit_batch_tokens

_CHECK_INTERVAL = 1000


@dataclass
class ScheduledOptimizer:
    """An optimizer, possibly shared, with one step kind's learning rate, which changes if ``steps`` is their number.

    It then rises from zero over the share ``warm_up`` of the steps, and falls to zero as ``schedule`` says ("linear",
    "cosine"; "constant" keeps it).
    """

    optimizer: Optimizer
    learning_rate: float
    steps: int | None = None
    schedule: str = "linear"
    warm_up: float = 0.0

    def get_learning_rate(self, number: int) -> float:
        """Return the learning rate of step ``number``."""
        if self.steps is None:
            return self.learning_rate
        warm_up_steps = self.warm_up * self.steps
        if number < warm_up_steps:
            return self.learning_rate * ((number + 1) / (warm_up_steps + 1))
        progress = (number - warm_up_steps) / (self.steps - warm_up_steps)
        cosine = 0.5 + 0.5 * math.cos(math.pi * progress)
        return self.learning_rate * {"constant": 1.0, "linear": 1.0 - progress, "cosine": cosine}[self.schedule]

    def step(self, number: int) -> None:
        """Update the parameters by their gradients, in step ``number`` of this kind."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.get_learning_rate(number)
        self.optimizer.step()


class StepKind(Protocol):
    """One kind of step; its steps are numbered from 0 through all epochs."""

    scheduled_optimizer: ScheduledOptimizer

    def step(self, number: int) -> None:
        """Carry out step ``number``: a function of the number, the parameters, the data and the stream."""


@dataclass
class NoiseFreeSteps:
    """SGD over examples that may be learned without noise, in an order from the stream.

    A pass goes through ``rows``, which may repeat rows, in a new order; step k is batch k of all passes in sequence.
    ``purpose`` separates the draws of two such step kinds of one training.

    Formal guarantees: none. Where a guarantee is claimed, it may read public examples only.
    """

    network: Network
    scheduled_optimizer: ScheduledOptimizer
    examples: TokenizedExamples
    rows: IntArray
    batch_size: int
    stream: RandomStream
    purpose: str = field(default="plain", kw_only=True)
    precision: str = field(default="float32", kw_only=True)
    last_loss: Tensor | None = field(default=None, init=False)
    """The mean loss of the last step's targets (nats a token, or an example for classes), before its update."""
    _pass_order: tuple[int, IntArray] = field(default=(-1, np.empty(0, np.int64)), init=False)

    @property
    def steps_per_pass(self) -> int:
        """Number of steps in one pass through ``rows``."""
        return math.ceil(len(self.rows) / self.batch_size)

    def select_rows(self, number: int) -> IntArray:
        """Return the rows of step ``number``, at least one."""
        pass_number, batch_number = divmod(number, self.steps_per_pass)
        if self._pass_order[0] != pass_number:
            order = self.stream.permutation(f"{self.purpose} order", pass_number, len(self.rows))
            self._pass_order = pass_number, self.rows[order]
        return self._pass_order[1][batch_number * self.batch_size : (batch_number + 1) * self.batch_size]

    def step(self, number: int) -> None:
        """Take one optimizer step on the mean example loss over the step's rows."""
        rows = self.select_rows(number)
        self.network.train()
        self.network.begin_step(self.stream, f"{self.purpose} step", number)
        self.scheduled_optimizer.optimizer.zero_grad()
        padded_tokens = len(rows) * int(self.examples.lengths[rows].max())
        max_tokens = limit_batch_tokens(self.network, padded_tokens)
        parts = [rows] if max_tokens == padded_tokens else split_micro_batches(rows, self.examples.lengths, max_tokens)
        loss, targets = torch.zeros((), device=self.network.device), 0
        for part in parts:
            batch = self.examples.make_batch(part)
            with use_precision(self.precision, self.network.device):
                losses = self.network.example_losses(batch.to(self.network.device))
            torch.autograd.backward(losses.sum() / len(rows))
            loss, targets = loss + losses.detach().sum(), targets + batch.count_targets()
        self.last_loss = loss / targets
        self.scheduled_optimizer.step(number)


@dataclass
class NoisySteps:
    """DP-SGD: Poisson-sampled steps (CRT, Algorithm 1, line 7 and footnote 3).

    ``dropped_mask``, if given, marks examples with a zero gradient wherever they are sampled. In the first step and
    every 1,000th after it, a batch's gradient is compared with those of its halves (:func:`check_batch_independence`).

    ``public_examples``, if given, are sampled at the same rate, with coins of their own that need not be secret. Each
    adds its clipped gradient without noise. So public and private examples count alike, whatever their numbers.

    Formal guarantees: a step reads ``examples`` only through ``mechanism.compute_noisy_mean`` of the sampled examples'
    clipped sum; the ledger admits the sum before noise is drawn; no step is skipped, whatever was sampled. Everything
    else (optimizer, later steps) is post-processing.
    """

    network: Network
    scheduled_optimizer: ScheduledOptimizer
    examples: TokenizedExamples
    mechanism: Mechanism
    max_physical_batch_tokens: int
    stream: RandomStream
    ledger: Admission
    dropped_mask: NDArray[np.bool_] | None = None
    public_examples: TokenizedExamples | None = None
    _last_check: int = field(default=-1, init=False)

    def sample_step_rows(self, number: int) -> IntArray:
        """Sample the rows of step ``number``."""
        return self.mechanism.sample_rows(self.stream, number, len(self.examples))

    def step(self, number: int) -> None:
        """Sample, clip and sum, admit, add noise, divide by the constant, and take an optimizer step."""
        rows = self.sample_step_rows(number)
        if self.dropped_mask is not None:
            rows = rows[~self.dropped_mask[rows]]
        self.network.train()
        self.network.begin_step(self.stream, "noisy step", number)
        check_number = number // _CHECK_INTERVAL
        if check_number > self._last_check and check_batch_independence(
            self.network, self.examples, rows, self.max_physical_batch_tokens
        ):
            self._last_check = check_number
        total = self.sum_clipped_gradients(self.examples, rows)
        self.ledger.authorize_noisy_step(number, total)
        gradient = self.mechanism.compute_noisy_mean(total, self.stream, number)
        if self.public_examples is not None:
            gradient += self.compute_public_sum(number) / self.mechanism.normaliser
        apply_gradient(self.network, self.scheduled_optimizer, gradient, number)

    def compute_public_sum(self, number: int) -> Tensor:
        """Sum the clipped gradients of the public examples that step ``number`` samples."""
        assert self.public_examples is not None
        coins = self.stream.uniform("public coins", number, len(self.public_examples))
        rows = np.flatnonzero(coins < self.mechanism.sampling_rate)
        return self.sum_clipped_gradients(self.public_examples, rows)

    def sum_clipped_gradients(self, examples: TokenizedExamples, rows: IntArray) -> Tensor:
        """Sum the clipped gradients of the examples ``rows``."""
        return compute_clipped_sum(
            self.network, examples, rows, self.mechanism.clip_norm, self.max_physical_batch_tokens
        )


def list_trainable_parameters(network: nn.Module) -> list[nn.Parameter]:
    """Return the trained parameters in the order of ``named_parameters``, a shared one once."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def flatten_parameters(network: nn.Module) -> Tensor:
    """Concatenate the trainable parameters' current values."""
    return torch.cat([parameter.detach().flatten() for parameter in list_trainable_parameters(network)])


@torch.no_grad()
def set_flat_parameters(network: nn.Module, values: Tensor) -> None:
    """Set the trainable parameters from ``values``, flat in their order."""
    for parameter, part in split_by_parameter(list_trainable_parameters(network), values):
        parameter.copy_(part)


def apply_gradient(network: nn.Module, scheduled_optimizer: ScheduledOptimizer, gradient: Tensor, number: int) -> None:
    """Take step ``number`` along ``gradient``, flat in the order of the trainable parameters."""
    for parameter, part in split_by_parameter(list_trainable_parameters(network), gradient):
        parameter.grad = part
    scheduled_optimizer.step(number)


def _remove_compiler_wrappers(optimizer_class: type[Optimizer]) -> Any:
    """Make a subclass without torch's wrappers for compiled code, whose first call imports the compiler (a second)."""
    wrapped_methods = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")
    methods: dict[str, Any] = {name: inspect.unwrap(getattr(optimizer_class, name)) for name in wrapped_methods}
    methods["step"] = torch.no_grad()(inspect.unwrap(optimizer_class.step))
    return type(optimizer_class.__name__, (optimizer_class,), methods)


_ADAMW, _SGD = _remove_compiler_wrappers(torch.optim.AdamW), _remove_compiler_wrappers(torch.optim.SGD)


def make_optimizer(network: nn.Module, optimizer_name: str, weight_decay: float = 0.0) -> Optimizer:
    """Make an optimizer over all trainable parameters; ``optimizer_name`` is "adam" or "sgd"."""
    optimizer_class, rate = (_ADAMW, 0.001) if optimizer_name == "adam" else (_SGD, 1.0)
    optimizer: Optimizer = optimizer_class(list_trainable_parameters(network), lr=rate, weight_decay=weight_decay)
    return optimizer


@dataclass
class BestWeights:
    """The weights at the least ``loss`` on held-out public text after an epoch so far; None before the first.

    Formal guarantees: a function of weights that steps released and of public text: post-processing.
    """

    network: nn.Module
    weights: Tensor | None = None
    loss: float = math.inf

    def add_weights(self, loss: float) -> None:
        """Keep the current weights if their ``loss`` is below the least so far."""
        if loss < self.loss:
            self.weights, self.loss = flatten_parameters(self.network), loss
