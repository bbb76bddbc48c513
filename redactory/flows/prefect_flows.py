"""Prefect flows around the plain functions.

Parameters are paths and small settings; every flow and task body is sealed, so that an exception which
Prefect pickles or logs carries no text; only the curation's summary is persisted, as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.cache_policies import NO_CACHE, CacheKeyFnPolicy
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run

from redactory.flows.artifacts import publish_promise, publish_run
from redactory.flows.prefect_tasks import quiet_task, step_as_task, tasks_over
from redactory.flows.reuse import content_key, content_of, still_there
from redactory.flows.run_line import say_how_it_ended
from redactory.flows.run_place import place_of
from redactory.flows.with_dask import with_dask
from redactory.flows.worker_pool import WorkerPool
from redactory.foundation.core_dumps import forbid_core_dumps
from redactory.foundation.errors import CheckFailed, InputError, RedactoryError, SealedError
from redactory.foundation.files import make_private_folder
from redactory.foundation.progress import Progress, silent
from redactory.pipelines import curate as curation
from redactory.pipelines import run as whole
from redactory.pipelines import train as training
from redactory.pipelines import verify as verification
from redactory.pipelines.config import Config
from redactory.pipelines.loading import load_config
from redactory.pipelines.maps import StageMap
from redactory.pipelines.models import require_training_packages
from redactory.pipelines.sealed import sealed
from redactory.pipelines.train_checks import check_device
from redactory.redaction import RunFolder

listener: ContextVar[Progress] = ContextVar("listener", default=silent)
"""Who hears of progress in this process; no parameter, since Prefect stores parameters."""


@dataclass(frozen=True)
class Asked:
    """What a flow was asked for: the parameters that Prefect stores, and what they come to here and now."""

    config: str
    template: str
    settings: Config
    resume: bool
    dask: str | None = None

    @property
    def run(self) -> RunFolder:
        """The run folder."""
        return RunFolder(Path(self.settings.output))

    @property
    def name(self) -> str:
        """What the histories of this job are kept under in Prefect's interface."""
        return Path(self.config).stem


def quiet_flow(name: str) -> Callable[[Callable[..., Any]], Any]:
    """Prefect's decorator with what every flow of ours has."""
    ended: list[Any] = [say_how_it_ended]
    return flow(
        name=name,
        persist_result=False,
        log_prints=False,
        validate_parameters=False,
        on_completion=ended,
        on_failure=ended,
        on_crashed=ended,
        on_cancellation=ended,
    )


@quiet_flow("curate")
def curate(
    config: str,
    output: str | None = None,
    resume: bool = False,
    workers: int | None = None,
    timezone: str = "UTC",
    verify: bool = False,
    dask: str | None = None,
) -> dict[str, Any]:
    """``redactory.curate`` with a Prefect task for each partition of each stage.

    ``output`` may hold ``{start}`` and ``{date}``, which stand for when the run was due (``timezone``).
    Where a run of the same content is kept already in such a folder, its summary is the result.
    ``dask`` (``local`` or a scheduler's address) has the tasks of partitions run by workers of Dask.
    """
    forbid_core_dumps()
    asked = _asked(config, output, resume, workers, timezone, dask)
    return sealed(asked.run.state, _curate, asked, verify)


@quiet_flow("train")
def train(
    config: str,
    output: str | None = None,
    trainer: str | None = None,
    name: str | None = None,
    workers: int | None = None,
) -> dict[str, Any]:
    """``redactory.train`` as one task."""
    forbid_core_dumps()
    asked = _asked(config, output, True, None, "UTC")
    changes = {"trainer": trainer, "name": name, "workers": workers}
    return sealed(asked.run.state, _train, asked, {key: value for key, value in changes.items() if value})


@quiet_flow("curate-and-train")
def curate_and_train(
    config: str,
    output: str | None = None,
    resume: bool = False,
    workers: int | None = None,
    timezone: str = "UTC",
    verify: bool = False,
    dask: str | None = None,
) -> dict[str, Any]:
    """``redactory.run``, with the parameters of ``curate``: its partitions and each later step are tasks."""
    forbid_core_dumps()
    asked = _asked(config, output, resume, workers, timezone, dask)
    return sealed(asked.run.state, _curate_and_train, asked, verify)


def _asked(
    config: str,
    output: str | None,
    resume: bool,
    workers: int | None,
    timezone: str,
    dask: str | None = None,
) -> Asked:
    unexpected = None
    try:
        settings = load_config(config, workers=workers)
        template = output or str(settings.output)
        place = place_of(template, flow_run.scheduled_start_time, timezone)
        return Asked(config, template, load_config(settings, output=Path(place)), resume, dask)
    except RedactoryError:
        raise
    except Exception as error:
        # there is no run folder yet to seal it in; a configuration holds lists of names
        unexpected = type(error).__name__
    raise SealedError(
        f"unexpected {unexpected} while the configuration was read: redactory describe {config}"
    )


def _curate(asked: Asked, verify: bool) -> dict[str, Any]:
    curated = _curated(asked)
    if verify:
        check_verified(RunFolder(Path(curated["run"])))
    return curated


def _train(asked: Asked, changes: dict[str, Any]) -> dict[str, Any]:
    def work() -> dict[str, Any]:
        return dict(training.train(asked.settings, progress=listener.get(), **changes))

    trained = step_as_task(asked.run.state)("train", work)
    publish_promise(asked.name, trained)
    return trained


def _curate_and_train(asked: Asked, verify: bool) -> dict[str, Any]:
    require_training_packages()
    check_device(asked.settings)
    run = RunFolder(Path(_curated(asked)["run"]))
    result = whole.run(
        asked.settings, output=run.root, resume=True, step=step_as_task(run.state), progress=listener.get()
    )
    publish_promise(asked.name, result["model"])
    if verify:
        check_verified(run)
    return result


def _curated(asked: Asked) -> dict[str, Any]:
    """The summary of the curation: made now, or remembered of a run that is still there."""
    content = content_of(asked.settings)
    # what a run with an index keeps follows from the runs before it, too
    key = None if asked.settings.dedup.index else content_key(content, asked.template)
    attempts = 0
    remembered: dict[str, Any] = {
        "cache_policy": CacheKeyFnPolicy(cache_key_fn=lambda context, parameters: key) if key else NO_CACHE,
        "persist_result": key is not None,
        "result_serializer": "json",
        # it waits for partitions, which count by themselves
        "tags": [],
        "retry_condition_fn": _unreadable,
    }

    @quiet_task("curation", **remembered)
    def body() -> dict[str, Any]:
        nonlocal attempts
        attempts += 1
        return sealed(asked.run.state, _curation, asked, asked.resume or attempts > 1)

    summary: dict[str, Any] = body()
    reused = not attempts
    if reused and not still_there(summary, content):
        summary, reused = body.with_options(refresh_cache=True)(), False
    publish_run(asked.name, summary, reused)
    return summary


def _curation(asked: Asked, resume: bool) -> dict[str, Any]:
    with task_map(asked) as stage_map:
        curated = curation.curate(asked.settings, resume=resume, stage_map=stage_map, progress=listener.get())
        return dict(curated)


@contextmanager
def task_map(asked: Asked) -> Iterator[StageMap]:
    """The map whose parts are tasks: in processes of this machine, or on workers of Dask."""
    if asked.dask is None:
        with WorkerPool(asked.settings.workers) as pool:
            yield tasks_over(pool, asked.run.state)
        return
    on_dask, tasks_on = with_dask(asked.dask)
    make_private_folder(asked.run.root)
    make_private_folder(asked.run.state)
    with on_dask(asked.dask, asked.settings, asked.run.cluster) as workers:
        yield tasks_on(workers)


def _unreadable(task: Any, task_run: Any, state: State[Any]) -> bool:
    """Reading the input may fail for a while; a part that fails was tried again on its own."""
    return isinstance(state.data, InputError)


def check_verified(run: RunFolder) -> None:
    """Verify a finished run in a task of its own; ``CheckFailed`` where it does not hold."""

    @quiet_task("verify")
    def body() -> list[str]:
        found = sealed(run.state, verification.verify, run.root)
        return [check["name"] for check in found["checks"] if not check["ok"]]

    failed: list[str] = body()
    if failed:
        raise CheckFailed(f"{run.root} does not hold: {', '.join(failed)}; see redactory verify {run.root}")
