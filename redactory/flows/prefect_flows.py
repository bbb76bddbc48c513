"""Prefect flows around the plain functions.

Parameters are paths and small settings; every flow and task body is sealed, so that an exception which
Prefect pickles or logs carries no text; results are returned, never persisted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from prefect import flow
from prefect import task as prefect_task
from prefect.cache_policies import NO_CACHE
from prefect.futures import as_completed
from prefect.task_runners import ThreadPoolTaskRunner

from redactory.foundation.progress import Progress, silent
from redactory.foundation.reports import StageReport
from redactory.pipelines import curate as curation
from redactory.pipelines import run as whole
from redactory.pipelines import train as training
from redactory.pipelines.loading import load_config
from redactory.pipelines.maps import StageMap, Task, process_pool, timed
from redactory.pipelines.sealed import sealed
from redactory.redaction import RunFolder

listener: ContextVar[Progress] = ContextVar("listener", default=silent)
"""Who hears of progress in this process; no parameter, since Prefect stores parameters."""


_threads: Any = ThreadPoolTaskRunner(max_workers=8)


def _quiet_flow(name: str) -> Callable[[Callable[..., Any]], Any]:
    return flow(
        name=name,
        persist_result=False,
        log_prints=False,
        validate_parameters=False,
        task_runner=_threads,
    )


def _quiet_task(name: str, run_name: str | None = None) -> Callable[[Callable[..., Any]], Any]:
    return prefect_task(
        name=name, task_run_name=run_name, cache_policy=NO_CACHE, persist_result=False, log_prints=False
    )


@_quiet_flow("curate")
def curate(
    config: str, output: str | None = None, resume: bool = False, workers: int | None = None
) -> dict[str, Any]:
    """``redactory.curate`` with a Prefect task for each partition of each stage."""
    return sealed(_state(config, output), _curate, config, output, resume, workers)


@_quiet_flow("train")
def train(config: str, output: str | None = None, trainer: str | None = None) -> dict[str, Any]:
    """``redactory.train`` as one task."""
    state = _state(config, output)

    def work() -> dict[str, Any]:
        changes = {"trainer": trainer} if trainer else {}
        return training.train(config, output=output, progress=listener.get(), **changes)

    return sealed(state, _step(state), "train", work)


@_quiet_flow("curate-and-train")
def curate_and_train(
    config: str, output: str | None = None, resume: bool = False, workers: int | None = None
) -> dict[str, Any]:
    """``redactory.run``: the curation's partitions and each later step are tasks."""
    return sealed(_state(config, output), _run, config, output, resume, workers)


def _curate(config: str, output: str | None, resume: bool, workers: int | None) -> dict[str, Any]:
    with process_pool(_workers(config, workers)) as pool:
        return curation.curate(
            config,
            output=output,
            resume=resume,
            workers=workers,
            stage_map=_tasks_over(pool, _state(config, output)),
            progress=listener.get(),
        )


def _run(config: str, output: str | None, resume: bool, workers: int | None) -> dict[str, Any]:
    state = _state(config, output)
    with process_pool(_workers(config, workers)) as pool:
        return whole.run(
            config,
            output=output,
            resume=resume,
            workers=workers,
            stage_map=_tasks_over(pool, state),
            step=_step(state),
            progress=listener.get(),
        )


def _workers(config: str, given: int | None) -> int:
    return load_config(config, workers=given).workers


def _state(config: str, output: str | None) -> Path:
    return RunFolder(Path(load_config(config, output=output).output)).state


def _tasks_over(pool: ProcessPoolExecutor, state: Path) -> StageMap:
    """A map whose every part is a task that waits for one of the processes."""

    def spread(task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
        name = task.func.__name__ if isinstance(task, functools.partial) else "part"

        @_quiet_task(name, f"{name}-{{number}}")
        def part(number: int) -> tuple[int, dict[str, Any]]:
            return number, sealed(state, lambda: pool.submit(timed, task, number).result().to_json())

        for future in as_completed([part.submit(number) for number in numbers]):
            number, report = future.result()
            yield number, StageReport.from_json(report)

    return spread


def _step(state: Path) -> whole.Step:
    def step(name: str, work: whole.Work) -> dict[str, Any]:
        @_quiet_task(name)
        def body() -> dict[str, Any]:
            return sealed(state, work)

        result: dict[str, Any] = body()
        return result

    return step
