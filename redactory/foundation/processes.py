"""Worker processes that leave no core file and do not outlive the process that started them."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from redactory.foundation.core_dumps import forbid_core_dumps


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """``workers`` processes that live, with whatever they loaded, until the context ends."""
    # spawned, not forked: a fork would copy locks that the parent's threads hold
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_settle_worker) as pool:
        yield pool


def _settle_worker() -> None:
    """Leave no core, and end once the parent is gone: killed, it cannot say so, and we would wait forever."""
    forbid_core_dumps()
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_wait_and_end, args=(parent.sentinel,), daemon=True).start()


def _wait_and_end(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
