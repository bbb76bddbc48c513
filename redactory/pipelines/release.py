"""Release: what a finished curation says of itself, and the moment it is finished."""

from __future__ import annotations

import datetime
import platform
import secrets
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from redactory.detectors import blind_of, blind_words, blindness, policy_records
from redactory.detectors.engines import identities_of
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import canonical_json
from redactory.foundation.errors import CheckFailed
from redactory.foundation.files import write_text
from redactory.foundation.keys import DigestKey
from redactory.foundation.records import chain_head
from redactory.foundation.reports import StageReport
from redactory.foundation.versions import version_of
from redactory.pipelines.card import dataset_card
from redactory.pipelines.dedup_facts import check_across, dedup_facts
from redactory.pipelines.indexes import indexing
from redactory.pipelines.journal import Journal
from redactory.pipelines.releases.anchor import anchor_of
from redactory.pipelines.stages.redact import BINS
from redactory.pipelines.work import Job
from redactory.redaction import (
    RunFolder,
    is_encrypted,
    key_of,
    list_files,
    parts,
    read_manifest,
    succeed,
    write_manifest,
)
from redactory.redaction.content import keyed_digest

PACKAGES = (
    *("spacy", "thinc", "presidio-analyzer", "nupunkt", "phonenumbers", "numpy", "pandas", "pyarrow"),
    *("datasketch", "rbloom"),
)
COUNTS = ("rows", "documents", "rejected", "points", "public", "private", "duplicate", "quarantined")


def finish(
    job: Job, inputs: list[dict[str, Any]], reports: list[StageReport], journal: Journal, seconds: float
) -> None:
    """Bind the files; check what must hold; write card, manifest and report; then ``_SUCCESS``."""
    counts: Counter[str] = Counter()
    for report in reports:
        counts.update(report.counts)
    listed = list_files(job.run, _data_files(job.run), job.key)
    journal.bind({name: entry["sha256"] for name, entry in listed.items()})
    body = _body(job, inputs, reports, counts, seconds)
    check_conservation(body["counts"])
    check_across(body["dedup"], job.config.release.max_cross_split)
    write_text(job.run.card, dataset_card(job.run.root.name, body))
    write_manifest(job.run, body, {**listed, **list_files(job.run, [job.run.card])})
    write_report(job.run)
    indexing.seal(job, journal.parts("ingest") or 0, counts)
    succeed(job.run)
    indexing.count(job)


def _data_files(run: RunFolder) -> list[Path]:
    """Every part; ``CheckFailed`` where one lies open that should be encrypted, or the other way round."""
    found = [path for folder in run.data_folders for path in parts(folder)]
    for path in found:
        if is_encrypted(path) != (key_of(path) is not None):
            raise CheckFailed(f"{path.parent.name}/{path.name} is not encrypted as the run is")
    return found


def summary(run: RunFolder) -> dict[str, Any]:
    """What ``curate`` prints of a finished run."""
    manifest = read_manifest(run)
    return {
        "run": str(run.root),
        "blind": blind_words(blind_of(manifest)),
        **{name: manifest["counts"][name] for name in COUNTS},
        "seconds": manifest["seconds"],
        "rejected_by_reason": manifest["rejected"],
        "quarantined_by_reason": manifest["quarantined"],
        "dedup": manifest["dedup"],
        "policies": {name: policy["hash"] for name, policy in manifest["policies"].items()},
        "key_fresh": manifest["key"]["fresh"],
        "encrypted": manifest["encrypted"],
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
    run_key = key_of(job.run.vault / "part")
    configuration = config.model_dump(
        mode="json", exclude={"output", "work", "store", "workers", "disk", "nightly", "track"}
    )
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
        # by which it is known whatever its folder is called, through every reissue and in every export
        "id": secrets.token_hex(16) if run_key is None else run_key.run_id,
        "blind": blindness(detect, _below(counts, "language/")),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
        "versions": versions(),
        "configuration": configuration,
        "configuration_hash": config.curation_hash(),
        "policies": policy_records(detect),
        "engines": identities_of(detect),
        "key": {
            "fresh": job.key.fresh,
            "fingerprint": job.key.fingerprint,
            "configuration": configuration_digest(job.key, configuration),
        },
        "encrypted": run_key is not None,
        "encryption": None if run_key is None else run_key.to_json(),
        "inputs": [{**entry, "rows": counts[f"source/{entry['path']}"]} for entry in inputs],
        "counts": {**kept, **sums},
        "rejected": rejected,
        "quarantined": quarantined,
        "reasons": _below(counts, "reason/"),
        "hits": _hits(counts),
        "masks": counts["masks"],
        "dedup": {
            **dedup_facts(config.dedup, counts),
            **({"index": indexing.facts(job, counts)} if job.index is not None else {}),
        },
        # seals the journal, whose last record no later one names
        "journal": chain_head(job.run.journal),
        **anchor_of(job.run),
        "stages": [report.to_json() | {"counts": _plain(report)} for report in reports],
    }


def configuration_digest(key: DigestKey, configuration: dict[str, Any]) -> str:
    """Shows to whoever has the run's key that nobody without it wrote the configuration in a manifest."""
    return keyed_digest(key, "configuration", canonical_json(configuration))


def _hits(counts: Counter[str]) -> list[dict[str, Any]]:
    histograms: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0] * BINS)
    for name, count in _below(counts, "hit/").items():
        policy, detector, rest = name.split("/", 2)
        # a label of one's own may hold any sign
        label, _, bin_ = rest.rpartition("/")
        histograms[policy, label, detector][int(bin_)] += count
    return [
        {"policy": policy, "label": label, "detector": detector, "count": sum(bins), "histogram": bins}
        for (policy, label, detector), bins in sorted(histograms.items())
    ]


def _below(counts: Counter[str], prefix: str) -> dict[str, int]:
    return {k.removeprefix(prefix): v for k, v in sorted(counts.items()) if k.startswith(prefix)}


def _plain(report: StageReport) -> dict[str, int]:
    return {name: count for name, count in sorted(report.counts.items()) if "/" not in name}


def versions() -> dict[str, Any]:
    """Of Redactory, Python, and the packages that a shard's bytes depend on."""
    return {
        "redactory": version_of("redactory"),
        "python": platform.python_version(),
        "packages": {name: version_of(name) for name in PACKAGES},
    }
