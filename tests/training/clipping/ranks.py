"""What each of two processes of ``torch.distributed`` does; the tests read what it leaves."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as processes
from opacus.optimizers import DistributedDPOptimizerFastGradientClipping, DPOptimizerFastGradientClipping
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from redactory.foundation.errors import ConfigurationError
from redactory.training.clipping import clipped_backward, compute_clipped_gradient
from tests.training.clipping.networks import Data, Net, data_of, network_of

CLIP_NORM = 0.3
PARTS = (data_of([5, 3], 1), data_of([4, 6, 2], 2))


class Called(torch.nn.Module):
    """A network whose losses are what it is called for."""

    def __init__(self, net: Net) -> None:
        super().__init__()
        self.net = net

    def forward(self, data: Data) -> torch.Tensor:
        return self.net.losses(data)


def called() -> Called:
    return Called(network_of("transformer", width=8, dtype=torch.float32))


def refused(work: Callable[[], Any]) -> str:
    try:
        work()
    except ConfigurationError as error:
        return str(error)
    return ""


def optimizer_of(kind: Any, network: torch.nn.Module) -> Any:
    own = torch.optim.SGD(network.parameters(), lr=1.0)
    more = {"generator": torch.Generator().manual_seed(5), "loss_reduction": "sum"}
    return kind(own, noise_multiplier=0.5, max_grad_norm=CLIP_NORM, expected_batch_size=None, **more)


def main(rank: int, store: str, out: str) -> None:
    """Clip a share, step with Opacus' noise, and try what is refused."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    processes.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    own, found = PARTS[rank], dict[str, Any]()
    network = DistributedDataParallel(called())
    for time in range(2):
        found[f"sum {time}"] = compute_clipped_gradient(network, lambda: network(own), CLIP_NORM).flat
    losses = (lambda: network(own)) if rank else (lambda: torch.zeros(0))
    found["nothing here"] = compute_clipped_gradient(network, losses, CLIP_NORM).flat
    found["alone"] = refused(
        lambda: clipped_backward(optimizer_of(DPOptimizerFastGradientClipping, network), network, lambda: network(own))
    )
    optimizer = optimizer_of(DistributedDPOptimizerFastGradientClipping, network)
    clipped_backward(optimizer, network, lambda: network(own))
    optimizer.step()
    found["stepped"] = torch.cat([p.detach().flatten() for p in network.parameters()])
    with torch.no_grad():
        next(network.parameters()).add_(rank)
    found["apart"] = refused(lambda: compute_clipped_gradient(network, lambda: network(own), CLIP_NORM))
    sharded: Any = fully_shard(called(), mesh=torch.distributed.init_device_mesh("cpu", (2,)))
    found["sharded"] = refused(lambda: compute_clipped_gradient(sharded, lambda: sharded(own), CLIP_NORM))
    torch.save(found, Path(out) / f"{rank}.pt")
    processes.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3])
