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
from redactory.foundation.errors import CheckFailed, RedactoryError, RunStateError, some
from redactory.foundation.records import Record, RecordLog, chain_heads, read_records
from redactory.redaction import RunFolder, is_finished, read_manifest
from redactory.redaction.folder import JobFolder, job_of
from redactory.redaction.releases import present_release

PATIENCE, _PAUSE = 10.0, 0.05
"""Seconds that a record waits for another process to write its own, and between two attempts."""


class Event(StrEnum):
    """The types of record."""

    BEGUN = "begun"
    """A scheduled run has begun: ``plan``, what of which files it is to read."""
    FAILED = "failed"
    """It ended with an error (``error``, text-free); the next scheduled run goes on with it."""
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
            f"{name} was cut off before it was released or held: give the command that made it again "
            "(redactory nightly, redactory quarantine retry), it goes on there"
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
    if older := put_back(run):
        name = run.root.resolve().name
        raise RunStateError(f"{name}: {older}; bring back the newer one, or do again what was done")


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


# Each record of the release log in the words of an operator.


SHOWN = 12
"""Hexadecimal digits of a digest that are shown."""


def holds_nothing(counts: Mapping[str, Any]) -> bool:
    """Whether a run with these ``counts`` has no point that anybody could read."""
    return not counts.get("public", 0) and not counts.get("private", 0)


def in_words(record: Record) -> str:
    """What happened, in one line; a type that this version does not know says its name."""
    body, by = record.body, f", by {record.body['by']}" if record.body.get("by") else ""
    counts = body.get("counts") or {}
    match record.type:
        case Event.BEGUN:
            return _begun(body["plan"]["slices"], body["plan"].get("waiting", []))
        case Event.FAILED:
            return f"failed: {body['error']}"
        case Event.RELEASED:
            nothing = ", with no point in it" if counts and holds_nothing(counts) else ""
            return f"released{_counts(counts)}{nothing}"
        case Event.HELD:
            named = [str(finding["metric"]) for finding in body.get("findings", []) if "metric" in finding]
            more = f" and {len(named) - 3} more" if len(named) > 3 else ""
            return f"held{_counts(counts)}: {', '.join(named[:3]) or 'outside of its limits'}{more}"
        case Event.APPROVED:
            nothing = " with no point in it" if body.get("empty") else ""
            return f"approved{nothing} by {body['by']}: {body['reason']}"
        case Event.REJECTED:
            return f"rejected by {body['by']}: {body['reason']}"
        case Event.REISSUED:
            removed = body.get("removed") or {}
            what = [*map(str, body.get("what") or ())] + (
                [some(removed["points"], "point")] if removed else []
            )
            return f"written anew ({body.get('why', 'reissue')}{': ' if what else ''}{', '.join(what)}){by}"
        case Event.RETRIED:
            return f"quarantine curated again, in {body.get('into', 'another run')}"
        case Event.ROTATED:
            return f"data key wrapped anew, by {body.get('service', 'another service')}"
        case Event.SHREDDED:
            return f"data key destroyed: nobody can read the private part any more{by}"
        case Event.EXPORTED:
            to = f" to {body['to']}" if body.get("to") else ""
            models = f", with {', '.join(body['models'])}" if body.get("models") else ""
            digest = f" (manifest {str(body['manifest'])[:SHOWN]})" if body.get("manifest") else ""
            what_left = "what may leave was copied"
            done = f"published at {body['published']}" if body.get("published") else what_left
            return f"{done}{to}{models}{digest}{by}"
        case Event.DONE:
            failed = f"; failed: {', '.join(body['failed'])}" if body.get("failed") else ""
            return f"what follows from record {body['of']} was done{failed}"
    return record.type


def _begun(slices: list[dict[str, Any]], waiting: list[Any]) -> str:
    if not slices:
        return "begun: another try of a quarantine"
    size = sum(piece["to_byte"] - piece["from_byte"] for piece in slices)
    again = sum(bool(piece["again"]) for piece in slices)
    parts = [f"begun: {size:,} new bytes in {some(len({piece['url'] for piece in slices}), 'file')}"]
    parts += [f"{some(again, 'file')} read again"] if again else []
    parts += [f"{some(len(waiting), 'unfinished row')} left for later"] if waiting else []
    return ", ".join(parts)


def _counts(counts: Mapping[str, int]) -> str:
    fates = ("public", "private", "duplicate", "quarantined")
    known = ", ".join(f"{counts[fate]:,} {fate}" for fate in fates if fate in counts)
    rows = f"{some(counts['rows'], 'row')}: " if "rows" in counts else ""
    return f" ({rows}{known})" if counts else ""


# Where the release log ended when a run was sealed, so that it cannot be cut off unnoticed.


ANCHOR = "release_log"
"""The manifest's key for :func:`anchor_of`."""
MOVED = "no log names this run; was it moved or copied?"


def anchor_of(run: RunFolder) -> dict[str, dict[str, Any]]:
    """What a manifest of ``run`` that is sealed now says of its log, below its key; nothing without a log.

    ``of`` is whose log it is, ``job`` or ``run``; ``records`` how many it holds, ``head`` its last hash.
    """
    path = log_of(run)
    heads = chain_heads(path) if path.is_file() else []
    if not heads:
        return {}
    of = "run" if path == run.release_log else "job"
    return {ANCHOR: {"of": of, "records": len(heads), "head": heads[-1]}}


def cut_off(run: RunFolder, manifest: dict[str, Any]) -> str | None:
    """What of the log is gone that the manifest knew; None where nothing is.

    ``LookupError`` where the run was moved out of the job that kept the log.
    """
    said = manifest.get(ANCHOR)
    if said is None:
        return None
    job = job_of(run)
    if said["of"] == "job" and job is None:
        raise LookupError(MOVED)
    path = run.release_log if said["of"] == "run" or job is None else job.log
    return _cut_off(path, said)


def check_whole(job: JobFolder) -> None:
    """``CheckFailed`` where a run of ``job`` knew records that the log has no more."""
    for place in sorted(job.root.iterdir()):
        run = RunFolder(place)
        if place.is_symlink() or not is_finished(run):
            continue
        try:
            said = read_manifest(run).get(ANCHOR)
        except RedactoryError:
            continue  # not of this job, or reported by verify
        if said is not None and said["of"] == "job" and (lost := _cut_off(job.log, said)):
            raise CheckFailed(f"{job.log}: {lost}; {place.name} knew them: bring the log back from a backup")


def check_whole_of_run(run: RunFolder) -> None:
    """:func:`check_whole` for a finished run that belongs to no job.

    ``RunStateError`` where its log stayed behind in a job, and none was begun since.
    """
    try:
        lost = cut_off(run, read_manifest(run))
    except LookupError as error:
        if run.release_log.is_file():
            return
        raise RunStateError(
            f"{run.root}: {error} Its records are in the log of the job that it was made in"
        ) from None
    if lost:
        raise CheckFailed(f"{run.release_log}: {lost}; bring the log back from a backup")


def _cut_off(path: Path, said: dict[str, Any]) -> str | None:
    heads = chain_heads(path) if path.is_file() else []
    due = int(said["records"])
    if heads[due - 1 : due] == [said["head"]]:
        return None
    if len(heads) < due:
        return f"the log holds {len(heads)} of the {some(due, 'record')} that it had: it was shortened"
    return f"the log's first {due} records are not those that it had: it was written anew"
