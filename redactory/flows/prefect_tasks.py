"""The processes behind partition tasks: replaced when one is lost, so that a task tried again finds them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from prefect import task as prefect_task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.futures import as_completed
from prefect.task_runners import ThreadPoolTaskRunner

from redactory.foundation.errors import SealedError
from redactory.foundation.processes import process_pool
from redactory.foundation.progress import StageReport
from redactory.pipelines.maps import StageMap, Task, name_of, timed
from redactory.pipelines.run import Step, Work
from redactory.pipelines.sealed import sealed


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


# Prefect tasks around the plain functions: sealed, tried again, limited.


TAG = "redactory"
RETRY_SECONDS = [2.0, 8.0]
"""How long a task waits before each further attempt, drawn out by up to :data:`JITTER` of it."""
JITTER = 0.5
_OVER_PARTITIONS = "_part"
"""How the stages are named that go over partitions, not over hash ranges."""


def worth_another_try(task: Any, task_run: Any, state: State[Any]) -> bool:
    """Only the unexpected may pass by itself (a full disk, a lost process); our own refusals stay."""
    return isinstance(state.data, SealedError)


def quiet_task(
    name: str, run_name: str | None = None, **settings: Any
) -> Callable[[Callable[..., Any]], Any]:
    """Prefect's decorator with what every task of ours has; ``settings`` go before it."""
    ours: dict[str, Any] = {
        "name": name,
        "task_run_name": run_name,
        "tags": [TAG],
        "cache_policy": NO_CACHE,
        "persist_result": False,
        "log_prints": False,
        "retries": len(RETRY_SECONDS),
        "retry_delay_seconds": RETRY_SECONDS,
        "retry_jitter_factor": JITTER,
        "retry_condition_fn": worth_another_try,
    }
    return prefect_task(**{**ours, **settings})


def tasks_over(pool: WorkerPool, state: Path) -> StageMap:
    """A map whose every part is a task that waits for one of the pool's processes."""

    def spread(task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
        def call(number: int) -> StageReport:
            return sealed(state, pool.call, task, number)

        yield from as_tasks(ThreadPoolTaskRunner(pool.count), pool.count, name_of(task), call, numbers)

    return spread


def as_tasks(
    runner: Any, workers: int, name: str, call: Callable[[int], StageReport], numbers: Sequence[int]
) -> Iterator[tuple[int, StageReport]]:
    """``call`` on each number, in tasks that ``runner`` hands to so many workers; yields as they end.

    Hash ranges are many and small, where a task costs a server some calls: they go by the batch.
    A failure that stays ends the stage: parts that run are awaited, those that wait are dropped.
    """
    count = len(numbers) if name.endswith(_OVER_PARTITIONS) else workers
    batches = [list(numbers[start::count]) for start in range(min(count, len(numbers)))]

    @quiet_task(name, f"{name}-{{first}}")
    def part(first: int, batch: list[int]) -> list[tuple[int, dict[str, Any]]]:
        return [(number, call(number).to_json()) for number in batch]

    with runner:
        mapped = {"first": [batch[0] for batch in batches], "batch": batches}
        futures: list[Any] = list(runner.map(part, mapped))
        for future in as_completed(futures):
            for number, report in future.result():
                yield number, StageReport.from_json(report)


def step_as_task(state: Path) -> Step:
    """Carries out a step of a run (training, an evaluation) as one task."""

    def step(name: str, work: Work) -> dict[str, Any]:
        @quiet_task(name)
        def body() -> dict[str, Any]:
            return sealed(state, work)

        result: dict[str, Any] = body()
        return result

    return step
