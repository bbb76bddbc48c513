"""OpenLineage: what was read and written by which work, told at its start and at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from redactory.foundation.errors import RedactoryError
from redactory.pipelines.settings.track import TrackSettings
from redactory.pipelines.tracking.lineage_facts import Work


@contextmanager
def told(settings: TrackSettings, work: Work) -> Iterator[None]:
    """Tell of ``work``, done inside: START, and then COMPLETE, FAIL or ABORT; nothing without a file.

    An error of ours is told in its own words, which hold no text; of any other its kind alone.  Where the end
    of a work that failed cannot be told (the same disk is full), the work's own error is what is raised.
    """
    if settings.lineage is None:
        yield
        return
    # needs the extra
    from redactory.pipelines.tracking.lineage_events import Events

    events = Events(settings.lineage, settings.namespace, work.job)
    events.start(work.before())
    try:
        yield
    except Exception as error:
        message = str(error) if isinstance(error, RedactoryError) else type(error).__name__
        with suppress(RedactoryError):
            events.fail(work.before(), message)
        raise
    except BaseException:
        with suppress(RedactoryError):
            events.abort(work.before())
        raise
    events.complete(work.after())
