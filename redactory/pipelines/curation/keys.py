"""The data keys of runs: rewrap them with another key (rotation), or destroy them (shredding)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError
from redactory.foundation.files import TEMPORARY_PREFIX, open_no_follow, read_json, write_json
from redactory.foundation.keys import read_encryption_key
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.records import Record, read_records
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.output_folder import lock_folders
from redactory.pipelines.curation.release_log import Event, append_event, get_log_path, read_history
from redactory.redaction import RunFolder
from redactory.redaction.encryption import KeyService, LocalKey, load_key_service, read_key_id, rewrap_key, shred_file
from redactory.redaction.folder import find_containing_job, find_runs


def shred_key(run: str | Path, *, by: str) -> dict[str, Any]:
    """Destroy the data key of an encrypted run, and the root keys of its unfinished trainings.

    ``by`` is the responsible person: the log records the name before anything is destroyed. Returns {run, time, by,
    destroyed, left}: ``left`` names unencrypted private files, which are not touched. Repeated, it destroys what a
    crash or a restored backup left. ``ConfigurationError`` without a name; ``RunStateError`` if the run is not
    encrypted, or if its key is missing without a record.
    """
    folder, name = RunFolder(Path(run)), by.strip()
    if not name:
        raise ConfigurationError("--by: give the name of the responsible person")
    if not folder.state.is_dir():
        raise RunStateError(f"{folder.root} is not a run folder")
    return run_with_sealed_traceback(folder.state, _shred_run_key, folder, name)


def find_shred_record(run: RunFolder) -> Record | None:
    """Return the record that the data key of ``run`` was destroyed; None if the log has none.

    It is found by the id with which the key was wrapped: a renamed run keeps its id, and a run that took over its name
    has another one. ``CheckFailed`` if the log's chain is broken.
    """
    log, key_id, name = get_log_path(run), _find_key_id(run), run.root.resolve().name
    records = [r for r in read_records(log) if r.type == Event.SHREDDED] if log.is_file() else []
    # an unfinished run has no manifest with the id
    matches = [r for r in records if (r.body["run"] == name if key_id is None else r.body["run_id"] == key_id)]
    return matches[-1] if matches else None


def describe_shredding(record: Record) -> str:
    """Say when and by whom the key was destroyed."""
    return f"was shredded on {record.body['time']} by {record.body['by']}"


def require_not_shredded(run: RunFolder) -> None:
    """Raise ``RunStateError``, with time and person, if the private part was made unreadable."""
    if not run.data_key.is_file() and (record := find_shred_record(run)) is not None:
        raise RunStateError(
            f"the private part of {run.root.name} {describe_shredding(record)} and is unreadable for everybody"
        )


def _find_key_id(run: RunFolder) -> str | None:
    """Return the id with which the run's data key is, or was, wrapped."""
    if run.manifest.is_file() and (encryption := read_json(run.manifest)["encryption"]):
        return str(encryption["run_id"])
    try:
        return read_key_id(run)
    except CheckFailed:
        return None


def _shred_run_key(run: RunFolder, by: str) -> dict[str, Any]:
    with lock_folders(find_containing_job(run), run):
        keys = [run.data_key, *run.state.glob(f"{TEMPORARY_PREFIX}*-{run.data_key.name}"), *run.list_root_keys()]
        key_files = [path for path in keys if os.path.lexists(path)]
        for path in key_files:
            # fail before the record is written: a link could lead to somebody else's file
            os.close(open_no_follow(path, os.O_RDWR))
        # record first, then destroy: a key that is missing without a record counts as lost
        key_id, earlier_record = _find_key_id(run), find_shred_record(run)
        if run.data_key.is_file() and key_id is not None:
            append_event(run, Event.SHREDDED, by=by, run_id=key_id)
        elif earlier_record is None and run.data_key.is_file():
            # a key file overwritten by an interrupted shredding has a record
            raise CheckFailed(f"state/{run.data_key.name} of {run.root.name} is not the key file of a run")
        elif earlier_record is None:
            name = run.root.name
            raise RunStateError(
                f"the data key of {name} is already gone, but the log does not record that it was shredded"
                if (run.manifest.is_file() and read_json(run.manifest)["encrypted"])
                else (f"{name} is not encrypted, so it has no key: redactory purge, or remove the folder")
            )
        for path in key_files:
            shred_file(path)
    record = find_shred_record(run)
    assert record is not None
    return {
        "run": str(run.root),
        "time": record.body["time"],
        "by": record.body["by"],
        "destroyed": [path.relative_to(run.root).as_posix() for path in key_files],
        "left": [p.relative_to(run.root).as_posix() for p in (run.samples, run.exported) if p.exists()],
    }


# Key rotation: another key or service wraps the data keys of runs; no part is rewritten.


def rotate_key(
    *places: str | Path,
    to_key_file: str | Path | None = None,
    to_service: str | None = None,
    progress: Progress = ignore_progress,
) -> dict[str, Any]:
    """Rewrap the data keys of runs with another key; ``places`` are run folders, or folders of runs.

    The configured key unwraps them; the new key is in ``to_key_file``, or is the service ``to_service``
    (``package.module:function``). Returns the paths of the runs by outcome: ``rotated``, ``already`` (wrapped by the
    new key before), ``open`` (not encrypted), ``shredded`` and ``failed``, a list of {run, error}; ``ok`` is whether
    none failed. Repeating continues. ``ConfigurationError`` for an invalid key, ``RunStateError`` for a place without
    runs.
    """
    if (to_key_file is None) == (to_service is None):
        raise ConfigurationError("give the new key with one of --to-key-file and --to-service")
    if to_service is not None:
        new_key = load_key_service(to_service, "--to-service")
    else:
        new_key = LocalKey(read_encryption_key(Path(str(to_key_file))))
    runs = [run for place in places for run in find_runs(place)]
    results: dict[str, list[Any]] = {name: [] for name in ("rotated", "already", "open", "shredded", "failed")}
    for number, run in enumerate(runs, 1):
        try:
            results[run_with_sealed_traceback(run.state, _rotate_run_key, run, new_key)].append(str(run.root))
        except RedactoryError as error:
            results["failed"].append({"run": str(run.root), "error": str(error)})
        progress("rotate", number, len(runs), "runs")
    return {"service": new_key.name, **results, "ok": not results["failed"]}


def _rotate_run_key(run: RunFolder, new_key: KeyService) -> str:
    """Rewrap one key; return the outcome."""
    with lock_folders(find_containing_job(run), run):
        if run.data_key.is_file():
            record = rewrap_key(run, new_key)
            if record is None:
                return "already"
            details = {name: record[key] for name, key in (("service", "wrapped_by"), ("before", "before"))}
            rotations = [r.body for r in read_history(run) if r.type == Event.ROTATED]
            # record first: after a crash in between, the repeated call finds it
            if not rotations or not details.items() <= rotations[-1].items():
                append_event(run, Event.ROTATED, **details)
            write_json(run.data_key, record)
            return "rotated"
        if find_shred_record(run) is not None:
            return "shredded"
        if run.manifest.is_file() and read_json(run.manifest)["encrypted"]:
            raise CheckFailed(f"{run.root.name} is encrypted, but its state/{run.data_key.name} is missing")
        return "open"
