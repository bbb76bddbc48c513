"""The release log: what was begun, released, held, approved, taken out and purged, when and by whom.

One chain of records (``foundation/records.py``) a job, at ``JOB/_job/log.jsonl``; of a run that belongs to
no job, at ``RUN/state/releases.jsonl``.  Every body has ``run`` (the name of its folder) and ``time`` (UTC,
ISO 8601); none has text of the corpus, nor an id of a document or a user in the open.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import RunStateError
from redactory.foundation.records import Record, RecordLog, read_records
from redactory.redaction import RunFolder, is_finished
from redactory.redaction.job_folder import JobFolder, job_of
from redactory.redaction.releases import present_release

PATIENCE, _PAUSE = 10.0, 0.05
"""Seconds that a record waits for another process to write its own, and between two attempts."""


class Event(StrEnum):
    """The types of record."""

    BEGUN = "begun"
    """A night has begun: ``plan``, what of which files it is to read."""
    FAILED = "failed"
    """It ended with an error (``error``, text-free); the next night goes on with it."""
    RELEASED = "released"
    """The run is finished and within the limits: ``manifest``, the sha256 of its manifest; ``counts``."""
    HELD = "held"
    """It is finished and outside of them: ``manifest``, ``counts``, ``findings``."""
    APPROVED = "approved"
    """A held run was released all the same, by ``by``, for ``reason``."""
    REJECTED = "rejected"
    """A held run will not be released; its material counts as not seen."""
    REISSUED = "reissued"
    """The run was written anew without something (``why``): ``manifest``, ``supersedes``."""
    RETRIED = "retried"
    """What lay in the run's quarantine was curated again, in ``into``."""
    ROTATED = "rotated"
    """The run's data key is wrapped by ``service`` now."""
    SHREDDED = "shredded"
    """The run's data key was destroyed: nobody can read its private part any more."""
    EXPORTED = "exported"
    """What may leave was copied: ``manifest`` of the export.  Or the run was ``published`` at a URL, with its
    own ``manifest``."""
    DONE = "done"
    """What follows from a decision was done: ``of``, the number of its record, and ``failed``, the hooks that
    were called and failed."""


_DECISIONS = (Event.RELEASED, Event.HELD, Event.APPROVED, Event.REJECTED)
FOLLOWS = "follows"
"""In the body of a decision or a failure: what is to be done because of it, until DONE says that it was."""
_OF_RUNS = (Event.RELEASED, Event.HELD, Event.REISSUED)
"""The records that name the manifest of a run, not that of an export."""


def log_of(run: RunFolder) -> Path:
    """The file of the log that ``run`` stands in."""
    job = job_of(run)
    return run.release_log if job is None else job.log


def enter(run: RunFolder, event: Event, /, **body: Any) -> Record:
    """Write one record about ``run``; ``RunStateError`` where another process does not leave the log."""
    deadline = time.monotonic() + PATIENCE
    while True:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        try:
            with RecordLog(log_of(run)) as log:
                return log.append(event.value, {"run": run.root.resolve().name, "time": now, **body})
        except RunStateError:
            # whoever else writes a record holds the log for that moment only
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)


def history(run: RunFolder) -> list[Record]:
    """The records about ``run``, oldest first; ``CheckFailed`` where the chain is broken.

    A folder that was renamed is still what its manifest says: where no record has its name, they are those
    of the run that has, or had, this manifest.
    """
    path = log_of(run)
    records = read_records(path) if path.is_file() else []
    name = run.root.resolve().name
    if records and run.manifest.is_file() and all(r.body.get("run") != name for r in records):
        digest = file_sha256(run.manifest)
        known = (r for r in records if r.type in _OF_RUNS and digest in _manifests(r.body))
        name = next((r.body["run"] for r in known), name)
    return [r for r in records if r.body.get("run") == name]


def _manifests(body: Mapping[str, Any]) -> tuple[Any, Any]:
    return body.get("manifest"), body.get("supersedes")


State = Literal["unfinished", "failed", "released", "held", "rejected"]
_LEADS_TO: dict[str, State] = {
    Event.BEGUN: "unfinished",
    Event.FAILED: "failed",
    Event.RELEASED: "released",
    Event.HELD: "held",
    Event.APPROVED: "released",
    Event.REJECTED: "rejected",
}
"""The state that a run is in after a record; what is not named here changes none."""


@dataclass
class Standing:
    """How a run stands: its state, the record that led to it, and what it was begun with."""

    run: str
    state: State
    record: Record
    begun: Record | None = None
    ended: Record | None = None
    """The record of its gate, RELEASED or HELD, with ``counts`` and ``findings``."""


def read_log(job: JobFolder) -> list[Record]:
    """Every record of a job, oldest first; ``CheckFailed`` where the chain is broken."""
    return read_records(job.log) if job.log.is_file() else []


def standings(records: Iterable[Record]) -> dict[str, Standing]:
    """How each run of a log stands, in the order in which they came."""
    found: dict[str, Standing] = {}
    for record in records:
        state, run = _LEADS_TO.get(record.type), record.body["run"]
        if state is None:
            continue
        own = found.setdefault(run, Standing(run, state, record))
        if record.type != Event.FAILED or own.state in ("unfinished", "failed"):
            # what fails after the gate (a store that is not there) takes no decision back
            own.state, own.record = state, record
        own.begun = record if record.type == Event.BEGUN else own.begun
        own.ended = record if record.type in (Event.RELEASED, Event.HELD) else own.ended
    return found


def undone(records: Iterable[Record]) -> list[Record]:
    """The records from which something follows that no process came to do, the oldest first.

    Of each run its last decision alone, and a failure that no decision came after: what followed from an
    earlier one is true no more.
    """
    found: dict[tuple[str, bool], Record] = {}
    for record in records:
        run: str = record.body["run"]
        if record.type in _DECISIONS:
            found.pop((run, False), None)
        if record.type in (*_DECISIONS, Event.FAILED):
            found[run, record.type in _DECISIONS] = record
        elif record.type == Event.DONE:
            found = {key: own for key, own in found.items() if own.seq != record.body["of"]}
    return sorted((own for own in found.values() if own.body.get(FOLLOWS)), key=lambda own: own.seq)


def check_released(run: RunFolder) -> None:
    """``RunStateError`` where ``run`` is held, rejected or not judged yet: nobody uses it, it stays here.

    A run that is finished and stands in its job's log as begun was cut off before its gate.  One that is
    older than the log knows it is refused too (:func:`check_newest`).
    """
    name = run.root.resolve().name
    standing = next(iter(standings(history(run)).values()), None)
    state = None if standing is None else standing.state
    if state in ("unfinished", "failed"):
        raise RunStateError(
            f"{name} was cut off before it was released or held: ask for what made it again (redactory "
            "nightly, redactory quarantine retry), it goes on there"
        )
    if state == "held":
        raise RunStateError(
            f"{name} is held: look at {run.report}, and release it with redactory release approve {run.root}"
        )
    if state == "rejected":
        raise RunStateError(f"{name} was rejected: its material was given back, take a run that is released")
    check_newest(run)


def put_back(run: RunFolder) -> str | None:
    """Why the finished ``run`` is an older release of itself than its log knows; None where it is not.

    A folder of a backup has what was taken out since.  It is not seen where its log was put back with it.
    ``CheckFailed`` where the chain is broken.
    """
    entered = [record.body for record in history(run) if record.type == Event.REISSUED]
    if not entered or not is_finished(run):
        return None
    present, newest = present_release(run), max(entered, key=_release)
    if present.number >= _release(newest) and all(b.get("supersedes") != present.digest for b in entered):
        return None
    return (
        f"the log knows release {_release(newest)}, and this is release {present.number}: "
        f"a folder from before a {newest.get('why', 'takedown')} was put back"
    )


def check_newest(run: RunFolder) -> None:
    """``RunStateError`` where ``run`` is an older release of itself than its log knows."""
    if told := put_back(run):
        name = run.root.resolve().name
        raise RunStateError(f"{name}: {told}; bring back the newer one, or ask for what was done again")


def _release(body: Mapping[str, Any]) -> int:
    return int(body.get("release", 1))


def latest_run(records: Iterable[Record]) -> str | None:
    """The run that was released last, or approved last, and is released still; None where there is none."""
    kept = list(records)
    now = standings(kept)
    for record in reversed(kept):
        run: str = record.body["run"]
        if record.type in (Event.RELEASED, Event.APPROVED) and now[run].state == "released":
            return run
    return None
