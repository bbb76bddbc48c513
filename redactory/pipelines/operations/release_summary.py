"""Summarize the release decision on a run: its state, the reasons, and what changed since the previous release."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from redactory.evaluation.drift import METRICS, MetricCount, MetricKey, extract_metrics
from redactory.foundation.errors import RunStateError, pluralize
from redactory.foundation.files import read_json
from redactory.pipelines.curation.release_log import (
    Event,
    RunStatus,
    is_empty_run,
    list_releases,
    read_log,
    run_statuses,
)
from redactory.pipelines.curation.share import explain_release_blocker
from redactory.pipelines.operations.gate import find_earlier_runs
from redactory.redaction import RunFolder, is_finished, list_broken_files, read_manifest
from redactory.redaction.folder import find_containing_job

_COUNTS = ("rows", "documents", "examples")
_SHARES = ("public", "quarantined", "rejected", "duplicate", "duplicate_earlier")
_SPANS = "spans/strict/label"
_LIMITS = ("low", "high", "outside")


def show_release(run: str | Path) -> dict[str, Any]:
    """Summarize the release decision on a run; no text.

    {run, job, state, when, by, reason, sentences, findings, previous, changes, quarantine, commands, problems}. ``state`` is that
    of :func:`~redactory.list_releases`, or "finished" for a run of no job, which needs no release. ``sentences`` give
    the decision and its reasons. ``changes`` compare with ``previous``, the last released run before it (None for the
    first): {metric, label, kind (count, share or rate per 1,000 examples), before, now, low, high, outside}, where
    ``low`` and ``high`` are the limits, if any. ``quarantine`` is {kind (row or example), reason, before, now}.
    ``commands`` {approve, reject, quarantine} are command lines for an operator; absent if not possible.
    ``problems`` are those of the job's log and of the sealed comparison. ``RunStateError`` if the folder is no run,
    ``CheckFailed`` if the release log is broken or lacks records.
    """
    folder = RunFolder(Path(run).resolve())
    job, name = find_containing_job(folder), folder.root.name
    records = [] if job is None else read_log(job)
    status = run_statuses(records).get(name)
    if job is None:
        read_manifest(folder)  # raises the error
    elif status is None:
        raise RunStateError(f"{job.root} has no run {name}: see redactory release list {job.root}")
    manifest = read_manifest(folder) if is_finished(folder) else None
    earlier = [] if job is None or manifest is None else find_earlier_runs(job, folder)[-1:]
    gate, problems = _read_gate_result(folder)
    before = read_manifest(earlier[0]) if earlier else None
    body = status.record.body if status else {}
    findings = (status.gate_record.body.get("findings") if status and status.gate_record else None) or []
    sentences = [] if status else [f"{name} belongs to no job: it needs no release."]
    if job is not None and status is not None:
        listed = list_releases(job.root)
        problems = [*listed["problems"], *problems]
        sentences += _explain_status(status, findings, gate)
        sentences += _explain_use(status, listed["latest"], manifest)
    return {
        "run": str(folder.root),
        "job": None if job is None else str(job.root),
        "state": status.state if status else "finished",
        "when": body.get("time"),
        "by": body.get("by"),
        "reason": body.get("reason") or body.get("error"),
        "sentences": sentences,
        "findings": findings,
        "previous": earlier[0].root.name if earlier else None,
        "changes": list(_compare_metrics(manifest, before, gate.get("compared", ()))) if manifest else [],
        "quarantine": list(_compare_quarantine(manifest, before)) if manifest else [],
        "commands": _list_commands(folder, status, manifest),
        "problems": problems,
    }


def _read_gate_result(run: RunFolder) -> tuple[dict[str, Any], list[str]]:
    """Return the sealed comparison with earlier runs, empty if there is none; and why it cannot be trusted."""
    if not is_finished(run) or not is_finished(run.gate):
        return {}, []
    if problems := list_broken_files(run.gate):
        return {}, [f"the comparison with earlier runs changed after sealing: {problems[0]}"]
    return read_json(run.gate.root / "result.json"), []


def describe_finding(finding: Mapping[str, Any]) -> str:
    """Describe why a run was held, as a sentence."""
    metric, label = str(finding["metric"]), finding.get("label")
    if "low" not in finding:
        return f"{metric}: {finding['why']}" if "why" in finding else f"It has {metric}."
    scale, unit = (100, " %") if finding["kind"] == "share" else (1, "")
    value, low, high = (f"{finding[key] * scale:,.1f}" for key in ("value", "low", "high"))
    meaning = METRICS.get(metric, metric).split(", by ")[0] + (f", {label}" if label else "")
    side = "above" if finding["value"] > finding["high"] else "below"
    return f"{meaning[0].upper()}{meaning[1:]}: {value}{unit}, {side} the expected {low} to {high}{unit}."


def _explain_status(status: RunStatus, findings: Sequence[Mapping[str, Any]], gate: Mapping[str, Any]) -> Iterator[str]:
    """Yield sentences on who decided what, when and why."""
    body, name = status.record.body, status.run
    when = str(body["time"])[:16].replace("T", " ") + " UTC"
    by = f"{body.get('by')} on {when}: {body.get('reason')}"
    reasons = [describe_finding(finding) for finding in findings]
    unjudged = status.gate_record.body.get("unjudged") if status.gate_record else None
    if status.record.type == Event.RELEASED:
        yield f"{name} is released: the gate found nothing against it on {when}."
    elif status.record.type == Event.HELD:
        yield f"{name} is held since {when}, until somebody approves or rejects it."
    elif status.record.type == Event.APPROVED:
        yield f"{name} is released: approved by {by}."
    elif status.record.type == Event.REJECTED:
        yield f"{name} is rejected: by {by}."
        yield "The next scheduled run reads its input as new."
    elif status.record.type == Event.FAILED:
        yield f"{name} failed on {when}: {body.get('error')}."
        yield "The next scheduled run resumes it."
    else:
        yield f"{name} began on {when}, and is not finished: the next scheduled run resumes it."
    if reasons:
        yield "The gate holds it because:" if status.state == "held" else "The gate had held it because:"
        yield from reasons
    if unjudged:
        yield f"It was {unjudged}."
    elif gate.get("runs"):
        yield f"It was compared with {pluralize(len(gate['runs']), 'released run')}."


def _explain_use(status: RunStatus, latest: str | None, manifest: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield sentences on what readers get, and on what prevents a release."""
    if status.state == "released" and latest == status.run:
        yield "It is the latest release."
    else:
        yield f"The latest release is {latest}." if latest else "The job has no release."
    if manifest and status.state == "held" and (blocker := explain_release_blocker(manifest)):
        yield f"It cannot be approved: {blocker}"


def _compare_metrics(
    manifest: Mapping[str, Any], before: Mapping[str, Any] | None, compared: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    for name in _COUNTS:
        earlier_count = before["counts"][name] if before else None
        yield _make_change(MetricKey(name), "count", earlier_count, manifest["counts"][name], {})
    now, earlier = extract_metrics(manifest), extract_metrics(before) if before else {}
    limits = {(entry["metric"], entry["label"]): entry for entry in compared}
    keys = [MetricKey(name) for name in _SHARES]
    keys += sorted(key for key in {**now, **earlier} if key.metric == _SPANS and key.label)
    for key in keys:
        if key in now or key in earlier:
            values = [_get_value(metrics.get(key), key) for metrics in (earlier, now)]
            kind = "rate" if key.metric == _SPANS else "share"
            yield _make_change(key, kind, values[0] if before else None, values[1], limits.get((*key,), {}))


def _get_value(metric: MetricCount | None, key: MetricKey) -> float | None:
    """Return a metric's value; a label that a run does not have counts zero."""
    if metric is None:
        return 0.0 if key.label else None
    return metric.value if metric.total else None


def _make_change(
    key: MetricKey, kind: str, before: float | None, now: float | None, limits: Mapping[str, Any]
) -> dict[str, Any]:
    bounds = {name: limits.get(name) for name in ("low", "high")}
    return {
        **key._asdict(),
        "kind": kind,
        "before": before,
        "now": now,
        **bounds,
        "outside": limits.get("outside", False),
    }


def _compare_quarantine(manifest: Mapping[str, Any], before: Mapping[str, Any] | None) -> Iterator[dict[str, Any]]:
    for kind, section in (("row", "rejected"), ("example", "quarantined")):
        earlier = before[section] if before else {}
        for reason in sorted({**manifest[section], **earlier}):
            counts = {"before": earlier.get(reason, 0) if before else None, "now": manifest[section].get(reason, 0)}
            yield {"kind": kind, "reason": reason, **counts}


def _list_commands(run: RunFolder, status: RunStatus | None, manifest: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the command lines by which an operator decides on the run, and looks at its quarantine."""
    path, decision, commands = shlex.quote(str(run.root)), "--by NAME --reason WHY", dict[str, str]()
    if manifest and status and status.state == "held" and not explain_release_blocker(manifest):
        empty = " --empty" if is_empty_run(manifest["counts"]) else ""
        commands["approve"] = f"redactory release approve {path} {decision}{empty}"
    if status and status.state != "rejected":
        commands["reject"] = f"redactory release reject {path} {decision}"
    if manifest and (manifest["rejected"] or manifest["quarantined"]):
        commands["quarantine"] = f"redactory quarantine list {path}"
    return commands
