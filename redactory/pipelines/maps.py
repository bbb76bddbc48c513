"""A run is given one ``map``: serial here, processes here, an orchestrator's elsewhere."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Protocol

from redactory.foundation.core_dumps import forbid_core_dumps
from redactory.foundation.reports import StageReport

Task = Callable[[int], StageReport]


class StageMap(Protocol):
    """Calls ``task`` on each of ``numbers``; yields (number, report) as they finish, in any order."""

    def __call__(self, task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]: ...


def timed(task: Task, number: int) -> StageReport:
    """``task(number)``, with its seconds and its process's peak memory put into the report."""
    start = time.perf_counter()
    report = task(number)
    return StageReport(report.stage, report.counts, time.perf_counter() - start, peak_memory_mb())


def peak_memory_mb() -> float:
    """The highest resident memory of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


def serial(task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
    """One after the other, in this process."""
    return ((number, timed(task, number)) for number in numbers)


@contextmanager
def process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """``workers`` processes that live, with the engines they loaded, until the context ends."""
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


@contextmanager
def processes(workers: int) -> Iterator[StageMap]:
    """A map over ``workers`` processes; over this process alone where there is one worker."""
    if workers == 1:
        yield serial
        return
    with process_pool(workers) as pool:

        def spread(task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
            waiting = {pool.submit(timed, task, number): number for number in numbers}
            try:
                for future in as_completed(waiting):
                    yield waiting.pop(future), future.result()
            finally:
                for future in waiting:
                    future.cancel()

        yield spread
