"""The dataset card: what a reader of the shards needs to know, and how to load them."""

from __future__ import annotations

import datetime
import platform
import secrets
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from redactory.dedup import DedupSettings, rule_of
from redactory.dedup.signatures import parameters
from redactory.detectors import blind_of, blind_words, blindness, policy_records
from redactory.detectors.engine import identities_of
from redactory.detectors.settings import side_channel
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import canonical_json, version_of
from redactory.foundation.errors import CheckFailed
from redactory.foundation.files import write_text
from redactory.foundation.intervals import upper_bound
from redactory.foundation.keys import DigestKey
from redactory.foundation.progress import StageReport
from redactory.foundation.records import chain_head
from redactory.pipelines import index as indexing
from redactory.pipelines.journal import Journal
from redactory.pipelines.release_log import anchor_of
from redactory.pipelines.stages.redact import BINS
from redactory.pipelines.work import Job
from redactory.redaction import (
    PRIVATE,
    PUBLIC,
    RunFolder,
    is_encrypted,
    key_of,
    list_files,
    parts,
    read_manifest,
    succeed,
    write_manifest,
)
from redactory.redaction.shards import keyed_digest

MISSED = """What both policies
  missed stands here in the open. How much that can be is only known where it was measured on labelled
  secrets: a model's card and the run's report then state a bound, and the confidence with which it holds
  (95 % by default, and two such bounds together 90 %)."""


def dataset_card(name: str, manifest: dict[str, Any]) -> str:
    """Markdown with the YAML front matter by which ``datasets.load_dataset`` finds the two sides."""
    front = {
        "pretty_name": name,
        "task_categories": ["text-generation"],
        "configs": [
            {"config_name": side, "data_files": f"{side}/part-*.parquet", "default": side == "public"}
            for side in ("public", "private")
        ],
    }
    counts, policies = manifest["counts"], manifest["policies"]
    told = side_channel(policies)
    tuned = f"- {told}\n" if told else ""
    release = manifest.get("release", 1)
    anew = f"\nRelease {release}: {_anew(manifest['changes'])}.\n" if release > 1 else ""
    return f"""---
{yaml.safe_dump(front, sort_keys=False).strip()}
---

# {name}
{blind_note(blind_of(manifest))}
Training shards written by Redactory {manifest["versions"]["redactory"]}. **Only `public/` may leave this
folder**; everything else in it is private.
{anew}
| | points |
|---|---:|
| public | {counts["public"]:,} |
| private | {counts["private"]:,} |
| duplicates, dropped | {counts["duplicate"]:,} |
| quarantined | {counts["quarantined"]:,} |
| **all** | **{counts["points"]:,}** |

A model trained on these shards leaves under its own guarantee: `models/NAME/README.md` says which.

- `public/`: `point_id`, `text`. No policy marked anything in these points. {MISSED}
- `private/`: `point_id`, `user` (a keyed pseudonym), `text` with every hit of the strict policy replaced
  by `<MASK>`, `reasons`.
- Strict policy `{policies["strict"]["hash"][:16]}`, conservative policy
  `{policies["conservative"]["hash"][:16]}`.
- Deduplication, after masking and within each side: {_modes(manifest["dedup"]["sides"])}.
{tuned}
```python
import pandas
public = pandas.read_parquet("public")
```

`public` and `private` are two data sets: read one folder or the other, never their parent. `manifest.json`
holds the sha256 of every file; `redactory verify` checks them all.
"""


def blind_note(blind: Mapping[str, Any] | None) -> str:
    """What nothing looked for, as a paragraph of its own; empty where there is nothing to say."""
    words = blind_words(blind) if blind else None
    return f"\n> **{words}**\n" if words else ""


def _anew(changes: list[dict[str, Any]]) -> str:
    """Why a run was written anew, each reason with its day."""
    return ", ".join(f"{change['why']} on {change['time'][:10]}" for change in changes)


def _modes(sides: dict[str, dict[str, str]]) -> str:
    return ", ".join(f"{own['mode']} on the {side} one" for side, own in sides.items())


# What a manifest says of deduplication: the rules that the guarantee goes by, and what was measured.


CONFIDENCE = 0.95


def dedup_facts(settings: DedupSettings, counts: Counter[str]) -> dict[str, Any]:
    """The section ``dedup`` of the manifest, from the settings and the counts of all stages.

    ``rule`` and ``group_size`` are those of the private side: the public one is trained without noise, and
    what drops its points sees public points alone (``docs/guarantees.md``, "Deduplication").
    """
    private, modes = rule_of(settings, PRIVATE), settings.modes()
    facts: dict[str, Any] = {
        "mode": settings.mode,
        "scope": settings.scope,
        "rule": private.name,
        "group_size": private.group_size,
        "sides": {
            side: {"mode": settings.mode_of(side), "rule": rule_of(settings, side).name}
            for side in (PUBLIC, PRIVATE)
        },
        "across": counts["across/points"] if settings.across else None,
    }
    if "bloom" in modes:
        sides = (side for side in (PUBLIC, PRIVATE) if settings.mode_of(side) == "bloom")
        facts["bloom"] = {side: _filter_facts(settings, side, counts) for side in sides}
    if "minhash" in modes or settings.across:
        facts["near"] = {**parameters(settings.near), **_named(counts, "near/", ("compared", "crowded"))}
    if "minhash" in modes:
        facts["near"].update(_named(counts, "near/", ("dropped", "grouped", "largest_group")))
    return facts


def check_across(facts: dict[str, Any], limit: int | None) -> None:
    """``CheckFailed`` where more public points than ``limit`` nearly duplicate a private one."""
    if limit is not None and facts["across"] > limit:
        raise CheckFailed(
            f"{facts['across']} public points nearly duplicate a private one, and release.max_cross_split "
            f"allows {limit}: nothing is released. audit/across lists them by point_id, vault/ has their "
            "text. To release them all the same, raise the limit and resume (--resume)."
        )


def _filter_facts(settings: DedupSettings, side: str, counts: Counter[str]) -> dict[str, Any]:
    """A filter's parameters, and its false positives as they were measured."""
    names = ("capacity", "added", "dropped", "new", "lost")
    capacity, added, dropped, new, lost = (counts[f"bloom/{side}/{name}"] for name in names)
    return {
        "capacity": capacity,
        "error_rate": settings.bloom.error_rate,
        "texts_added": added,
        "points_dropped": dropped,
        "measured_on": new,
        "measured_lost": lost,
        "loss_rate": lost / new if new else None,
        "loss_rate_upper": upper_bound(lost, new, CONFIDENCE) if new else None,
    }


def _named(counts: Counter[str], prefix: str, names: tuple[str, ...]) -> dict[str, int]:
    return {name: counts[prefix + name] for name in names}


# Release: what a finished curation says of itself, and the moment it is finished.


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
        mode="json", exclude={"output", "work", "store", "workers", "disk", "nightly"}
    )
    rejected, found = _below(counts, "rejected/"), counted(config.dedup, counts)
    if job.index is not None:
        found["dedup"]["index"] = indexing.facts(job, counts)
    sums = {
        "rejected": sum(rejected.values()),
        "quarantined": sum(found["quarantined"].values()),
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
        **found,
        # seals the journal, whose last record no later one names
        "journal": chain_head(job.run.journal),
        **anchor_of(job.run),
        "stages": [report.to_json() | {"counts": _plain(report)} for report in reports],
    }


def counted(dedup: DedupSettings, counts: Counter[str]) -> dict[str, Any]:
    """What a manifest says of the points by the counts of the stages from redaction on."""
    return {
        "quarantined": _below(counts, "quarantined/"),
        "reasons": _below(counts, "reason/"),
        "hits": _hits(counts),
        "masks": counts["masks"],
        "dedup": dedup_facts(dedup, counts),
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
