"""The processes behind partition tasks: replaced when one is lost, so that a task tried again finds them."""

from __future__ import annotations

import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from redactory.foundation.processes import process_pool
from redactory.foundation.reports import StageReport
from redactory.pipelines.maps import Task, timed


class WorkerPool:
    """``count`` processes; a context that ends with them.  Threads may call it at once."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._pool: ProcessPoolExecutor | None = None

    def call(self, task: Task, number: int) -> StageReport:
        """``task(number)`` in one of the processes; whatever it raises there is raised here."""
        pool = self._current()
        try:
            return pool.submit(timed, task, number).result()
        except BrokenProcessPool:
            # one process that dies takes all others with it: whoever comes next gets new ones
            with self._lock:
                if self._pool is pool:
                    self._pool = None
            raise

    def _current(self) -> ProcessPoolExecutor:
        with self._lock:
            if self._pool is None:
                self._pool = self._stack.enter_context(process_pool(self.count))
            return self._pool

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)
