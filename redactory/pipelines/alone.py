"""Being the only one who writes in a run that is there already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from redactory.foundation.locks import only_one
from redactory.redaction import RunFolder
from redactory.redaction.job_folder import job_of


@contextmanager
def alone(run: RunFolder) -> Iterator[None]:
    """Nobody else writes in the run, nor in the job that it belongs to; ``RunStateError`` where one does."""
    job = job_of(run)
    with ExitStack() as held:
        if job is not None:
            held.enter_context(only_one(job.lock, str(job.root)))
        held.enter_context(only_one(run.lock, str(run.root)))
        yield
