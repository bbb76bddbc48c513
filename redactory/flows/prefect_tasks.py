"""Prefect tasks around the plain functions: sealed, retried, limited, in separate processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from prefect import task as prefect_task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.futures import as_completed
from prefect.task_runners import ThreadPoolTaskRunner

from redactory.flows.server import TASK_TAG
from redactory.foundation.errors import SealedError
from redactory.foundation.processes import open_process_pool
from redactory.foundation.progress import StageReport
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.stage_context import StageMap, Task, get_task_name, run_timed_task
from redactory.pipelines.curation.stages import counting, dedup, examples

RETRY_SECONDS = [2.0, 8.0]
"""Delays before each retry, extended randomly by up to half."""
_PARTITION_TASKS = frozenset(
    stage.__name__
    for stage in (
        examples.segment_documents,
        examples.detect_texts,
        examples.find_known_values,
        examples.redact_examples,
        examples.write_shards,
        counting.route_by_user_count,
        dedup.compute_text_signatures,
        dedup.match_earlier_runs,
    )
)
"""The names of the stages that go over partitions, not over hash ranges."""


def _should_retry(task: Any, task_run: Any, state: State[Any]) -> bool:
    """Retry only unexpected errors (a full disk, a lost process), not our own refusals."""
    return isinstance(state.data, SealedError)


def make_task_decorator(name: str, run_name: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Return Prefect's decorator with the shared settings of our tasks: nothing is stored or printed."""
    return prefect_task(
        name=name,
        task_run_name=run_name,
        tags=[TASK_TAG],
        cache_policy=NO_CACHE,
        persist_result=False,
        log_prints=False,
        retries=len(RETRY_SECONDS),
        retry_delay_seconds=RETRY_SECONDS,
        retry_jitter_factor=0.5,
        retry_condition_fn=_should_retry,
    )


def run_as_task(state: Path, name: str, work: Callable[[], Any]) -> Any:
    """Run ``work`` as one task that seals its errors in ``state``."""
    return make_task_decorator(name)(lambda: run_with_sealed_traceback(state, work))()


def run_as_tasks(
    max_parallel: int, name: str, call: Callable[[int], StageReport], numbers: Sequence[int]
) -> Iterator[tuple[int, StageReport]]:
    """Run ``call`` on each number in tasks, ``max_parallel`` at once; yield results as they finish.

    Hash ranges are many and small, and a task costs the server some calls, so they run in batches. A permanent failure
    ends the stage: running parts are awaited, waiting ones are dropped.
    """
    count = len(numbers) if name in _PARTITION_TASKS else max_parallel
    batches = [list(numbers[start::count]) for start in range(min(count, len(numbers)))]

    @make_task_decorator(name, f"{name}-{{first}}")
    def run_batch(first: int, batch: list[int]) -> list[tuple[int, StageReport]]:
        return [(number, call(number)) for number in batch]

    with ThreadPoolTaskRunner[Any](max_parallel) as runner:
        mapped = {"first": [batch[0] for batch in batches], "batch": batches}
        futures: list[Any] = list(runner.map(run_batch, mapped))
        for future in as_completed(futures):
            yield from future.result()


TaskCall = Callable[[Task, int], StageReport]


@contextmanager
def open_worker_processes(count: int) -> Iterator[TaskCall]:
    """Yield a thread-safe function that runs ``task(number)`` in one of ``count`` processes.

    If a process dies, all others end too; the next caller gets new ones.
    """
    lock = threading.Lock()
    with ExitStack() as stack:
        pools = [stack.enter_context(open_process_pool(count))]

        def run_in_process(task: Task, number: int) -> StageReport:
            pool = pools[-1]
            try:
                return pool.submit(run_timed_task, task, number).result()
            except BrokenProcessPool:
                with lock:
                    if pool is pools[-1]:
                        pools.append(stack.enter_context(open_process_pool(count)))
                raise

        yield run_in_process


@contextmanager
def open_process_task_map(count: int, state: Path) -> Iterator[StageMap]:
    """A map that runs each partition as a task in one of ``count`` processes."""
    with open_worker_processes(count) as call:
        yield lambda task, numbers: run_as_tasks(
            count, get_task_name(task), lambda number: run_with_sealed_traceback(state, call, task, number), numbers
        )
