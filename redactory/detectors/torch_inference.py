"""How models on torch read a text: without gradients, on one thread, with the libraries' loggers closed.

And by what such a model in a folder is known.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from redactory.foundation.canonical import folder_sha256, package_version
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.processes import ONE_THREAD

_LOGGERS = ("stanza", "transformers", "tokenizers", "torch")
_SILENT_LEVEL = logging.CRITICAL + 1


@contextlib.contextmanager
def isolate_inference() -> Iterator[None]:
    """Within it a model's output depends on its input alone, and no log record or warning can quote it.

    One thread of torch, because the order of a float sum depends on how many there are; one thread that
    reads, since this is of the whole process, and what a model computes beside its tags is kept in it.
    Everything is put back afterwards.
    """
    import torch

    with silence():
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            with torch.inference_mode():
                yield
        finally:
            torch.set_num_threads(threads)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """No log record and no warning from the model libraries within; one thread at a time."""
    with ONE_THREAD, warnings.catch_warnings():
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
    """What a policy's hash names of a model in a folder: its content, and the versions of what reads it.

    ``ConfigurationError`` where there is no such folder; ``key`` is the setting that gave it, and ``holds``
    the file by which the right one is known.
    """
    if not Path(folder).is_dir():
        raise ConfigurationError(f"{key}: there is no folder '{folder}'; give the one with {marker_file}")
    return {"folder": folder_sha256(Path(folder)), "versions": {name: package_version(name) for name in packages}}
