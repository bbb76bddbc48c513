"""Being the only one who writes in a run that is there already."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import RunStateError
from redactory.foundation.locks import only_one
from redactory.pipelines.leaving import check_may_leave
from redactory.pipelines.releases.log import check_released
from redactory.redaction import RunFolder, read_manifest, require_regular
from redactory.redaction.job_folder import job_of

PATIENCE = 60.0
"""Seconds that what leaves waits for another export, or for a takedown at its end."""


@contextmanager
def alone(run: RunFolder) -> Iterator[None]:
    """Nobody else writes in the run, nor in the job that it belongs to; ``RunStateError`` where one does."""
    job = job_of(run)
    with ExitStack() as held:
        if job is not None:
            held.enter_context(only_one(job.lock, str(job.root)))
        held.enter_context(only_one(run.lock, str(run.root)))
        yield


@contextmanager
def leaving(run: RunFolder) -> Iterator[Callable[[], None]]:
    """Hold a finished run while it, or a part of it, leaves: nobody changes it, or decides about it.

    Gives what is to be asked again just before the last step, where a lock alone may not do (another machine,
    a folder that was put back): both raise ``RunStateError`` where nothing may leave, or not any more.
    """
    read_manifest(run)  # a place that holds no run gets no lock by being asked for
    with only_one(run.lock, str(run.root), PATIENCE):
        began = _may_leave(run)

        def still() -> None:
            if _may_leave(run) != began:
                raise RunStateError(f"{run.root} was changed while it was to leave: ask again")

        yield still


def _may_leave(run: RunFolder) -> str:
    """The sha256 of the manifest of a run that may leave."""
    read_manifest(run)
    require_regular(run)
    check_released(run)
    check_may_leave(run)
    if run.reissue.plan.is_file():
        raise RunStateError(
            f"{run.root} is to be written anew (a takedown or a purge), and that was interrupted: ask for it "
            "again first (redactory takedown, redactory purge)"
        )
    return file_sha256(run.manifest)
