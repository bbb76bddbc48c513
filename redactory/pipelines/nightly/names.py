"""How a night's run is named, and the folder ``latest`` beside the runs."""

from __future__ import annotations

import datetime
import os
import secrets
from collections.abc import Collection

from redactory.foundation.files import TEMPORARY_PREFIX, remove_leftovers, sync
from redactory.pipelines.nightly.dates import Day
from redactory.pipelines.releases.log import latest_run, read_log
from redactory.redaction.job_folder import JobFolder


def run_name(job: JobFolder, taken: Collection[str], day: Day, now: datetime.datetime) -> str:
    """The date of the data, or the second at which the night began (UTC); ``-2`` and on where it is taken."""
    name = now.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H%M%SZ") if day is None else day.isoformat()
    number, free = 1, name
    while free in taken or os.path.lexists(job.root / free):
        number += 1
        free = f"{name}-{number}"
    return free


def latest_of(job: JobFolder) -> str | None:
    """Where ``latest`` leads, as it says itself; None where there is no such link."""
    return os.readlink(job.latest) if job.latest.is_symlink() else None


def point_latest(job: JobFolder) -> set[str]:
    """Have ``latest`` lead to the run that the log says, or to nothing; the runs between which it moved.

    A reader finds the old one or the new, never none.  The job's lock is the caller's to hold.
    """
    before = latest_of(job)
    remove_leftovers(job.root, job.latest.name)
    temporary = job.root / f"{TEMPORARY_PREFIX}{secrets.randbits(48)}-{job.latest.name}"
    # asked as late as can be: between this and the rename nothing takes time
    run = latest_run(read_log(job))
    if before == run:
        return set()
    if run is None:
        job.latest.unlink()
    else:
        temporary.symlink_to(run)
        temporary.replace(job.latest)
    sync(job.root)
    return {name for name in (before, run) if name is not None}
