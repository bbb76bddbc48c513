"""Our clipping under Opacus' optimizer: its own sums, its noise, its accountant, its way to cut a batch."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from opacus.accountants import RDPAccountant
from opacus.data_loader import DPDataLoader
from opacus.grad_sample import GradSampleModule
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.batch_memory_manager import BatchMemoryManager
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from redactory.foundation.errors import ConfigurationError
from redactory.training.clipping import clipped_backward

WORDS, WIDTH, CLIP, EXPECTED = 12, 6, 0.3, 4
IDS = torch.randint(WORDS, (9, 5), generator=torch.Generator().manual_seed(1))
CLASSES = IDS[:, 0] % 3


class Net(nn.Module):
    """Every kind of layer that Opacus knows without a wrapper of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(WORDS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.hidden = nn.Linear(WIDTH, 7)
        self.out = nn.Linear(7, 3, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        found: Tensor = self.out(torch.tanh(self.hidden(self.norm(self.table(ids)))).sum(1))
        return found


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Opacus: the noise is not from a secure generator
        yield


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def _optimizer(kind: Any, network: nn.Module, noise: float) -> Any:
    return kind(
        torch.optim.SGD(network.parameters(), lr=1.0),
        noise_multiplier=noise,
        max_grad_norm=CLIP,
        expected_batch_size=EXPECTED,
        generator=torch.Generator().manual_seed(3),
    )


def _losses(network: nn.Module, ids: Tensor, classes: Tensor) -> Callable[[], Tensor]:
    return lambda: F.cross_entropy(network(ids), classes, reduction="none")


def _ours(network: nn.Module, noise: float = 0.0) -> Any:
    optimizer = _optimizer(DPOptimizerFastGradientClipping, network, noise)
    optimizer.zero_grad()
    clipped_backward(optimizer, network, _losses(network, IDS, CLASSES))
    return optimizer


def _theirs(network: nn.Module, noise: float = 0.0) -> Any:
    wrapped = GradSampleModule(network)
    optimizer = _optimizer(DPOptimizer, wrapped, noise)
    optimizer.zero_grad()
    F.cross_entropy(wrapped(IDS), CLASSES).backward()
    return optimizer


def test_the_sum_is_that_of_their_clipping(net: Net) -> None:
    other = copy.deepcopy(net)
    mine, theirs = _ours(net), _theirs(other)
    theirs.clip_and_accumulate()
    norms = torch.stack([s.flatten(1).norm(dim=1) for s in theirs.grad_samples]).norm(dim=0)
    assert (norms > CLIP).any()
    for own, their in zip(mine.params, theirs.params, strict=True):
        torch.testing.assert_close(own.grad, their.summed_grad, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("noise", [0.0, 1.5])
def test_a_step_is_their_step_with_their_noise(net: Net, noise: float) -> None:
    before, other = copy.deepcopy(net), copy.deepcopy(net)
    _ours(net, noise).step()
    _theirs(other, noise).step()
    for own, their, was in zip(net.parameters(), other.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(own, their, rtol=1e-5, atol=1e-5)
        assert not torch.equal(own, was)


def test_their_sampler_memory_manager_and_accountant(net: Net) -> None:
    """A Poisson batch in pieces of two is one step, to the accountant too; so is an empty one."""
    loader = DPDataLoader.from_data_loader(DataLoader(TensorDataset(IDS, CLASSES), batch_size=3))
    optimizer = _optimizer(DPOptimizerFastGradientClipping, net, 1.0)
    accountant = RDPAccountant()
    optimizer.attach_step_hook(accountant.get_optimizer_hook_fn(sample_rate=loader.sample_rate))
    pieces, told = 0, 0
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=2, optimizer=optimizer) as cut:
        for ids, classes in cut:
            optimizer.zero_grad()
            losses = clipped_backward(optimizer, net, _losses(net, ids, classes))
            told += len(losses)
            assert not losses.requires_grad
            optimizer.step()
            pieces += 1
    assert pieces >= len(loader)
    assert accountant.history == [(1.0, pytest.approx(loader.sample_rate), len(loader))]
    assert accountant.get_epsilon(delta=1e-5) > 0
    optimizer.zero_grad()
    clipped_backward(optimizer, net, _losses(net, IDS[:0], CLASSES[:0]))
    assert all(not p.grad.any() for p in optimizer.params)
    before = [p.detach().clone() for p in net.parameters()]
    optimizer.step()
    assert all(not torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


def test_pieces_add_up_to_the_sum_of_the_batch(net: Net) -> None:
    whole, other = _ours(net), copy.deepcopy(net)
    optimizer = _optimizer(DPOptimizerFastGradientClipping, other, 0.0)
    optimizer.signal_skip_step(True)
    optimizer.signal_skip_step(False)
    for part in (slice(0, 4), slice(4, None)):
        optimizer.zero_grad()
        clipped_backward(optimizer, other, _losses(other, IDS[part], CLASSES[part]))
        optimizer.step()
    whole.step()
    for own, their in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(own, their, rtol=1e-5, atol=1e-6)


def test_what_would_not_be_private_is_refused(net: Net) -> None:
    losses = _losses(net, IDS, CLASSES)
    with pytest.raises(ConfigurationError, match="DPOptimizer clips by itself"):
        clipped_backward(_optimizer(DPOptimizer, net, 1.0), net, losses)
    with pytest.raises(ConfigurationError, match="SGD clips by itself, or does not clip"):
        clipped_backward(torch.optim.SGD(net.parameters(), lr=1.0), net, losses)
    with pytest.raises(ConfigurationError, match="parameters are not those"):
        clipped_backward(_optimizer(DPOptimizerFastGradientClipping, net.hidden, 1.0), net, losses)
    optimizer = _ours(net, 1.0)
    optimizer.step()
    with pytest.raises(ConfigurationError, match="zero_grad"):
        clipped_backward(optimizer, net, losses)
    optimizer.zero_grad()
    with pytest.raises(ConfigurationError, match="one dimension"):
        clipped_backward(optimizer, net, lambda: losses().mean())
    mixing = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    with pytest.raises(ConfigurationError, match="batch normalisation"):
        clipped_backward(_optimizer(DPOptimizerFastGradientClipping, mixing, 1.0), mixing, losses)
