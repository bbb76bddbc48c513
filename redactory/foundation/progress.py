"""How long work tells how far it is, without knowing who listens."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with the name of the work, units done so far, and the total where it is known.

    ``unit`` may carry a remark behind a comma: "steps, ε ≤ 1.2".
    """

    def __call__(self, work: str, done: int, total: int | None, unit: str = "") -> None: ...


def silent(work: str, done: int, total: int | None, unit: str = "") -> None:
    """A listener that says nothing."""
