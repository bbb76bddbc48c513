"""A run is given one ``map``: serial here, processes here, an orchestrator's elsewhere."""

from __future__ import annotations

import functools
import itertools
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from typing import Protocol

from redactory.foundation.processes import process_pool
from redactory.foundation.progress import StageReport

Task = Callable[[int], StageReport]
AHEAD = 4
"""Parts a worker that wait for it: one that is handed out takes memory in the process that hands it out."""


class StageMap(Protocol):
    """Calls ``task`` on each of ``numbers``; yields (number, report) as they finish, in any order."""

    def __call__(self, task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]: ...


def name_of(task: Task) -> str:
    """What a task is called: its function, where it was given its job."""
    return task.func.__name__ if isinstance(task, functools.partial) else "part"


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
def processes(workers: int) -> Iterator[StageMap]:
    """A map over ``workers`` processes; over this process alone where there is one worker."""
    if workers == 1:
        yield serial
        return
    with process_pool(workers) as pool:

        def spread(task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
            waiting: dict[Future[StageReport], int] = {}
            coming = iter(numbers)
            try:
                while True:
                    for number in itertools.islice(coming, AHEAD * workers - len(waiting)):
                        waiting[pool.submit(timed, task, number)] = number
                    if not waiting:
                        return
                    for future in wait(waiting, return_when=FIRST_COMPLETED).done:
                        yield waiting.pop(future), future.result()
            finally:
                for future in waiting:
                    future.cancel()

        yield spread
