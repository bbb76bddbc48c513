"""What OpenLineage is told of a work: the data that it read and wrote, before it and after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

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


def local(path: Path) -> tuple[str, str]:
    """Namespace and name of a file or folder of this machine."""
    return "file", str(path.absolute())
