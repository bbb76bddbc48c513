"""Summarize the release decision on a run, and what changed since the previous release."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from redactory.evaluation.drift import extract_metrics
from redactory.foundation.errors import RunStateError
from redactory.pipelines.curation.release_log import list_releases
from redactory.pipelines.curation.share import explain_release_blocker
from redactory.pipelines.operations.gate import find_earlier_runs
from redactory.redaction import RunFolder, is_finished, read_manifest
from redactory.redaction.folder import find_containing_job

_SPANS = "spans/strict/label"


def show_release(run: str | Path) -> dict[str, Any]:
    """Summarize the release decision on a run of a job; no text.

    The entry of the run in :func:`~redactory.list_releases`, whose ``by`` is None if the gate decided, with {job,
    latest, problems, blocker, previous, changes}. ``blocker`` explains why it cannot be approved. ``changes`` compare
    with ``previous``, the last released run before it (None for the first): {metric, label, kind (count, share, or rate
    per 1,000 examples), before, now}; quarantined rows and examples are counts by reason. ``RunStateError`` if the run
    belongs to no job.
    """
    folder = RunFolder(Path(run).resolve())
    job, name = find_containing_job(folder), folder.root.name
    if job is None:
        raise RunStateError(f"{folder.root} does not belong to a job, so it was never held or released")
    listed = list_releases(job.root)
    entry = next((entry for entry in listed["runs"] if entry["run"] == name), None)
    if entry is None:
        raise RunStateError(f"{job.root} has no run {name}: see redactory release list {job.root}")
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
        if metric.total and (metric.kind == "share" or (key.metric == _SPANS and key.label)):
            values[key] = metric.kind, metric.value
    for kind in ("rejected", "quarantined"):
        values |= {(kind, reason): ("count", count) for reason, count in manifest[kind].items()}
    return values
