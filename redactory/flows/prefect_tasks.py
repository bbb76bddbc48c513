"""Prefect tasks around the plain functions: sealed, tried again, limited.

A task's result is a report (counts) or a summary, returned and not persisted; its arguments are numbers.
Tasks carry the tag ``redactory``, so that a server can limit how many run at once over all runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from prefect import task as prefect_task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.futures import as_completed
from prefect.task_runners import ThreadPoolTaskRunner

from redactory.flows.worker_pool import WorkerPool
from redactory.foundation.errors import SealedError
from redactory.foundation.reports import StageReport
from redactory.pipelines.maps import StageMap, Task, name_of
from redactory.pipelines.run import Step, Work
from redactory.pipelines.sealed import sealed

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
