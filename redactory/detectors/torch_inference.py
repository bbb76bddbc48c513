"""Run torch models reproducibly (no gradients, one thread, silent loggers), and identify their folders."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redactory.foundation.canonical import folder_sha256, get_package_version
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.processes import ENGINE_LOCK

_LOGGERS = ("stanza", "transformers", "tokenizers", "torch")
_SILENT_LEVEL = logging.CRITICAL + 1


@contextlib.contextmanager
def isolate_inference() -> Iterator[None]:
    """Make a model's output depend on its input alone, and suppress logs and warnings that may quote it.

    Uses one torch thread, because the order of a float sum depends on their number, and lets one thread read at a time,
    because these settings are process-wide and models keep state. Restores everything on exit.
    """
    import torch

    with silence_model_libraries():
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                yield
        finally:
            torch.set_num_threads(threads)


@contextlib.contextmanager
def silence_model_libraries() -> Iterator[None]:
    """Suppress logs and warnings of the model libraries; one thread at a time."""
    with ENGINE_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loggers = [logging.getLogger(name) for name in _LOGGERS]
        levels = [logger.level for logger in loggers]
        for logger in loggers:
            logger.setLevel(_SILENT_LEVEL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def identify_folder(key: str, folder: str | Path, marker_file: str, *packages: str) -> dict[str, Any]:
    """Return a model folder's identity for the policy hash: its content, and the versions of ``packages``.

    ``ConfigurationError`` if the folder is missing; ``key`` is its setting, and ``marker_file`` must be in it.
    """
    if not Path(folder).is_dir():
        raise ConfigurationError(f"{key}: there is no folder '{folder}'; give the one with {marker_file}")
    return {"folder": folder_sha256(Path(folder)), "versions": {name: get_package_version(name) for name in packages}}
