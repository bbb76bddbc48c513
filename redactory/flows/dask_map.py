"""A Dask cluster for one command: processes of its own, or a client of one that runs already."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import logging
import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from redactory.dedup.index import IndexFolder
from redactory.detectors import policy_hashes
from redactory.flows.dask_worker import PROBE_CONTEXT, Parcel, Terms, carry_out, look, opened, packed
from redactory.flows.server import ADDRESS
from redactory.foundation import errors
from redactory.foundation.errors import ConfigurationError, RunStateError, SealedError
from redactory.foundation.files import make_private_folder, take_away, write_bytes
from redactory.foundation.keys import SECURE, check_wire, is_loopback
from redactory.foundation.progress import StageReport
from redactory.pipelines.config import Config
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.maps import StageMap, Task, name_of
from redactory.pipelines.output_folder import check_keys, check_output
from redactory.pipelines.release import versions
from redactory.pipelines.work import Job
from redactory.redaction import RunFolder, is_finished
from redactory.redaction.keyservice import configured_service

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


def check_dask(dask: str) -> None:
    """``ConfigurationError`` unless ``dask`` is ``local`` or an address that is safe to send a run to."""
    if dask != LOCAL:
        check_wire(dask, "--dask")


@contextmanager
def cluster(dask: str, workers: int, folder: Path) -> Iterator[Any]:
    """A client of ``workers`` processes that live until the context ends, or of the scheduler at ``dask``.

    Dask's own files lie in ``folder``.  Processes of ours speak TLS with a certificate that is drawn for
    them: on an open port of this machine every user of it could give them work, or ask for what they have.
    """
    check_dask(dask)
    dask_itself, distributed = _dask()
    with dask_itself.config.set({**_SETTINGS, "temporary-directory": str(folder)}), _quiet():
        if dask == LOCAL:
            with _processes(distributed, workers, folder) as own, _client(distributed, own, None) as client:
                yield client
        else:
            with _client(distributed, dask, _security(distributed, dask)) as client:
                try:
                    client.wait_for_workers(1, timeout=PATIENCE)
                except TimeoutError:
                    raise RunStateError(f"--dask: no worker is connected to {dask}; start some") from None
                yield client


def _dask() -> tuple[Any, Any]:
    try:
        import dask
        import distributed
    except ImportError:
        raise ConfigurationError("--dask needs Dask: pip install 'redactory[dask]'") from None
    return dask, distributed


@contextmanager
def _processes(distributed: Any, workers: int, folder: Path) -> Iterator[Any]:
    with distributed.LocalCluster(
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
    ) as own:
        yield own


def _security(distributed: Any, address: str) -> Any:
    """Dask's own settings of certificates, which ``tls://`` needs."""
    if not address.startswith(f"{SECURE}://"):
        return None
    security = distributed.Security(require_encryption=True)
    if not (security.tls_ca_file and security.tls_client_cert and security.tls_client_key):
        raise ConfigurationError(
            f"--dask: {address} needs certificates: set Dask's distributed.comm.tls.ca-file, client.cert and "
            "client.key (in its configuration, or DASK_DISTRIBUTED__COMM__TLS__CA_FILE and so on)"
        )
    return security


@contextmanager
def _client(distributed: Any, at: Any, security: Any) -> Iterator[Any]:
    try:
        connected = distributed.Client(at, timeout=PATIENCE, set_as_default=False, security=security)
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        raise ConfigurationError(
            f"--dask: no scheduler answers at {at} as it should ({type(error).__name__})"
        ) from None
    with connected as client:
        yield client


@contextmanager
def _quiet() -> Iterator[None]:
    """Dask's own words stay unsaid here: what went wrong is told by us."""
    loggers = [logging.getLogger(name) for name in ("distributed", "dask")]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


# A run's map over Dask: parts of stages on workers that share the run folder.


@dataclasses.dataclass(frozen=True)
class Workers:
    """A cluster whose every worker was looked at: its client, and what a worker that joins must have, too."""

    client: Any
    terms: Terms


@contextmanager
def on_dask(dask: str, config: Config, folder: Path) -> Iterator[Workers]:
    """The workers of ``dask`` (``local``, or a scheduler's address), ready for runs of ``config``.

    A folder of its own is made below ``folder`` (``RunFolder.cluster``), on the file system that workers
    share, and taken away again: another command may be at work on the same run, and is refused only later.
    Raises ``ConfigurationError`` where a worker does not see it, has other versions, models or keys, or
    cannot be spoken to in private.
    """
    check_dask(dask)
    make_private_folder(folder.absolute())
    own = make_private_folder(folder.absolute() / secrets.token_hex(8))
    try:
        with cluster(dask, config.workers, own) as client:
            terms = _terms(config, own)
            _look_at_all(client, terms)
            yield Workers(client, terms)
    finally:
        take_away(own)
        with suppress(OSError):
            folder.rmdir()


def over_dask(plain: Callable[..., Mapping[str, Any]], dask: str) -> Callable[..., Mapping[str, Any]]:
    """``plain`` (``redactory.curate`` or ``redactory.run``) with its map over Dask."""

    def spread(
        config: Given,
        *,
        output: Path | None = None,
        resume: bool = False,
        workers: int | None = None,
        **settings: Any,
    ) -> Mapping[str, Any]:
        loaded = load_config(config, output=output, workers=workers)
        run = RunFolder(Path(loaded.output))
        check_dask(dask)
        check_keys()
        check_output(run, resume)
        if is_finished(run):
            return plain(loaded, resume=resume, **settings)
        make_private_folder(run.root)
        make_private_folder(run.state)
        with on_dask(dask, loaded, run.cluster) as cluster_:
            return plain(loaded, resume=resume, stage_map=dask_map(cluster_), **settings)

    return spread


def dask_map(workers: Workers) -> StageMap:
    """A map over workers; it serves any number of runs, one after the other."""

    def spread(task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
        if not numbers:
            return
        with parcel_of(task, workers.terms) as parcel:
            name = f"{name_of(task)}-{secrets.token_hex(4)}"
            futures = workers.client.map(
                carry_out, list(numbers), key=[f"{name}-{n}" for n in numbers], pure=False, parcel=parcel
            )
            try:
                yield from _as_they_end(workers.client, dict(zip(futures, numbers, strict=True)))
            finally:
                waiting = [future for future in futures if not future.done()]
                # a scheduler that is gone has dropped them itself
                with suppress(Exception):
                    if waiting:
                        workers.client.cancel(waiting, force=True)

    return spread


@contextmanager
def parcel_of(task: Task, terms: Terms) -> Iterator[Parcel]:
    """``task`` packed for workers; once the context ends, they can commit nothing of it any more."""
    job, anywhere = _anywhere(task)
    staging = job.run.staging / secrets.token_hex(8)
    make_private_folder(job.run.staging)
    make_private_folder(staging)
    try:
        yield packed(job.run.root, job.run.state, staging, terms, anywhere)
    finally:
        take_away(staging)


def _anywhere(task: Task) -> tuple[Job, Task]:
    """The job of a task, and the task as it means the same in any process: workers start elsewhere."""
    if not isinstance(task, functools.partial) or not isinstance(task.args[0], Job):
        raise TypeError("a task over Dask is a stage's function with its job")
    job, *fixed = task.args
    job = dataclasses.replace(job, run=RunFolder(job.run.root.absolute()))
    if job.index is not None:
        folder = IndexFolder(job.index.folder.root.absolute())
        job = dataclasses.replace(job, index=dataclasses.replace(job.index, folder=folder))
    return job, functools.partial(task.func, job, *fixed)


def _as_they_end(client: Any, numbers: dict[Any, int]) -> Iterator[tuple[int, StageReport]]:
    from distributed import as_completed

    ended: Any = as_completed
    for future, outcome in ended(numbers, loop=client.loop, with_results=True, raise_errors=False):
        if future.status != "finished":
            raise _failure(future)
        yield numbers[future], opened(outcome)


def part_lost(name: str) -> SealedError:
    """What is told of a part, ``name``, that took every worker down that it was given to."""
    return SealedError(
        f"{name}: each worker that was given it was lost (killed, or out of memory); give workers more "
        "memory, or begin a new run with smaller parts (partition.documents); --resume tries it once more"
    )


def _failure(future: Any) -> SealedError:
    from distributed import KilledWorker

    if future.status != "error":
        return SealedError(f"{future.key}: Dask gave it up ({future.status}); is the scheduler there?")
    if isinstance(future.exception(), KilledWorker):
        return part_lost(future.key)
    return SealedError(f"{future.key}: Dask gave it up ({type(future.exception()).__name__})")


def _terms(config: Config, folder: Path) -> Terms:
    """What workers must have, with the probe written."""
    token, service = secrets.token_bytes(32), configured_service()
    probe = folder / f"probe-{secrets.token_hex(8)}"
    write_bytes(probe, token if service is None else service.wrap(token, PROBE_CONTEXT))
    return Terms(
        probe,
        hashlib.sha256(token).hexdigest(),
        versions(),
        policy_hashes(config.detect),
        None if service is None else service.name,
        config.detect.model_dump_json(),
    )


def _look_at_all(client: Any, terms: Terms) -> None:
    """Have every worker look; the first that lacks something is told of (by address, so always the same)."""
    for address, found in sorted(client.run(look, terms, on_error="return").items()):
        if isinstance(found, BaseException):
            raise ConfigurationError(
                f"--dask: the worker at {address} cannot run Redactory ({type(found).__name__}): install the "
                "same version there"
            )
        if "error" in found:
            raise getattr(errors, found["error"])(found["message"])
        mark = terms.probe.with_name(found["mark"])
        try:
            seen = mark.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigurationError(
                f"--dask: what the worker at {address} writes cannot be read here ({error.strerror}): run it "
                "as the same user"
            ) from None
        if seen != found["mark"]:
            raise ConfigurationError(f"--dask: the worker at {address} writes to another {mark.parent}")


# Prefect's tasks on Dask, where both are installed and the workers can speak with Prefect's server.


def with_dask(dask: str) -> tuple[Any, Any]:
    """``on_dask`` and ``tasks_on``; ``ConfigurationError`` for what cannot work."""
    check_dask(dask)
    if dask != LOCAL and not is_loopback(dask) and not os.environ.get(ADDRESS):
        raise ConfigurationError(
            f"--dask: the workers at {dask} tell Prefect's server of their tasks: name one in {ADDRESS}"
        )
    if importlib.util.find_spec("prefect_dask") is None:
        raise ConfigurationError(
            "--dask with --prefect needs prefect-dask: pip install 'redactory[dask,flows]'"
        )
    return on_dask, tasks_on


# Prefect's tasks on the workers of a Dask cluster, through prefect-dask.


def tasks_on(workers: Workers) -> StageMap:
    """A map whose every part is a Prefect task on one of the workers.

    Prefect tries a part again that failed there, Dask one whose worker was lost.
    """

    from distributed import KilledWorker
    from prefect_dask.task_runners import DaskTaskRunner

    from redactory.flows.prefect_tasks import as_tasks

    def spread(task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
        if not numbers:
            return
        client, name = workers.client, name_of(task)
        runner: Any = DaskTaskRunner(
            address=client.scheduler.address, client_kwargs={"security": client.security}
        )
        with parcel_of(task, workers.terms) as parcel:
            try:
                yield from as_tasks(
                    runner, len(client.nthreads()), name, functools.partial(_carried_out, parcel), numbers
                )
            except KilledWorker:
                killed = True
            else:
                killed = False
        if killed:
            raise part_lost(name)

    return spread


def _carried_out(parcel: Parcel, number: int) -> StageReport:
    return opened(carry_out(number, parcel))
