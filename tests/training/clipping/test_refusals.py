"""A network whose points cannot be told apart is refused, with the name of the module."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError
from redactory.training.clipping import check_supported, clipped_gradient
from redactory.training.layers import Lstm, vocabulary_losses
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


class Noisy(nn.Module):
    """A scale with dropout inside."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.dropout(x * self.scale, 0.5)


class Centred(nn.Module):
    """A scale of what is centred over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) * self.scale


STATIC = {
    "batch normalisation": (nn.BatchNorm1d(3), "middle: batch normalisation"),
    "running statistics": (nn.InstanceNorm1d(3, track_running_stats=True), "middle: running statistics"),
    "max_norm": (nn.Embedding(4, 3, max_norm=1.0), "middle: max_norm"),
    "scaled by frequency": (nn.Embedding(4, 3, scale_grad_by_freq=True), "middle: max_norm"),
    "half precision": (nn.Linear(3, 3).half(), "float32"),
}
RUNNING = {
    "hidden state carried across points": (Carrying(), "middle.lstm: a hidden state"),
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
        "middle.inner.weight: its layer met 9 rows in a batch of 3",
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
    "random numbers in an unknown module": (Noisy(), "middle: draws random numbers"),
    "an unknown module that mixes points": (Centred(), "middle: what it computes for one point"),
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
        check_supported(Small(middle))


@pytest.mark.parametrize("case", RUNNING)
def test_refused_when_it_runs_or_computed_rightly(case: str) -> None:
    middle, words = RUNNING[case]
    net = Small(middle)
    if words is not None:
        with pytest.raises(ConfigurationError, match=words):
            clipped_gradient(net, lambda: net(IDS), 0.5)
        return
    found = clipped_gradient(net, lambda: net(IDS), 0.5)
    expected, _ = reference(net, lambda row: net(IDS[row : row + 1]), 3, 0.5)
    assert_equal(found.flat, expected, 1e-5, 0.0)


def test_a_parameter_of_the_network_itself_is_refused() -> None:
    net = Small(nn.Identity())
    net.scale = nn.Parameter(torch.ones(()))
    with pytest.raises(ConfigurationError, match="scale: a parameter of the network itself"):
        check_supported(net)


def test_memory_shared_by_two_parameters_is_refused() -> None:
    net = Small(nn.Linear(3, 3))
    net.output.weight = nn.Parameter(net.middle.weight[:2])
    with pytest.raises(ConfigurationError, match=r"output.weight and middle.weight share memory"):
        check_supported(net)


def test_one_row_of_positions_for_all_points_is_given_to_each() -> None:
    net = Small(Lambda(lambda x, y: x + y(torch.arange(x.shape[1])[None]), nn.Embedding(9, 3)))
    found = clipped_gradient(net, lambda: net(IDS), 0.05)
    expected, norms = reference(net, lambda row: net(IDS[row : row + 1]), 3, 0.05)
    assert float(norms.min()) > 0.05
    assert_equal(found.flat, expected, 1e-5, 0.0)


def test_the_loss_must_have_a_value_a_point_and_no_points_give_zero() -> None:
    net = Small(nn.Identity())
    with pytest.raises(ConfigurationError, match="one dimension"):
        clipped_gradient(net, lambda: net(IDS).sum(), 0.5)
    found = clipped_gradient(net, lambda: net(IDS[:0]), 0.5)
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
        clipped_gradient(net, lambda: net(IDS), 0.5)
    assert all("forward" not in module.__dict__ for module in net.modules())
    losses = vocabulary_losses(nn.Linear(3, 4), torch.ones(1, 2, 3), IDS[:1, :2], torch.ones(1, 2).bool())
    assert losses.requires_grad  # nobody listens any more: an ordinary gradient
    losses.sum().backward()
