"""The release log: what was begun, released, held, approved, taken out and purged, when and by whom.

One chain of records (``foundation/records.py``) a job, at ``JOB/_job/log.jsonl``; of a run that belongs to
no job, at ``RUN/state/releases.jsonl``.  Every body has ``run`` (the name of its folder) and ``time`` (UTC,
ISO 8601); none has text of the corpus, nor an id of a document or a user in the open.
"""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, RedactoryError, RunStateError, some
from redactory.foundation.records import Record, RecordLog, chain_heads, read_records
from redactory.redaction import RunFolder, is_finished, read_manifest
from redactory.redaction.folder import JobFolder, job_of
from redactory.redaction.sealing import present_release

PATIENCE, _PAUSE = 10.0, 0.05
"""Seconds that a record waits for another process to write its own, and between two attempts."""
FOLLOWS = "follows"
"""In the body of a decision or a failure: what is to be done because of it, until DONE says that it was."""


class Event(StrEnum):
    """The types of record, with what their bodies hold."""

    BEGUN = "begun"  # a scheduled run: `plan`, what of which files it is to read; `date`, `config`
    FAILED = "failed"  # it ended with an `error`; the next scheduled run goes on with it
    RELEASED = "released"  # finished and within the limits: `manifest` (its sha256), `counts`
    HELD = "held"  # finished and outside of them: `manifest`, `counts`, `findings`
    APPROVED = "approved"  # a held run was released all the same, `by` whom, for what `reason`
    REJECTED = "rejected"  # it will not be released (`by`, `reason`); its material counts as not seen
    REISSUED = "reissued"  # written anew without something (`why`): `manifest`, what it `supersedes`
    ROTATED = "rotated"  # its data key is wrapped by another `service` now
    SHREDDED = "shredded"  # its data key was destroyed: nobody can read its private part any more
    EXPORTED = "exported"  # what may leave was copied (the export's `manifest`), or it was `published`
    DONE = "done"  # what follows from record `of` was done; `failed`, the hooks that failed


_DECISIONS = (Event.RELEASED, Event.HELD, Event.APPROVED, Event.REJECTED)


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
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)


def read_log(job: JobFolder) -> list[Record]:
    """Every record of a job, oldest first; ``CheckFailed`` where the chain is broken."""
    return read_records(job.log) if job.log.is_file() else []


def history(run: RunFolder) -> list[Record]:
    """The records about ``run``, oldest first; ``CheckFailed`` where the chain is broken.

    A folder that was renamed is still what its manifest says: where no record has its name, they are those
    of the run that has, or had, this manifest.
    """
    path, name = log_of(run), run.root.resolve().name
    records = read_records(path) if path.is_file() else []
    if run.manifest.is_file() and all(r.body.get("run") != name for r in records):
        digest = file_sha256(run.manifest)
        for r in records:
            names_manifest = r.type in (Event.RELEASED, Event.HELD, Event.REISSUED)
            if names_manifest and digest in (r.body.get("manifest"), r.body.get("supersedes")):
                name = r.body["run"]
                break
    return [r for r in records if r.body.get("run") == name]


# How runs stand: everything about a job is read off its log.


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
    """A run's state, the record that led to it, and those that began it and that ended it (its gate's)."""

    run: str
    state: State
    record: Record
    begun: Record | None = None
    ended: Record | None = None


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
        if record.type == Event.BEGUN:
            own.begun = record
        elif record.type in (Event.RELEASED, Event.HELD):
            own.ended = record
    return found


def undone(records: Iterable[Record]) -> list[Record]:
    """The decisions and failures from which something follows that no process came to do, oldest first.

    A decision stands in place of all that came before it about its run.
    """
    found: list[Record] = []
    for record in records:
        if record.type in _DECISIONS:
            found = [own for own in found if own.body["run"] != record.body["run"]]
        elif record.type == Event.DONE:
            found = [own for own in found if own.seq != record.body["of"]]
        if record.body.get(FOLLOWS):
            found.append(record)
    return found


def latest_run(records: Iterable[Record]) -> str | None:
    """The run that was released last, or approved last, and is released still; None where there is none."""
    kept = list(records)
    now = standings(kept)
    released = (r.body["run"] for r in reversed(kept) if r.type in (Event.RELEASED, Event.APPROVED))
    return next((run for run in released if now[run].state == "released"), None)


_NOT_RELEASED = {
    "unfinished": "{name} was interrupted before it was released or held: run redactory nightly again to finish it",
    "held": "{name} is held: read {report}, and release it with redactory release approve {root}",
    "rejected": "{name} was rejected, and its input will be read as new: use a released run",
}
_NOT_RELEASED["failed"] = _NOT_RELEASED["unfinished"]


def check_released(run: RunFolder) -> None:
    """``RunStateError`` where ``run`` is held, rejected or not judged yet: nobody uses it, it stays here.

    One that is older than the log knows it is refused too (:func:`check_newest`).
    """
    standing = next(iter(standings(history(run)).values()), None)
    if standing is not None and (why := _NOT_RELEASED.get(standing.state)):
        raise RunStateError(why.format(name=run.root.resolve().name, report=run.report, root=run.root))
    check_newest(run)


def put_back(run: RunFolder) -> str | None:
    """Why the finished ``run`` is an older release of itself than its log knows; None where it is not.

    A folder of a backup has what was taken out since.  It is not seen where its log was put back with it.
    """
    entered = [record.body for record in history(run) if record.type == Event.REISSUED]
    if not entered or not is_finished(run):
        return None
    present, newest = present_release(run), max(entered, key=lambda body: int(body.get("release", 1)))
    last = int(newest.get("release", 1))
    if present.number >= last and all(b.get("supersedes") != present.digest for b in entered):
        return None
    return (
        f"the log records release {last}, but this is release {present.number}: a folder from before the "
        f"{newest.get('why', 'erasure')} was restored"
    )


def check_newest(run: RunFolder) -> None:
    """``RunStateError`` where ``run`` is an older release of itself than its log knows."""
    if older := put_back(run):
        name = run.root.resolve().name
        raise RunStateError(f"{name}: {older}; restore the newer one, or repeat what was done")


# Where the log ended when a run was sealed, so that it cannot be cut off unnoticed.


ANCHOR = "release_log"
"""The manifest's key for :func:`anchor_of`."""
MOVED = "no log has this run; was it moved or copied?"


def anchor_of(run: RunFolder) -> dict[str, dict[str, Any]]:
    """What a manifest of ``run`` that is sealed now says of its log, below its key; nothing without a log.

    ``of`` is whose log it is, ``job`` or ``run``; ``records`` how many it holds, ``head`` its last hash.
    """
    path = log_of(run)
    heads = chain_heads(path) if path.is_file() else []
    of = "run" if path == run.release_log else "job"
    return {ANCHOR: {"of": of, "records": len(heads), "head": heads[-1]}} if heads else {}


def cut_off(run: RunFolder, manifest: dict[str, Any]) -> str | None:
    """What of the log is gone that the manifest knew; None where nothing is.

    ``LookupError`` where the run was moved out of the job that kept the log.
    """
    said, job = manifest.get(ANCHOR), job_of(run)
    if said is None:
        return None
    if said["of"] == "job" and job is None:
        raise LookupError(MOVED)
    path = run.release_log if said["of"] == "run" or job is None else job.log
    heads, due = chain_heads(path) if path.is_file() else [], int(said["records"])
    if len(heads) < due:
        return f"the log has {len(heads)} of its {some(due, 'record')}: it was truncated"
    if heads[due - 1] != said["head"]:
        return f"the log's first {due} records changed: it was rewritten"
    return None


def _check_whole(job: JobFolder | None, run: RunFolder) -> None:
    """``CheckFailed`` where ``run``, or any run of ``job``, knew records that the log has no more."""
    there = [run] if job is None else [RunFolder(path) for path in sorted(job.root.iterdir())]
    for one in there:
        if one.root.is_symlink() or not is_finished(one):
            continue
        try:
            lost = cut_off(one, read_manifest(one))
        except RedactoryError:
            continue  # verify reports it
        except LookupError as error:
            if one.release_log.is_file():
                continue  # another log was begun since
            raise RunStateError(f"{one.root}: {error} Its records are in the log of the job that created it") from None
        if lost:
            path = log_of(one)
            raise CheckFailed(f"{path}: {lost}; {one.root.name} knew them: restore the log from a backup")


# The log as an operator reads it.


def latest_of(job: JobFolder) -> str | None:
    """Where ``latest`` leads, as it says itself; None where there is no such link."""
    return os.readlink(job.latest) if job.latest.is_symlink() else None


def list_releases(job: str | Path) -> dict[str, Any]:
    """``{"job", "latest", "runs": [{"run", "when", "state", "counts", "release", ...}], "problems"}``.

    The oldest is first.  Each has ``findings``, ``reason`` and ``by`` too.  ``counts`` are those of the run's
    present ``release`` where the run is there; else those of its gate, and ``release`` is None.
    ``problems`` are sentences: a run that is older than the log knows it, and a ``latest`` that leads to
    another run than the log says.
    ``RunStateError`` where the folder is no job's, ``CheckFailed`` where the log's chain is broken, or
    lacks records that a run of the job knew when it was sealed.
    """
    folder = JobFolder(Path(job))
    if not folder.exists():
        raise RunStateError(f"{folder.root} is not a job: give the folder of the scheduled runs")
    records = read_log(folder)
    _check_whole(folder, RunFolder(folder.root))
    known, latest = standings(records), latest_run(records)
    problems = [f"{name}: {why}" for name in known if (why := put_back(folder.run(name)))]
    if (leads_to := latest_of(folder)) not in (None, latest):
        problems.append(
            f"{folder.latest.name} points to {leads_to}, but according to the log it is {latest or 'none'}: "
            "the next scheduled run corrects it; find out who moved it"
        )
    runs = []
    for own in known.values():
        run, said, ended = folder.run(own.run), own.record.body, own.ended.body if own.ended else {}
        counts, release = ended.get("counts"), None
        with suppress(RedactoryError):  # verify reports it
            if counts and is_finished(run):
                # an erasure made another release since: the log has what the run held at its gate
                present = present_release(run)
                release, now = present.number, present.manifest["counts"]
                counts = {name: now.get(name, was) for name, was in counts.items()}
        reason = {"reason": said.get("reason") or said.get("error"), "by": said.get("by")}
        facts = {"run": own.run, "when": said["time"], "state": own.state, "counts": counts}
        runs.append({**facts, "release": release, "findings": ended.get("findings", []), **reason})
    return {"job": str(folder.root), "latest": latest, "runs": runs, "problems": problems}


def release_log(place: str | Path) -> dict[str, Any]:
    """``{"job", "records": [{"seq", "time", "run", "type", "words"}]}``: the log as an operator reads it.

    ``place`` is a job's folder or a run's.  Of a run there are the records about it: of its job's log, or of
    its own where it belongs to no job; ``job`` is then None.

    ``RunStateError`` where it is neither, and for a run that is not finished; ``CheckFailed`` where the log's
    chain is broken, or lacks records that a run knew when it was sealed.
    """
    folder, run = JobFolder(Path(place)), RunFolder(Path(place))
    if not folder.exists() and not run.state.is_dir():
        raise RunStateError(
            f"{folder.root} is neither a job nor a run: give a run, or the folder of the scheduled runs"
        )
    job = folder if folder.exists() else job_of(run)
    if job is None:
        read_manifest(run)
    _check_whole(job, run)
    records = read_log(folder) if folder.exists() else history(run)
    lines = [
        {"seq": r.seq, "time": r.body["time"], "run": r.body["run"], "type": r.type, "words": in_words(r)}
        for r in records
    ]
    return {"job": None if job is None else str(job.root), "records": lines}


def holds_nothing(counts: Mapping[str, Any]) -> bool:
    """Whether a run with these ``counts`` has no point that anybody could read."""
    return not counts.get("public", 0) and not counts.get("private", 0)


def in_words(record: Record) -> str:
    """What happened, in one line: the record's type, and what its body says to a reader."""
    body = record.body
    counts, removed, plan = body.get("counts") or {}, body.get("removed") or {}, body.get("plan")
    words = [str(body[key]) for key in ("why", "error", "reason", "service", "published") if body.get(key)]
    if plan and plan["slices"]:
        size = sum(piece["to_byte"] - piece["from_byte"] for piece in plan["slices"])
        files = some(len({piece["url"] for piece in plan["slices"]}), "file")
        words.append(f"{size:,} new bytes in {files}")
        if waiting := plan.get("waiting"):
            words.append(f"{some(len(waiting), 'unfinished row')} left for later")
    shown = ("rows", "public", "private", "duplicate", "quarantined")
    words += [f"{counts[name]:,} {name}" for name in shown if name in counts]
    words += [f"{some(removed['points'], 'example')} removed"] if removed else []
    words += [str(finding["metric"]) for finding in body.get("findings", ())]
    words += ["it has no example"] if body.get("empty") else []
    words += [str(body["unjudged"])] if body.get("unjudged") else []
    words += [name for key in ("what", "models", "failed") for name in body.get(key) or ()]
    words += [f"{key} {body[key]}" for key in ("to", "of", "by") if body.get(key) is not None]
    return f"{record.type}: {', '.join(words)}" if words else record.type
