"""Processes and threads: no core dumps, workers that end with their parent, one thread inside the engines.

A process that crashes with a core dump would leave its memory, and so the corpus, in a file.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

ONE_THREAD = threading.RLock()
"""Held while an engine loads or reads, and while loggers, warnings or imports are changed for it.

Engines keep state between the steps of one text, and those switches are of the whole process.  One lock for
all of them costs nothing: engines that read side by side are no faster, Python runs one thread at a time.
"""
if hasattr(os, "register_at_fork"):
    # a child that is forked while another thread reads would get engines in the middle of a text, and a lock
    # that nobody opens
    os.register_at_fork(
        before=ONE_THREAD.acquire, after_in_parent=ONE_THREAD.release, after_in_child=ONE_THREAD.release
    )


def forbid_core_dumps() -> None:
    """From now on neither this process nor one that it starts writes a core file; it cannot be undone.

    Handlers that are piped the dump (systemd-coredump, apport) go by the same limit.
    """
    try:
        import resource
    except ImportError:
        return  # not a Unix: there is no such file
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


# Worker processes that leave no core file and do not outlive the process that started them.


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """``workers`` processes that live, with whatever they loaded, until the context ends.

    An interrupt ends them where they are, and nobody waits for what they were at: it is done again by whoever goes on.
    """
    # spawned, not forked: a fork would copy locks that the parent's threads hold
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare_worker) as pool:
        try:
            yield pool
        except KeyboardInterrupt:
            # no public name for them before Python 3.14
            for process in list((pool._processes or {}).values()):
                process.kill()
            raise


@dataclass(frozen=True)
class WorkerProcess:
    """A process that was started, and our end of a pipe between it and us."""

    process: BaseProcess
    pipe: Connection


@contextmanager
def worker_processes(work: Callable[..., None], tasks: Sequence[tuple[Any, ...]]) -> Iterator[list[WorkerProcess]]:
    """A process for each of ``tasks`` that carries out ``work(its end of a pipe, *task)``.

    They are killed when the context ends: nothing that lasts may be theirs alone.  ``work`` and tasks can be pickled.
    """
    context = multiprocessing.get_context("spawn")
    workers: list[WorkerProcess] = []
    try:
        for task in tasks:
            ours, theirs = context.Pipe()
            process = context.Process(target=_run_worker, args=(work, theirs, *task), daemon=True)
            process.start()
            theirs.close()
            workers.append(WorkerProcess(process, ours))
        yield workers
    finally:
        for one in workers:
            one.process.kill()
        for one in workers:
            one.process.join()
            one.pipe.close()


def _run_worker(work: Callable[..., None], pipe: Connection, *task: Any) -> None:
    _prepare_worker()
    work(pipe, *task)


def _prepare_worker() -> None:
    """Leave no core, and end once the parent is gone: killed, it cannot say so, and we would wait forever.

    Ctrl-C reaches every process of a terminal: here it is the parent's business, who ends us then.
    """
    forbid_core_dumps()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_with_parent, args=(parent.sentinel,), daemon=True).start()


def _exit_with_parent(sentinel: int) -> None:
    multiprocessing.connection.wait([sentinel])
    os._exit(1)
