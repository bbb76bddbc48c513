"""A network whose points cannot be told apart is refused, with the name of the module."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.foundation.stream import RandomStream
from redactory.training.clipping import (
    check_batch_independence,
    compute_clipped_gradient,
    compute_clipped_sum,
    require_supported_network,
)
from redactory.training.clipping.layers import Lstm, compute_vocabulary_losses
from redactory.training.data import Batch, TokenizedExamples
from redactory.training.ldp.settings import LdpSettings
from redactory.training.ldp.user import DPLayer
from redactory.training.mechanisms.mechanism import PoissonGaussian, parse_mechanism_json
from redactory.training.mechanisms.users import PoissonUsersGaussian
from redactory.training.models.recurrent import LstmLanguageModel
from redactory.training.models.settings import LstmSettings
from redactory.training.settings import TrainSettings
from redactory.training.steps import NoisySteps, ScheduledOptimizer, make_optimizer
from tests.training.clipping.networks import assert_equal, reference

IDS = torch.tensor([[1, 2, 3], [3, 1, 0], [2, 2, 1]])  # as many places as points, so that shapes say nothing


class Small(nn.Module):
    """Embedding, ``middle``, output; the last place's first logit is the loss."""

    def __init__(self, middle: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(4, 3)
        self.middle = middle
        self.output = nn.Linear(3, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.middle(self.embedding(ids))).sin().sum((1, 2))


class Lambda(nn.Module):
    """A function of the states, with ``inner`` at hand."""

    def __init__(self, function: Callable[..., Tensor], inner: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.inner = function, inner

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) if self.inner is None else self.function(x, self.inner)


class Carrying(nn.Module):
    """An LSTM whose state goes from one batch to the next."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(3, 3, batch_first=True)
        self.state: tuple[Tensor, Tensor] = (torch.ones(1, 3, 3), torch.ones(1, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        states, self.state = self.lstm(x, self.state)
        return states


class Counting(nn.Module):
    """A scale with a buffer that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1.0
        return x * self.scale


class Scaled(nn.Module):
    """A function of the states and a scale of its own: a module of no known kind."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.scale, self.function = nn.Parameter(torch.ones(3)), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.scale)


STATIC = {
    "batch normalisation": (nn.BatchNorm1d(3), "middle: batch normalisation"),
    "running statistics": (nn.InstanceNorm1d(3, track_running_stats=True), "middle: running statistics"),
    "max_norm": (nn.Embedding(4, 3, max_norm=1.0), "middle: max_norm"),
    "scaled by frequency": (nn.Embedding(4, 3, scale_grad_by_freq=True), "middle: max_norm"),
    "half precision": (nn.Linear(3, 3).half(), "float32"),
}
RUNNING = {
    "hidden state carried across points": (Carrying(), "middle.lstm: receives a hidden state"),
    "a mean over the batch": (Lambda(lambda x: x - x.mean(0, keepdim=True)), "depends on another"),
    "attention across the batch": (Lambda(lambda x: x.softmax(0)), "depends on another"),
    "points and places exchanged": (Lambda(lambda x, y: y(x.mT).mT, nn.Linear(3, 3)), None),
    "time first": (Lambda(lambda x, y: y(x.transpose(0, 1))[0].transpose(0, 1), nn.LSTM(3, 3)), None),
    "a layer over time first": (
        Lambda(lambda x, y: y(x.transpose(0, 1)).transpose(0, 1), nn.Linear(3, 3)),
        "depends on another",
    ),
    "a layer on rows of all points": (
        Lambda(lambda x, y: y(x.flatten(0, 1)).view_as(x), nn.Linear(3, 3)),
        "middle.inner.weight: its layer received 9 rows in a batch of 3",
    ),
    "positions without a batch": (
        Lambda(lambda x, y: x + y(torch.arange(3)), nn.Embedding(9, 3)),
        "middle.inner: its input has no dimension",
    ),
    "a weight outside of its layer": (
        Lambda(lambda x, y: F.linear(x, y.weight), nn.Linear(3, 3)),
        "middle.inner.weight: used outside",
    ),
    "a buffer that is written": (Counting(), "middle: writes a buffer"),
    "random numbers in an unknown module": (
        Scaled(lambda x, scale: F.dropout(x * scale, 0.5)),
        "middle: draws random numbers",
    ),
    "an unknown module that mixes points": (
        Scaled(lambda x, scale: (x - x.mean(0)) * scale),
        "middle: its result for one example",
    ),
    "packed sequences": (
        Lambda(
            lambda x, y: nn.utils.rnn.pad_packed_sequence(
                y(nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 3, 3]), batch_first=True))[0], True
            )[0],
            nn.LSTM(3, 3, batch_first=True),
        ),
        "middle.inner: takes padded batches",
    ),
}


@pytest.mark.parametrize("case", STATIC)
def test_refused_before_anything_runs(case: str) -> None:
    middle, words = STATIC[case]
    with pytest.raises(ConfigurationError, match=words):
        require_supported_network(Small(middle))


@pytest.mark.parametrize("case", RUNNING)
def test_refused_when_it_runs_or_computed_rightly(case: str) -> None:
    middle, words = RUNNING[case]
    net = Small(middle)
    if words is not None:
        with pytest.raises(ConfigurationError, match=words):
            compute_clipped_gradient(net, lambda: net(IDS), 0.5)
        return
    found = compute_clipped_gradient(net, lambda: net(IDS), 0.5)
    expected, _ = reference(net, lambda row: net(IDS[row : row + 1]), 3, 0.5)
    assert_equal(found.flat, expected, 1e-5, 0.0)


class Languages(LstmLanguageModel):
    """A language model whose states or losses ``mixed`` changes, by numbers without a gradient."""

    def __init__(self, mixed: str) -> None:
        super().__init__(11, LstmSettings(embedding_size=3, hidden_size=4))
        self.mixed = mixed
        self.initialise(RandomStream.from_seed(2))

    def hidden_states(self, batch: Batch) -> Tensor:
        states = super().hidden_states(batch)
        return states - states.mean(0, keepdim=True).detach() if self.mixed == "centred" else states

    def example_losses(self, batch: Batch) -> Tensor:
        losses = super().example_losses(batch)
        if self.mixed == "softmax":
            return losses * losses.detach().softmax(0)
        return losses / len(losses) if self.mixed == "mean" else losses


TOKENS = TokenizedExamples(np.arange(2, 11, dtype=np.int32), np.array([0, 1, 3, 4, 9], np.int64), 1, 0)


@pytest.mark.parametrize("mixed", ["centred", "softmax", "mean"])
def test_a_batch_that_is_centred_or_weighted_without_a_gradient_is_seen_in_its_halves(mixed: str) -> None:
    rows = np.arange(4)
    assert check_batch_independence(Languages(""), TOKENS, rows, 4096)
    compute_clipped_sum(Languages(mixed), TOKENS, rows, 0.5, 4096)  # one pass alone shows nothing
    with pytest.raises(ConfigurationError, match="changes with the other examples in its batch"):
        check_batch_independence(Languages(mixed), TOKENS, rows, 4096)
    assert not check_batch_independence(Languages(mixed), TOKENS, rows[:1], 4096)
    assert not check_batch_independence(Languages(mixed), TOKENS, rows[:0], 4096)


def test_a_training_holds_its_batches_against_their_halves_at_the_start_and_every_thousand_steps() -> None:
    class Ledger:
        def authorize_noisy_step(self, step: int, clipped_sum: Tensor) -> None:
            """Whatever comes."""

    network = Languages("")  # honest until it is not
    descent = ScheduledOptimizer(make_optimizer(network, "sgd"), 1e-3)
    mechanism = PoissonGaussian(1.0, 1.0, 0.5, 4.0)
    phase = NoisySteps(network, descent, TOKENS, mechanism, 4096, RandomStream.from_seed(1), Ledger())
    phase.step(0)
    network.mixed = "mean"
    phase.step(1)
    phase.step(999)
    with pytest.raises(ConfigurationError, match="changes with the other examples"):
        phase.step(1000)
    # a step that draws nobody shows nothing: the next one is looked at
    phase.mechanism = replace(mechanism, sampling_rate=1e-12)
    phase.step(2000)
    phase.mechanism = mechanism
    with pytest.raises(ConfigurationError, match="changes with the other examples"):
        phase.step(2001)


@pytest.mark.parametrize("clip_norm", [1e-44, 0.99e-6, 1.01e6, math.inf, math.nan, 0.0])
def test_a_clip_that_single_precision_cannot_hold_is_refused_wherever_it_is_given(clip_norm: float) -> None:
    net = Small(nn.Identity())
    for given in (
        lambda: compute_clipped_gradient(net, lambda: net(IDS), clip_norm),
        lambda: compute_clipped_sum(Languages(""), TOKENS, np.arange(0), clip_norm, 4096),
        lambda: PoissonGaussian(0.1, 1.0, clip_norm, 1.0),
        lambda: PoissonUsersGaussian(0.1, 1.0, clip_norm, 1.0, users=3),
        lambda: DPLayer(clip_norm, 1.0),
    ):
        with pytest.raises(ConfigurationError, match=r"clip_norm .*: use a value from 1e-06 to 1e\+06"):
            given()
    for settings in (TrainSettings, LdpSettings):
        with pytest.raises(ValidationError, match="clip_norm"):
            settings.model_validate({"clip_norm": clip_norm})
    head = PoissonGaussian(0.1, 1.0, 1.0, 1.0).to_json()
    with pytest.raises(GuaranteeError, match="no guarantee is proved"):
        parse_mechanism_json({**head, "clip_norm": clip_norm})


def test_a_parameter_of_the_network_itself_is_refused() -> None:
    net = Small(nn.Identity())
    net.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(ConfigurationError, match="scale: is a parameter of the network itself"):
        require_supported_network(net)


def test_memory_shared_by_two_parameters_is_refused() -> None:
    net = Small(nn.Linear(3, 3))
    net.output.weight = nn.Parameter(net.middle.weight[:2])
    with pytest.raises(ConfigurationError, match=r"output.weight and middle.weight share memory"):
        require_supported_network(net)


def test_one_row_of_positions_for_all_points_is_given_to_each() -> None:
    net = Small(Lambda(lambda x, y: x + y(torch.arange(x.shape[1])[None]), nn.Embedding(9, 3)))
    found = compute_clipped_gradient(net, lambda: net(IDS), 0.05)
    expected, norms = reference(net, lambda row: net(IDS[row : row + 1]), 3, 0.05)
    assert float(norms.min()) > 0.05
    assert_equal(found.flat, expected, 1e-5, 0.0)


def test_the_loss_must_have_a_value_a_point_and_no_points_give_zero() -> None:
    net = Small(nn.Identity())
    with pytest.raises(ConfigurationError, match="one dimension"):
        compute_clipped_gradient(net, lambda: net(IDS).sum(), 0.5)
    found = compute_clipped_gradient(net, lambda: net(IDS[:0]), 0.5)
    assert found.flat.shape == (sum(p.numel() for p in net.parameters()),)
    assert not found.flat.any()
    assert found.norms.shape == found.finite.shape == (0,)


def test_a_second_backward_pass_through_our_lstm_is_an_error() -> None:
    lstm = Lstm(3, 3)
    loss = lstm(torch.ones(1, 2, 3)).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="once"):
        loss.backward()


def test_a_refused_pass_leaves_the_network_as_it_was() -> None:
    net = Small(Carrying())
    with pytest.raises(ConfigurationError):
        compute_clipped_gradient(net, lambda: net(IDS), 0.5)
    assert all("forward" not in module.__dict__ for module in net.modules())
    losses = compute_vocabulary_losses(nn.Linear(3, 4), torch.ones(1, 2, 3), IDS[:1, :2], torch.ones(1, 2).bool())
    assert losses.requires_grad  # nobody listens any more: an ordinary gradient
    losses.sum().backward()
