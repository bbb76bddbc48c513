"""How models on torch read a text: without gradients, on one thread, with the libraries' loggers closed."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

_LOGGERS = ("stanza", "transformers", "tokenizers", "torch")
_NOTHING = logging.CRITICAL + 1


@contextlib.contextmanager
def closed_reading() -> Iterator[None]:
    """Within it a model's output depends on its input alone, and no log record or warning can quote it.

    One thread, because the order of a float sum depends on how many there are.  Everything is put back
    afterwards.
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode(), silence():
            yield
    finally:
        torch.set_num_threads(threads)


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """No log record and no warning from the model libraries within."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(_NOTHING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
