"""Half of the precision in the passes, all of it in the bound; blocks computed twice; long points."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor, nn

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.stream import RandomStream
from redactory.training.clipping import compute_clipped_gradient, compute_clipped_sum, gradients
from redactory.training.data import TokenizedExamples
from redactory.training.models.hugging_face import CausalNetwork, disable_dropout
from redactory.training.settings import TrainSettings, settings_to_json
from redactory.training.steps import NoiseFreeSteps, ScheduledOptimizer, flatten_parameters, make_optimizer
from tests.training.architectures import VOCABULARY, build_architecture
from tests.training.clipping.networks import Net, data_of, gradient_of, network_of

CLIP_NORM, SLACK = 0.01, 1e-5
POINTS = TokenizedExamples.from_rows(
    [[5 + (7 * place + row) % (VOCABULARY - 5) for place in range(3 + row % 9)] for row in range(100)], 0, 2
)
KINDS = ("gpt2", "qwen3", "gemma3_text")


@contextmanager
def rough_products() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


ROUGH: dict[str, Callable[[], Any]] = {
    "bfloat16": lambda: torch.autocast("cpu", torch.bfloat16),
    "float16": lambda: torch.autocast("cpu", torch.float16),
    "products of rounded factors": rough_products,
}


def causal(kind: str) -> CausalNetwork:
    torch.manual_seed(1)
    network = CausalNetwork(disable_dropout(build_architecture(kind, "next-word"))).train()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return network


@pytest.mark.parametrize("rough", ROUGH)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_summed_has_at_most_the_clipping_norm(kind: str, rough: str) -> None:
    network = causal(kind)
    batch = POINTS.make_batch(range(9))
    with ROUGH[rough]():
        norms = compute_clipped_gradient(network, lambda: network.example_losses(batch), CLIP_NORM, 9).norms
        for row in range(9):
            own = compute_clipped_gradient(
                network, lambda row=row: network.example_losses(batch.select_example(row)), CLIP_NORM, 1
            )
            whole = compute_clipped_gradient(
                network, lambda row=row: network.example_losses(batch.select_example(row)), 1e6, 1
            )
            assert own.flat.dtype == torch.float32
            assert float(own.flat.double().norm()) == pytest.approx(CLIP_NORM, rel=SLACK)
            assert float(whole.flat.double().norm()) == pytest.approx(float(whole.norms), rel=SLACK)
            assert float(norms[row]) == pytest.approx(float(whole.norms), rel=0.05)


@pytest.mark.parametrize("body", ["torch's LSTM", "transformer", "own module", "GRU"])
@pytest.mark.parametrize("fused", [True, False])
def test_autocast_clips_what_autograd_computes_under_it(body: str, fused: bool) -> None:
    net: Net = network_of(body, fused=fused, width=8, dtype=torch.float32)
    data = data_of([5, 4, 6], 3)
    # a processor without such instructions has no fused LSTM in bfloat16
    with torch.autocast("cpu", torch.bfloat16), torch.backends.mkldnn.flags(enabled=False):
        found = compute_clipped_gradient(net, lambda: net.losses(data), 0.5)
        losses = [net.losses(data.row(row)).sum() for row in range(3)]
    rows = [gradient_of(net, loss).double() for loss in losses]
    expected = sum(row * min(1.0, 0.5 / float(row.norm())) for row in rows)
    assert float((found.flat - expected).norm()) < 0.05 * float(expected.norm())


def test_the_sum_of_a_step_is_in_single_precision_whatever_the_caller_allows() -> None:
    network, rows = causal("qwen3"), np.arange(40)
    full = compute_clipped_sum(network, POINTS, rows, CLIP_NORM, 64)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(compute_clipped_sum(network, POINTS, rows, CLIP_NORM, 64), full)


def test_steps_without_noise_may_be_in_bfloat16() -> None:
    weights = []
    for precision in ("float32", "bf16"):
        network = causal("qwen3")
        descent = ScheduledOptimizer(make_optimizer(network, "sgd"), 0.01)
        parts = (network, descent, POINTS, np.arange(20), 10, RandomStream.from_seed(1))
        NoiseFreeSteps(*parts, precision=precision).step(0)
        weights.append(flatten_parameters(network))
    assert not torch.equal(*weights)
    torch.testing.assert_close(*weights, rtol=0.05, atol=0.01)


def test_bfloat16_is_on_record_and_refused_where_every_step_has_noise() -> None:
    settings = TrainSettings.model_validate({"trainer": "crt", "precision": "bf16"})
    assert settings_to_json(settings)["precision"] == "bf16"
    with pytest.raises(ValidationError, match=r"train\.precision: bf16 is for noise\-free steps"):
        TrainSettings.model_validate({"trainer": "dpsgd", "precision": "bf16"})


@pytest.mark.parametrize("kind", [*KINDS, "mixtral"])
def test_checkpointed_blocks_give_the_same_bits(kind: str) -> None:
    network, batch, ran = causal(kind), POINTS.make_batch([3, 8]), list[int]()
    losses = lambda: network.example_losses(batch)  # noqa: E731
    plain = compute_clipped_gradient(network, losses, CLIP_NORM, 2)
    network.model.activation_checkpointing_enable({"use_reentrant": False})
    block = next(m for m in network.modules() if isinstance(m, nn.ModuleList))[0]
    next(block.children()).register_forward_pre_hook(lambda *_: ran.append(1))
    again = compute_clipped_gradient(network, losses, CLIP_NORM, 2)
    assert len(ran) > 1
    assert torch.equal(plain.flat, again.flat)
    assert torch.equal(plain.norms, again.norms)
    network.model.activation_checkpointing_enable({"use_reentrant": True})
    with pytest.raises(ConfigurationError, match="use_reentrant=False"):
        compute_clipped_gradient(network, losses, CLIP_NORM, 2)


@pytest.mark.parametrize("tied", [True, False])
def test_no_matrix_of_all_places_is_made_of_a_long_point(tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    whole = gradients._compute_gram

    def kernel(left: Tensor, other: Tensor) -> Tensor:
        made.append(max(left.shape[1], other.shape[1]))
        return whole(left, other)

    monkeypatch.setattr(gradients, "_compute_gram", kernel)
    net = network_of("transformer", width=8, tied=tied, dtype=torch.float32)
    data = data_of([39, 30], 2)
    compute_clipped_gradient(net, lambda: net.losses(data), 0.5)
    assert not made or max(made) < 39
