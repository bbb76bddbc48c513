"""Sum clipped gradients over the processes of ``torch.distributed``, in the order of their ranks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as processes
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from redactory.foundation.errors import ConfigurationError


def is_distributed() -> bool:
    """Whether this process is one of several in ``torch.distributed``."""
    return processes.is_available() and processes.is_initialized() and processes.get_world_size() > 1


@contextmanager
def unwrap_network(network: nn.Module) -> Iterator[nn.Module]:
    """Yield the network inside a ``DistributedDataParallel`` with gradient averaging off, or the network itself."""
    if isinstance(network, DistributedDataParallel):
        with network.no_sync():
            yield network.module
    else:
        yield network


def sum_over_ranks(flat: Tensor, parameters: Iterable[Tensor], group: Any) -> Tensor:
    """Return the sum of ``flat`` over the processes of ``group``, with the same bits in each process.

    Raises ``ConfigurationError`` in all processes if their ``parameters`` differ in any bit.
    """
    ranks = processes.get_world_size(group)
    local_bits = torch.stack([checksum_bits(parameter) for parameter in parameters])
    all_bits = [torch.empty_like(local_bits) for _ in range(ranks)]
    processes.all_gather(all_bits, local_bits, group=group)
    if any(not torch.equal(all_bits[0], other) for other in all_bits):
        raise ConfigurationError(
            "the processes' networks have different weights: all must start equal and take the same steps, "
            "with noise drawn by one process and sent to all"
        )
    total = torch.zeros_like(flat)
    for rank in range(ranks):
        rank_sum = flat.clone() if rank == processes.get_rank(group) else torch.empty_like(flat)
        processes.broadcast(rank_sum, processes.get_global_rank(group, rank), group=group)
        total += rank_sum
    return total


_INTEGER_TYPES = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.int64}


def checksum_bits(tensor: Tensor) -> Tensor:
    """Return the sum of the bits of the elements of ``tensor``, read as integers."""
    return tensor.detach().reshape(-1).view(_INTEGER_TYPES[tensor.element_size()]).sum(dtype=torch.int64)
