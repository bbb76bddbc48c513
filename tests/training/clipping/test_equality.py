"""Book-keeping clipping equals clipping of gradients that autograd computes one point at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from redactory.training.clipping import compute_clipped_gradient
from tests.training.clipping.networks import BODIES, TOLERANCE, assert_equal, data_of, network_of, reference

SHAPES = st.fixed_dictionaries(
    {
        "body": st.sampled_from([name for name in BODIES if name not in ("GRU", "both directions")]),
        "width": st.sampled_from([4, 5, 24]),
        "layers": st.integers(1, 3),
        "tied": st.booleans(),
        "fused": st.booleans(),
        "reduction": st.sampled_from(["sum", "mean"]),
        "seed": st.integers(0, 999),
        "dtype": st.sampled_from(list(TOLERANCE)),
    }
)


@settings(max_examples=120, deadline=None)
@given(SHAPES, st.lists(st.integers(1, 7), max_size=5), st.integers(0, 2), st.sampled_from([1e-3, 0.5, 3.0, 1e3]))
def test_equals_autograd_one_point_at_a_time(
    shape: dict[str, Any], lengths: list[int], padding: int, clip_norm: float
) -> None:
    net, exact = network_of(**shape), network_of(**shape).double()
    data, tolerance = data_of(lengths, shape["seed"], padding), TOLERANCE[shape["dtype"]]
    exact.fused = False
    found = compute_clipped_gradient(net, lambda: net.losses(data), clip_norm)
    expected, norms = reference(exact, lambda row: exact.losses(data.row(row)), len(lengths), clip_norm)
    assert found.finite.all()
    # Autograd's own rounding, where a loss is nearly flat, is not held against the engine.
    rounded, own_norms = reference(net, lambda row: net.losses(data.row(row)), len(lengths), clip_norm)
    # The square of a norm below 1e-19 is 0 in single precision.
    allowed = tolerance * norms + 4.0 * (own_norms - norms).abs() + 1e-18
    assert ((found.norms - norms).abs() <= allowed).all()
    share = tolerance * max(float(expected.norm()), 0.1 * float(norms.clamp(max=clip_norm).sum()))
    assert float((found.flat - expected).norm()) <= share + 4.0 * float((rounded - expected).norm())


@pytest.mark.parametrize("body", ["GRU", "both directions"])
def test_layers_that_cannot_be_vectorised_go_one_point_at_a_time(body: str) -> None:
    net, data = network_of(body), data_of([3, 3, 2], 1)
    if body == "both directions":  # reads what is padded, so nothing is
        data = data_of([3, 3, 3], 1)
    found = compute_clipped_gradient(net, lambda: net.losses(data), 0.5)
    expected, _ = reference(net, lambda row: net.losses(data.row(row)), 3, 0.5)
    assert_equal(found.flat, expected, 1e-10, 0.0)


@pytest.mark.parametrize("body", BODIES)
def test_frozen_parameters_have_no_part(body: str) -> None:
    net, data = network_of(body, layers=1), data_of([4, 4], 2)
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(not name.startswith(("embedding", "output.weight")) and "weight_hh" not in name)
    found = compute_clipped_gradient(net, lambda: net.losses(data), 0.5)
    expected, _ = reference(net, lambda row: net.losses(data.row(row)), 2, 0.5)
    assert len(found.flat) == sum(p.numel() for p in net.parameters() if p.requires_grad)
    assert_equal(found.flat, expected, 1e-10, 0.0)


@pytest.mark.parametrize("body", ["our LSTM", "transformer", "own module"])
def test_a_point_without_a_finite_gradient_counts_as_zero(body: str) -> None:
    net, data = network_of(body, tied=False), data_of([4, 4, 4], 3)
    data.inputs[data.inputs == 10] = 9
    data.inputs[1, 0] = 10
    with torch.no_grad():
        net.embedding.weight[10] = torch.inf
    found = compute_clipped_gradient(net, lambda: net.losses(data), 0.5)
    assert found.finite.tolist() == [True, False, True]
    good = torch.tensor([0, 2])
    kept = type(data)(data.inputs[good], data.targets[good], data.real[good])
    expected = compute_clipped_gradient(net, lambda: net.losses(kept), 0.5)
    assert_equal(found.flat, expected.flat, 1e-12, 0.0)


class Wide(nn.Module):
    """Two layers whose outputs are the loss, by ``scales``."""

    def __init__(self, inputs: int, outputs: int, *scales: float) -> None:
        super().__init__()
        self.scales = scales
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs, bias=False) for _ in scales)

    def losses(self, x: torch.Tensor) -> torch.Tensor:
        return sum((layer(x) * scale).sum(1) for layer, scale in zip(self.layers, self.scales, strict=True))


@pytest.mark.parametrize(
    ("net", "inputs"),
    [
        (Wide(1, 25, 2e38), 1.0),  # its weight C/‖g‖ has one bit left
        (Wide(64, 64, 1e-23), 1e18),  # the square of a factor vanishes, the gradient does not
        (Wide(64, 64, 1e-23, 1e-28), 1e18),
        (Wide(4, 4, 1e-30), 1e-3),  # the norm vanishes
    ],
)
def test_what_single_precision_cannot_clip_counts_as_zero(net: Wide, inputs: float) -> None:
    clip_norm, size = 1e-6, net.layers[0].in_features
    found = compute_clipped_gradient(net, lambda: net.losses(torch.full((1, size), inputs)), clip_norm)
    assert not found.flat.any()
    both = torch.full((2, size), inputs)
    both[1] = 1e-3 / max(net.scales)
    kept = compute_clipped_gradient(net, lambda: net.losses(both[1:]), clip_norm)
    assert torch.equal(compute_clipped_gradient(net, lambda: net.losses(both), clip_norm).flat, kept.flat)


def test_a_pass_leaves_the_network_as_it_was() -> None:
    net, data = network_of("torch's LSTM"), data_of([4, 2], 3)
    before = {name: dict(module.__dict__) for name, module in net.named_modules()}
    compute_clipped_gradient(net, lambda: net.losses(data), 0.5)
    assert {name: dict(module.__dict__) for name, module in net.named_modules()} == before
    assert all(parameter.grad is None and parameter.requires_grad for parameter in net.parameters())


class Stopped(torch.autograd.Function):
    """The identity, without a gradient."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> None:
        return None


class Halting(nn.Module):
    """Two layers, the first without a gradient, and activations that overwrite the second's output."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(x + Stopped.apply(self.first(x))).mul_(2.0).relu_()


def test_a_layer_without_a_gradient_and_one_whose_output_is_overwritten() -> None:
    net, data = network_of("transformer"), data_of([4, 2, 3], 3)
    net.body = Halting().double()
    found = compute_clipped_gradient(net, lambda: net.losses(data), 0.5)
    expected, _ = reference(net, lambda row: net.losses(data.row(row)), 3, 0.5)
    assert_equal(found.flat, expected, 1e-10, 0.0)


def test_long_points_with_gradients_that_cancel() -> None:
    """A point of one token again and again: its layers' gradients nearly cancel between places."""
    net = network_of("transformer", width=6, layers=2, dtype=torch.float32, seed=4)
    data = data_of([36, 36], 1)
    data.inputs[:] = 3
    data.targets[:, ::2], data.targets[:, 1::2] = 2, 5
    exact = network_of("transformer", width=6, layers=2, dtype=torch.float32, seed=4).double()
    found = compute_clipped_gradient(net, lambda: net.losses(data), 0.5)
    expected, norms = reference(exact, lambda row: exact.losses(data.row(row)), 2, 0.5)
    torch.testing.assert_close(found.norms, norms, rtol=1e-5, atol=0.0)
    assert_equal(found.flat, expected, 1e-5, 0.0)
