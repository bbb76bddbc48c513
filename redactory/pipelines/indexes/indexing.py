"""The index as a run goes by it: opened at its begin, written before ``_SUCCESS``, counted after.

A run pins at its begin, in its journal, which entries it sees; so a resumed run sees the same ones.  Its
own entry waits in ``pending/``, sealed, when ``_SUCCESS`` is written, and is moved to ``runs/`` after it: a
crash in between leaves an entry whose run is finished, and whoever opens the index next moves it.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import secrets
from collections import Counter
from pathlib import Path
from typing import Any

from redactory.dedup.index_folder import Entry, IndexFolder
from redactory.foundation.canonical import file_sha256, hash_of
from redactory.foundation.errors import CheckFailed, RedactoryError, RunStateError
from redactory.foundation.files import make_private_folder, remove_leftovers, write_json
from redactory.foundation.records import chain_head, read_records
from redactory.pipelines.config import Config
from redactory.pipelines.indexes.binding import parameters_of
from redactory.pipelines.journal import INDEX, Journal
from redactory.pipelines.stages.earlier import BY_DIGEST, gone, opened, sides_in
from redactory.pipelines.stages.near import NUMBERS
from redactory.pipelines.stages.remember import capacity_of
from redactory.pipelines.work import Job, OpenIndex
from redactory.redaction import RunFolder, is_finished
from redactory.redaction.releases import releases


def begin(job: Job, journal: Journal) -> Job:
    """``job`` with its index open: the earlier runs that it goes by are pinned in the journal, and whole.

    ``RunStateError`` where the index is another one than at the first begin, or an entry is gone;
    ``CheckFailed`` where an entry is not what was written.
    """
    settings = job.config.dedup.index
    if settings is None:
        return job
    folder, parameters = IndexFolder(Path(settings.path)), parameters_of(job.config, job.key)
    if journal.pinned is not None:
        _check_same(folder, folder.read()["id"] if folder.exists() else None, journal.pinned["id"])
    with folder.alone():
        head = folder.open(parameters)
        promote_finished(folder)
        if journal.pinned is None:
            runs = [{"name": e.name, "journal": e.body["journal"]} for e in folder.entries()]
            journal.pin({"id": head["id"], "token": secrets.token_hex(8), "runs": runs})
        pins: dict[str, Any] = journal.pinned or {}
        _begin_draft(folder, job.run, pins["token"])
        entries = _pinned(folder, pins["runs"])
    for entry in entries:
        entry.check()
    index = OpenIndex(folder, head["id"], pins["token"], hash_of(parameters["policies"]), entries)
    for below in (index.draft, *(path for path in index.draft.rglob("*") if path.is_dir())):
        remove_leftovers(below)
    return dataclasses.replace(job, index=index)


def facts(job: Job, counts: Counter[str]) -> dict[str, Any]:
    """What the manifest says of the index: which one, which runs, and how many points repeat one of them."""
    index = opened(job)
    return {
        "id": index.id,
        "runs": [entry.name for entry in index.runs],
        "duplicate_earlier": {side: counts[f"duplicate_earlier/{side}"] for side in NUMBERS},
    }


def seal(job: Job, partitions: int, counts: Counter[str]) -> None:
    """Write ``entry.json``, the last file of this run's entry: from now on only ``_SUCCESS`` is missing."""
    if job.index is None or _counted(job.index.folder, job.index.token):
        return
    draft = job.index.draft
    make_private_folder(draft)
    data = sorted(p for p in draft.rglob("*") if p.is_file() and p.suffix != ".json")
    files = {p.relative_to(draft).as_posix(): file_sha256(p) for p in data}
    digests = [side for side in NUMBERS if job.config.dedup.mode_of(side) in BY_DIGEST]
    if any(f"{side}.bloom" not in files for side in digests):
        raise CheckFailed(f"{draft} lacks what this run wrote in it: start a new run in another folder")
    write_json(
        draft / "entry.json",
        {
            "index": job.index.id,
            "token": job.index.token,
            "run": re.sub(r"[^A-Za-z0-9._-]", "_", job.run.root.resolve().name)[:64],
            "path": str(job.run.root.resolve()),
            "journal": chain_head(job.run.journal),
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "counts": {side: counts[f"index/{side}"] for side in NUMBERS},
            "filters": {side: capacity_of(job, side, counts) for side in sides_in(job, BY_DIGEST)},
            "partitions": partitions,
            "files": files,
        },
    )


def count(job: Job) -> None:
    """Let the entry of a run that has ``_SUCCESS`` count, and remove what is not to be kept any longer."""
    settings = job.config.dedup.index
    if job.index is None or settings is None:
        return
    with job.index.folder.alone():
        promote_finished(job.index.folder)
        now = datetime.datetime.now(datetime.UTC)
        job.index.folder.retain(settings.keep_runs, settings.keep_days, now)


def count_late(run: RunFolder, config: Config) -> None:
    """As :func:`count`, for a run that was killed between ``_SUCCESS`` and that; wherever it lies now."""
    settings = config.dedup.index
    if settings is None or not IndexFolder(Path(settings.path)).exists():
        return
    pins = [record.body for record in read_records(run.journal) if record.type == INDEX]
    index, tokens = IndexFolder(Path(settings.path)), {pin["token"] for pin in pins}
    # the lock of a process that was killed while it held it is taken away as well
    if not any(entry.folder.name in tokens for entry in index.pending()) and not index.lock.exists():
        return
    with index.alone():
        for entry in index.pending():
            if entry.folder.name in tokens and is_of(run, entry):
                index.promote(entry)
        index.retain(settings.keep_runs, settings.keep_days, datetime.datetime.now(datetime.UTC))


def promote_finished(index: IndexFolder) -> None:
    """Let every pending entry count whose run is finished; the others stay as they are."""
    done = [entry for entry in index.pending() if is_of(RunFolder(Path(entry.body["path"])), entry)]
    for entry in sorted(done, key=lambda entry: (entry.body["created"], entry.folder.name)):
        index.promote(entry)


def is_of(run: RunFolder, entry: Entry) -> bool:
    """Whether ``run`` is finished, and the one that wrote ``entry``."""
    try:
        # the first release is the one that the entry was sealed with
        return is_finished(run) and releases(run)[0].manifest["journal"] == entry.body["journal"]
    except (RedactoryError, OSError, ValueError, KeyError):
        return False


def _check_same(folder: IndexFolder, now: str | None, before: str) -> None:
    if now != before:
        raise RunStateError(
            f"this run was begun with the index {before}, and {folder.root} holds {now or 'none'}: give the "
            "folder where the former lies (dedup.index.path), or start a new run in another folder"
        )


def _pinned(folder: IndexFolder, runs: list[dict[str, str]]) -> tuple[Entry, ...]:
    """The entries that were pinned; a name that serves another run now is gone, too."""
    there = {(entry.name, entry.body["journal"]): entry for entry in folder.entries()}
    for run in runs:
        if (run["name"], run["journal"]) not in there:
            raise gone(folder, f"the entry {run['name']}")
    return tuple(there[run["name"], run["journal"]] for run in runs)


def _counted(index: IndexFolder, token: str) -> bool:
    return any(entry.body["token"] == token for entry in index.entries())


def _begin_draft(index: IndexFolder, run: RunFolder, token: str) -> None:
    """Make room for this run's entry, and remove what a former run in this very folder left of its own."""
    own = run.root.resolve()
    for draft, path in index.drafts().items():
        if path == own and draft.name != token:
            index.remove(draft)
    index.begin_draft(token, own)
