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
    local_bits = torch.stack([_checksum_bits(parameter) for parameter in parameters])
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


def _checksum_bits(parameter: Tensor) -> Tensor:
    integer_type = torch.int64 if parameter.element_size() == 8 else torch.int32
    return parameter.detach().contiguous().view(integer_type).sum(dtype=torch.int64)
