"""A run's map over Dask: parts of stages on workers, ours or somebody's, that share the run folder."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import logging
import os
import pickle
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redactory.dedup.index import IndexFolder
from redactory.detectors import policy_hashes
from redactory.detectors.settings import DetectSettings
from redactory.flows.server import ADDRESS
from redactory.foundation import errors
from redactory.foundation.errors import ConfigurationError, RedactoryError, RunStateError, SealedError
from redactory.foundation.files import make_private_folder, staged, take_away, write_bytes, write_text
from redactory.foundation.keys import SECURE, check_wire, is_loopback
from redactory.foundation.processes import forbid_core_dumps
from redactory.foundation.progress import StageReport
from redactory.pipelines.config import Config
from redactory.pipelines.loading import Given, load_config
from redactory.pipelines.maps import StageMap, Task, name_of, timed
from redactory.pipelines.output_folder import check_keys, check_output
from redactory.pipelines.release import versions
from redactory.pipelines.sealed import sealed
from redactory.pipelines.work import Job
from redactory.redaction import RunFolder, is_finished
from redactory.redaction.keyservice import configured_service

LOCAL = "local"
PATIENCE = 20.0
"""Seconds until a scheduler answers, and until its first worker is there."""
_PROBE = b"redactory/dask/probe"
"""What a probe is wrapped for, where a key service is configured."""
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
        with on_dask(dask, loaded, run.cluster) as workers_:
            return plain(loaded, resume=resume, stage_map=dask_map(workers_), **settings)

    return spread


def check_dask(dask: str) -> None:
    """``ConfigurationError`` unless ``dask`` is ``local`` or an address that is safe to send a run to."""
    if dask != LOCAL:
        check_wire(dask, "--dask")


@dataclass(frozen=True)
class Terms:
    """What a worker must have and see: the probe of a shared folder, these versions, models and keys.

    ``policies`` are the hashes of both policies; ``service`` names the key service, None where there is none.
    """

    probe: Path
    token_sha256: str
    versions: dict[str, Any]
    policies: dict[str, str]
    service: str | None
    detect: str = field(repr=False)


@dataclass(frozen=True)
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
        with _cluster(dask, config.workers, own) as client:
            terms = _terms(config, own)
            _look_at_all(client, terms)
            yield Workers(client, terms)
    finally:
        take_away(own)
        with suppress(OSError):
            folder.rmdir()


def _terms(config: Config, folder: Path) -> Terms:
    """What workers must have, with the probe written."""
    token, service = secrets.token_bytes(32), configured_service()
    probe = folder / f"probe-{secrets.token_hex(8)}"
    write_bytes(probe, token if service is None else service.wrap(token, _PROBE))
    return Terms(
        probe,
        hashlib.sha256(token).hexdigest(),
        versions(),
        policy_hashes(config.detect),
        None if service is None else service.name,
        config.detect.model_dump_json(),
    )


def _look_at_all(client: Any, terms: Terms) -> None:
    """Have every worker look; the first that lacks something is named (by address, so always the same)."""
    for address, found in sorted(client.run(look, terms, on_error="return").items()):
        if isinstance(found, BaseException):
            raise ConfigurationError(
                f"--dask: the worker at {address} cannot run Redactory ({type(found).__name__}): install the "
                "same version there"
            )
        if "error" in found:
            raise ConfigurationError(found["error"])
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


# The cluster.


@contextmanager
def _cluster(dask: str, workers: int, folder: Path) -> Iterator[Any]:
    """A client of ``workers`` processes that live until the context ends, or of the scheduler at ``dask``.

    Dask's own files lie in ``folder``.  Processes of ours speak TLS with a certificate that is drawn for
    them: on an open port of this machine every user of it could give them work, or ask for what they have.
    """
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


# The map.


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


def _as_they_end(client: Any, numbers: dict[Any, int]) -> Iterator[tuple[int, StageReport]]:
    from distributed import KilledWorker, as_completed

    ended: Any = as_completed
    for future, outcome in ended(numbers, loop=client.loop, with_results=True, raise_errors=False):
        if future.status == "finished":
            yield numbers[future], opened(outcome)
        elif future.status != "error":
            raise SealedError(f"{future.key}: Dask gave it up ({future.status}); is the scheduler there?")
        elif isinstance(future.exception(), KilledWorker):
            raise _lost(future.key)
        else:
            raise SealedError(f"{future.key}: Dask gave it up ({type(future.exception()).__name__})")


def _lost(name: str) -> SealedError:
    return SealedError(
        f"{name}: each worker that was given it was lost (killed, or out of memory); give workers more "
        "memory, or begin a new run with smaller parts (partition.documents); --resume tries it once more"
    )


@contextmanager
def tasks_on_dask(dask: str, config: Config, run: RunFolder) -> Iterator[StageMap]:
    """A map whose every part is a Prefect task on one of the workers, through prefect-dask.

    Prefect tries a part again that failed there, Dask one whose worker was lost.
    """
    check_dask(dask)
    if dask != LOCAL and not is_loopback(dask) and not os.environ.get(ADDRESS):
        raise ConfigurationError(
            f"--dask: the workers at {dask} tell Prefect's server of their tasks: name one in {ADDRESS}"
        )
    if importlib.util.find_spec("prefect_dask") is None:
        raise ConfigurationError(
            "--dask with --prefect needs prefect-dask: pip install 'redactory[dask,flows]'"
        )
    make_private_folder(run.root)
    make_private_folder(run.state)
    with on_dask(dask, config, run.cluster) as workers:
        yield functools.partial(_spread_tasks, workers)


def _spread_tasks(workers: Workers, task: Task, numbers: Sequence[int]) -> Iterator[tuple[int, StageReport]]:
    from distributed import KilledWorker
    from prefect_dask.task_runners import DaskTaskRunner

    from redactory.flows.prefect_tasks import as_tasks

    if not numbers:
        return
    client, name, killed = workers.client, name_of(task), False
    security: Any = {"security": client.security}
    runner = DaskTaskRunner(address=client.scheduler.address, client_kwargs=security)
    with parcel_of(task, workers.terms) as parcel:
        part = functools.partial(_report, parcel)
        try:
            yield from as_tasks(runner, len(client.nthreads()), name, part, numbers)
        except KilledWorker:
            killed = True
    if killed:
        raise _lost(name)


def _report(parcel: Parcel, number: int) -> StageReport:
    return opened(carry_out(number, parcel))


# A part on its way to a worker.  Dask prints and passes on whatever a task raises, with its arguments: so
# nothing raises there, an outcome is counts or words of ours, and a task shows nothing of what it is made of.


@dataclass(frozen=True)
class Parcel:
    """A stage's task on its way to workers, and the places that it needs before it is unpacked."""

    root: Path
    state: Path
    staging: Path
    terms: Terms
    content: bytes = field(repr=False)


Outcome = dict[str, Any]
"""``{"report": …}``, or ``{"error": kind, "message": words}``: numbers and words of ours."""


@contextmanager
def parcel_of(task: Task, terms: Terms) -> Iterator[Parcel]:
    """``task`` packed for workers; once the context ends, they can commit nothing of it any more."""
    job, anywhere = _anywhere(task)
    staging = job.run.staging / secrets.token_hex(8)
    make_private_folder(job.run.staging)
    make_private_folder(staging)
    try:
        yield Parcel(job.run.root, job.run.state, staging, terms, pickle.dumps(anywhere))
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


def carry_out(number: int, parcel: Parcel) -> Outcome:
    """Part ``number`` of the parcel's stage, committed, on a worker; its outcome."""
    forbid_core_dumps()
    try:
        return {"report": sealed(parcel.state, _part, parcel, number).to_json()}
    except RedactoryError as error:
        # of a class that only its own room knows, the nearest that all know
        kind = next(known.__name__ for known in type(error).__mro__ if hasattr(errors, known.__name__))
        return {"error": kind, "message": str(error)}


def opened(outcome: Outcome) -> StageReport:
    """The report of an outcome, or its error, raised here."""
    if "report" in outcome:
        return StageReport.from_json(outcome["report"])
    raise getattr(errors, outcome["error"])(outcome["message"])


def _part(parcel: Parcel, number: int) -> StageReport:
    _check_once(pickle.dumps(parcel.terms))
    task: Task = pickle.loads(parcel.content)
    try:
        with staged(parcel.root, parcel.staging):
            return timed(task, number)
    except OSError:
        if parcel.staging.is_dir():
            raise
    # another worker was given the same part, or the run has ended: nobody hears this
    raise RunStateError(f"part {number} came too late: its stage is over")


# Whether a worker may take part.


def look(terms: Terms, dask_worker: Any = None) -> dict[str, str]:
    """``{"mark": name}`` of a file that this worker wrote beside the probe; or ``{"error": why not}``.

    Dask hands its worker in.
    """
    try:
        _check(terms, dask_worker)
        mark = f"{terms.probe.name}-{secrets.token_hex(8)}"
        write_text(terms.probe.with_name(mark), mark)
    except RedactoryError as error:
        return {"error": str(error)}
    except OSError as error:
        return {"error": f"{_here()} cannot write in {terms.probe.parent}: {error.strerror}"}
    return {"mark": mark}


@functools.lru_cache(maxsize=4)
def _check_once(terms: bytes) -> None:
    """Look at a worker that joined after the begin, when it is given its first part."""
    from distributed import get_worker

    _check(pickle.loads(terms), get_worker())


def _check(terms: Terms, worker: Any) -> None:
    """``ConfigurationError`` where this worker lacks something."""
    forbid_core_dumps()
    here, folder = _here(), terms.probe.parent
    if worker.state.nthreads != 1:
        raise ConfigurationError(
            f"{here} computes in {worker.state.nthreads} threads: start workers with --nthreads 1, and "
            "more of them"
        )
    check_wire(worker.address, here)
    theirs, ours = _flat(terms.versions), _flat(versions())
    for name in sorted(theirs):
        if theirs[name] != ours.get(name):
            raise ConfigurationError(
                f"{here} has {name} {ours.get(name)}, and the run is begun with {theirs[name]}: "
                "install the same versions"
            )
    try:
        content = terms.probe.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{here} does not see {folder} ({error.strerror}): the run folder must lie on a file system "
            "that all workers share, at the same path, and belong to the user who runs them"
        ) from None
    service = configured_service()
    if (None if service is None else service.name) != terms.service:
        raise ConfigurationError(
            f"{here} has {'no' if service is None else 'another'} encryption key"
            f"{'' if service is None else ' than this process'}: its environment must hold the same "
            "REDACTORY_ENCRYPTION_KEY_FILE (or REDACTORY_KEY_SERVICE), or neither of them where the run is "
            "not encrypted"
        )
    if service is not None:
        try:
            content = service.unwrap(content, _PROBE)
        except Exception:
            content = b""
    if hashlib.sha256(content).hexdigest() != terms.token_sha256:
        raise ConfigurationError(
            f"{here} sees another {folder} than this process: the run folder must lie on a file system "
            "that all workers share, at the same path"
        )
    try:
        found = policy_hashes(DetectSettings.model_validate_json(terms.detect))
    except Exception as error:
        found = {"failed": type(error).__name__}
    if found != terms.policies:
        raise ConfigurationError(
            f"{here} has other models or lists than the run is begun with: give it the same ones, at the "
            "same paths"
        )


def _flat(told: dict[str, Any]) -> dict[str, str]:
    packages = told["packages"]
    return {**packages, **{name: value for name, value in told.items() if name != "packages"}}


def _here() -> str:
    return f"--dask: the worker on {socket.gethostname()} (process {os.getpid()})"
