"""Run the parts of stages on Dask workers, local or remote, that share the run folder.

Dask prints and forwards exceptions with their arguments. So nothing raises there, an outcome consists of counts or our
own words, and the repr of a task hides its content.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import importlib
import logging
import os
import pickle
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from redactory.dedup.index import IndexFolder
from redactory.detectors import compute_policy_hashes
from redactory.detectors.settings import DetectSettings
from redactory.foundation.errors import ConfigurationError, RedactoryError, RunStateError, SealedError
from redactory.foundation.files import make_private_folder, remove_path, stage_commits, write_text
from redactory.foundation.keys import TLS_SCHEME, require_secure_address
from redactory.foundation.processes import forbid_core_dumps
from redactory.foundation.progress import StageReport
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.finish import collect_versions
from redactory.pipelines.curation.loading import ConfigLike, load_config
from redactory.pipelines.curation.output_folder import check_environment_keys, check_output_folder
from redactory.pipelines.curation.stage_context import CurationJob, StageMap, Task, get_task_name, run_timed_task
from redactory.redaction import RunFolder, is_finished
from redactory.redaction.encryption import load_configured_service

LOCAL_CLUSTER = "local"
CONNECT_TIMEOUT = 20.0
"""Seconds to wait for a scheduler, and for its first worker."""
_DASK_SETTINGS = {
    # nothing is spilled to disk: results are counts
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
    # no HTTP routes: a scheduler serves them even without a dashboard
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}


def wrap_with_dask(run_locally: Callable[..., Mapping[str, Any]], dask: str) -> Callable[..., Mapping[str, Any]]:
    """Wrap ``redactory.curate`` or ``redactory.run`` with its map over Dask."""

    def run_on_dask(
        config: ConfigLike,
        *,
        output: Path | None = None,
        resume: bool = False,
        workers: int | None = None,
        **settings: Any,
    ) -> Mapping[str, Any]:
        loaded = load_config(config, output=output, workers=workers)
        run = RunFolder(Path(loaded.output))
        check_dask_address(dask)
        check_environment_keys()
        check_output_folder(run, resume)
        with nullcontext() if is_finished(run) else start_dask_workers(dask, loaded, run) as stage_map:
            return run_locally(loaded, resume=resume, stage_map=stage_map, **settings)

    return run_on_dask


def check_dask_address(dask: str) -> None:
    """Raise ``ConfigurationError`` unless ``dask`` is ``local`` or an address that is safe for a run."""
    if dask != LOCAL_CLUSTER:
        require_secure_address(dask, "--dask")


class EnvironmentFact(NamedTuple):
    """A fact on which a shard depends, and the fix for a worker with another value."""

    name: str
    value: str
    fix: str


@dataclass(frozen=True)
class WorkerRequirements:
    """What a worker must have: access to the probe in a shared folder, and the ``facts`` of the command."""

    probe: Path
    token: str = field(repr=False)
    detect: str = field(repr=False)
    facts: tuple[EnvironmentFact, ...]


def _collect_environment_facts(detect: str) -> tuple[EnvironmentFact, ...]:
    numbers, service, policies = collect_versions(), load_configured_service(), dict[str, str]()
    packages = {**numbers.pop("packages"), **numbers}
    # missing models are refused before the input is read; on a worker they count as different
    with suppress(Exception):
        policies = compute_policy_hashes(DetectSettings.model_validate_json(detect))
    return (
        *(EnvironmentFact(name, version, "install the same version") for name, version in sorted(packages.items())),
        EnvironmentFact("encryption key", "none" if service is None else service.name, _SAME_KEY_HINT),
        *(EnvironmentFact(f"the {name} policy", digest, _SAME_MODELS_HINT) for name, digest in policies.items()),
    )


_SAME_KEY_HINT = (
    "its environment must set the same REDACTORY_ENCRYPTION_KEY_FILE (or REDACTORY_KEY_SERVICE), or neither "
    "if the run is not encrypted"
)
_SAME_MODELS_HINT = "give it the same models and word lists, at the same paths"
_SHARED_HINT = "all workers must share the run folder's file system (same path, same user)"


@dataclass(frozen=True)
class DaskWorkers:
    """A map (``StageMap``) over checked workers, and the requirements for workers that join later.

    It can be used for several runs, one after the other.
    """

    client: Any
    requirements: WorkerRequirements

    def __call__(self, task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
        from distributed import as_completed

        with self.open_submitter(task) as submit:
            sent = {submit(number): number for number in numbers}
            completed: Any = as_completed
            try:
                for future in completed(sent, loop=self.client.loop):
                    yield sent[future], wait_for_report(future)
            finally:
                # a scheduler that is gone has dropped them
                with suppress(Exception):
                    self.client.cancel([future for future in sent if not future.done()], force=True)

    @contextmanager
    def open_submitter(self, task: Task) -> Iterator[Callable[[int], Any]]:
        """Yield a function that submits a part of ``task`` and returns Dask's future.

        After the context ends, no worker can commit anything of it.
        """
        job, portable_task = _make_task_portable(task)
        make_private_folder(job.run.staging)
        staging = make_private_folder(job.run.staging / secrets.token_hex(8))
        remote_task = RemoteTask(job.run, staging, self.requirements, pickle.dumps(portable_task))

        def submit_part(number: int) -> Any:
            key = f"{get_task_name(task)}-{secrets.token_hex(4)}-{number}"
            return self.client.submit(run_remote_part, number, remote_task, key=key, pure=False)

        try:
            yield submit_part
        finally:
            remove_path(staging)


@contextmanager
def start_dask_workers(dask: str, config: Config, run: RunFolder) -> Iterator[DaskWorkers]:
    """Connect to the workers of ``dask`` (``local``, or a scheduler's address), ready for runs of ``config``.

    Makes a private folder below ``run.cluster``, on the file system that workers share, and removes it at the end:
    another command may be working on the same run, and is refused only later. Raises ``ConfigurationError`` if a worker
    does not see it, has other versions, models or keys, or has no private connection.
    """
    check_dask_address(dask)
    for folder in (run.root, run.state, run.cluster.absolute()):
        make_private_folder(folder)
    scratch_folder = make_private_folder(run.cluster.absolute() / secrets.token_hex(8))
    try:
        with ExitStack() as stack:
            client = _connect_client(dask, config.workers, scratch_folder, stack)
            detect = config.detect.model_dump_json()
            requirements = WorkerRequirements(
                scratch_folder / "probe", secrets.token_hex(32), detect, _collect_environment_facts(detect)
            )
            write_text(requirements.probe, requirements.token)
            # name the first failing worker by address, so always the same
            for address, problem in sorted(client.run(find_worker_problem, requirements, on_error="return").items()):
                if isinstance(problem, BaseException):
                    problem = (
                        f"--dask: the worker at {address} cannot run Redactory ({type(problem).__name__}): "
                        "install the same version there"
                    )
                if problem is not None:
                    raise ConfigurationError(problem)
            yield DaskWorkers(client, requirements)
    finally:
        remove_path(scratch_folder)
        with suppress(OSError):
            run.cluster.rmdir()


def _connect_client(dask: str, workers: int, folder: Path, stack: ExitStack) -> Any:
    """Return a client of ``workers`` processes that live until ``stack`` ends, or of the scheduler at ``dask``.

    Dask's files are in ``folder``, and its messages are silenced. Local processes use TLS with a new certificate:
    otherwise every user of the machine could send them work through an open port.
    """
    try:
        settings, distributed = (importlib.import_module(name) for name in ("dask", "distributed"))
    except ImportError:
        raise ConfigurationError("--dask needs Dask: pip install 'redactory[dask]'") from None
    stack.enter_context(settings.config.set({**_DASK_SETTINGS, "temporary-directory": str(folder)}))
    for name in ("distributed", "dask"):
        logger = logging.getLogger(name)
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL + 1)
    at: Any = dask
    security = None
    if dask == LOCAL_CLUSTER:
        at = stack.enter_context(
            distributed.LocalCluster(
                n_workers=workers,
                # engines use one thread, and a process runs one part at a time
                threads_per_worker=1,
                security=distributed.Security.temporary(),
                local_directory=str(folder),
                memory_limit=0,
                dashboard_address=None,
                # it listens on a port even without routes: use any free one
                scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
                silence_logs=logging.CRITICAL,
            )
        )
    elif dask.startswith(f"{TLS_SCHEME}://"):
        security = distributed.Security(require_encryption=True)
        if not (security.tls_ca_file and security.tls_client_cert and security.tls_client_key):
            raise ConfigurationError(
                f"--dask: {dask} needs certificates: set Dask's distributed.comm.tls.ca-file, client.cert "
                "and client.key (in its configuration, or DASK_DISTRIBUTED__COMM__TLS__CA_FILE and so on)"
            )
    try:
        client = distributed.Client(at, timeout=CONNECT_TIMEOUT, set_as_default=False, security=security)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise ConfigurationError(f"--dask: no usable scheduler at {dask} ({type(error).__name__})") from None
    stack.enter_context(client)
    try:
        client.wait_for_workers(1, timeout=CONNECT_TIMEOUT)
    except TimeoutError:
        raise RunStateError(f"--dask: no worker is connected to {dask}; start at least one") from None
    return client


@contextmanager
def open_dask_task_map(dask: str, config: Config, run: RunFolder) -> Iterator[StageMap]:
    """A map that runs each partition as a Prefect task on a worker."""
    from redactory.flows.prefect_tasks import run_as_tasks

    with start_dask_workers(dask, config, run) as workers:

        def run_partitions(task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
            with workers.open_submitter(task) as submit:
                max_parallel = len(workers.client.nthreads())
                yield from run_as_tasks(
                    max_parallel, get_task_name(task), lambda number: wait_for_report(submit(number)), numbers
                )

        yield run_partitions


def _make_task_portable(task: Task) -> tuple[CurationJob, Task]:
    """Return the job of a task, and the task in a form for any process: workers have another directory."""
    if not isinstance(task, functools.partial) or not isinstance(task.args[0], CurationJob):
        raise TypeError("a Dask task must be a function of a stage, called with its job")
    job, *fixed = task.args
    job = dataclasses.replace(job, run=RunFolder(job.run.root.absolute()))
    if job.index is not None:
        folder = IndexFolder(job.index.folder.root.absolute())
        job = dataclasses.replace(job, index=dataclasses.replace(job.index, folder=folder))
    return job, functools.partial(task.func, job, *fixed)


def wait_for_report(future: Any) -> StageReport:
    """Wait for a part and return its report, or raise its error."""
    from distributed import KilledWorker

    try:
        outcome: Outcome = future.result()
    except KilledWorker:
        raise SealedError(
            f"{future.key}: every worker that took it was lost (killed, or out of memory); give workers more "
            "memory, or start a new run with smaller parts (partition.documents); --resume retries it once"
        ) from None
    except (Exception, asyncio.CancelledError) as error:
        raise SealedError(f"{future.key}: Dask cancelled it ({type(error).__name__})") from None
    if isinstance(outcome, RedactoryError):
        raise outcome
    return outcome


@dataclass(frozen=True)
class RemoteTask:
    """A stage's task in transit to workers, and the folders it needs before it is unpacked."""

    run: RunFolder
    staging: Path
    requirements: WorkerRequirements
    pickled_task: bytes = field(repr=False)


Outcome = StageReport | RedactoryError
"""What Dask carries of a part: numbers, or an error in our own words."""


def run_remote_part(number: int, remote_task: RemoteTask) -> Outcome:
    """Run part ``number`` of the stage on a worker, commit it, and return its outcome."""
    forbid_core_dumps()
    try:
        return run_with_sealed_traceback(remote_task.run.state, _run_part, remote_task, number)
    except RedactoryError as error:
        # without frames, and of a picklable class that every package knows
        nearest: Any = next(k for k in type(error).__mro__ if k.__module__ == RedactoryError.__module__)
        outcome: RedactoryError = nearest(str(error))
        return outcome


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


@functools.lru_cache(maxsize=4)
def _find_local_worker_problem(requirements: WorkerRequirements) -> str | None:
    from distributed import get_worker

    return find_worker_problem(requirements, get_worker())


def find_worker_problem(requirements: WorkerRequirements, dask_worker: Any = None) -> str | None:
    """Return why this worker, which Dask passes in, cannot take part; None if it can."""
    forbid_core_dumps()
    here = f"--dask: the worker on {socket.gethostname()} (process {os.getpid()})"
    folder, threads = requirements.probe.parent, dask_worker.state.nthreads
    try:
        require_secure_address(dask_worker.address, here)
        if threads != 1:
            return f"{here} uses {threads} threads: start workers with --nthreads 1, and start more of them"
        if requirements.probe.read_text(encoding="utf-8") != requirements.token:
            return f"{here} sees a different {folder} than this process: {_SHARED_HINT}"
        facts = _collect_environment_facts(requirements.detect)
    except RedactoryError as error:
        return str(error)
    except OSError as error:
        return f"{here} cannot access {folder} ({error.strerror}): {_SHARED_HINT}"
    values = {fact.name: fact.value for fact in facts}
    for name, value, fix in requirements.facts:
        if values.get(name) != value:
            return f"{here} has {name} {values.get(name)}, but the run was started with {value}: {fix}"
    return None
