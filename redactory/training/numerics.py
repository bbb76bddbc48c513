"""Arithmetic that gives the same bits every time on one kind of machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def fixed_numerics(threads: int) -> Iterator[None]:
    """Deterministic algorithms on ``threads`` threads inside, what was set before restored after.

    Products of float32 are computed in float32 throughout: a graphics card would otherwise be free to round
    their factors to 10 bits, far beyond what the noise has room for.
    """
    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    precision = torch.get_float32_matmul_precision()
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(True)
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        torch.use_deterministic_algorithms(before[1])
        torch.set_float32_matmul_precision(precision)
