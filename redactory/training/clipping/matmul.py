"""Multiply matrices with the fastest library that torch was built with.

On a CPU torch passes float32 products to MKL, which leaves half of the wide registers (AVX-512) of non-Intel processors
unused. oneDNN, which torch also includes, uses them (``docs/explanation/clipping.md`` has the measurements). Without
such registers or the oneDNN operator, and for other types or devices, torch's own products are used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from redactory.foundation.errors import ConfigurationError

_ONEDNN: Any = torch.ops.mkldnn
CHUNK_ROWS = 2048
"""Rows per part of a large product, so that memory is reused."""


def to_float32(x: Tensor) -> Tensor:
    """Convert half-precision ``x`` to single precision, which changes no number."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def get_product_dtype(weight: Tensor) -> torch.dtype:
    """Return the type of products with ``weight``: autocast's inside autocast, otherwise the weight's."""
    device = weight.device.type
    if weight.dtype == torch.float32 and is_autocast_enabled(device):
        return torch.get_autocast_dtype(device)
    return weight.dtype


@contextmanager
def force_single_precision() -> Iterator[None]:
    """Compute float32 products in full float32 inside the block, even if torch is set to round their factors."""
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)


def is_autocast_enabled(device: str) -> bool:
    """Whether autocast is on; some devices have none."""
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def disable_autocast(device: str) -> AbstractContextManager[object]:
    """Turn autocast off inside."""
    return torch.autocast(device, enabled=False) if torch.amp.is_autocast_available(device) else nullcontext()


@contextmanager
def refuse_autocast() -> Iterator[None]:
    """Raise ``ConfigurationError`` if any code turns autocast on meanwhile, as networks that accelerate prepared do."""
    enter = torch.autocast.__enter__

    def refuse_or_enter(self: torch.autocast) -> Any:
        if self._enabled:
            raise ConfigurationError("noisy steps need float32, but the network turns on autocast: disable it")
        return enter(self)  # type: ignore[no-untyped-call]

    torch.autocast.__enter__ = refuse_or_enter  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__enter__ = enter  # type: ignore[method-assign]


def use_precision(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """Set the precision of networks inside the block: ``bf16`` uses autocast, ``float32`` does not."""
    if precision == "bf16":
        return torch.autocast(device.type, torch.bfloat16)
    return disable_autocast(device.type)


def multiply_matrices(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left`` [N, K] times ``right`` [K, M]; not differentiable."""
    if _can_use_onednn(left, right):
        return _multiply_by_onednn(left, right.t())
    return left @ right


def apply_affine(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return ``inputs`` [..., I] times ``weight`` [O, I] transposed, plus ``bias`` [O]; not differentiable."""
    if _can_use_onednn(inputs, weight):
        return _multiply_by_onednn(inputs, weight, bias)
    return F.linear(inputs, weight, bias)


def prepare_matmul(right: Tensor, rows: int) -> Callable[[Tensor], Tensor]:
    """Return the map from [rows, K] to its product with ``right`` [K, M], prepared for many calls."""
    if rows and _can_use_onednn(right):
        packed = _ONEDNN._reorder_linear_weight(right.t().contiguous(), rows)
        return lambda left: _multiply_by_onednn(left, packed)
    return lambda left: left @ right


def add_product(total: Tensor, left: Tensor, right: Tensor, is_empty: bool) -> None:
    """Add ``left``ᵀ [N, L] times ``right`` [N, R] to ``total`` [L, R]; overwrite it if ``is_empty``."""
    if not _can_use_onednn(left, right):
        torch.addmm(total, left.t(), right, beta=0.0 if is_empty else 1.0, out=total)
    elif len(left) > right.shape[1] and left.shape[1] > right.shape[1]:
        # oneDNN copies its first factor to transpose it: pass the smaller one first.
        accumulate_total(total, multiply_matrices(right.t(), left).t(), is_empty)
    else:
        for start in range(0, left.shape[1], CHUNK_ROWS):
            chunk = slice(start, start + CHUNK_ROWS)
            accumulate_total(total[chunk], multiply_matrices(left[:, chunk].t(), right), is_empty)


def multiply_transposed(left: Tensor, right: Tensor) -> Tensor:
    """Return ``left``ᵀ [N, L] times ``right`` [N, R], [L, R]; not differentiable."""
    total = left.new_empty(left.shape[1], right.shape[1])
    add_product(total, left, right, is_empty=True)
    return total


def accumulate_total(total: Tensor, addend: Tensor, is_empty: bool) -> None:
    """Add ``addend`` to ``total``; overwrite it if ``is_empty``."""
    if is_empty:
        total.copy_(addend)
    else:
        total.add_(addend)


def _can_use_onednn(*factors: Tensor) -> bool:
    if not _HAS_ONEDNN or torch.compiler.is_compiling():
        return False
    return all(factor.is_cpu and factor.dtype == torch.float32 and factor.numel() for factor in factors)


def _multiply_by_onednn(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if weight.layout != torch.strided or weight.is_contiguous() or weight.t().is_contiguous():
        dense = weight
    else:
        dense = weight.contiguous()  # oneDNN has no fast product for a non-contiguous view
    dense_bias = None if bias is None else bias.contiguous()
    result: Tensor = _ONEDNN._linear_pointwise(inputs, dense, dense_bias, "none", [], "")
    return result


def _is_onednn_working() -> bool:
    left, right = torch.linspace(-1.0, 1.0, 6).view(2, 3), torch.linspace(-2.0, 2.0, 12).view(3, 4)
    try:
        packed = _ONEDNN._reorder_linear_weight(right.t().contiguous(), 2)
        products = (_multiply_by_onednn(left, right.t()), _multiply_by_onednn(left, packed))
    except (AttributeError, RuntimeError):
        return False
    return all(torch.allclose(computed, left @ right, rtol=1e-5, atol=1e-6) for computed in products)


_HAS_ONEDNN = torch.backends.cpu.get_cpu_capability().startswith("AVX512") and _is_onednn_working()
