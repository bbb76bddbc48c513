"""Release: what a finished curation says of itself, and the moment it is finished."""

from __future__ import annotations

import datetime
import importlib.metadata
import platform
from collections import Counter, defaultdict
from typing import Any

from redactory.detectors import policies_of, policy_record
from redactory.detectors.engines import identities_of
from redactory.evaluation.report import write_report
from redactory.foundation.errors import CheckFailed
from redactory.foundation.files import write_text
from redactory.foundation.records import chain_head
from redactory.foundation.reports import StageReport
from redactory.pipelines.card import dataset_card
from redactory.pipelines.stages.redact import BINS
from redactory.pipelines.work import Job
from redactory.redaction import RunFolder, parts, read_manifest, succeed, write_manifest

PACKAGES = ("spacy", "thinc", "presidio-analyzer", "nupunkt", "phonenumbers", "numpy", "pandas", "pyarrow")
COUNTS = ("rows", "documents", "rejected", "points", "public", "private", "duplicate", "quarantined")


def finish(job: Job, inputs: list[dict[str, Any]], reports: list[StageReport], seconds: float) -> None:
    """Check conservation; write card, manifest and report; then ``_SUCCESS``."""
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.counts)
    body = _body(job, inputs, reports, counts, seconds)
    check_conservation(body["counts"])
    write_text(job.run.card, dataset_card(job.run.root.name, body))
    files = [path for folder in job.run.data_folders for path in parts(folder)]
    write_manifest(job.run, body, [*files, job.run.card])
    write_report(job.run)
    succeed(job.run)


def summary(run: RunFolder) -> dict[str, Any]:
    """What ``curate`` prints of a finished run."""
    manifest = read_manifest(run)
    return {
        "run": str(run.root),
        **{name: manifest["counts"][name] for name in COUNTS},
        "seconds": manifest["seconds"],
        "rejected_by_reason": manifest["rejected"],
        "quarantined_by_reason": manifest["quarantined"],
        "policies": {name: policy["hash"] for name, policy in manifest["policies"].items()},
        "key_fresh": manifest["key"]["fresh"],
        "report": str(run.report),
    }


def check_conservation(counts: dict[str, int]) -> None:
    """``CheckFailed`` unless every row and every point is accounted for."""
    if counts["rows"] != counts["documents"] + counts["rejected"]:
        raise CheckFailed(f"rows are lost: {counts['rows']} ≠ {counts['documents']} + {counts['rejected']}")
    fates = ("public", "private", "duplicate", "quarantined")
    if counts["points"] != sum(counts[fate] for fate in fates):
        raise CheckFailed(
            f"points are lost: {counts['points']} ≠ {' + '.join(str(counts[f]) for f in fates)}"
        )


def _body(
    job: Job, inputs: list[dict[str, Any]], reports: list[StageReport], counts: Counter[str], seconds: float
) -> dict[str, Any]:
    config, detect = job.config, job.config.detect
    rejected, quarantined = _below(counts, "rejected/"), _below(counts, "quarantined/")
    sums = {
        "rejected": sum(rejected.values()),
        "quarantined": sum(quarantined.values()),
        "public_duplicate": counts["duplicate/public"],
        "private_duplicate": counts["duplicate/private"],
    }
    kept = {name: counts[name] for name in COUNTS if name not in sums}
    return {
        "format": "redactory-run/1",
        "run": job.run.root.name,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
        "versions": _versions(),
        "configuration": config.model_dump(mode="json", exclude={"output", "workers"}),
        "configuration_hash": config.curation_hash(),
        "policies": {policy.name: policy_record(detect, policy) for policy in policies_of(detect)},
        "engines": identities_of(detect),
        "key": {"fresh": job.key.fresh, "fingerprint": job.key.fingerprint},
        "encrypted": False,
        "inputs": [{**entry, "rows": counts[f"source/{entry['path']}"]} for entry in inputs],
        "counts": {**kept, **sums},
        "rejected": rejected,
        "quarantined": quarantined,
        "reasons": _below(counts, "reason/"),
        "hits": _hits(counts),
        "masks": counts["masks"],
        "dedup": _dedup(job),
        # seals the journal, whose last record no later one names
        "journal": chain_head(job.run.journal),
        "stages": [report.to_json() | {"counts": _plain(report)} for report in reports],
    }


def _dedup(job: Job) -> dict[str, Any]:
    settings = job.config.dedup
    if settings.mode == "none":
        # one point exchanged is one row exchanged; a group counts points, where S1 counts distinct texts
        return {"mode": "none", "scope": settings.scope, "rule": "none", "group_size": 1}
    return {"mode": "exact", "scope": settings.scope, "rule": "S1", "group_size": 1}


def _hits(counts: Counter[str]) -> list[dict[str, Any]]:
    histograms: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0] * BINS)
    for name, count in _below(counts, "hit/").items():
        policy, detector, label, bin_ = name.split("/")
        histograms[policy, label, detector][int(bin_)] += count
    return [
        {"policy": policy, "label": label, "detector": detector, "count": sum(bins), "histogram": bins}
        for (policy, label, detector), bins in sorted(histograms.items())
    ]


def _below(counts: Counter[str], prefix: str) -> dict[str, int]:
    return {k.removeprefix(prefix): v for k, v in sorted(counts.items()) if k.startswith(prefix)}


def _plain(report: StageReport) -> dict[str, int]:
    return {name: count for name, count in sorted(report.counts.items()) if "/" not in name}


def _versions() -> dict[str, Any]:
    return {
        "redactory": importlib.metadata.version("redactory"),
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in PACKAGES},
    }
