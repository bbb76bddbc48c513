"""A run's map over Dask: parts of stages on workers, ours or somebody's, that share the run folder.

Dask prints and passes on whatever a task raises, with its arguments: so nothing raises there, an outcome is
counts or words of ours, and a task shows nothing of what it is made of.
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
from redactory.detectors import policy_hashes
from redactory.detectors.settings import DetectSettings
from redactory.foundation.errors import ConfigurationError, RedactoryError, RunStateError, SealedError
from redactory.foundation.files import make_private_folder, remove, staged, write_text
from redactory.foundation.keys import SECURE, check_wire
from redactory.foundation.processes import forbid_core_dumps
from redactory.foundation.progress import StageReport
from redactory.pipelines.config import Config
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.output_folder import check_keys, check_output
from redactory.pipelines.release import versions
from redactory.pipelines.sealed import sealed
from redactory.pipelines.work import Job, StageMap, Task, name_of, timed
from redactory.redaction import RunFolder, is_finished
from redactory.redaction.encryption import configured_service

LOCAL = "local"
PATIENCE = 20.0
"""Seconds until a scheduler answers, and until its first worker is there."""
_SETTINGS = {
    # what is in memory stays there: results are counts
    "distributed.worker.memory.target": False,
    "distributed.worker.memory.spill": False,
    "distributed.worker.memory.pause": False,
    "distributed.worker.memory.terminate": False,
    "distributed.worker.profile.enabled": False,
    # no pages: a scheduler listens for requests for them even without a dashboard
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}


def over_dask(plain: Callable[..., Mapping[str, Any]], dask: str) -> Callable[..., Mapping[str, Any]]:
    """``plain`` (``redactory.curate`` or ``redactory.run``) with its map over Dask."""

    def spread(
        config: Given, *, output: Path | None = None, resume: bool = False, workers: int | None = None, **settings: Any
    ) -> Mapping[str, Any]:
        loaded = load_config(config, output=output, workers=workers)
        run = RunFolder(Path(loaded.output))
        check_dask(dask)
        check_keys()
        check_output(run, resume)
        with nullcontext() if is_finished(run) else on_dask(dask, loaded, run) as stage_map:
            return plain(loaded, resume=resume, stage_map=stage_map, **settings)

    return spread


def check_dask(dask: str) -> None:
    """``ConfigurationError`` unless ``dask`` is ``local`` or an address that is safe to send a run to."""
    if dask != LOCAL:
        check_wire(dask, "--dask")


class Fact(NamedTuple):
    """Something that a shard follows from, and what to do about a worker where it is different."""

    name: str
    value: str
    fix: str


@dataclass(frozen=True)
class Terms:
    """What a worker must see and have: the probe in a shared folder, and the ``facts`` of the command."""

    probe: Path
    token: str = field(repr=False)
    detect: str = field(repr=False)
    facts: tuple[Fact, ...]


def _facts(detect: str) -> tuple[Fact, ...]:
    """The versions, the encryption key and the policies of this process for the settings ``detect``."""
    numbers, service, policies = versions(), configured_service(), dict[str, str]()
    packages = {**numbers.pop("packages"), **numbers}
    # models that are not there are refused before the input is read, and on a worker they are different
    with suppress(Exception):
        policies = policy_hashes(DetectSettings.model_validate_json(detect))
    return (
        *(Fact(name, version, "install the same version") for name, version in sorted(packages.items())),
        Fact("encryption key", "none" if service is None else service.name, _SAME_KEY),
        *(Fact(f"the {name} policy", digest, _SAME_MODELS) for name, digest in policies.items()),
    )


_SAME_KEY = (
    "its environment must set the same REDACTORY_ENCRYPTION_KEY_FILE (or REDACTORY_KEY_SERVICE), or neither "
    "if the run is not encrypted"
)
_SAME_MODELS = "give it the same models and word lists, at the same paths"
_SHARED = "all workers must share the run folder's file system (same path, same user)"


@dataclass(frozen=True)
class Workers:
    """A map (``StageMap``) over workers that were all looked at, and what one that joins must have.

    It serves any number of runs, one after the other.
    """

    client: Any
    terms: Terms

    def __call__(self, task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
        from distributed import as_completed

        with self.sending(task) as send:
            sent = {send(number): number for number in numbers}
            completed: Any = as_completed
            try:
                for future in completed(sent, loop=self.client.loop):
                    yield sent[future], report_of(future)
            finally:
                # a scheduler that is gone has dropped them itself
                with suppress(Exception):
                    self.client.cancel([future for future in sent if not future.done()], force=True)

    @contextmanager
    def sending(self, task: Task) -> Iterator[Callable[[int], Any]]:
        """What sends a part of ``task`` to some worker and gives Dask's future of it.

        Once the context ends, no worker can commit anything of it any more.
        """
        job, anywhere = _anywhere(task)
        make_private_folder(job.run.staging)
        staging = make_private_folder(job.run.staging / secrets.token_hex(8))
        parcel = Parcel(job.run, staging, self.terms, pickle.dumps(anywhere))

        def send(number: int) -> Any:
            key = f"{name_of(task)}-{secrets.token_hex(4)}-{number}"
            return self.client.submit(carry_out, number, parcel, key=key, pure=False)

        try:
            yield send
        finally:
            remove(staging)


@contextmanager
def on_dask(dask: str, config: Config, run: RunFolder) -> Iterator[Workers]:
    """The workers of ``dask`` (``local``, or a scheduler's address), ready for runs of ``config``.

    A folder of its own is made below ``run.cluster``, on the file system that workers share, and taken away
    again: another command may be at work on the same run, and is refused only later.  Raises
    ``ConfigurationError`` where a worker does not see it, has other versions, models or keys, or cannot be
    spoken to in private.
    """
    check_dask(dask)
    for above in (run.root, run.state, run.cluster.absolute()):
        make_private_folder(above)
    own = make_private_folder(run.cluster.absolute() / secrets.token_hex(8))
    try:
        with ExitStack() as stack:
            client = _client_of(dask, config.workers, own, stack)
            detect = config.detect.model_dump_json()
            terms = Terms(own / "probe", secrets.token_hex(32), detect, _facts(detect))
            write_text(terms.probe, terms.token)
            # the first that lacks something is named; by address, so always the same
            for address, lacks in sorted(client.run(look, terms, on_error="return").items()):
                if isinstance(lacks, BaseException):
                    lacks = (
                        f"--dask: the worker at {address} cannot run Redactory ({type(lacks).__name__}): "
                        "install the same version there"
                    )
                if lacks is not None:
                    raise ConfigurationError(lacks)
            yield Workers(client, terms)
    finally:
        remove(own)
        with suppress(OSError):
            run.cluster.rmdir()


def _client_of(dask: str, workers: int, folder: Path, stack: ExitStack) -> Any:
    """A client of ``workers`` processes that live until ``stack`` ends, or of the scheduler at ``dask``.

    Dask's own files lie in ``folder``, its own words stay unsaid.  Processes of ours speak TLS with a
    certificate that is drawn for them: on an open port of this machine every user of it could give them work.
    """
    try:
        settings, distributed = (importlib.import_module(name) for name in ("dask", "distributed"))
    except ImportError:
        raise ConfigurationError("--dask needs Dask: pip install 'redactory[dask]'") from None
    stack.enter_context(settings.config.set({**_SETTINGS, "temporary-directory": str(folder)}))
    for name in ("distributed", "dask"):
        logger = logging.getLogger(name)
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL + 1)
    at: Any = dask
    security = None
    if dask == LOCAL:
        at = stack.enter_context(
            distributed.LocalCluster(
                n_workers=workers,
                # the engines compute in one thread, and a process does one part at a time
                threads_per_worker=1,
                security=distributed.Security.temporary(),
                local_directory=str(folder),
                memory_limit=0,
                dashboard_address=None,
                # the port that it listens on all the same, without a page: any that is free
                scheduler_kwargs={"dashboard_address": "127.0.0.1:0"},
                silence_logs=logging.CRITICAL,
            )
        )
    elif dask.startswith(f"{SECURE}://"):
        security = distributed.Security(require_encryption=True)
        if not (security.tls_ca_file and security.tls_client_cert and security.tls_client_key):
            raise ConfigurationError(
                f"--dask: {dask} needs certificates: set Dask's distributed.comm.tls.ca-file, client.cert "
                "and client.key (in its configuration, or DASK_DISTRIBUTED__COMM__TLS__CA_FILE and so on)"
            )
    try:
        client = distributed.Client(at, timeout=PATIENCE, set_as_default=False, security=security)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise ConfigurationError(f"--dask: no usable scheduler at {dask} ({type(error).__name__})") from None
    stack.enter_context(client)
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError:
        raise RunStateError(f"--dask: no worker is connected to {dask}; start at least one") from None
    return client


@contextmanager
def tasks_on_dask(dask: str, config: Config, run: RunFolder) -> Iterator[StageMap]:
    """A map whose every part is a Prefect task that waits for one of the workers."""
    from redactory.flows.prefect_tasks import as_tasks

    with on_dask(dask, config, run) as workers:

        def spread(task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
            with workers.sending(task) as send:
                at_once = len(workers.client.nthreads())
                yield from as_tasks(at_once, name_of(task), lambda number: report_of(send(number)), numbers)

        yield spread


def _anywhere(task: Task) -> tuple[Job, Task]:
    """The job of a task, and the task as it means the same in any process: workers start elsewhere."""
    if not isinstance(task, functools.partial) or not isinstance(task.args[0], Job):
        raise TypeError("a Dask task must be a function of a stage, called with its job")
    job, *fixed = task.args
    job = dataclasses.replace(job, run=RunFolder(job.run.root.absolute()))
    if job.index is not None:
        folder = IndexFolder(job.index.folder.root.absolute())
        job = dataclasses.replace(job, index=dataclasses.replace(job.index, folder=folder))
    return job, functools.partial(task.func, job, *fixed)


def report_of(future: Any) -> StageReport:
    """The report of a part once it is done, or its error."""
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


# A part at a worker.


@dataclass(frozen=True)
class Parcel:
    """A stage's task on its way to workers, and the places that it needs before it is unpacked."""

    run: RunFolder
    staging: Path
    terms: Terms
    content: bytes = field(repr=False)


Outcome = StageReport | RedactoryError
"""What Dask carries of a part: numbers, or an error whose words are ours."""


def carry_out(number: int, parcel: Parcel) -> Outcome:
    """Part ``number`` of the parcel's stage, committed, on a worker; its outcome."""
    forbid_core_dumps()
    try:
        return sealed(parcel.run.state, _part, parcel, number)
    except RedactoryError as error:
        # without its frames, and of a class that can be pickled: one of those that all rooms know
        nearest: Any = next(k for k in type(error).__mro__ if k.__module__ == RedactoryError.__module__)
        outcome: RedactoryError = nearest(str(error))
        return outcome


def _part(parcel: Parcel, number: int) -> StageReport:
    # a worker that joined after the begin is looked at when it is given its first part
    if (lacks := _lacks(parcel.terms)) is not None:
        raise ConfigurationError(lacks)
    task: Task = pickle.loads(parcel.content)
    try:
        with staged(parcel.run.root, parcel.staging):
            return timed(task, number)
    except OSError:
        if parcel.staging.is_dir():
            raise
    # another worker was given the same part, or the run has ended: nobody hears this
    raise RunStateError(f"part {number} arrived after its stage had ended")


@functools.lru_cache(maxsize=4)
def _lacks(terms: Terms) -> str | None:
    from distributed import get_worker

    return look(terms, get_worker())


def look(terms: Terms, dask_worker: Any = None) -> str | None:
    """Why this worker, which Dask hands in, cannot take part; None where it can."""
    forbid_core_dumps()
    here = f"--dask: the worker on {socket.gethostname()} (process {os.getpid()})"
    folder, threads = terms.probe.parent, dask_worker.state.nthreads
    try:
        check_wire(dask_worker.address, here)
        if threads != 1:
            return f"{here} uses {threads} threads: start workers with --nthreads 1, and start more of them"
        if terms.probe.read_text(encoding="utf-8") != terms.token:
            return f"{here} sees a different {folder} than this process: {_SHARED}"
        facts = _facts(terms.detect)
    except RedactoryError as error:
        return str(error)
    except OSError as error:
        return f"{here} cannot access {folder} ({error.strerror}): {_SHARED}"
    values = {fact.name: fact.value for fact in facts}
    for name, value, fix in terms.facts:
        if values.get(name) != value:
            return f"{here} has {name} {values.get(name)}, but the run was started with {value}: {fix}"
    return None
