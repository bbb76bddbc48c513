"""What runs on a Dask worker: a look at whether it may take part, and the parts of stages.

Dask prints and passes on whatever a task raises, with its arguments.  So nothing raises here: an outcome is
counts, or the kind and the words of an error of ours; and what a task is made of shows nothing of itself.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redactory.detectors import policy_hashes
from redactory.detectors.settings import DetectSettings
from redactory.foundation import errors
from redactory.foundation.errors import ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.files import staged, write_text
from redactory.foundation.keys import check_wire
from redactory.foundation.processes import forbid_core_dumps
from redactory.foundation.progress import StageReport
from redactory.pipelines.maps import Task, timed
from redactory.pipelines.release import versions
from redactory.pipelines.sealed import sealed
from redactory.redaction.keyservice import configured_service

PROBE_CONTEXT = b"redactory/dask/probe"
"""What a probe is wrapped for, where a key service is configured."""


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
class Parcel:
    """A stage's task on its way to workers, and the places that it needs before it is unpacked."""

    root: Path
    state: Path
    staging: Path
    terms: Terms
    content: bytes = field(repr=False)


Outcome = dict[str, Any]
"""``{"report": …}``, or ``{"error": kind, "message": words}``: numbers and words of ours."""


def look(terms: Terms, dask_worker: Any = None) -> Outcome:
    """Whether this worker may take part: ``{"mark": name}`` of a file that it wrote beside the probe.

    Or an error that names the worker's host and the mend.  Dask hands its worker in.
    """
    try:
        _check(terms, dask_worker)
        mark = f"{terms.probe.name}-{secrets.token_hex(8)}"
        write_text(terms.probe.with_name(mark), mark)
    except RedactoryError as error:
        return _refusal(error)
    except OSError as error:
        told = f"{_here()} cannot write in {terms.probe.parent}: {error.strerror}"
        return {"error": "ConfigurationError", "message": told}
    return {"mark": mark}


def carry_out(number: int, parcel: Parcel) -> Outcome:
    """Part ``number`` of the parcel's stage, committed; its outcome."""
    forbid_core_dumps()
    try:
        report = sealed(parcel.state, _part, parcel, number)
    except RedactoryError as error:
        return _refusal(error)
    return {"report": report.to_json()}


def _refusal(error: RedactoryError) -> Outcome:
    # of a class that only its own room knows, the nearest that all know
    kind = next(known.__name__ for known in type(error).__mro__ if hasattr(errors, known.__name__))
    return {"error": kind, "message": str(error)}


def opened(outcome: Outcome) -> StageReport:
    """The report of an outcome, or its error, raised here."""
    if "report" in outcome:
        return StageReport.from_json(outcome["report"])
    kind = getattr(errors, outcome["error"])
    raise kind(outcome["message"])


def packed(root: Path, state: Path, staging: Path, terms: Terms, task: Task) -> Parcel:
    """``task`` as a parcel; the places are absolute."""
    return Parcel(root, state, staging, terms, pickle.dumps(task))


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


@functools.lru_cache(maxsize=4)
def _check_once(terms: bytes) -> None:
    """Look at a worker that joined after the begin, when it is given its first part."""
    from distributed import get_worker

    _check(pickle.loads(terms), get_worker())


def _check(terms: Terms, worker: Any) -> None:
    """``ConfigurationError`` where this worker lacks something."""
    forbid_core_dumps()
    _check_process(worker)
    theirs, ours = _flat(terms.versions), _flat(versions())
    for name in sorted(theirs):
        if theirs[name] != ours.get(name):
            raise ConfigurationError(
                f"{_here()} has {name} {ours.get(name)}, and the run is begun with {theirs[name]}: "
                "install the same versions"
            )
    _check_probe(terms)
    try:
        detect = DetectSettings.model_validate_json(terms.detect)
        found = policy_hashes(detect)
    except Exception as error:
        found = {"failed": type(error).__name__}
    if found != terms.policies:
        raise ConfigurationError(
            f"{_here()} has other models or lists than the run is begun with: give it the same ones, at the "
            "same paths"
        )


def _check_process(worker: Any) -> None:
    if worker.state.nthreads != 1:
        raise ConfigurationError(
            f"{_here()} computes in {worker.state.nthreads} threads: start workers with --nthreads 1, and "
            "more of them"
        )
    check_wire(worker.address, _here())


def _check_probe(terms: Terms) -> None:
    folder = terms.probe.parent
    try:
        content = terms.probe.read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{_here()} does not see {folder} ({error.strerror}): the run folder must lie on a file system "
            "that all workers share, at the same path, and belong to the user who runs them"
        ) from None
    service = configured_service()
    name = None if service is None else service.name
    if name != terms.service:
        what = "no encryption key" if name is None else "another encryption key than this process"
        raise ConfigurationError(
            f"{_here()} has {what}: its environment must hold the same REDACTORY_ENCRYPTION_KEY_FILE (or "
            "REDACTORY_KEY_SERVICE), or neither of them where the run is not encrypted"
        )
    if service is not None:
        try:
            content = service.unwrap(content, PROBE_CONTEXT)
        except Exception:
            content = b""
    if hashlib.sha256(content).hexdigest() != terms.token_sha256:
        raise ConfigurationError(
            f"{_here()} sees another {folder} than this process: the run folder must lie on a file system "
            "that all workers share, at the same path"
        )


def _flat(told: dict[str, Any]) -> dict[str, str]:
    packages = told["packages"]
    return {**packages, **{name: value for name, value in told.items() if name != "packages"}}


def _here() -> str:
    return f"--dask: the worker on {socket.gethostname()} (process {os.getpid()})"
