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
from redactory.foundation.errors import CheckFailed, RedactoryError, RunStateError, pluralize
from redactory.foundation.records import Record, RecordLog, chain_heads, read_records
from redactory.redaction import RunFolder, is_finished, read_manifest
from redactory.redaction.folder import JobFolder, job_containing
from redactory.redaction.sealing import current_release

LOCK_TIMEOUT, _RETRY_DELAY = 10.0, 0.05
"""Seconds that a record waits for another process to write its own, and between two attempts."""
ACTIONS_KEY = "follows"
"""In the body of a decision or a failure: what is to be done because of it, until DONE says that it was."""


class Event(StrEnum):
    """The types of record, with what their bodies hold."""

    STARTED = "begun"  # a scheduled run: `plan`, what of which files it is to read; `date`, `config`
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


def get_log_path(run: RunFolder) -> Path:
    """The file of the log that ``run`` stands in."""
    job = job_containing(run)
    return run.release_log if job is None else job.log


def append_event(run: RunFolder, event: Event, /, **body: Any) -> Record:
    """Write one record about ``run``; ``RunStateError`` where another process does not leave the log."""
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        try:
            with RecordLog(get_log_path(run)) as log:
                return log.append(event.value, {"run": run.root.resolve().name, "time": now, **body})
        except RunStateError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_DELAY)


def read_log(job: JobFolder) -> list[Record]:
    """Every record of a job, oldest first; ``CheckFailed`` where the chain is broken."""
    return read_records(job.log) if job.log.is_file() else []


def read_history(run: RunFolder) -> list[Record]:
    """The records about ``run``, oldest first; ``CheckFailed`` where the chain is broken.

    A folder that was renamed is still what its manifest says: where no record has its name, they are those
    of the run that has, or had, this manifest.
    """
    path, name = get_log_path(run), run.root.resolve().name
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
_STATE_AFTER: dict[str, State] = {
    Event.STARTED: "unfinished",
    Event.FAILED: "failed",
    Event.RELEASED: "released",
    Event.HELD: "held",
    Event.APPROVED: "released",
    Event.REJECTED: "rejected",
}
"""The state that a run is in after a record; what is not named here changes none."""


@dataclass
class RunStatus:
    """A run's state, the record that led to it, and those that began it and that ended it (its gate's)."""

    run: str
    state: State
    record: Record
    start_record: Record | None = None
    gate_record: Record | None = None


def run_statuses(records: Iterable[Record]) -> dict[str, RunStatus]:
    """How each run of a log stands, in the order in which they came."""
    statuses: dict[str, RunStatus] = {}
    for record in records:
        state, run = _STATE_AFTER.get(record.type), record.body["run"]
        if state is None:
            continue
        status = statuses.setdefault(run, RunStatus(run, state, record))
        if record.type != Event.FAILED or status.state in ("unfinished", "failed"):
            # what fails after the gate (a store that is not there) takes no decision back
            status.state, status.record = state, record
        if record.type == Event.STARTED:
            status.start_record = record
        elif record.type in (Event.RELEASED, Event.HELD):
            status.gate_record = record
    return statuses


def find_pending_actions(records: Iterable[Record]) -> list[Record]:
    """The decisions and failures from which something follows that no process came to do, oldest first.

    A decision stands in place of all that came before it about its run.
    """
    actions: list[Record] = []
    for record in records:
        if record.type in _DECISIONS:
            actions = [action for action in actions if action.body["run"] != record.body["run"]]
        elif record.type == Event.DONE:
            actions = [action for action in actions if action.seq != record.body["of"]]
        if record.body.get(ACTIONS_KEY):
            actions.append(record)
    return actions


def find_latest_run(records: Iterable[Record]) -> str | None:
    """The run that was released last, or approved last, and is released still; None where there is none."""
    all_records = list(records)
    now = run_statuses(all_records)
    released = (r.body["run"] for r in reversed(all_records) if r.type in (Event.RELEASED, Event.APPROVED))
    return next((run for run in released if now[run].state == "released"), None)


_NOT_RELEASED_MESSAGES = {
    "unfinished": "{name} was interrupted before it was released or held: run redactory nightly again to finish it",
    "held": "{name} is held: read {report}, and release it with redactory release approve {root}",
    "rejected": "{name} was rejected, and its input will be read as new: use a released run",
}
_NOT_RELEASED_MESSAGES["failed"] = _NOT_RELEASED_MESSAGES["unfinished"]


def check_released(run: RunFolder) -> None:
    """``RunStateError`` where ``run`` is held, rejected or not judged yet: nobody uses it, it stays here.

    One that is older than the log knows it is refused too (:func:`check_newest`).
    """
    status = next(iter(run_statuses(read_history(run)).values()), None)
    if status is not None and (message := _NOT_RELEASED_MESSAGES.get(status.state)):
        raise RunStateError(message.format(name=run.root.resolve().name, report=run.report, root=run.root))
    check_newest(run)


def explain_rollback(run: RunFolder) -> str | None:
    """Why the finished ``run`` is an older release of itself than its log knows; None where it is not.

    A folder of a backup has what was taken out since.  It is not seen where its log was put back with it.
    """
    reissues = [record.body for record in read_history(run) if record.type == Event.REISSUED]
    if not reissues or not is_finished(run):
        return None
    present, newest = current_release(run), max(reissues, key=lambda body: int(body.get("release", 1)))
    last = int(newest.get("release", 1))
    if present.number >= last and all(b.get("supersedes") != present.digest for b in reissues):
        return None
    return (
        f"the log records release {last}, but this is release {present.number}: a folder from before the "
        f"{newest.get('why', 'erasure')} was restored"
    )


def check_newest(run: RunFolder) -> None:
    """``RunStateError`` where ``run`` is an older release of itself than its log knows."""
    if older := explain_rollback(run):
        name = run.root.resolve().name
        raise RunStateError(f"{name}: {older}; restore the newer one, or repeat what was done")


# Where the log ended when a run was sealed, so that it cannot be cut off unnoticed.


ANCHOR_KEY = "release_log"
"""The manifest's key for :func:`make_log_anchor`."""
NO_LOG_MESSAGE = "no log has this run; was it moved or copied?"


def make_log_anchor(run: RunFolder) -> dict[str, dict[str, Any]]:
    """What a manifest of ``run`` that is sealed now says of its log, below its key; nothing without a log.

    ``of`` is whose log it is, ``job`` or ``run``; ``records`` how many it holds, ``head`` its last hash.
    """
    path = get_log_path(run)
    heads = chain_heads(path) if path.is_file() else []
    owner = "run" if path == run.release_log else "job"
    return {ANCHOR_KEY: {"of": owner, "records": len(heads), "head": heads[-1]}} if heads else {}


def explain_truncation(run: RunFolder, manifest: dict[str, Any]) -> str | None:
    """What of the log is gone that the manifest knew; None where nothing is.

    ``LookupError`` where the run was moved out of the job that kept the log.
    """
    anchor, job = manifest.get(ANCHOR_KEY), job_containing(run)
    if anchor is None:
        return None
    if anchor["of"] == "job" and job is None:
        raise LookupError(NO_LOG_MESSAGE)
    path = run.release_log if anchor["of"] == "run" or job is None else job.log
    heads, due = chain_heads(path) if path.is_file() else [], int(anchor["records"])
    if len(heads) < due:
        return f"the log has {len(heads)} of its {pluralize(due, 'record')}: it was truncated"
    if heads[due - 1] != anchor["head"]:
        return f"the log's first {due} records changed: it was rewritten"
    return None


def _check_log_complete(job: JobFolder | None, run: RunFolder) -> None:
    """``CheckFailed`` where ``run``, or any run of ``job``, knew records that the log has no more."""
    runs = [run] if job is None else [RunFolder(path) for path in sorted(job.root.iterdir())]
    for known_run in runs:
        if known_run.root.is_symlink() or not is_finished(known_run):
            continue
        try:
            problem = explain_truncation(known_run, read_manifest(known_run))
        except RedactoryError:
            continue  # verify reports it
        except LookupError as error:
            if known_run.release_log.is_file():
                continue  # another log was begun since
            raise RunStateError(
                f"{known_run.root}: {error} Its records are in the log of the job that created it"
            ) from None
        if problem:
            path = get_log_path(known_run)
            raise CheckFailed(f"{path}: {problem}; {known_run.root.name} knew them: restore the log from a backup")


# The log as an operator reads it.


def read_latest_link(job: JobFolder) -> str | None:
    """Where ``latest`` leads, as it says itself; None where there is no such link."""
    return os.readlink(job.latest) if job.latest.is_symlink() else None


def list_releases(job: str | Path) -> dict[str, Any]:
    """``{"job", "latest", "runs": [{"run", "when", "state", "counts", "release", ...}], "problems"}``.

    The oldest is first.  Each has ``findings``, ``reason`` and ``by`` too.  ``counts`` are those of the run's present
    ``release`` where the run is there; else those of its gate, and ``release`` is None. ``problems`` are sentences: a
    run that is older than the log knows it, and a ``latest`` that leads to another run than the log says.
    ``RunStateError`` where the folder is no job's, ``CheckFailed`` where the log's chain is broken, or lacks records
    that a run of the job knew when it was sealed.
    """
    folder = JobFolder(Path(job))
    if not folder.exists():
        raise RunStateError(f"{folder.root} is not a job: give the folder of the scheduled runs")
    records = read_log(folder)
    _check_log_complete(folder, RunFolder(folder.root))
    statuses, latest = run_statuses(records), find_latest_run(records)
    problems = [f"{name}: {problem}" for name in statuses if (problem := explain_rollback(folder.run(name)))]
    if (leads_to := read_latest_link(folder)) not in (None, latest):
        problems.append(
            f"{folder.latest.name} points to {leads_to}, but according to the log it is {latest or 'none'}: "
            "the next scheduled run corrects it; find out who moved it"
        )
    runs = []
    for status in statuses.values():
        run, body, gate_body = (
            folder.run(status.run),
            status.record.body,
            status.gate_record.body if status.gate_record else {},
        )
        counts, release = gate_body.get("counts"), None
        with suppress(RedactoryError):  # verify reports it
            if counts and is_finished(run):
                # an erasure made another release since: the log has what the run held at its gate
                present = current_release(run)
                release, now = present.number, present.manifest["counts"]
                counts = {name: now.get(name, was) for name, was in counts.items()}
        reason = {"reason": body.get("reason") or body.get("error"), "by": body.get("by")}
        facts = {"run": status.run, "when": body["time"], "state": status.state, "counts": counts}
        runs.append({**facts, "release": release, "findings": gate_body.get("findings", []), **reason})
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
    job = folder if folder.exists() else job_containing(run)
    if job is None:
        read_manifest(run)
    _check_log_complete(job, run)
    records = read_log(folder) if folder.exists() else read_history(run)
    lines = [
        {"seq": r.seq, "time": r.body["time"], "run": r.body["run"], "type": r.type, "words": describe_record(r)}
        for r in records
    ]
    return {"job": None if job is None else str(job.root), "records": lines}


def is_empty_run(counts: Mapping[str, Any]) -> bool:
    """Whether a run with these ``counts`` has no point that anybody could read."""
    return not counts.get("public", 0) and not counts.get("private", 0)


def describe_record(record: Record) -> str:
    """What happened, in one line: the record's type, and what its body says to a reader."""
    body = record.body
    counts, removed, plan = body.get("counts") or {}, body.get("removed") or {}, body.get("plan")
    words = [str(body[key]) for key in ("why", "error", "reason", "service", "published") if body.get(key)]
    if plan and plan["slices"]:
        size = sum(piece["to_byte"] - piece["from_byte"] for piece in plan["slices"])
        files = pluralize(len({piece["url"] for piece in plan["slices"]}), "file")
        words.append(f"{size:,} new bytes in {files}")
        if waiting := plan.get("waiting"):
            words.append(f"{pluralize(len(waiting), 'unfinished row')} left for later")
    shown = ("rows", "public", "private", "duplicate", "quarantined")
    words += [f"{counts[name]:,} {name}" for name in shown if name in counts]
    words += [f"{pluralize(removed['examples'], 'example')} removed"] if removed else []
    words += [str(finding["metric"]) for finding in body.get("findings", ())]
    words += ["it has no example"] if body.get("empty") else []
    words += [str(body["unjudged"])] if body.get("unjudged") else []
    words += [name for key in ("what", "models", "failed") for name in body.get(key) or ()]
    words += [f"{key} {body[key]}" for key in ("to", "of", "by") if body.get(key) is not None]
    return f"{record.type}: {', '.join(words)}" if words else record.type
