"""The comparison with autograd goes red when a part of the engine is taken out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from redactory.training.clipping import compute_clipped_gradient, engine, gradients, layers
from tests.training.clipping.networks import data_of, network_of, reference


def error(body: str, *, tied: bool = False, fused: bool = True) -> float:
    """The relative error of the clipped sum against autograd."""
    # tied: so wide that no gradient is formed
    net = network_of(body, width=14 if tied else 4, tied=tied, fused=fused, seed=5)
    data = data_of([6, 3, 5], 7, padding=1)
    data.inputs.remainder_(3)  # tokens come more than once
    expected, norms = reference(net, lambda row: net.losses(data.row(row)), 3, 0.3)
    assert float(norms.min()) > 0.3
    found = compute_clipped_gradient(net, lambda: net.losses(data), 0.3).flat
    return float((found - expected).norm() / expected.norm())


def no_cross_term(real: Any) -> Any:
    def inner(one: Any, other: Any, grams: gradients.GramCache) -> tuple[torch.Tensor, torch.Tensor]:
        total, own = real(one, other, grams)
        return (total, own) if one is other else (0.0 * total, own)

    return inner


def no_recurrent_mask(real: Any) -> Any:
    return lambda *factors, **more: real(*factors, **(more | {"mask": None}))


def rows_read_twice_as_if_apart(real: Any) -> Any:
    def kernel(left: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        found = real(left, other)
        return found if found.is_floating_point() else torch.eye(found.shape[-1]).expand(found.shape)

    return kernel


def no_norm_layers(real: Any) -> Any:
    return lambda self, p, g: None if self.names[id(p)].endswith("first.weight") else real(self, p, g)


def no_padding(real: Any) -> Any:
    return lambda *a: real(*a[:-1], torch.ones_like(a[-1]))


def rows_not_added_up(_: Any) -> Any:
    return lambda use: use.right.double().square().sum((1, 2))


TAPE, LOSS = gradients.Tape, layers._VocabularyLossFunction
SABOTAGE: dict[str, tuple[Any, str, Callable[[Any], Any], str, bool]] = {
    "cross term of tied weights": (gradients, "_compute_inner_products", no_cross_term, "our LSTM", True),
    "bias forgotten": (TAPE, "report_dense_gradients", lambda _: lambda *_: None, "our LSTM", False),
    "padding counted": (LOSS, "apply", no_padding, "our LSTM", False),
    "mask of dropped weights forgotten": (
        TAPE,
        "report_outer_products",
        no_recurrent_mask,
        "LSTM with dropped weights",
        False,
    ),
    "tokens that come twice": (gradients, "_sum_embedding_squares", rows_not_added_up, "our LSTM", False),
    "tokens that come twice, tied": (gradients, "_compute_gram", rows_read_twice_as_if_apart, "our LSTM", True),
    "scale of a norm forgotten": (TAPE, "report_dense_gradients", no_norm_layers, "transformer", False),
}


@pytest.mark.parametrize("part", SABOTAGE)
def test_a_missing_part_shows(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, attribute, change, body, tied = SABOTAGE[part]
    assert error(body, tied=tied) < 1e-12
    monkeypatch.setattr(owner, attribute, change(getattr(owner, attribute)))
    assert error(body, tied=tied) > 1e-3


def test_a_layer_that_reports_no_weight_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "find_rule", lambda module: None)
    assert error("transformer", fused=False) < 1e-12  # by torch.func instead
