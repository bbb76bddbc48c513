"""Where the release log ended when a run was sealed, so that it cannot be cut off unnoticed.

A chain of records shows what was changed in it or put between, not that its end is gone.  Each manifest
that is sealed names the log's last hash of that moment: what was entered before then is held by it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redactory.foundation.errors import CheckFailed, RedactoryError, RunStateError
from redactory.foundation.records import chain_heads
from redactory.foundation.wording import some
from redactory.pipelines.releases.log import log_of
from redactory.redaction import RunFolder, is_finished, read_manifest
from redactory.redaction.job_folder import JobFolder, job_of

ANCHOR = "release_log"
"""The manifest's key for :func:`anchor_of`."""
MOVED = "no log names this run; was it moved or copied?"


def anchor_of(run: RunFolder) -> dict[str, dict[str, Any]]:
    """What a manifest of ``run`` that is sealed now says of its log, below its key; nothing without a log.

    ``of`` is whose log it is, ``job`` or ``run``; ``records`` how many it holds, ``head`` its last hash.
    """
    path = log_of(run)
    heads = chain_heads(path) if path.is_file() else []
    if not heads:
        return {}
    of = "run" if path == run.release_log else "job"
    return {ANCHOR: {"of": of, "records": len(heads), "head": heads[-1]}}


def cut_off(run: RunFolder, manifest: dict[str, Any]) -> str | None:
    """What of the log is gone that the manifest knew; None where nothing is.

    ``LookupError`` where the run was moved out of the job that kept the log.
    """
    said = manifest.get(ANCHOR)
    if said is None:
        return None
    job = job_of(run)
    if said["of"] == "job" and job is None:
        raise LookupError(MOVED)
    path = run.release_log if said["of"] == "run" or job is None else job.log
    return _cut_off(path, said)


def check_whole(job: JobFolder) -> None:
    """``CheckFailed`` where a run of ``job`` knew records that the log has no more."""
    for place in sorted(job.root.iterdir()):
        run = RunFolder(place)
        if place.is_symlink() or not is_finished(run):
            continue
        try:
            said = read_manifest(run).get(ANCHOR)
        except RedactoryError:
            continue  # not of this job, or told of by verify
        if said is not None and said["of"] == "job" and (lost := _cut_off(job.log, said)):
            raise CheckFailed(f"{job.log}: {lost}; {place.name} knew them: bring the log back from a backup")


def check_whole_of_run(run: RunFolder) -> None:
    """:func:`check_whole` for a finished run that belongs to no job.

    ``RunStateError`` where its log stayed behind in a job, and none was begun since.
    """
    try:
        lost = cut_off(run, read_manifest(run))
    except LookupError as error:
        if run.release_log.is_file():
            return
        raise RunStateError(
            f"{run.root}: {error} Its records are in the log of the job that it was made in"
        ) from None
    if lost:
        raise CheckFailed(f"{run.release_log}: {lost}; bring the log back from a backup")


def _cut_off(path: Path, said: dict[str, Any]) -> str | None:
    heads = chain_heads(path) if path.is_file() else []
    due = int(said["records"])
    if heads[due - 1 : due] == [said["head"]]:
        return None
    if len(heads) < due:
        return f"the log holds {len(heads)} of the {some(due, 'record')} that it had: it was shortened"
    return f"the log's first {due} records are not those that it had: it was written anew"
