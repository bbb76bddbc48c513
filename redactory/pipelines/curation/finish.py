"""Finish a curation: write its manifest, report and cards, then ``_SUCCESS``."""

from __future__ import annotations

import datetime
import json
import platform
import secrets
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import yaml

from redactory.dedup import DedupSettings
from redactory.dedup.settings import BLOOM_ERROR_RATE
from redactory.dedup.signatures import describe_near_parameters
from redactory.detectors import (
    build_policy_records,
    describe_gaps,
    describe_languages,
    detector_masks_nothing,
    find_coverage_gaps,
    get_publishable_gaps,
)
from redactory.detectors.engine_registry import identify_engines
from redactory.detectors.settings import describe_fit_side_channel, format_public_label_note, get_public_labels
from redactory.evaluation.report import load_template, write_report
from redactory.foundation.canonical import canonical_json, get_package_version
from redactory.foundation.errors import CheckFailed, pluralize
from redactory.foundation.files import write_text
from redactory.foundation.intervals import clopper_pearson_upper
from redactory.foundation.keys import DigestKey
from redactory.foundation.progress import StageReport, merge_reports
from redactory.foundation.records import compute_chain_head
from redactory.pipelines.curation import index as indexing
from redactory.pipelines.curation.journal import SELECTION, RunJournal
from redactory.pipelines.curation.release_log import make_log_anchor
from redactory.pipelines.curation.stage_context import CurationJob
from redactory.pipelines.curation.stages.dedup import SPLIT_NUMBERS
from redactory.pipelines.curation.stages.examples import SCORE_BINS, get_detector
from redactory.redaction import (
    PRIVATE,
    PUBLIC,
    RunFolder,
    find_run_key,
    is_encrypted,
    list_files,
    list_parts,
    read_manifest,
    write_manifest,
    write_success,
)
from redactory.redaction.shards import RESERVED_COLUMNS, compute_keyed_digest

PACKAGES = (
    *("spacy", "thinc", "presidio-analyzer", "nupunkt", "phonenumbers", "numpy", "pandas", "pyarrow", "rbloom"),
)
DECISIONS = ("public", "private", "duplicate", "quarantined")
COUNT_KEYS = ("rows", "documents", "rejected", "examples", *DECISIONS)
CONFIDENCE = 0.95


def finish_run(
    job: CurationJob, inputs: list[dict[str, Any]], reports: list[StageReport], journal: RunJournal, seconds: float
) -> None:
    """Bind the files to the journal, check the counts, write card, manifest and report, then ``_SUCCESS``."""
    counts = merge_reports("", reports).counts
    files = [path for folder in job.run.data_folders for path in list_parts(folder)]
    for path in files:
        if is_encrypted(path) != (find_run_key(path) is not None):
            raise CheckFailed(f"{path.parent.name}/{path.name} is not encrypted like the run")
    file_entries = list_files(job.run, files, job.key)
    journal.record_file_digests({name: entry["sha256"] for name, entry in file_entries.items()})
    body = _build_manifest(job, inputs, reports, counts, seconds, journal)
    check_counts_add_up(body["counts"])
    cross_split_count, limit = body["dedup"]["across"], job.config.release.max_cross_split_duplicates
    if limit is not None and cross_split_count > limit:
        raise CheckFailed(
            f"{cross_split_count} public examples nearly duplicate a private one, but "
            f"release.max_cross_split_duplicates allows {limit}: nothing is released. audit/across lists "
            "them by example_id, vault/ has their text. To release them anyway, raise the limit and resume "
            "(--resume)."
        )
    write_text(job.run.card, render_dataset_card(job.run.root.name, body))
    write_manifest(job.run, body, {**file_entries, **list_files(job.run, [job.run.card])})
    write_report(job.run)
    indexing.seal_index_entry(job, counts)
    write_success(job.run)
    indexing.promote_entry(job.run, job.config)


def summarize_run(run: RunFolder) -> dict[str, Any]:
    """Return the summary of a finished run that ``curate`` prints."""
    manifest = read_manifest(run)
    roles = sum(stage["counts"].get("roles_left_out", 0) for stage in manifest["stages"])
    return {
        "run": str(run.root),
        **({"roles_left_out": roles} if roles else {}),
        "uncovered": describe_gaps(manifest["uncovered"]),
        "languages": describe_languages(manifest["uncovered"]),
        "public_labels": format_public_label_note(get_public_labels(manifest)),
        **({"route": manifest["route"]} if "route" in manifest else {}),
        **{name: manifest["counts"][name] for name in COUNT_KEYS},
        "seconds": manifest["seconds"],
        "rejected_by_reason": manifest["rejected"],
        "quarantined_by_reason": manifest["quarantined"],
        "dedup": manifest["dedup"],
        "policies": {name: policy["hash"] for name, policy in manifest["policies"].items()},
        "key_fresh": manifest["key"]["fresh"],
        "encrypted": manifest["encrypted"],
        "report": str(run.report),
    }


def check_counts_add_up(counts: dict[str, int]) -> None:
    """Raise ``CheckFailed`` unless every row and every example is accounted for."""
    for total, addends in (("rows", ("documents", "rejected")), ("examples", DECISIONS)):
        if counts[total] != sum(counts[part] for part in addends):
            formula = " + ".join(str(counts[part]) for part in addends)
            raise CheckFailed(f"lost {total}: {counts[total]} ≠ {formula}")


def _build_manifest(
    job: CurationJob,
    inputs: list[dict[str, Any]],
    reports: list[StageReport],
    counts: Counter[str],
    seconds: float,
    journal: RunJournal,
) -> dict[str, Any]:
    config, detect = job.config, job.config.detect
    run_key = find_run_key(job.run.vault / "part")
    left_out = {"output", "store", "workers", "nightly", *({"route"} if job.selection is None else ())}
    configuration = config.model_dump(mode="json", exclude=left_out)
    rejected, sections = _select_prefixed_counts(counts, "rejected/"), summarize_counts(config.dedup, counts)
    if job.index is not None:
        repeats = {split: counts[f"duplicate_earlier/{split}"] for split in SPLIT_NUMBERS}
        names = [entry.name for entry in job.index.runs]
        sections["dedup"]["index"] = {"id": job.index.id, "runs": names, "duplicate_earlier": repeats}
    columns = {field.name: str(field.type) for field in job.shared_columns}
    sums = {
        "rejected": sum(rejected.values()),
        "quarantined": sum(sections["quarantined"].values()),
        "public_duplicate": counts["duplicate/public"],
        "private_duplicate": counts["duplicate/private"],
    }
    return {
        "format": "redactory-run/1",
        "run": job.run.root.name,
        # identifies the run after a rename, through every reissue and in every export
        "id": secrets.token_hex(16) if run_key is None else run_key.run_id,
        "uncovered": find_coverage_gaps(
            detect,
            _select_prefixed_counts(counts, "language/"),
            job.detector is None and detector_masks_nothing(detect, lambda: get_detector(job)),
        ),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
        "versions": collect_versions(),
        "configuration": configuration,
        "configuration_hash": config.compute_curation_hash(),
        **({"known_in": config.known_values_scope} if config.known_values_scope else {}),
        **({"route": journal.constants[SELECTION]} if SELECTION in journal.constants else {}),
        "policies": build_policy_records(detect),
        "engines": identify_engines(detect),
        "key": {
            "fresh": job.key.is_generated,
            "fingerprint": job.key.fingerprint,
            "configuration": digest_configuration(job.key, configuration),
        },
        "encrypted": run_key is not None,
        "encryption": None if run_key is None else run_key.to_json(),
        "inputs": [{**entry, "rows": counts[f"source/{entry['path']}"]} for entry in inputs],
        "counts": {**{name: counts[name] for name in COUNT_KEYS if name not in sums}, **sums},
        "rejected": rejected,
        **sections,
        **({"columns": columns} if columns else {}),
        # seals the journal, whose last record has no successor
        "journal": compute_chain_head(job.run.journal),
        **make_log_anchor(job.run),
        "stages": [
            {**report.to_json(), "counts": {n: c for n, c in sorted(report.counts.items()) if "/" not in n}}
            for report in reports
        ],
    }


def summarize_counts(dedup: DedupSettings, counts: Counter[str]) -> dict[str, Any]:
    """Return the manifest sections that follow from the counts of the stages from redaction on."""
    return {
        "quarantined": _select_prefixed_counts(counts, "quarantined/"),
        "reasons": _select_prefixed_counts(counts, "reason/"),
        "spans": _build_score_histograms(counts),
        "masks": counts["masks"],
        "dedup": _summarize_dedup(dedup, counts),
    }


def digest_configuration(key: DigestKey, configuration: dict[str, Any]) -> str:
    """Return a keyed digest of the configuration: it proves that a holder of the run's key wrote it."""
    return compute_keyed_digest(key, "configuration", canonical_json(configuration))


def _build_score_histograms(counts: Counter[str]) -> list[dict[str, Any]]:
    histograms: dict[tuple[str, str, str], list[int]] = defaultdict(lambda: [0] * SCORE_BINS)
    for name, count in _select_prefixed_counts(counts, "span/").items():
        policy, detector, rest = name.split("/", 2)
        # a configured label may contain any character
        label, _, bin_ = rest.rpartition("/")
        histograms[policy, label, detector][int(bin_)] += count
    return [
        {"policy": policy, "label": label, "detector": detector, "count": sum(bins), "histogram": bins}
        for (policy, label, detector), bins in sorted(histograms.items())
    ]


def _select_prefixed_counts(counts: Counter[str], prefix: str) -> dict[str, int]:
    return {k.removeprefix(prefix): v for k, v in sorted(counts.items()) if k.startswith(prefix)}


def collect_versions() -> dict[str, Any]:
    """Return the versions of Redactory, Python, and the packages that affect a shard's bytes."""
    return {
        "redactory": get_package_version("redactory"),
        "python": platform.python_version(),
        "packages": {name: get_package_version(name) for name in PACKAGES},
    }


def _summarize_dedup(settings: DedupSettings, counts: Counter[str]) -> dict[str, Any]:
    """Build the manifest section ``dedup`` from the settings and the counts of all stages.

    ``rule`` and ``group_size`` are those of the private split: the public one is trained without noise, and
    deduplication of public examples depends on public examples only (``docs/guarantees.md``, "Deduplication").
    """
    rules = settings.get_rules()
    facts: dict[str, Any] = {
        "mode": settings.mode,
        "scope": settings.scope,
        "rule": rules[PRIVATE].name,
        "group_size": rules[PRIVATE].group_size,
        "splits": {split: {"mode": settings.mode_for(split), "rule": rule.name} for split, rule in rules.items()},
        "across": counts["across/examples"] if settings.report_cross_split else None,
    }
    for split in (split for split, rule in rules.items() if rule.one_pass):
        new, lost = (counts[f"bloom/{split}/{name}"] for name in ("measured_on", "measured_lost"))
        # parameters of the filter, and its measured false positives
        facts.setdefault("bloom", {})[split] = {
            **_select_prefixed_counts(counts, f"bloom/{split}/"),
            "error_rate": BLOOM_ERROR_RATE,
            "loss_rate": lost / new if new else None,
            "loss_rate_upper": clopper_pearson_upper(lost, new, CONFIDENCE) if new else None,
        }
    has_near_rule = any(rule.near for rule in rules.values())
    if has_near_rule or settings.report_cross_split:
        metric_names = ["compared", "crowded", *(("dropped", "grouped", "largest_group") if has_near_rule else ())]
        facts["near"] = {
            **describe_near_parameters(settings.near),
            **{name: counts[f"near/{name}"] for name in metric_names},
        }
    return facts


# Cards: what a reader of a run's or an export's shards needs to know, and how to load them.


def _render_card(template: str, name: str, manifest: Mapping[str, Any], splits: tuple[str, ...], **extra: Any) -> str:
    """Render Markdown with the YAML front matter from which ``datasets.load_dataset`` learns the splits."""
    label = manifest.get("label", manifest.get("configuration", {}).get("input", {}).get("label"))
    is_labelled = label in manifest.get("columns", {})
    front = {
        "pretty_name": name,
        "task_categories": ["text-generation", *(["text-classification"] if is_labelled else [])],
        "configs": [
            {"config_name": split, "data_files": f"{split}/part-*.parquet", "default": split == "public"}
            for split in splits
        ],
    }
    front_matter = yaml.safe_dump(front, sort_keys=False).strip()
    values = {"front": front_matter, "name": name, "m": manifest, "reserved": RESERVED_COLUMNS}
    return load_template(template, __package__).render(values, **extra)


def render_dataset_card(name: str, manifest: dict[str, Any]) -> str:
    """Render the Markdown card of a run from its manifest."""
    gaps, fit_note = get_publishable_gaps(manifest), describe_fit_side_channel(manifest["policies"])
    return _render_card(
        "dataset_card.md.j2", name, manifest, (PUBLIC, PRIVATE), tuned=fit_note, **_describe_policies(manifest, gaps)
    )


def _describe_policies(manifest: Mapping[str, Any], gaps: Mapping[str, Any]) -> dict[str, str | None]:
    return {
        "uncovered": describe_gaps(gaps),
        "languages": describe_languages(gaps),
        "open": format_public_label_note(get_public_labels(manifest)),
    }


def render_export_card(manifest: dict[str, Any]) -> str:
    """Render the Markdown card of an export from its manifest."""
    # verify renders the cards of folders that anybody may have written
    values = _describe_policies(manifest, manifest.get("uncovered") or {"kinds": {}, "languages": {}})
    values["examples"] = pluralize(manifest["counts"]["public"], "example")
    return _render_card("export_card.md.j2", manifest["run"], manifest, (PUBLIC,), **values)


def render_synthetic_card(manifest: Mapping[str, Any], promise: Mapping[str, Any]) -> str:
    """Render the Markdown card of generated text from its manifest and its guarantee ``promise``."""
    rows = pluralize(manifest["counts"]["public"], "text")
    return _render_card(
        "synthetic_card.md.j2", f"{manifest['run']}-{manifest['model']}", manifest, (PUBLIC,), rows=rows, p=promise
    )


def render_croissant(manifest: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]]) -> str:
    """Describe an export for other programs in Croissant 1.1 (https://mlcommons.org/croissant).

    ``manifest`` is the export's, ``files`` are the run's. The file set is not declared as contained in the file
    objects, which the format allows: Croissant's library would take them for archives and find no columns.
    """
    users = {"users": "int64"} if "route" in manifest else {}
    columns = {"example_id": "string", "text": "string", **users, **manifest.get("columns", {})}
    shards = {name: files[name] for name in sorted(files) if name.startswith(f"{PUBLIC}/part-")}
    labels = format_public_label_note(get_public_labels(manifest))
    template = load_template("croissant.yaml.j2", __package__)
    text = template.render(m=manifest, columns=columns, shards=shards, labels=labels)
    return json.dumps(yaml.safe_load(text), indent=2, ensure_ascii=False) + "\n"
