"""Reissue: the only way to change a finished run, for an erasure or a purge.

The next release is sealed in ``state/reissue``, with its manifest, signature, journal and ``_SUCCESS``. Then its files
move to their places in the run, ``_SUCCESS`` last. An interrupted reissue leaves the old release, or a folder without
``_SUCCESS`` that the next erasure, purge or scheduled run finishes by moving the rest.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

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
from redactory.foundation.records import RecordLog, compute_chain_head
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.finish import render_dataset_card
from redactory.pipelines.curation.index import promote_entry, seal_rewritten_entry
from redactory.pipelines.curation.journal import REISSUE, RunJournal
from redactory.pipelines.curation.output_folder import remove_run_leftovers
from redactory.pipelines.curation.release_log import ANCHOR_KEY, Event, append_event, make_log_anchor, read_history
from redactory.redaction import (
    RunFolder,
    is_finished,
    list_files,
    list_parts,
    require_regular_files,
    write_manifest,
    write_success,
)
from redactory.redaction.sealing import SIGNED_BY, describe_configured_signer, get_current_release


def is_reissue_pending(run: RunFolder) -> bool:
    """Return whether an erasure or purge of ``run`` was interrupted."""
    return run.reissue.plan.is_file()


@contextmanager
def reissue_lock(run: RunFolder) -> Iterator[None]:
    """Lock ``run``, and finish an interrupted reissue; ``RunStateError`` if it is locked or has irregular files."""
    with file_lock(run.lock, str(run.root)):
        remove_run_leftovers(run)
        if is_reissue_pending(run):
            _move_release(run)
        remove_path(run.reissue.root)
        require_regular_files(run)
        yield


def finish_reissue(run: RunFolder) -> None:
    """Finish an interrupted erasure or purge of ``run``, if there is one."""
    if is_reissue_pending(run):
        with reissue_lock(run):
            pass


def prepare_reissue(run: RunFolder) -> None:
    """Create the staging folder of a finished run (``run.reissue.files``); requires :func:`reissue_lock`.

    ``RunStateError`` if it is not finished, or is signed and no signing key is configured.
    """
    # also if the run is unsigned: a broken key must be noticed before anything is written
    if describe_configured_signer() is None and get_current_release(run).manifest.get(SIGNED_BY) is not None:
        raise RunStateError(
            f"{run.root.name} is signed, and so must be its reissue: set {SIGNING_VARIABLE}_FILE (or "
            f"{SIGNING_VARIABLE})"
        )
    # no training is active under the lock; measurements must be stopped before
    remove_leftovers(run.models, recursive=True)
    make_private_folder(run.reissue.root)


def reissue_run(
    run: RunFolder,
    reason: str,
    *,
    manifest_changes: Mapping[str, Any],
    change: Mapping[str, Any],
    event: Mapping[str, Any],
    removed: Iterable[Path] = (),
    index_counts: Mapping[str, int] | None = None,
    key: DigestKey | None = None,
) -> int:
    """Replace a finished run by its next release, with the parts staged for it; return the release's number.

    ``manifest_changes`` replaces keys of the manifest, ``change`` is added to its list of ``changes``, and ``event`` to
    the release log's record; none contains text. ``removed`` are files and folders to remove, besides those of
    unfinished trainings. With ``index_counts``, the entry in ``run.reissue.index`` replaces that of the run. Staged
    parts with unchanged content are dropped; ``key`` computes the content digests of encrypted ones. Requires
    :func:`prepare_reissue`. ``CheckFailed`` if a staged part is not in the manifest.
    """
    old, staged = get_current_release(run), RunFolder(run.reissue.files)
    old_files: dict[str, dict[str, Any]] = old.manifest["files"]
    parts = list_files(staged, (path for folder in staged.data_folders for path in list_parts(folder)), key)
    if unlisted := sorted(set(parts) - set(old_files)):
        raise CheckFailed(f"{unlisted[0]} is not listed in the manifest: run redactory verify {run.root}")
    for name in [n for n, entry in parts.items() if _get_content_digest(entry) == _get_content_digest(old_files[n])]:
        (staged.root / name).unlink()
        del parts[name]
    # no training can continue after the run is rewritten
    removed_paths = {*removed, *run.list_unfinished_training_files()}
    removed_names = sorted(path.relative_to(run.root).as_posix() for path in removed_paths)
    removed_parts = [name for name in removed_names if name in old_files]
    files = {n: e for n, e in old_files.items() if n not in {run.card.name, *removed_parts}} | parts
    release = {"release": old.number + 1, "supersedes": old.digest}
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    changed_files = {"replaced": sorted(parts), "removed": removed_parts}
    entry = {"release": old.number + 1, "why": reason, "time": now, **change, "files": changed_files}
    make_private_folder(staged.state)
    write_bytes(staged.journal, run.journal.read_bytes())
    with RecordLog(staged.journal) as log:
        log.append(REISSUE, release)
        RunJournal(log).record_file_digests({name: file["sha256"] for name, file in files.items()})
    body = {
        **{k: v for k, v in old.manifest.items() if k not in ("files", SIGNED_BY, ANCHOR_KEY)},
        **make_log_anchor(run),
        **manifest_changes,
        **release,
        "journal": compute_chain_head(staged.journal),
        "changes": [*old.manifest.get("changes", ()), entry],
    }
    archive = staged.get_release_folder(old.number)
    for source, target in ((run.manifest, archive.manifest), (run.signature, archive.signature)):
        if source.is_file():
            write_bytes(target, source.read_bytes())
    write_text(staged.card, render_dataset_card(body["run"], body))
    write_manifest(staged, body, {**files, **list_files(staged, [staged.card])})
    digest = write_success(staged)
    record = {"manifest": digest, "supersedes": old.digest, "why": reason, "release": old.number + 1, **event}
    # from here on the reissue will be carried out, also after an interruption
    write_json(run.reissue.plan, {"removed": removed_names, "index": index_counts, "event": record})
    _move_release(run)
    return old.number + 1


def _get_content_digest(entry: Mapping[str, Any]) -> Any:
    """Return a digest to compare two parts' content: encrypted bytes differ each time they are written."""
    return entry.get("content", entry["sha256"])


def _move_release(run: RunFolder) -> None:
    """Move the staged release into ``run`` from any interrupted state; each step can be repeated."""
    plan, staged = read_json(run.reissue.plan), RunFolder(run.reissue.files)
    if is_finished(staged):
        # until the last move the folder is not a finished run
        run.success.unlink(missing_ok=True)
        sync_to_disk(run.root)
        for name in plan["removed"]:
            remove_path(run.root / name)
        for path in [path for path in list_leaf_paths(staged.root) if path.is_file() and path != staged.success]:
            target = run.root / path.relative_to(staged.root)
            if not target.parent.is_dir():
                make_private_folder(run.releases)
                make_private_folder(target.parent)
            path.replace(target)
            sync_to_disk(target.parent)
        manifest = read_json(run.manifest)
        for name in (*manifest["changes"][-1]["files"]["replaced"], run.card.name):
            if file_sha256(run.root / name) != manifest["files"][name]["sha256"]:
                raise CheckFailed(f"{name} does not match the staged copy; restore the run from a backup")
        if plan["index"] is not None:
            seal_rewritten_entry(run, manifest, plan["index"])
        write_report(run)
        staged.success.replace(run.success)
        sync_to_disk(run.root)
    promote_entry(run, Config.from_manifest(read_json(run.manifest)["configuration"]))
    event = plan["event"]
    if not any(r.type == Event.REISSUED and r.body.get("manifest") == event["manifest"] for r in read_history(run)):
        append_event(run, Event.REISSUED, **event)
    remove_path(run.reissue.root)
