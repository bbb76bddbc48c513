"""How a night's run is named, and the folder ``latest`` beside the runs."""

from __future__ import annotations

import datetime
import os
import secrets
from collections.abc import Collection

from redactory.foundation.files import TEMPORARY_PREFIX, remove_leftovers, sync
from redactory.pipelines.nightly.dates import Day
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


def point_latest(job: JobFolder, run: str | None) -> None:
    """Have ``latest`` lead to ``run``, or to nothing; a reader finds the old one or the new, never none."""
    if latest_of(job) == run:
        return
    if run is None:
        job.latest.unlink()
    else:
        remove_leftovers(job.root, job.latest.name)
        temporary = job.root / f"{TEMPORARY_PREFIX}{secrets.randbits(48)}-{job.latest.name}"
        temporary.symlink_to(run)
        temporary.replace(job.latest)
    sync(job.root)
