"""Write and read the release log: what happened to runs, when and by whom.

A job has one chain of records (``foundation/records.py``) at ``JOB/_job/log.jsonl``; a run outside of any job has its
own at ``RUN/state/releases.jsonl``. Every body has ``run`` (the folder's name) and ``time`` (UTC, ISO 8601). No body
contains corpus text or an unkeyed id of a document or user.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError, pluralize
from redactory.foundation.records import Record, RecordLog, read_records
from redactory.redaction import RunFolder, is_finished, read_manifest
from redactory.redaction.folder import JobFolder, find_containing_job
from redactory.redaction.sealing import get_current_release

LOCK_TIMEOUT = 10.0
"""Seconds to wait for another process that writes the log."""


class Event(StrEnum):
    """Types of records; the comments list the fields of their bodies.

    A decision, and a failure, with a `hook` (a command) or an `index` (entries to remove) is pending until DONE.
    """

    STARTED = "begun"  # a scheduled run: `plan`, the slices of files to read; `date`, `hook`
    FAILED = "failed"  # it ended with an `error`; the next scheduled run resumes it
    RELEASED = "released"  # finished, and no person had to approve it: `manifest` (its sha256), `counts`
    HELD = "held"  # finished, and a person has to decide: `manifest`, `counts`, `findings`
    APPROVED = "approved"  # somebody (`by`) released a held run, for a `reason`
    REJECTED = "rejected"  # it will not be released (`by`, `reason`); its input counts as unread
    REISSUED = "reissued"  # rewritten without some content (`why`): `manifest`, and the one it `supersedes`
    ROTATED = "rotated"  # another `service` wraps its data key now
    SHREDDED = "shredded"  # its data key was destroyed: its private part is unreadable
    EXPORTED = "exported"  # its public part was copied (the export's `manifest`), or it was `published`
    ACCESSED = "accessed"  # original text was about to be written for a person's request (its keyed digest), by `by`
    DONE = "done"  # the actions of record `of` were run; `failed`, the hooks that failed


DECISION_EVENTS = (Event.RELEASED, Event.HELD, Event.APPROVED, Event.REJECTED)


MAX_LINE_LENGTH = 500
"""Characters of a name or a reason in the log."""


def require_one_line(*words: str | None) -> None:
    """Raise ``ConfigurationError`` for a name or a reason that is not one line; None is allowed."""
    for word in words:
        if word is not None and (not word.strip() or len(word) > MAX_LINE_LENGTH or not word.isprintable()):
            raise ConfigurationError(f"--by and --reason: one line of 1 to {MAX_LINE_LENGTH} characters each")


def get_log_path(run: RunFolder) -> Path:
    """Return the path of the log with the records of ``run``."""
    job = find_containing_job(run)
    return run.release_log if job is None else job.log


def append_event(run: RunFolder, event: Event, /, **body: Any) -> Record:
    """Write one record about ``run``, without the fields that are None.

    ``RunStateError`` if another process keeps the log locked.
    """
    facts = {name: value for name, value in body.items() if value is not None}
    with RecordLog(get_log_path(run), LOCK_TIMEOUT) as log:
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return log.append(event.value, {"run": run.root.resolve().name, "time": now, **facts})


def read_log(job: JobFolder) -> list[Record]:
    """Read every record of a job, oldest first; ``CheckFailed`` if the chain is broken."""
    return read_records(job.log) if job.log.is_file() else []


def read_history(run: RunFolder) -> list[Record]:
    """Read the records about ``run``, oldest first; ``CheckFailed`` if the chain is broken.

    Without records for its folder's name, they are those of the run that has, or had, this manifest.
    """
    path, name = get_log_path(run), run.root.resolve().name
    records = read_records(path) if path.is_file() else []
    if run.manifest.is_file() and all(r.body.get("run") != name for r in records):
        digest = file_sha256(run.manifest)
        with_manifest = (r for r in records if r.type in (Event.RELEASED, Event.HELD, Event.REISSUED))
        names = (r.body["run"] for r in with_manifest if digest in (r.body.get("manifest"), r.body.get("supersedes")))
        name = next(names, name)
    return [r for r in records if r.body.get("run") == name]


# The status of runs, which follows from the log alone.


State = Literal["unfinished", "failed", "released", "held", "rejected"]
_STATE_AFTER: dict[str, State] = {
    Event.STARTED: "unfinished",
    Event.FAILED: "failed",
    Event.RELEASED: "released",
    Event.HELD: "held",
    Event.APPROVED: "released",
    Event.REJECTED: "rejected",
}
"""State of a run after a record; other records change no state."""


@dataclass
class RunStatus:
    """A run's state, the record that set it, the record of its start, and the record of its gate."""

    run: str
    state: State
    record: Record
    start_record: Record | None = None
    gate_record: Record | None = None


def run_statuses(records: Iterable[Record]) -> dict[str, RunStatus]:
    """Return the status of each run of a log, in order of first appearance."""
    statuses: dict[str, RunStatus] = {}
    for record in records:
        state, run = _STATE_AFTER.get(record.type), record.body["run"]
        if state is None:
            continue
        status = statuses.setdefault(run, RunStatus(run, state, record))
        if record.type != Event.FAILED or status.state in ("unfinished", "failed"):
            # a failure after the gate (a missing store) reverts no decision
            status.state, status.record = state, record
        if record.type == Event.STARTED:
            status.start_record = record
        elif record.type in (Event.RELEASED, Event.HELD):
            status.gate_record = record
    return statuses


def find_pending_actions(records: Iterable[Record]) -> list[Record]:
    """Return decisions (only the latest of each run) and failures with pending actions, oldest first."""
    actions: list[Record] = []
    for record in records:
        if record.type in DECISION_EVENTS:
            actions = [action for action in actions if action.body["run"] != record.body["run"]]
        elif record.type == Event.DONE:
            actions = [action for action in actions if action.seq != record.body["of"]]
        if record.type in (*DECISION_EVENTS, Event.FAILED) and (record.body.get("hook") or record.body.get("index")):
            actions.append(record)
    return actions


def find_latest_run(records: Iterable[Record]) -> str | None:
    """Return the run that was released or approved last and is still released; None if there is none."""
    all_records = list(records)
    statuses = run_statuses(all_records)
    released = (r.body["run"] for r in reversed(all_records) if r.type in (Event.RELEASED, Event.APPROVED))
    return next((run for run in released if statuses[run].state == "released"), None)


_INTERRUPTED = "{name} was interrupted before it was released or held: run redactory nightly again to finish it"
_NOT_RELEASED_MESSAGES = {
    "unfinished": _INTERRUPTED,
    "failed": _INTERRUPTED,
    "held": "{name} is held: read {report}, and release it with redactory release approve {root}",
    "rejected": "{name} was rejected, and its input will be read as new: use a released run",
}


def check_released(run: RunFolder) -> None:
    """Raise ``RunStateError`` if ``run`` must not be used: it is held, rejected, undecided or rolled back."""
    status = next(iter(run_statuses(read_history(run)).values()), None)
    if status is not None and (message := _NOT_RELEASED_MESSAGES.get(status.state)):
        raise RunStateError(message.format(name=run.root.resolve().name, report=run.report, root=run.root))
    check_not_rolled_back(run)


def explain_rollback(run: RunFolder) -> str | None:
    """Explain that the finished ``run`` is an older release than the last one in its log; None if it is not.

    A backup contains what was erased since. This is not noticed if the log was restored with it.
    """
    reissues = [record.body for record in read_history(run) if record.type == Event.REISSUED]
    if not reissues or not is_finished(run):
        return None
    current, newest = get_current_release(run), max(reissues, key=lambda body: int(body.get("release", 1)))
    newest_number = int(newest.get("release", 1))
    if current.number >= newest_number and all(b.get("supersedes") != current.digest for b in reissues):
        return None
    return (
        f"the log records release {newest_number}, but this is release {current.number}: a folder from before the "
        f"{newest.get('why', 'erasure')} was restored"
    )


def check_not_rolled_back(run: RunFolder) -> None:
    """Raise ``RunStateError`` if ``run`` is an older release than the last one in its log."""
    if problem := explain_rollback(run):
        name = run.root.resolve().name
        raise RunStateError(f"{name}: {problem}; restore the newer one, or repeat what was done")


# The end of the log when a run was sealed, so that a later truncation is noticed.


ANCHOR_KEY = "release_log"
"""Manifest key of :func:`make_log_anchor`."""
NO_LOG_MESSAGE = "no log has this run; was it moved or copied?"


def make_log_anchor(run: RunFolder) -> dict[str, dict[str, Any]]:
    """Return the log's length and last hash for a manifest that is sealed now; empty without a log.

    ``of`` tells whose log it is, ``job`` or ``run``; ``records`` is its length, ``head`` its last hash.
    """
    path = get_log_path(run)
    heads = [record.digest for record in read_records(path)] if path.is_file() else []
    owner = "run" if path == run.release_log else "job"
    return {ANCHOR_KEY: {"of": owner, "records": len(heads), "head": heads[-1]}} if heads else {}


def explain_truncation(run: RunFolder, manifest: dict[str, Any]) -> str | None:
    """Explain which anchored records the log has lost, or None; ``LookupError`` if the run left the log's job."""
    anchor, job = manifest.get(ANCHOR_KEY), find_containing_job(run)
    if anchor is None:
        return None
    if anchor["of"] == "job" and job is None:
        raise LookupError(NO_LOG_MESSAGE)
    path = run.release_log if anchor["of"] == "run" or job is None else job.log
    heads = [record.digest for record in read_records(path)] if path.is_file() else []
    expected_count = int(anchor["records"])
    if len(heads) < expected_count:
        return f"the log has {len(heads)} of its {pluralize(expected_count, 'record')}: it was truncated"
    if heads[expected_count - 1] != anchor["head"]:
        return f"the log's first {expected_count} records changed: it was rewritten"
    return None


def _check_log_complete(job: JobFolder | None, run: RunFolder) -> None:
    """Raise ``CheckFailed`` if the log lacks records that ``run``, or any run of ``job``, has seen."""
    runs = [run] if job is None else [RunFolder(path) for path in sorted(job.root.iterdir())]
    for checked_run in runs:
        if checked_run.root.is_symlink() or not is_finished(checked_run):
            continue
        try:
            problem = explain_truncation(checked_run, read_manifest(checked_run))
        except RedactoryError:
            continue  # verify reports it
        except LookupError as error:
            if checked_run.release_log.is_file():
                continue  # another log was started since
            raise RunStateError(
                f"{checked_run.root}: {error} Its records are in the log of the job that created it"
            ) from None
        if problem:
            path = get_log_path(checked_run)
            raise CheckFailed(f"{path}: {problem}; {checked_run.root.name} knew them: restore the log from a backup")


# Reports for operators.


def read_latest_link(job: JobFolder) -> str | None:
    """Return the target of the link ``latest``, unresolved; None without a link."""
    return os.readlink(job.latest) if job.latest.is_symlink() else None


def list_releases(job: str | Path) -> dict[str, Any]:
    """List a job's runs, oldest first: ``{"job", "latest", "runs": [{"run", "when", "state", ...}], "problems"}``.

    A run also has ``counts``, ``release``, ``findings``, ``unjudged`` (why it was not compared), ``reason`` and ``by``.
    ``counts`` are those of the run's present ``release``; if the run is missing, they are those of its gate, and
    ``release`` is None. ``problems`` are sentences about runs older than in the log, and a ``latest`` that disagrees
    with the log. ``RunStateError`` if the folder is not a job; ``CheckFailed`` if the log is broken, or lacks records
    that a run's manifest anchors.
    """
    folder = JobFolder(Path(job))
    if not folder.exists():
        raise RunStateError(f"{folder.root} is not a job: give the folder of the scheduled runs")
    records = read_log(folder)
    _check_log_complete(folder, RunFolder(folder.root))
    statuses, latest = run_statuses(records), find_latest_run(records)
    problems = [f"{name}: {problem}" for name in statuses if (problem := explain_rollback(folder.get_run_folder(name)))]
    if (leads_to := read_latest_link(folder)) not in (None, latest):
        problems.append(
            f"{folder.latest.name} points to {leads_to}, but according to the log it is {latest or 'none'}: "
            "the next scheduled run corrects it; find out who moved it"
        )
    runs = []
    for status in statuses.values():
        run, body = folder.get_run_folder(status.run), status.record.body
        gate_body = status.gate_record.body if status.gate_record else {}
        counts, release = gate_body.get("counts"), None
        with suppress(RedactoryError):  # verify reports it
            if counts and is_finished(run):
                # after an erasure, the counts in the log, from the gate, are outdated
                current = get_current_release(run)
                release, counts = current.number, counts | {n: current.manifest["counts"][n] for n in counts}
        reason = {"reason": body.get("reason") or body.get("error"), "by": body.get("by")}
        facts = {"run": status.run, "when": body["time"], "state": status.state, "counts": counts}
        gate = {"findings": gate_body.get("findings", []), "unjudged": gate_body.get("unjudged")}
        runs.append({**facts, "release": release, **gate, **reason})
    return {"job": str(folder.root), "latest": latest, "runs": runs, "problems": problems}


def release_log(place: str | Path) -> dict[str, Any]:
    """Return the log for an operator: ``{"job", "records": [{"seq", "time", "run", "type", "words"}]}``.

    ``place`` is a job's or run's folder. A run's records are in its job's log, or in its separate log if it belongs to
    no job; ``job`` is then None. ``RunStateError`` if ``place`` is neither, or a run that is not finished;
    ``CheckFailed`` if the log is broken, or lacks records that a run's manifest anchors.
    """
    folder, run = JobFolder(Path(place)), RunFolder(Path(place))
    if not folder.exists() and not run.state.is_dir():
        raise RunStateError(
            f"{folder.root} is neither a job nor a run: give a run, or the folder of the scheduled runs"
        )
    job = folder if folder.exists() else find_containing_job(run)
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
    """Return whether a run with these ``counts`` has no readable example."""
    return not counts.get("public", 0) and not counts.get("private", 0)


def describe_record(record: Record) -> str:
    """Describe a record in one line: its type, and the important fields of its body."""
    body = record.body
    counts, removed, plan = body.get("counts") or {}, body.get("removed") or {}, body.get("plan")
    words = [str(body[key]) for key in ("why", "error", "reason", "service", "published") if body.get(key)]
    if plan and plan["slices"]:
        size = sum(slice_["to_byte"] - slice_["from_byte"] for slice_ in plan["slices"])
        files = pluralize(len({slice_["url"] for slice_ in plan["slices"]}), "file")
        words.append(f"{size:,} new bytes in {files}")
        if waiting := plan.get("waiting"):
            words.append(f"{pluralize(len(waiting), 'unfinished row')} left for later")
    count_names = ("rows", "public", "private", "duplicate", "quarantined")
    words += [f"{counts[name]:,} {name}" for name in count_names if name in counts]
    words += [f"{pluralize(removed['examples'], 'example')} removed"] if removed else []
    words += [pluralize(body["documents"], "row")] if "documents" in body else []
    words += [str(finding["metric"]) for finding in body.get("findings", ())]
    words += ["it has no example"] if body.get("empty") else []
    words += [str(body["unjudged"])] if body.get("unjudged") else []
    words += [name for key in ("what", "models", "failed") for name in body.get(key) or ()]
    words += [f"{key} {body[key]}" for key in ("to", "of", "by") if body.get(key) is not None]
    return f"{record.type}: {', '.join(words)}" if words else record.type
