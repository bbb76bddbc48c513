"""OpenLineage: what was read and written by which work, told at its start and at its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from redactory.foundation.errors import RedactoryError
from redactory.pipelines.tracking.settings import TrackSettings

Columns = tuple[tuple[str, str], ...]
"""Names and types."""


@dataclass(frozen=True)
class Data:
    """A table, or a model's folder: where it lies, its columns, and what is known of it; no text.

    ``namespace`` and ``name`` follow OpenLineage's rules; ``version`` is a sha256.
    """

    namespace: str
    name: str
    columns: Columns = ()
    rows: int | None = None
    bytes: int | None = None
    files: int | None = None
    version: str | None = None


@dataclass(frozen=True)
class Facts:
    """What a work read and wrote, and ``tags`` of it: hashes, figures, choices."""

    inputs: tuple[Data, ...] = ()
    outputs: tuple[Data, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)


class Work(Protocol):
    """A work that is told of."""

    @property
    def job(self) -> str:
        """Its name, the same each time it is done."""

    def before(self) -> Facts:
        """What is known when it begins."""

    def after(self) -> Facts:
        """What is known once it is finished."""


@contextmanager
def told(settings: TrackSettings, work: Work) -> Iterator[None]:
    """Tell of ``work``, done inside: START, and then COMPLETE, FAIL or ABORT; nothing without a file.

    An error of ours is told in its own words, which hold no text; of any other its kind alone.
    """
    if settings.lineage is None:
        yield
        return
    from redactory.pipelines.tracking.lineage_events import Events

    events = Events(settings.lineage, settings.namespace, work.job)
    events.start(work.before())
    try:
        yield
    except Exception as error:
        events.fail(work.before(), str(error) if isinstance(error, RedactoryError) else type(error).__name__)
        raise
    except BaseException:
        events.abort(work.before())
        raise
    events.complete(work.after())


def local(path: Path) -> tuple[str, str]:
    """Namespace and name of a file or folder of this machine."""
    return "file", str(path.absolute())
