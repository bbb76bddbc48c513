"""Our layers as ordinary layers: the same outputs and gradients as PyTorch's, with nobody listening."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from redactory.training.clipping import matmul
from redactory.training.clipping.layers import Lstm, compute_vocabulary_losses


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.tuples(st.integers(0, 4), st.integers(1, 6), st.integers(1, 5), st.integers(1, 5)),
    layers=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_our_lstm_is_torchs(sizes: tuple[int, int, int, int], layers: int, seed: int) -> None:
    torch.manual_seed(seed)
    batch, length, width, hidden = sizes
    theirs = nn.LSTM(width, hidden, layers, batch_first=True).double()
    ours = Lstm(width, hidden, layers).double()
    ours.load_state_dict(theirs.state_dict())
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    x = torch.randn(batch, length, width, dtype=torch.float64)
    wanted = torch.randn(batch, length, hidden, dtype=torch.float64)
    gradients = []
    for net in (ours, theirs):
        own = x.clone().requires_grad_()
        states = net(own) if net is ours else net(own)[0]
        torch.testing.assert_close(states, theirs(x)[0], rtol=1e-12, atol=1e-13)
        gradients.append(torch.autograd.grad((states * wanted).sum(), [own, *net.parameters()]))
    for mine, other in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-10, atol=1e-12)


def test_dropped_recurrent_weights_have_no_gradient() -> None:
    lstm = Lstm(3, 4).double()
    mask = 2.0 * (torch.rand(16, 4, dtype=torch.float64) < 0.5)
    x = torch.randn(2, 5, 3, dtype=torch.float64)
    lstm(x, [mask]).square().sum().backward()
    plain = Lstm(3, 4).double()
    plain.load_state_dict(lstm.state_dict())
    with torch.no_grad():
        plain.weight_hh_l0.mul_(mask)
    plain(x).square().sum().backward()
    torch.testing.assert_close(lstm.weight_hh_l0.grad, plain.weight_hh_l0.grad * mask)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_vocabulary_losses_are_cross_entropy(bias: bool, scale: float) -> None:
    torch.manual_seed(1)
    head = nn.Linear(5, 40, bias=bias).double()
    hidden = (scale * torch.randn(3, 4, 5, dtype=torch.float64)).requires_grad_()
    targets, real = torch.randint(40, (3, 4)), torch.rand(3, 4) < 0.7
    weights = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)
    learnt = [hidden, *head.parameters()]
    found = compute_vocabulary_losses(head, hidden, targets, real)
    each = F.cross_entropy(head(hidden).flatten(0, 1), targets.flatten(), reduction="none").view(3, 4)
    expected = (each * real).sum(1)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    mine = torch.autograd.grad((found * weights).sum(), learnt)
    other = torch.autograd.grad((expected * weights).sum(), learnt)
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_vocabulary_losses_of_any_other_head_and_of_no_points() -> None:
    head, hidden = nn.Sequential(nn.Linear(5, 7)), torch.randn(2, 3, 5)
    targets, real = torch.randint(7, (2, 3)), torch.tensor([[True, True, False], [True, False, False]])
    torch.testing.assert_close(
        compute_vocabulary_losses(head, hidden, targets, real),
        compute_vocabulary_losses(head[0], hidden, targets, real),
    )
    assert compute_vocabulary_losses(head[0], hidden[:0], targets[:0], real[:0]).shape == (0,)


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(1, 40)),
    turned=st.tuples(st.booleans(), st.booleans()),
    gaps=st.booleans(),
    chunk=st.sampled_from([3, 2048]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_products_are_matrix_products(
    sizes: tuple[int, int, int], turned: tuple[bool, bool], gaps: bool, chunk: int, dtype: torch.dtype
) -> None:
    n, k, m = sizes
    step = 2 if gaps else 1
    left, right = torch.randn(n * step, k, dtype=dtype)[::step], torch.randn(k * step, m, dtype=dtype)[::step]
    if turned[0]:
        left = left.t().contiguous().t()
    if turned[1]:
        right = right.t().contiguous().t()
    whole = matmul.CHUNK_ROWS
    matmul.CHUNK_ROWS = chunk
    try:
        expected = left.double() @ right.double()
        near = {"rtol": 1e-4, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-10, "atol": 1e-12}
        torch.testing.assert_close(matmul.multiply_matrices(left, right).double(), expected, **near)
        torch.testing.assert_close(matmul.prepare_matmul(right, n)(left).double(), expected, **near)
        torch.testing.assert_close(matmul.apply_affine(left, right.t(), right[0]).double(), expected + right[0], **near)
        total = torch.randn(k, m, dtype=dtype)
        other = torch.randn(n, m, dtype=dtype)
        expected = total.double() + left.double().t() @ other.double()
        matmul.add_product(total, left, other, is_empty=False)
        torch.testing.assert_close(total.double(), expected, **near)
        found = matmul.multiply_transposed(left, other).double()
        torch.testing.assert_close(found, left.double().t() @ other.double(), **near)
    finally:
        matmul.CHUNK_ROWS = whole
