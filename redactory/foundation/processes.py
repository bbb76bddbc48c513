"""Processes and threads: no core dumps, workers that end with their parent, one thread inside the engines.

A core dump would write the process's memory, and so the corpus, to a file.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

ENGINE_LOCK = threading.RLock()
"""Held while an engine loads or reads, and while loggers, warnings or imports are changed for it.

Engines keep state between the steps of one text, and those switches are process-wide. One lock for all costs nothing:
Python runs one thread at a time, so parallel engines would not be faster.
"""
# a child forked during a read would get engines in mid-text, and a lock that nobody releases
os.register_at_fork(before=ENGINE_LOCK.acquire, after_in_parent=ENGINE_LOCK.release, after_in_child=ENGINE_LOCK.release)


def forbid_core_dumps() -> None:
    """Disable core files for this process and those that it starts; it cannot be undone.

    Handlers that receive dumps by a pipe (systemd-coredump, apport) obey the same limit.
    """
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


@contextmanager
def open_process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of ``workers`` processes that keep loaded state until the context ends.

    An interrupt ends them at once; resuming repeats their unfinished work.
    """
    # spawn: a fork would copy locks that the parent's threads hold
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare_worker) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            # no public name before Python 3.14
            for process in list((pool._processes or {}).values()):
                process.kill()
            raise


@dataclass(frozen=True)
class WorkerProcess:
    """A started process, and our end of the pipe to it."""

    process: BaseProcess
    pipe: Connection


@contextmanager
def start_worker_processes(
    work: Callable[..., None], tasks: Sequence[tuple[Any, ...]]
) -> Iterator[list[WorkerProcess]]:
    """Start a process for each of ``tasks`` that runs ``work(its end of a pipe, *task)``.

    They are killed when the context ends, so only the parent may hold lasting state. ``work`` and tasks must be
    picklable.
    """
    context = multiprocessing.get_context("spawn")
    workers: list[WorkerProcess] = []
    try:
        for task in tasks:
            parent_end, worker_end = context.Pipe()
            process = context.Process(target=_run_worker, args=(work, worker_end, *task), daemon=True)
            process.start()
            worker_end.close()
            workers.append(WorkerProcess(process, parent_end))
        yield workers
    finally:
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.pipe.close()


def _run_worker(work: Callable[..., None], pipe: Connection, *task: Any) -> None:
    _prepare_worker()
    work(pipe, *task)


def _prepare_worker() -> None:
    """Disable core files, and end when the parent is gone: a killed parent cannot notify its workers.

    Ignores Ctrl-C, which reaches every process of a terminal: the parent then ends the workers.
    """
    forbid_core_dumps()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with_parent, args=(parent.sentinel,), daemon=True).start()


def _exit_with_parent(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
