"""Deterministic arithmetic on one kind of machine, and the choice of the device."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.records import read_records
from redactory.redaction.folder import ModelFolder
from redactory.training.settings import TrainSettings

MAX_LOGITS_AT_ONCE = 1 << 23
"""Maximum number of log probabilities that inference computes at once: 64 MB in float64, plus copies."""

MAX_KEPT_LOGITS = 1 << 28
"""Maximum number of logits that a training step keeps for its gradient: 1 GB in float32, plus copies."""


def compute_max_rows(vocabulary: int, limit: int) -> int:
    """Return the number of rows, 1 to ``limit``, for which all log probabilities are computed at once."""
    return max(1, min(limit, MAX_LOGITS_AT_ONCE // vocabulary))


def limit_batch_tokens(network: Any, max_tokens: int) -> int:
    """Return ``max_tokens``, or fewer if the logits that ``network`` keeps for a gradient would exceed 1 GB."""
    return min(max_tokens, max(1, MAX_KEPT_LOGITS // max(1, getattr(network, "kept_logits", 0))))


@contextmanager
def use_deterministic_numerics(threads: int) -> Iterator[None]:
    """Use deterministic algorithms and ``threads`` threads inside the context; restore the settings after it.

    Products and convolutions are computed in full float32: otherwise a GPU may round their factors to 10 bits, far more
    than the noise allows for.
    """
    # not use_deterministic_algorithms, which imports torch's compiler: a second of processor time
    previous = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    precision, rounds_convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode("error")
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.set_num_threads(previous[0])
        torch.set_deterministic_debug_mode(previous[1])
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = rounds_convolutions


def resolve_device(settings: TrainSettings, folder: ModelFolder) -> TrainSettings:
    """Replace device ``auto`` in ``settings``: CUDA if available, otherwise the CPU.

    A training started in ``folder`` keeps its device: on another, a replayed step would differ in its last bit.
    """
    if settings.device != "auto":
        return settings
    records = read_records(folder.ledger) if folder.ledger.is_file() else []
    recorded_device = str(records[0].body["settings"]["device"]) if records else None
    return settings.model_copy(update={"device": recorded_device or ("cuda" if _has_gpu() else "cpu")})


def require_device(device: str) -> None:
    """Raise ``ConfigurationError`` if ``device`` is ``cuda`` and torch has no usable GPU.

    Also requests the fixed workspace that CUDA needs for deterministic matrix products, before the first of them.
    """
    if device != "cuda":
        return
    if not _has_gpu():
        reason = "was built without it" if torch.version.cuda is None else "finds no GPU"
        raise ConfigurationError(
            f"train.device: this training is on cuda, but torch {reason}, so only the cpu is available: set "
            "device to auto (or cpu) and, for a training that was started on cuda, give another name"
        )
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def _has_gpu() -> bool:
    """Whether torch can use a GPU; warnings about unusable drivers are suppressed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.cuda.is_available()
