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


def no_cross_term(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gradients._compute_inner_products

    def inner(
        one: gradients.ParameterUse, other: gradients.ParameterUse, grams: gradients.GramCache
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total, own = whole(one, other, grams)
        return (total, own) if one is other else (0.0 * total, own)

    monkeypatch.setattr(gradients, "_compute_inner_products", inner)


def no_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients.Tape, "dense", lambda *_: None)


def no_padding(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = layers._VocabularyLossFunction.apply
    monkeypatch.setattr(layers._VocabularyLossFunction, "apply", lambda *a: whole(*a[:-1], torch.ones_like(a[-1])))


def no_recurrent_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gradients.Tape.outer

    def outer(self: gradients.Tape, *factors: torch.Tensor, **more: Any) -> None:
        whole(self, *factors, **(more | {"mask": None}))

    monkeypatch.setattr(gradients.Tape, "outer", outer)


def rows_read_twice_as_if_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gradients._compute_gram

    def kernel(left: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        found = whole(left, other)
        return found if found.is_floating_point() else torch.eye(found.shape[-1]).expand(found.shape)

    monkeypatch.setattr(gradients, "_compute_gram", kernel)


def rows_not_added_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_sum_row_squares", lambda use: use.right.double().square().sum((1, 2)))


def no_norm_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gradients.Tape.dense
    monkeypatch.setattr(
        gradients.Tape,
        "dense",
        lambda self, p, g: None if self.names[id(p)].endswith("first.weight") else whole(self, p, g),
    )


SABOTAGE: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str, bool]] = {
    "cross term of tied weights": (no_cross_term, "our LSTM", True),
    "bias forgotten": (no_bias, "our LSTM", False),
    "padding counted": (no_padding, "our LSTM", False),
    "mask of dropped weights forgotten": (no_recurrent_mask, "LSTM with dropped weights", False),
    "tokens that come twice": (rows_not_added_up, "our LSTM", False),
    "tokens that come twice, tied": (rows_read_twice_as_if_apart, "our LSTM", True),
    "scale of a norm forgotten": (no_norm_layers, "transformer", False),
}


@pytest.mark.parametrize("part", SABOTAGE)
def test_a_missing_part_shows(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sabotage, body, tied = SABOTAGE[part]
    assert error(body, tied=tied) < 1e-12
    sabotage(monkeypatch)
    assert error(body, tied=tied) > 1e-3


def test_a_layer_that_reports_no_weight_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "find_rule", lambda module: None)
    assert error("transformer", fused=False) < 1e-12  # by torch.func instead
