"""Matrix products by the fastest library that torch was built with.

On a CPU torch hands float32 products to MKL, which on processors of other makers than its own leaves
half of their wide registers (AVX-512) unused; oneDNN, which torch also carries, does not
(``docs/explanation/clipping.md`` has the figures).  On processors without them, where oneDNN's operator is
not there, or the tensors are not float32 on a CPU, the products are torch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ROWS = 2048
"""A large product is made so many rows at a time, in memory that is used again."""


def to_float32(x: Tensor) -> Tensor:
    """``x`` in single precision where it is in half of that: no number changes."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def get_product_dtype(weight: Tensor) -> torch.dtype:
    """The type that products with ``weight`` are made in: autocast's inside autocast, else its own."""
    device = weight.device.type
    if weight.dtype == torch.float32 and is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return weight.dtype


@contextmanager
def force_single_precision() -> Iterator[None]:
    """Products of float32 are made in float32 inside: torch may have been told to round their factors."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def is_autocast_enabled(device: str) -> bool:
    """Whether autocast is on; there are devices that have none."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def disable_autocast(device: str) -> AbstractContextManager[object]:
    """Autocast does nothing inside."""
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


def use_precision(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Networks compute inside as ``precision`` says: ``bf16`` under autocast, ``float32`` as they are."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return disable_autocast(device.type)


def multiply(left: Tensor, right: Tensor) -> Tensor:
    """``left`` [N, K] times ``right`` [K, M]; not differentiable."""
    if _can_use_onednn(left, right):
        return _multiply_by_onednn(left, right.t())
    return left @ right


def apply_affine(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """``inputs`` [..., I] times ``weight`` [O, I] transposed, plus ``bias`` [O]; not differentiable."""
    if _can_use_onednn(inputs, weight):
        return _multiply_by_onednn(inputs, weight, bias)
    return F.linear(inputs, weight, bias)


def prepare_product(right: Tensor, rows: int) -> Callable[[Tensor], Tensor]:
    """The map from [rows, K] to its product with ``right`` [K, M], prepared for many calls."""
    if rows and _can_use_onednn(right):
        packed = _get_onednn_ops()._reorder_linear_weight(right.t().contiguous(), rows)
        return lambda left: _multiply_by_onednn(left, packed)
    return lambda left: left @ right


def add_product(total: Tensor, left: Tensor, right: Tensor, is_empty: bool) -> None:
    """Add ``left``ᵀ [N, L] times ``right`` [N, R] to ``total`` [L, R], which is empty if ``fresh``."""
    if not _can_use_onednn(left, right):
        torch.addmm(total, left.t(), right, beta=0.0 if is_empty else 1.0, out=total)
    elif len(left) > right.shape[1] and left.shape[1] > right.shape[1]:
        # oneDNN copies its first factor to lie transposed: let that be the smaller one.
        _write_or_add(total, multiply(right.t(), left).t(), is_empty)
    else:
        for start in range(0, left.shape[1], CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            _write_or_add(total[chunk], multiply(left[:, chunk].t(), right), is_empty)


def multiply_transposed(left: Tensor, right: Tensor) -> Tensor:
    """``left``ᵀ [N, L] times ``right`` [N, R]: [L, R]; not differentiable."""
    total = left.new_empty(left.shape[1], right.shape[1])
    add_product(total, left, right, is_empty=True)
    return total


def _write_or_add(total: Tensor, addend: Tensor, is_empty: bool) -> None:
    if is_empty:
        total.copy_(addend)
    else:
        total.add_(addend)


def _can_use_onednn(*factors: Tensor) -> bool:
    if not _HAS_ONEDNN or torch.compiler.is_compiling():
        return False
    return all(factor.is_cpu and factor.dtype == torch.float32 and factor.numel() for factor in factors)


def _get_onednn_ops() -> Any:
    return torch.ops.mkldnn


def _multiply_by_onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``inputs`` [..., K] times ``weight`` [M, K] transposed, plus ``bias`` [M], by oneDNN."""
    if weight.layout != torch.strided or weight.is_contiguous() or weight.t().is_contiguous():
        dense = weight
    else:
        dense = weight.contiguous()  # oneDNN has no fast product for a view with gaps
    result: Tensor = _get_onednn_ops()._linear_pointwise(
        inputs, dense, None if bias is None else bias.contiguous(), "none", [], ""
    )
    return result


def _is_onednn_working() -> bool:
    """Whether the operators are there and give the product."""
    left, right = torch.linspace(-1.0, 1.0, 6).view(2, 3), torch.linspace(-2.0, 2.0, 12).view(3, 4)
    try:
        packed = _get_onednn_ops()._reorder_linear_weight(right.t().contiguous(), 2)
        products = (_multiply_by_onednn(left, right.t()), _multiply_by_onednn(left, packed))
    except (AttributeError, RuntimeError):
        return False
    return all(torch.allclose(computed, left @ right, rtol=1e-5, atol=1e-6) for computed in products)


_HAS_ONEDNN = torch.backends.cpu.get_cpu_capability().startswith("AVX512") and _is_onednn_working()
