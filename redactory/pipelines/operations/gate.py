"""End a scheduled run: evaluate it, log the decision, and run the actions that follow.

A decision is first a log record. Its actions (index, ``latest``, metrics, hooks) are read from the log and can
be repeated, so the next process completes what an interrupted one left.
"""

from __future__ import annotations

import datetime
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from redactory.detectors.settings import format_public_label_note, get_public_labels
from redactory.evaluation.drift import MAX_HISTORY, MIN_HISTORY, compare_with_history, extract_metrics
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, RedactoryError, RunStateError, pluralize
from redactory.foundation.files import PUBLIC_FILE, TEMPORARY_PREFIX, read_json, remove_path, sync_to_disk, write_text
from redactory.foundation.records import Record, read_records
from redactory.pipelines.curation.config import NightlySettings
from redactory.pipelines.curation.finish import COUNT_KEYS, DECISIONS
from redactory.pipelines.curation.index import find_index, promote_finished_entries
from redactory.pipelines.curation.journal import INDEX as PINNED
from redactory.pipelines.curation.models import seal_result
from redactory.pipelines.curation.output_folder import lock_folders
from redactory.pipelines.curation.release_log import (
    DECISION_EVENTS,
    Event,
    RunStatus,
    append_event,
    find_latest_run,
    find_pending_actions,
    is_empty_run,
    list_releases,
    read_latest_link,
    read_log,
    require_one_line,
    run_statuses,
)
from redactory.pipelines.curation.share import explain_release_blocker
from redactory.redaction import RunFolder, is_finished, read_manifest
from redactory.redaction.folder import JobFolder, find_containing_job

FORMAT = "redactory-gate/1"


def release_or_hold(job: JobFolder, run: RunFolder, settings: NightlySettings) -> dict[str, Any]:
    """Release a run whose curation is finished if nothing speaks against it, otherwise hold it.

    Returns its state, counts, findings and failed hooks. It is held if it must not be shared, or if it has no example;
    with ``nightly.approve`` drift also if a metric is outside the limits of the job's earlier released runs, or if
    these are too few; with ``always`` in any case. Comparison and decision are sealed in the run (``run.gate``) and
    shown in its report.
    """
    manifest, earlier = read_manifest(run), find_earlier_runs(job, run)[-MAX_HISTORY:]
    before = [read_manifest(earlier_run) for earlier_run in earlier]
    today, history = extract_metrics(manifest), [extract_metrics(body) for body in before]
    compared = compare_with_history(history, today, settings.drift.ignore)
    outside, obstacles, unjudged = [result for result in compared if result["outside"]], list[dict[str, Any]](), None
    if (blocker := explain_release_blocker(manifest)) is not None:
        obstacles.append({"metric": "uncovered", "why": blocker})
    if is_empty := is_empty_run(manifest["counts"]):
        # whoever reads what was released last would find nothing, however usual bad rows are
        obstacles.append({"metric": "no readable example"})
    if settings.approve == "always":
        obstacles.append({"metric": "waits for approval", "why": "nightly.approve is always"})
    if len(earlier) < MIN_HISTORY:
        count = pluralize(len(earlier), "released run")
        unjudged = f"not compared with earlier runs: {count} before it, and limits need {MIN_HISTORY}"
        unjudged += ", so a person decides (nightly.approve is drift)" if settings.approve == "drift" else ""
    is_held = bool(obstacles) or (settings.approve == "drift" and bool(outside or unjudged))
    findings = outside + obstacles
    policies = [[policy["hash"] for policy in body["policies"].values()] for body in (*before, manifest)]
    names = [earlier_run.root.name for earlier_run in earlier]
    comparison = {
        "unjudged": unjudged,
        "empty": is_empty,
        "runs": names,
        "other_policies": [name for name, hashes in zip(names, policies, strict=False) if hashes != policies[-1]],
        "compared": compared,
    }
    seal_result(run.gate, comparison, {"format": FORMAT, "parent": file_sha256(run.manifest)})
    event, counts = Event.HELD if is_held else Event.RELEASED, {name: manifest["counts"][name] for name in COUNT_KEYS}
    facts = {"manifest": file_sha256(run.manifest), "counts": counts, "findings": findings or None}
    failed = record_decision(job, run, event, {**facts, "unjudged": unjudged}, settings.hook)
    return {"state": event.value, "findings": findings, "unjudged": unjudged, "hooks_failed": failed, "counts": counts}


def _report_last_decision(job: JobFolder) -> None:
    """Add the last decision of the log to the comparison and to the report of its run, unless they have it."""
    record = next((record for record in reversed(read_log(job)) if record.type in DECISION_EVENTS), None)
    run = job.get_run_folder(record.body["run"]) if record is not None else None
    if record is None or run is None or not (is_finished(run) and is_finished(run.gate)):
        return
    result = read_json(run.gate.root / "result.json")
    decision = {"state": record.type, **{key: record.body.get(key) for key in ("time", "by", "reason")}}
    if result.get("decision") != decision:
        body = {"format": FORMAT, "parent": file_sha256(run.manifest)}
        seal_result(run.gate, {**result, "decision": decision}, body)
        write_report(run)


def find_earlier_runs(job: JobFolder, run: RunFolder) -> list[RunFolder]:
    """Return the released runs before ``run``, oldest first, without those whose folder is gone."""
    records, run_name = read_log(job), run.root.resolve().name
    # a run that is judged again was begun, and perhaps held, before runs that came after it
    position = next((name for name, r in enumerate(records) if r.body["run"] == run_name), len(records))
    then, now = run_statuses(records[:position]), run_statuses(records)
    released = [name for name, status in then.items() if status.state == now[name].state == "released"]
    return [status for name in released if is_finished(status := job.get_run_folder(name))]


# Decisions, by the gate or by a person, and what follows from them.


def record_decision(
    job: JobFolder, run: RunFolder, event: Event, facts: Mapping[str, Any], hook: Sequence[str]
) -> list[str]:
    """Log a decision on ``run`` and run its actions; return the hooks that failed."""
    record = append_event(run, event, **facts, hook=list(hook) or None)
    return run_pending_actions(job).get(record.seq, [])


def record_failure(job: JobFolder, run: RunFolder, hook: Sequence[str], error: RedactoryError) -> None:
    """Log that a scheduled run failed, and call the hook. Messages of our own errors contain no text."""
    record = append_event(run, Event.FAILED, error=str(error), hook=list(hook) or None)
    with suppress(RedactoryError, OSError):
        # the error itself is what is to be reported
        write_metrics(job)
    if hook:
        _call_hook_and_record(job, record)


def run_pending_actions(job: JobFolder) -> dict[int, list[str]]:
    """Run the pending actions of a job's decisions; return the failed hooks by the number of the record.

    Repeated calls do only what is left; only a hook whose process was interrupted is called twice.
    """
    actions = find_pending_actions(read_log(job))
    for record in actions:
        run = job.get_run_folder(record.body["run"])
        if record.body.get("index") and is_finished(run):
            _list_index_entries(run, remove=True)
    _update_latest_link(job)
    _report_last_decision(job)
    write_metrics(job)
    return {record.seq: _call_hook_and_record(job, record) for record in actions}


def _call_hook_and_record(job: JobFolder, record: Record) -> list[str]:
    run = job.get_run_folder(record.body["run"])
    facts = {name: value for name, value in record.body.items() if name not in ("run", "time", "hook")}
    failed = call_hook(record.body.get("hook", ()), Event(record.type), job, run, facts)
    append_event(run, Event.DONE, of=record.seq, failed=failed or None)
    return failed


def _list_index_entries(run: RunFolder, *, remove: bool = False) -> list[str]:
    """Return the names of the index entries that count for ``run``, which is finished."""
    index = find_index(read_manifest(run))
    if index is None:
        return []
    tokens = {record.body["token"] for record in read_records(run.journal) if record.type == PINNED}
    with index.hold_lock():
        promote_finished_entries(index)
        entries = [entry for entry in index.list_entries() if entry.body["token"] in tokens]
        for entry in entries if remove else ():
            remove_path(entry.folder)
    return [entry.name for entry in entries]


def _update_latest_link(job: JobFolder) -> None:
    """Point ``latest`` to the run that the log names, or remove it.

    A reader finds the old or the new link, never none. The caller holds the job's lock.
    """
    temporary = job.root / f"{TEMPORARY_PREFIX}{secrets.randbits(48)}-{job.latest.name}"
    run = find_latest_run(read_log(job))
    if run == read_latest_link(job):
        return
    if run is None:
        job.latest.unlink()
    else:
        temporary.symlink_to(run)
        temporary.replace(job.latest)
    sync_to_disk(job.root)


# What a person reads and decides about a run of a job.


def _find_job(run: str | Path) -> tuple[RunFolder, JobFolder]:
    # "latest" may lead to another run soon
    folder = RunFolder(Path(run).resolve())
    if (job := find_containing_job(folder)) is None:
        raise RunStateError(f"{folder.root} does not belong to a job, so it was never held or released")
    return folder, job


def _make_unknown_run_error(run: RunFolder, job: JobFolder) -> RunStateError:
    return RunStateError(f"{job.root} has no run {run.root.name}: see redactory release list {job.root}")


def show_release(run: str | Path) -> dict[str, Any]:
    """Summarize the release decision on a run of a job; no text.

    The entry of the run in :func:`~redactory.list_releases`, whose ``by`` is None if the gate decided, with {job,
    latest, problems, blocker, previous, changes}. ``blocker`` explains why it cannot be approved. ``changes`` compare
    with ``previous``, the last released run before it (None for the first): {metric, label, kind (count, share, or rate
    per 1,000 examples), before, now}; quarantined rows and examples are counts by reason. ``RunStateError`` if the run
    belongs to no job.
    """
    folder, job = _find_job(run)
    listed = list_releases(job.root)
    entry = next((entry for entry in listed["runs"] if entry["run"] == folder.root.name), None)
    if entry is None:
        raise _make_unknown_run_error(folder, job)
    manifest = read_manifest(folder) if is_finished(folder) else None
    earlier = find_earlier_runs(job, folder)[-1:] if manifest else []
    blocker = explain_release_blocker(manifest) if manifest and entry["state"] == "held" else None
    return {
        **entry,
        "run": str(folder.root),
        "job": str(job.root),
        "latest": listed["latest"],
        "problems": listed["problems"],
        "blocker": blocker,
        "previous": earlier[0].root.name if earlier else None,
        "changes": list(_compare_runs(manifest, read_manifest(earlier[0]) if earlier else None)) if manifest else [],
    }


def _compare_runs(manifest: Mapping[str, Any], previous: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    now, before = (_read_values(body) if body else {} for body in (manifest, previous))
    for (metric, label), (kind, _) in {**before, **now}.items():
        # a label or a reason that a run does not have counts zero
        missing = kind, 0 if label and previous else None
        values = {key: part.get((metric, label), missing)[1] for key, part in (("before", before), ("now", now))}
        yield {"metric": metric, "label": label, "kind": kind, **values}


def _read_values(manifest: Mapping[str, Any]) -> dict[tuple[str, str], tuple[str, float]]:
    """Return kind and value of each count, share and rate, by metric and label or reason."""
    values: dict[tuple[str, str], tuple[str, float]]
    values = {(name, ""): ("count", manifest["counts"][name]) for name in ("rows", "examples")}
    for key, metric in extract_metrics(manifest).items():
        if metric.total and (metric.kind == "share" or (key.metric == "spans/strict/label" and key.label)):
            values[key] = metric.kind, metric.value
    for kind in ("rejected", "quarantined"):
        values |= {(kind, reason): ("count", count) for reason, count in manifest[kind].items()}
    return values


def approve_release(run: str | Path, by: str, reason: str, *, empty: bool = False) -> dict[str, Any]:
    """Release a held run; ``latest`` then leads to it, and its hook is called.

    The hook is that of the scheduled run. A run without any example, public or private, needs
    ``empty``. ``{"run", "state", "latest", "empty", "public_labels", "hooks_failed"}``; ``RunStateError`` if the
    run is not held.
    """
    with _decision_lock(run, by, reason) as (folder, job, status):
        if status.state != "held":
            raise RunStateError(f"{status.run} is {status.state}: only a held run can be approved")
        manifest = read_manifest(folder)
        if (blocker := explain_release_blocker(manifest)) is not None:
            raise CheckFailed(f"cannot release or export {folder.root}: {blocker}")
        if (is_empty := is_empty_run(manifest["counts"])) and not empty:
            raise RunStateError(
                f"{status.run} has no example, public or private: readers of the latest release would find "
                "nothing. Check its quarantine and reject it, or approve it with --empty"
            )
        facts = {"by": by, "reason": reason, "manifest": file_sha256(folder.manifest), "empty": is_empty or None}
        failed = record_decision(job, folder, Event.APPROVED, facts, status.record.body.get("hook", ()))
    result = {"run": str(folder.root), "latest": read_latest_link(job), "hooks_failed": failed}
    open_ = format_public_label_note(get_public_labels(manifest))
    return {**result, "state": "released", "empty": is_empty, "public_labels": open_}


def reject_release(run: str | Path, by: str, reason: str) -> dict[str, Any]:
    """Reject a run for good: the next scheduled run reads its input as new.

    Its entries leave the index across runs. ``left_out`` are later runs that used them: their examples that
    repeat one of this run stay left out. The folder itself stays.
    """
    with _decision_lock(run, by, reason) as (folder, job, status):
        if status.state == "rejected":
            raise RunStateError(f"{status.run} was rejected before")
        entries = _list_index_entries(folder) if is_finished(folder) else []
        facts = {"by": by, "reason": reason, "index": entries or None}
        failed = record_decision(job, folder, Event.REJECTED, facts, status.record.body.get("hook", ()))
    left_out = []
    for name in run_statuses(read_log(job)) if entries else ():
        if is_finished(other_run := job.get_run_folder(name)):
            pinned = read_manifest(other_run)["dedup"].get("index") or {"runs": []}
            left_out += [name] if set(entries) & set(pinned["runs"]) else []
    result = {"run": str(folder.root), "latest": read_latest_link(job), "hooks_failed": failed}
    return {**result, "state": "rejected", "index": entries, "left_out": left_out}


@contextmanager
def _decision_lock(path: str | Path, by: str, reason: str) -> Iterator[tuple[RunFolder, JobFolder, RunStatus]]:
    """Lock a job; yield the run, its job and its status, after completing interrupted actions."""
    require_one_line(by, reason)
    run, job = _find_job(path)
    with lock_folders(job, run):
        run_pending_actions(job)
        status = run_statuses(read_log(job)).get(run.root.name)
        if status is None:
            raise _make_unknown_run_error(run, job)
        yield run, job, status


# The hook: an operator's own command, which gets to know what became of a run.


HOOK_SECONDS = 60.0
"""A hook that takes longer is ended, with what it started, and counts as failed."""


def call_hook(
    command: Sequence[str], event: Event, job: JobFolder, run: RunFolder, facts: Mapping[str, Any]
) -> list[str]:
    """Call ``command``, if there is one; return its exit code or problem if it failed. Never raises."""
    if not command:
        return []
    message = {"event": event.value, "job": str(job.root), "run": str(run.root), **facts}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("REDACTORY_")}
    for key in ("event", "run", "job", "manifest", "error"):
        if message.get(key) is not None:
            # a value with a zero byte could not be handed on
            environment[f"REDACTORY_{key.upper()}"] = str(message[key]).replace("\x00", "")
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    try:
        process = subprocess.Popen(list(command), env=environment, start_new_session=True, **streams)  # type: ignore[call-overload]
    except (OSError, ValueError) as error:
        words = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else "no command"
        return [f"it cannot be started: {words}"]
    with process:
        try:
            process.communicate(json.dumps(message, default=str).encode(), timeout=HOOK_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            with suppress(OSError):
                process.stdin.close()
            return [f"it took longer than {HOOK_SECONDS:g} s"]
    return [f"exit code {process.returncode}"] if process.returncode else []


# Metrics: what the log and the last finished run say, for Prometheus' text-file collector.


def write_metrics(job: JobFolder) -> None:
    """Commit ``JOB/_job/metrics.prom``; ``CheckFailed`` if the log's chain is broken."""
    write_text(job.metrics, render_metrics(job, datetime.datetime.now(datetime.UTC)), PUBLIC_FILE)


def render_metrics(job: JobFolder, now: datetime.datetime) -> str:
    """Render the metrics at ``now``: of the last run, and counts over the log; no text, no ids."""
    registry, gauges = CollectorRegistry(), dict[str, Gauge]()
    for name, value, labels in (*_collect_log_samples(read_log(job), now), *_collect_run_samples(job)):
        all_labels = {"folder": str(job.root.resolve()), **labels}
        # a folder's name, and a label in YAML, may hold what UTF-8 cannot
        plain = {key: text.encode("utf-8", "backslashreplace").decode() for key, text in all_labels.items()}
        if name not in gauges:
            meaning = f"{name.replace('_', ' ').capitalize()}."
            gauges[name] = Gauge(f"redactory_{name}", meaning, list(plain), registry=registry)
        gauges[name].labels(**plain).set(value)
    return generate_latest(registry).decode()


_Sample = tuple[str, float, dict[str, str]]
"""A metric's name, a value, and the labels that it is of."""
_ENDS = (Event.RELEASED, Event.HELD, Event.FAILED)


def _collect_log_samples(records: Sequence[Record], now: datetime.datetime) -> Iterator[_Sample]:
    ended = [record for record in records if record.type in _ENDS]
    released = [record for record in records if record.type in (Event.RELEASED, Event.APPROVED)]
    since = records[released[-1].seq + 1 :] if released else records
    yield "last_check_timestamp_seconds", now.timestamp(), {}
    yield "nights_since_release", sum(record.type in (Event.HELD, Event.FAILED) for record in since), {}
    yield "held_runs", sum(status.state == "held" for status in run_statuses(records).values()), {}
    if released:
        yield "last_release_timestamp_seconds", _parse_timestamp(released[-1]), {}
    for end in _ENDS:
        yield "nights_total", sum(record.type == end for record in ended), {"state": end.value}
        if ended:
            yield "last_night_state", ended[-1].type == end, {"state": end.value}
    if ended:
        last = ended[-1]
        yield "last_night_timestamp_seconds", _parse_timestamp(last), {}
        for start in (r for r in records[: last.seq] if (r.type, r.body["run"]) == (Event.STARTED, last.body["run"])):
            yield "last_night_duration_seconds", _parse_timestamp(last) - _parse_timestamp(start), {}


def _collect_run_samples(job: JobFolder) -> Iterator[_Sample]:
    """Collect the metrics of the run that was finished last, if it is still there."""
    finished = [job.get_run_folder(r.body["run"]) for r in read_log(job) if r.type in (Event.RELEASED, Event.HELD)]
    if not finished or not is_finished(finished[-1]):
        return
    manifest = read_manifest(finished[-1])
    counts, index = manifest["counts"], manifest["dedup"].get("index")
    repeat_count = sum(index["duplicate_earlier"].values()) if index else 0
    yield "rows", counts["rows"], {}
    yield "documents", counts["documents"], {}
    yield "input_bytes", sum(entry["bytes"] for entry in manifest["inputs"]), {}
    yield "run_bytes", sum(entry["bytes"] for entry in manifest["files"].values()), {}
    yield "curation_duration_seconds", manifest["seconds"], {}
    for name, label, counts_by_label in (
        ("examples", "decision", {decision: counts[decision] for decision in DECISIONS}),
        ("rejected_rows", "reason", manifest["rejected"]),
        ("quarantined_examples", "reason", manifest["quarantined"]),
        ("duplicate_examples", "of", {"run": counts["duplicate"] - repeat_count, "earlier": repeat_count}),
    ):
        for key, count in sorted(counts_by_label.items()):
            yield name, count, {label: key}
    for hit in manifest["spans"]:
        yield "spans", hit["count"], {key: hit[key] for key in ("label", "detector", "policy")}


def _parse_timestamp(record: Record) -> float:
    return datetime.datetime.fromisoformat(record.body["time"]).timestamp()
