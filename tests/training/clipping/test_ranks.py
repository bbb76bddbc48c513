"""Two processes of ``torch.distributed``: the clipped sum of one, bit for bit, and noise once."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from opacus.optimizers import DPOptimizerFastGradientClipping

from redactory.training.clipping import clipped_backward, compute_clipped_gradient
from tests.training.clipping.ranks import CLIP_NORM, PARTS, called, optimizer_of

Found = tuple[dict[str, Any], dict[str, Any]]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What the processes found."""
    out = tmp_path_factory.mktemp("ranks")
    command = [sys.executable, "-m", "tests.training.clipping.ranks"]
    started = [
        subprocess.Popen([*command, str(rank), str(out / "store"), str(out)], stderr=subprocess.PIPE)
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=120)[1].decode() for process in started]
    assert all(process.returncode == 0 for process in started), errors
    first, second = (torch.load(out / f"{rank}.pt", weights_only=True) for rank in range(2))
    return first, second


def alone() -> list[torch.Tensor]:
    network = called()
    return [compute_clipped_gradient(network, lambda part=part: network(part), CLIP_NORM).flat for part in PARTS]


@pytest.mark.slow
def test_the_sum_is_that_of_one_process_bit_for_bit(both: Found) -> None:
    first, second = alone()
    for found in both:
        assert torch.equal(found["sum 0"], first + second)
        assert torch.equal(found["sum 1"], first + second)
        assert torch.equal(found["nothing here"], second)


def test_noise_is_added_once_and_the_models_stay_equal(both: Found) -> None:
    network = called()
    optimizer = optimizer_of(DPOptimizerFastGradientClipping, network)
    for part in PARTS:
        optimizer.signal_skip_step(do_skip=part is not PARTS[-1])
        clipped_backward(optimizer, network, lambda part=part: network(part))
        optimizer.step()
        optimizer.zero_grad()
    expected = torch.cat([p.detach().flatten() for p in network.parameters()])
    assert torch.equal(both[0]["stepped"], both[1]["stepped"])
    torch.testing.assert_close(both[0]["stepped"], expected, rtol=1e-5, atol=1e-6)


def test_what_would_drift_apart_is_refused_by_every_process(both: Found) -> None:
    for found in both:
        assert "DistributedDPOptimizerFastGradientClipping" in found["alone"]
        assert "different weights" in found["apart"]
        assert "FSDP2" in found["sharded"]
