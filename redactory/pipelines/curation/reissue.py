"""Reissue: the only way to change a finished run, for an erasure or a purge.

The changes are staged in the run and written down as a plan. Then parts, journal, card, manifest, index and log are
updated to the plan, also after an interruption.
"""

from __future__ import annotations

import datetime
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redactory.dedup.index import IndexFolder
from redactory.evaluation.report import write_report
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.files import (
    file_lock,
    list_leaf_paths,
    make_private_folder,
    read_json,
    remove_leftovers,
    remove_path,
    sync_to_disk,
    write_bytes,
    write_json,
    write_text,
)
from redactory.foundation.keys import SIGNING_VARIABLE, DigestKey
from redactory.foundation.records import RecordLog, compute_chain_head, read_records
from redactory.pipelines.curation.finish import render_dataset_card
from redactory.pipelines.curation.index import find_index, promote_finished_entries
from redactory.pipelines.curation.journal import INDEX, REISSUE, RunJournal
from redactory.pipelines.curation.output_folder import remove_run_leftovers
from redactory.pipelines.curation.release_log import ANCHOR_KEY, Event, append_event, make_log_anchor, read_history
from redactory.redaction import RunFolder, is_finished, list_files, require_regular_files, write_manifest, write_success
from redactory.redaction.sealing import SIGNED_BY, describe_configured_signer, get_current_release

FORMAT = "redactory-reissue/1"


@dataclass(frozen=True)
class RunChange:
    """The changes of a run besides the staged parts; contains no text.

    ``manifest_changes`` replaces keys of the manifest; ``change_details`` goes into its list of ``changes``,
    ``log_details`` only into the release log. ``removed_parts`` and ``removed_state`` are
    parts, and files and folders of ``state/``, to be removed; ``index_changes`` replaces keys of the run's index entry,
    whose files are staged as well.
    """

    reason: str
    manifest_changes: Mapping[str, Any]
    change_details: Mapping[str, Any]
    log_details: Mapping[str, Any]
    removed_parts: tuple[Path, ...] = ()
    removed_state: tuple[Path, ...] = ()
    index_changes: Mapping[str, Any] | None = None


def is_reissue_pending(run: RunFolder) -> bool:
    """Return whether an erasure or purge of ``run`` was interrupted."""
    return run.reissue.plan.is_file()


@contextmanager
def reissue_lock(run: RunFolder) -> Iterator[None]:
    """Lock ``run``, and finish an interrupted reissue; ``RunStateError`` if it is locked or has irregular files."""
    with file_lock(run.lock, str(run.root)):
        remove_run_leftovers(run)
        if is_reissue_pending(run):
            _apply_reissue_plan(run)
        remove_path(run.reissue.root)
        require_regular_files(run)
        yield


def finish_reissue(run: RunFolder) -> str | None:
    """Finish an interrupted erasure or purge of ``run``; return which it was, None if there is none."""
    if not is_reissue_pending(run):
        return None
    reason: str = read_json(run.reissue.plan)["body"]["changes"][-1]["why"]
    with reissue_lock(run):
        return reason


def prepare_reissue(run: RunFolder) -> None:
    """Create the staging folder of a finished run (``run.reissue.files``); requires :func:`reissue_lock`.

    ``RunStateError`` if it is not finished, or is signed and no signing key is configured.
    """
    _require_signing_key(run, get_current_release(run).manifest)
    # no training is active under the lock; measurements must be stopped before
    remove_leftovers(run.models, recursive=True)
    make_private_folder(run.reissue.root)


def _require_signing_key(run: RunFolder, manifest: Mapping[str, Any]) -> None:
    # also if the run is unsigned: a broken key must be noticed before anything is written
    if describe_configured_signer() is None and manifest.get(SIGNED_BY) is not None:
        raise RunStateError(
            f"{run.root.name} is signed, and so must be its reissue: set {SIGNING_VARIABLE}_FILE (or "
            f"{SIGNING_VARIABLE})"
        )


def reissue_run(run: RunFolder, change: RunChange, key: DigestKey | None = None) -> int:
    """Apply the staged changes to a finished run; return the number of the new release.

    Staged parts with unchanged content are dropped; ``key`` computes the content digests of encrypted ones. Requires
    :func:`reissue_lock`. ``CheckFailed`` if the run's parts differ from its manifest.
    """
    old, new_run = get_current_release(run), RunFolder(run.reissue.files)
    old_files: dict[str, dict[str, Any]] = old.manifest["files"]
    staged = list_files(new_run, list_leaf_paths(new_run.root) if new_run.root.is_dir() else (), key)
    removed = sorted(path.relative_to(run.root).as_posix() for path in change.removed_parts)
    if unlisted := sorted({*staged, *removed} - set(old_files)):
        raise CheckFailed(f"{unlisted[0]} is not listed in the manifest: run redactory verify {run.root}")
    for name in [n for n, entry in staged.items() if _get_content_digest(entry) == _get_content_digest(old_files[n])]:
        (new_run.root / name).unlink()
        del staged[name]
    number = old.number + 1
    change_entry = {
        "release": number,
        "why": change.reason,
        "time": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        **change.change_details,
        "files": {"replaced": sorted(staged), "removed": removed},
    }
    kept_fields = {k: v for k, v in old.manifest.items() if k not in ("files", "journal", SIGNED_BY, ANCHOR_KEY)}
    body = {
        **kept_fields,
        **make_log_anchor(run),
        **change.manifest_changes,
        "release": number,
        "supersedes": old.digest,
        "changes": [*old.manifest.get("changes", ()), change_entry],
    }
    plan = {
        "format": FORMAT,
        "body": body,
        "files": {name: entry for name, entry in old_files.items() if name not in removed} | staged,
        "forget": [path.relative_to(run.root).as_posix() for path in change.removed_state],
        "index": change.index_changes,
        "entered": {"why": change.reason, "release": number, **change.log_details},
    }
    write_json(run.reissue.plan, plan)
    _apply_reissue_plan(run)
    return number


def _get_content_digest(entry: Mapping[str, Any]) -> Any:
    """Return a digest to compare two parts' content: encrypted bytes differ each time they are written."""
    return entry.get("content", entry["sha256"])


def _apply_reissue_plan(run: RunFolder) -> None:
    """Update ``run`` to its plan from any interrupted state; each step can be repeated."""
    plan = read_json(run.reissue.plan)
    if plan.get("format") != FORMAT:
        raise RunStateError(f"{run.root.name}: another version started to rewrite it: finish with that one")
    # another process than the first one may finish the plan
    _require_signing_key(run, read_json(run.manifest))
    body = plan["body"]
    if read_json(run.manifest).get("release", 1) < body["release"]:
        # from here on the folder is not a finished run
        run.success.unlink(missing_ok=True)
        sync_to_disk(run.root)
        _archive_release(run, body)
        _move_staged_parts(run, plan)
        _write_new_release(run, plan)
    if not is_finished(run):
        for name in plan["forget"]:
            remove_path(run.root / name)
        if plan["index"] is not None:
            _replace_index_entry(run, body, plan["index"])
        write_report(run)
        write_success(run)
    digest = file_sha256(run.manifest)
    if not any(r.type == Event.REISSUED and r.body.get("manifest") == digest for r in read_history(run)):
        append_event(run, Event.REISSUED, manifest=digest, supersedes=body["supersedes"], **plan["entered"])
    remove_path(run.reissue.root)


def _archive_release(run: RunFolder, body: Mapping[str, Any]) -> None:
    """Copy the manifest and its signature to ``releases/<n>/``."""
    if file_sha256(run.manifest) != body["supersedes"]:
        raise CheckFailed(f"{run.root.name}/manifest.json is not the superseded one: restore it")
    archive = run.get_release_folder(body["release"] - 1)
    make_private_folder(run.releases)
    make_private_folder(archive.root)
    for source, target in ((run.manifest, archive.manifest), (run.signature, archive.signature)):
        if source.is_file():
            write_bytes(target, source.read_bytes())


def _move_staged_parts(run: RunFolder, plan: Mapping[str, Any]) -> None:
    """Move the staged parts into the run, and remove obsolete ones."""
    change = plan["body"]["changes"][-1]["files"]
    for name in change["replaced"]:
        staged, target = run.reissue.files / name, run.root / name
        if staged.is_file():
            staged.replace(target)
        # a part that is no longer staged must be in its place
        if file_sha256(target) != plan["files"][name]["sha256"]:
            raise CheckFailed(f"{name} does not match the staged copy; restore the run from a backup")
    for name in change["removed"]:
        (run.root / name).unlink(missing_ok=True)
    for folder in {(run.root / name).parent for name in (*change["replaced"], *change["removed"])}:
        sync_to_disk(folder)


def _write_new_release(run: RunFolder, plan: Mapping[str, Any]) -> None:
    """Write journal, card and manifest of the new release."""
    body = plan["body"]
    files = {name: entry for name, entry in plan["files"].items() if name != run.card.name}
    release_body = {key: body[key] for key in ("release", "supersedes")}
    with RecordLog(run.journal) as log:
        if not any(r.type == REISSUE and r.body == release_body for r in log.records):
            log.append(REISSUE, release_body)
        RunJournal(log).record_file_digests({name: entry["sha256"] for name, entry in files.items()})
    body = {**body, "journal": compute_chain_head(run.journal)}
    write_text(run.card, render_dataset_card(body["run"], body))
    write_manifest(run, body, {**files, **list_files(run, [run.card])})


def subtract_counts(
    counts: Mapping[str, int], removed: Mapping[str, int], moved_up: Mapping[str, int]
) -> dict[str, int]:
    """Return the manifest's ``counts`` after a change; ``verify`` compares releases by it too."""
    subtracted = Counter(removed)
    subtracted["rows"] = removed.get("documents", 0) + removed.get("rejected", 0)
    for split in ("public", "private"):
        moved = moved_up.get(split, 0)
        subtracted[split] -= moved
        subtracted["duplicate"] += moved
        subtracted[f"{split}_duplicate"] += moved
    return {name: count - subtracted[name] for name, count in counts.items()}


# The index across runs changes too: an erased text must not make later runs drop another person's.


def _replace_index_entry(run: RunFolder, manifest: Mapping[str, Any], changes: Mapping[str, Any]) -> None:
    """Replace the run's index entry by the new one; does nothing if it was removed meanwhile."""
    index = find_index(manifest)
    if index is None:
        return
    token = next(record.body["token"] for record in read_records(run.journal) if record.type == INDEX)
    with index.hold_lock():
        staging = make_private_folder(index.root / "rewritten")
        for draft in sorted(staging.iterdir()):
            # a crash left this entry here: it was complete before the old one was removed
            target = index.runs / draft.name
            if target.exists() or not (draft / "entry.json").is_file():
                remove_path(draft)
            else:
                draft.replace(target)
        promote_finished_entries(index)
        for entry in index.list_entries():
            if entry.body["token"] != token:
                continue
            draft = make_private_folder(staging / entry.name)
            shutil.copytree(IndexFolder(run.reissue.index).get_draft_folder(token), draft, dirs_exist_ok=True)
            files = {name: file_sha256(draft / name) for name in entry.body["files"]}
            # the seal comes last: a draft without it does not count
            write_json(draft / "entry.json", {**entry.body, **changes, "files": files})
            index.remove_entry(entry.folder)
            draft.replace(entry.folder)
