"""How long work tells how far it is, without knowing who listens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """Called with the name of the work, units done so far, and the total where it is known.

    ``unit`` may carry a remark behind a comma: "steps, ε ≤ 1.2".  Work that cannot say how far it is has
    no unit: :func:`waiting`.
    """

    def __call__(self, work: str, done: int, total: int | None, unit: str = "") -> None: ...


def silent(work: str, done: int, total: int | None, unit: str = "") -> None:
    """A listener that says nothing."""


@contextmanager
def waiting(progress: Progress, work: str) -> Iterator[None]:
    """Tell that ``work`` has begun and that it is done; how far a model is loaded, nobody knows."""
    progress(work, 0, None)
    yield
    progress(work, 1, 1)
