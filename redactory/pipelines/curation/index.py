"""The index across runs: check its parameters, open it for a run, add the run's entry, show and prune it."""

from __future__ import annotations

import dataclasses
import datetime
import re
import secrets
import shutil
import unicodedata
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from redactory.dedup.index import Entry, IndexFolder
from redactory.dedup.signatures import choose_banding
from redactory.detectors import compute_policy_hashes
from redactory.foundation.canonical import file_sha256, get_package_version
from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.files import make_private_folder, remove_leftovers, remove_path, write_json
from redactory.foundation.keys import KEY_VARIABLE, DigestKey
from redactory.foundation.records import compute_chain_head, read_records
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.journal import INDEX, RunJournal
from redactory.pipelines.curation.output_folder import check_not_inside_inputs
from redactory.pipelines.curation.stage_context import CurationJob, OpenIndex
from redactory.pipelines.curation.stages.dedup import (
    IS_BY_DIGEST,
    SPLIT_NUMBERS,
    get_digest_purpose,
    get_seen_texts_path,
    make_removed_run_error,
)
from redactory.redaction import RunFolder, is_finished
from redactory.redaction.sealing import list_releases

DIGEST_SCHEME = 1
"""Increased whenever the digests change for the same settings."""


def check_index(config: Config, key: DigestKey) -> None:
    """Check, before anything is written, that a run can use its index.

    ``ConfigurationError`` without a configured key or for nested folders, ``RunStateError`` for other parameters.
    """
    settings = config.dedup.index
    if settings is None:
        return
    if key.is_generated:
        raise ConfigurationError(
            f"dedup.index needs a key that later runs share: set {KEY_VARIABLE} or {KEY_VARIABLE}_FILE "
            "(create one with redactory keys new digest FILE)"
        )
    index, output = Path(settings.path).resolve(), Path(config.output).resolve()
    if index.is_relative_to(output) or output.is_relative_to(index):
        raise ConfigurationError(
            f"dedup.index.path and output are inside each other ({index}, {output}): put the index in a separate folder"
        )
    check_not_inside_inputs(index, "dedup.index.path", config.input.path)
    folder = IndexFolder(Path(settings.path))
    if folder.exists():
        folder.read_matching_header(collect_index_parameters(config, key))


def collect_index_parameters(config: Config, key: DigestKey) -> dict[str, Any]:
    """Return the parameters of an index: everything that affects its digests and their comparison."""
    dedup, detect = config.dedup, config.detect
    rules = dedup.get_rules().values()
    near = None
    if any(rule.near for rule in rules):
        near = {
            "threshold": dedup.near.threshold,
            "shingle": dedup.near.shingle,
            **dataclasses.asdict(choose_banding(dedup.near.threshold, dedup.near.permutations)),
        }
    packages = {"nupunkt": get_package_version("nupunkt")} if config.segment.mode == "sentence" else {}
    return {
        "key": key.fingerprint,
        "policies": compute_policy_hashes(detect),
        "segment": config.segment.model_dump(
            mode="json", include={"mode"} | ({"speaker"} if config.segment.mode == "turn" else set())
        ),
        **config.select_routing_settings(),
        "scope": dedup.scope,
        "modes": {split: dedup.mode_for(split) for split in SPLIT_NUMBERS},
        "near": near,
        "purposes": {split: get_digest_purpose(dedup, split) for split in SPLIT_NUMBERS},
        "versions": {"digests": DIGEST_SCHEME, "unicode": unicodedata.unidata_version, **packages},
    }


def find_index(manifest: Mapping[str, Any]) -> IndexFolder | None:
    """Return the index that a run used if it is still in its place; else None."""
    settings = manifest["configuration"]["dedup"].get("index")
    index = None if settings is None else IndexFolder(Path(settings["path"]))
    return index if index is not None and index.exists() else None


# The index in a run: opened at its start, written before ``_SUCCESS``, counted after.


def attach_index(job: CurationJob, journal: RunJournal) -> CurationJob:
    """Return ``job`` with its index open; record in the journal which earlier runs it uses, and verify them.

    ``RunStateError`` if the index has been replaced or lacks an entry, ``CheckFailed`` if an entry has changed.
    """
    settings = job.config.dedup.index
    if settings is None:
        return job
    folder, parameters = IndexFolder(Path(settings.path)), collect_index_parameters(job.config, job.key)
    pins = journal.constants.get(INDEX)
    current_id = folder.read_header()["id"] if pins is not None and folder.exists() else None
    if pins is not None and current_id != pins["id"]:
        raise RunStateError(
            f"this run was started with the index {pins['id']}, but {folder.root} holds "
            f"{current_id or 'none'}: give the original folder (dedup.index.path), or start a new run in another "
            "folder"
        )
    with folder.hold_lock():
        head = folder.open_or_create(parameters)
        promote_finished_entries(folder)
        entries_by_pin = {(entry.name, entry.body["journal"]): entry for entry in folder.list_entries()}
        if pins is None:
            runs = [{"name": name, "journal": chain} for name, chain in entries_by_pin]
            pins = {"id": head["id"], "token": secrets.token_hex(8), "runs": runs}
            journal.record_constant(INDEX, pins)
        run_folder = job.run.root.resolve()
        for draft, path in folder.map_drafts_to_runs().items():
            # a draft of a former run in the same folder
            if path == run_folder and draft.name != pins["token"]:
                remove_path(draft)
        folder.create_draft(pins["token"], run_folder)
        pinned = [(run["name"], run["journal"]) for run in pins["runs"]]
        # a name that another run uses now is missing, too
        if missing := [name for name, chain in pinned if (name, chain) not in entries_by_pin]:
            raise make_removed_run_error(folder, f"the entry {missing[0]}")
        entries = tuple(entries_by_pin[pin] for pin in pinned)
    for entry in entries:
        entry.verify_files()
    index = OpenIndex(folder, head["id"], pins["token"], entries)
    remove_leftovers(index.draft_folder, recursive=True)
    return dataclasses.replace(job, index=index)


def seal_index_entry(job: CurationJob, counts: Counter[str]) -> None:
    """Write ``entry.json``, the last file of this run's entry: now only ``_SUCCESS`` is missing."""
    index = job.index
    if index is None or any(entry.body["token"] == index.token for entry in index.folder.list_entries()):
        return
    draft = make_private_folder(index.draft_folder)
    data_files = sorted(p for p in draft.rglob("*") if p.is_file() and p.suffix != ".json")
    files = {p.relative_to(draft).as_posix(): file_sha256(p) for p in data_files}
    rules = job.config.dedup.get_rules()
    if not all(
        get_seen_texts_path(draft, split, rules[split]).is_file() for split in job.filter_splits_by_rule(IS_BY_DIGEST)
    ):
        raise CheckFailed(f"{draft} lacks entries that this run wrote: start a new run in another folder")
    write_json(
        draft / "entry.json",
        {
            "index": index.id,
            "token": index.token,
            "run": re.sub(r"[^A-Za-z0-9._-]", "_", job.run.root.resolve().name)[:64],
            "path": str(job.run.root.resolve()),
            "journal": compute_chain_head(job.run.journal),
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "counts": {split: counts[f"index/{split}"] for split in SPLIT_NUMBERS},
            "partitions": job.partitions,
            "files": files,
        },
    )


def promote_entry(run: RunFolder, config: Config) -> None:
    """Make the entry of a finished, possibly moved run count, and remove entries beyond ``keep``; can be repeated."""
    settings = config.dedup.index
    if settings is None or not IndexFolder(Path(settings.path)).exists():
        return
    index = IndexFolder(Path(settings.path))
    tokens = {record.body["token"] for record in read_records(run.journal) if record.type == INDEX}
    # also removes the lock of a killed process
    if not any(entry.folder.name in tokens for entry in index.list_pending_entries()) and not index.lock.exists():
        return
    with index.hold_lock():
        for entry in index.list_pending_entries():
            if entry.folder.name in tokens and has_written_entry(run, entry):
                index.commit_entry(entry)
        promote_finished_entries(index)
        keep = settings.keep
        index.prune_entries(keep.get("runs"), keep.get("days"), datetime.datetime.now(datetime.UTC))


def seal_rewritten_entry(run: RunFolder, manifest: Mapping[str, Any], counts: Mapping[str, int]) -> None:
    """Put the entry that a reissue of ``run`` rewrote into its index, to replace the old one once the run is finished.

    An erased text must not make later runs drop another person's. Does nothing if the entry was removed meanwhile.
    """
    index = find_index(manifest)
    if index is None:
        return
    token = next(record.body["token"] for record in read_records(run.journal) if record.type == INDEX)
    with index.hold_lock():
        entries = {entry.body["token"]: entry for entry in (*index.list_pending_entries(), *index.list_entries())}
        if (entry := entries.get(token)) is None:
            return
        index.create_draft(token, run.root.resolve())
        draft, rewritten = (folder.get_draft_folder(token) for folder in (index, IndexFolder(run.reissue.index)))
        remove_leftovers(draft, recursive=True)
        shutil.copytree(rewritten, draft, dirs_exist_ok=True)
        files = {name: file_sha256(draft / name) for name in entry.body["files"]}
        place = {"replaces": entry.name} if entry.number else {}
        write_json(draft / "entry.json", {**entry.body, **place, "counts": counts, "files": files})


def promote_finished_entries(index: IndexFolder) -> None:
    """Make every pending entry of a finished run count; the others stay pending."""
    finished = [
        entry for entry in index.list_pending_entries() if has_written_entry(RunFolder(Path(entry.body["path"])), entry)
    ]
    for entry in sorted(finished, key=lambda entry: (entry.body["created"], entry.folder.name)):
        index.commit_entry(entry)


def discard_run_drafts(index: IndexFolder, run: RunFolder) -> None:
    """Remove what the unfinished ``run`` has written to ``index`` so far."""
    with index.hold_lock():
        for draft, path in index.map_drafts_to_runs().items():
            if path == run.root.resolve():
                remove_path(draft)


def has_written_entry(run: RunFolder, entry: Entry) -> bool:
    """Return whether ``run`` is finished and wrote ``entry``."""
    try:
        # the entry was sealed with the first release
        return is_finished(run) and list_releases(run)[0].manifest["journal"] == entry.body["journal"]
    except (RedactoryError, OSError, ValueError, KeyError):
        return False


# Show an index, and remove old runs from it.


PENDING_STATES = {
    "finished": "finished run: the next run counts it",
    "unfinished": "unfinished run: not counted",
    "gone": "run folder missing: not counted; redactory index --keep-runs removes it",
}


def describe_index(folder: str | Path) -> dict[str, Any]:
    """Return ``{"index", "id", "parameters", "runs": [...], "pending": [...]}``; ``RunStateError`` without an index.

    Changes nothing. ``texts`` are the numbers of texts in each split of the run (mode ``minhash``: kept ones).
    """
    index = IndexFolder(Path(folder))
    head, runs, pending = index.read_header(), [], []
    sealed = {entry.folder: entry for entry in index.list_pending_entries()}
    for entry in index.list_entries():
        details = {name: entry.body[name] for name in ("created", "path")}
        runs.append({"entry": entry.name, **details, "texts": entry.body["counts"]})
    for draft, run in index.map_drafts_to_runs().items():
        finished = draft in sealed and has_written_entry(RunFolder(run), sealed[draft])
        state = "gone" if not run.exists() else "finished" if finished else "unfinished"
        pending.append({"draft": draft.name, "path": str(run), "state": state})
    description = {"index": str(index.root), "id": head["id"], "parameters": head["parameters"]}
    return {**description, "runs": runs, "pending": pending}


def prune_index(folder: str | Path, keep_runs: int | None, keep_days: int | None) -> dict[str, Any]:
    """Remove all but the last ``keep_runs`` runs, those older than ``keep_days``, and drafts without a run.

    Returns ``{"index", "removed": [names], "kept": [names]}``. An active run that uses a removed one cannot continue.
    ``ConfigurationError`` if neither limit is given, or one is negative.
    """
    limits = [limit for limit in (keep_runs, keep_days) if limit is not None]
    if not limits or min(limits) < 0:
        raise ConfigurationError("say what to keep: --keep-runs N, --keep-days N, or both; 0 or more")
    index = IndexFolder(Path(folder))
    index.read_header()
    with index.hold_lock():
        promote_finished_entries(index)
        removed = index.prune_entries(keep_runs, keep_days, datetime.datetime.now(datetime.UTC))
        for draft, run in index.map_drafts_to_runs().items():
            if not run.exists():
                remove_path(draft)
                removed.append(draft.name)
        return {"index": str(index.root), "removed": removed, "kept": [e.name for e in index.list_entries()]}
