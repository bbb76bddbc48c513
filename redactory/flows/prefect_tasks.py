"""Prefect tasks around the plain functions, and the map that runs the parts of stages as tasks on Dask workers.

Workers share the run folder. Prefect and Dask print and store exceptions with their arguments. So a task raises only
errors in our own words, a result consists of counts, and the repr of a task's parameters hides their content.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import pickle
import secrets
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dask
from distributed import KilledWorker, LocalCluster, Security, as_completed, get_worker
from prefect import task as prefect_task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect_dask.task_runners import DaskTaskRunner

from redactory.detectors import compute_policy_hashes
from redactory.detectors.settings import DetectSettings
from redactory.flows.server import LOCAL_CLUSTER, TASK_TAG, check_dask_address
from redactory.foundation.errors import ConfigurationError, RedactoryError, RunStateError, SealedError
from redactory.foundation.files import make_private_folder, remove_path, stage_commits
from redactory.foundation.keys import require_secure_address
from redactory.foundation.processes import forbid_core_dumps
from redactory.foundation.progress import StageReport
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.finish import collect_versions
from redactory.pipelines.curation.stage_context import StageMap, Task, get_task_name, run_timed_task
from redactory.redaction import RunFolder
from redactory.redaction.encryption import load_configured_service

RETRY_SECONDS = [2.0, 8.0]
"""Delays before each retry, extended randomly by up to half."""
CONNECT_TIMEOUT = 20.0
"""Seconds to wait for a scheduler, and for its first worker."""
_DASK_SETTINGS = {
    # nothing is spilled to disk: results are counts
    **{f"distributed.worker.memory.{event}": False for event in ("target", "spill", "pause", "terminate")},
    "distributed.worker.profile.enabled": False,
    # no HTTP routes: a scheduler serves them even without a dashboard
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}


def _should_retry(task: Any, task_run: Any, state: State[Any]) -> bool:
    """Retry only unexpected errors (a full disk), not our own refusals."""
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
    """Run ``work`` as one task in this process that seals its errors in ``state``."""
    return make_task_decorator(name)(lambda: run_with_sealed_traceback(state, work))()


@dataclass(frozen=True)
class WorkerRequirements:
    """What a worker must have: access to ``folder``, which all share, and the ``facts`` of the command."""

    folder: Path
    detect: str = field(repr=False)
    facts: tuple[tuple[str, str], ...]


def _collect_environment_facts(detect: str) -> dict[str, str]:
    """Return what a shard depends on besides input and configuration."""
    versions, service, policies = collect_versions(), load_configured_service(), dict[str, str]()
    # missing models are refused before the input is read; on a worker they count as different
    with suppress(Exception):
        policies = compute_policy_hashes(DetectSettings.model_validate_json(detect))
    return {
        **versions.pop("packages"),
        **versions,
        "encryption key": "none" if service is None else service.name,
        **{f"the {name} policy": digest for name, digest in policies.items()},
    }


@contextmanager
def open_stage_map(address: str | None, config: Config, run: RunFolder) -> Iterator[StageMap]:
    """Yield a map whose parts are tasks on Dask workers: new processes here, or those of the scheduler at ``address``.

    Its private folder below ``run.cluster`` is removed at the end: another command may be working on the same run, and
    is refused only later. Raises ``ConfigurationError`` if a worker does not see it, has other versions, models or
    keys, or has no private connection.
    """
    address = address or LOCAL_CLUSTER
    check_dask_address(address)
    for parent in (run.root, run.state, run.cluster):
        make_private_folder(parent)
    folder = make_private_folder(run.cluster / secrets.token_hex(8))
    detect = config.detect.model_dump_json()
    requirements = WorkerRequirements(folder, detect, tuple(sorted(_collect_environment_facts(detect).items())))
    for name in ("distributed", "dask"):
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        with (
            dask.config.set({**_DASK_SETTINGS, "temporary-directory": str(folder)}),
            _make_task_runner(address, config.workers, folder) as runner,
        ):
            _check_workers(runner, address, requirements)
            yield functools.partial(_run_parts, runner, requirements)
    finally:
        remove_path(folder)
        with suppress(OSError):
            run.cluster.rmdir()


def _make_task_runner(address: str, workers: int, folder: Path) -> DaskTaskRunner:
    """Return the runner, which connects when it is first used.

    Local processes use TLS with a new certificate: otherwise every user of the machine could send them work through an
    open port.
    """
    security: Any = Security
    if address != LOCAL_CLUSTER:
        secure = {"security": security(require_encryption=True)} if address.startswith("tls:") else {}
        return DaskTaskRunner(address=address, client_kwargs={"timeout": CONNECT_TIMEOUT, **secure})
    cluster: dict[str, Any] = {
        "n_workers": workers,
        # engines use one thread, and a process runs one part at a time
        "threads_per_worker": 1,
        "security": security.temporary(),
        "local_directory": str(folder),
        "memory_limit": 0,
        "dashboard_address": None,
        # it listens on a port even without routes: use any free one
        "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"},
        "silence_logs": logging.CRITICAL,
    }
    return DaskTaskRunner(cluster_class=LocalCluster, cluster_kwargs=cluster)


def _check_workers(runner: DaskTaskRunner, address: str, requirements: WorkerRequirements) -> None:
    try:
        client = runner.client
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise ConfigurationError(
            f"--dask: no usable scheduler at {address} ({type(error).__name__}); tls:// needs Dask's settings "
            "distributed.comm.tls.ca-file, client.cert and client.key"
        ) from None
    try:
        client.wait_for_workers(1, timeout=CONNECT_TIMEOUT)
    except TimeoutError:
        raise RunStateError(f"--dask: no worker is connected to {address}; start at least one") from None
    # name the first failing worker by address, so always the same
    for worker, problem in sorted(client.run(find_worker_problem, requirements, on_error="return").items()):
        if isinstance(problem, BaseException):
            problem = f"--dask: the worker at {worker} cannot run Redactory: install the same version there"
        if problem is not None:
            raise ConfigurationError(problem)


def find_worker_problem(requirements: WorkerRequirements, dask_worker: Any = None) -> str | None:
    """Return why this worker, which Dask passes in, cannot take part; None if it can."""
    forbid_core_dumps()
    here = f"--dask: the worker on {socket.gethostname()} (process {os.getpid()})"
    try:
        require_secure_address(dask_worker.address, here)
        facts = _collect_environment_facts(requirements.detect)
    except RedactoryError as error:
        return str(error)
    if dask_worker.state.nthreads != 1:
        return f"{here} uses several threads: start workers with --nthreads 1, and start more of them"
    # a copy of the path on another disk has no folder of this random name
    if not os.access(requirements.folder, os.R_OK | os.W_OK | os.X_OK):
        return f"{here} cannot access {requirements.folder}: workers must share the run folder (same path, same user)"
    for name, value in requirements.facts:
        if facts.get(name) != value:
            return (
                f"{here} has {name} {facts.get(name)}, but the run was started with {value}: give it the same package "
                "versions, the same models and lists at the same paths, and the same REDACTORY_ENCRYPTION_KEY_FILE "
                "(or REDACTORY_KEY_SERVICE)"
            )
    return None


@functools.lru_cache(maxsize=4)
def _find_local_worker_problem(requirements: WorkerRequirements) -> str | None:
    return find_worker_problem(requirements, get_worker())


@dataclass(frozen=True)
class RemoteTask:
    """A stage's task in transit to workers, and the folders it needs before it is unpacked."""

    run: RunFolder
    staging: Path
    requirements: WorkerRequirements
    pickled_task: bytes = field(repr=False)


def _run_parts(
    runner: DaskTaskRunner, requirements: WorkerRequirements, task: Task, numbers: Sequence[int]
) -> Iterator[tuple[int, StageReport]]:
    """Run ``task`` on each number as a Prefect task on a worker; yield results as they finish.

    After the first permanent failure, and at the end, no worker can commit anything of it.
    """
    name = get_task_name(task)
    run = _get_run(task)
    make_private_folder(run.staging)
    staging = make_private_folder(run.staging / secrets.token_hex(8))
    remote_task = RemoteTask(run, staging, requirements, pickle.dumps(task))
    run_part = make_task_decorator(name, f"{name}-{{number}}")(run_remote_part)
    client: Any = runner.client
    futures: dict[Any, Any] = {}
    try:
        for number in numbers:
            future = runner.submit(run_part, {"number": number, "remote_task": remote_task})
            futures[future.wrapped_future] = future
        completed: Any = as_completed
        for done in completed(futures, loop=client.loop):
            yield wait_for_result(name, futures[done])
    finally:
        remove_path(staging)
        # a scheduler that is gone has dropped them
        with suppress(Exception):
            client.cancel(list(futures), force=True)


def _get_run(task: Any) -> RunFolder:
    """Return the run of a stage's task; its path must be absolute, because workers are in another directory."""
    run: RunFolder = task.args[0].run
    if not run.root.is_absolute():
        raise RunStateError(f"{run.root}: a run on Dask workers needs an absolute path")
    return run


def wait_for_result(name: str, future: Any) -> Any:
    """Wait for a task's future and return its result, or raise its error in our own words."""
    try:
        return future.result()
    except RedactoryError as error:
        raise error.with_traceback(None) from None
    except KilledWorker:
        raise SealedError(
            f"{name}: every worker that took a part was lost (killed, or out of memory); give workers more "
            "memory, or start a new run with smaller parts (partition.documents); --resume retries it once"
        ) from None
    except (Exception, asyncio.CancelledError) as error:
        raise SealedError(
            f"{name}: a worker could not run a part ({type(error).__name__}); can all workers reach the Prefect "
            "server (PREFECT_API_URL)?"
        ) from None


def run_remote_part(number: int, remote_task: RemoteTask) -> tuple[int, StageReport]:
    """Run part ``number`` of the stage on a worker and commit it; return its number and report."""
    forbid_core_dumps()
    return number, run_with_sealed_traceback(remote_task.run.state, _run_part, remote_task, number)


def _run_part(remote_task: RemoteTask, number: int) -> StageReport:
    # check a worker that joined later when it gets its first part
    if (problem := _find_local_worker_problem(remote_task.requirements)) is not None:
        raise ConfigurationError(problem)
    task: Task = pickle.loads(remote_task.pickled_task)
    try:
        with stage_commits(remote_task.run.root, remote_task.staging):
            return run_timed_task(task, number)
    except OSError:
        if remote_task.staging.is_dir():
            raise
    # another worker got the same part, or the run has ended: this result is ignored
    raise RunStateError(f"part {number} arrived after its stage had ended")
