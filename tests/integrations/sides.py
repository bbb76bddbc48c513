"""What the two sides of a run hold, as our own reader says: other libraries must say the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redactory
from redactory.redaction import RunFolder, read_batches
from tests.pipelines.leaving import Numbers, configuration
from tests.pipelines.support import write_rows

SIDES = {"public": ["example_id", "text"], "private": ["example_id", "user", "text", "reasons"]}


def run_of(folder: Path) -> Path:
    """A finished run of 23 documents in ``folder/run``: a public and a private point each, in two parts."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "id": f"document-{n}",
            "user_id": f"user-{n % 5}",
            "text": f"come {'very ' * n}soon 😀\ncall {'very ' * n}soon, at 55{n:03d}",
        }
        for n in range(23)
    ]
    source = write_rows(folder / "letters.jsonl", rows)
    redactory.curate(configuration(source), output=folder / "run", detector=Numbers())
    return folder / "run"


def rows_of(run: Path, side: str) -> list[dict[str, Any]]:
    """The rows of ``public`` or ``private``, in the order of the shards."""
    return [row for batch in read_batches(RunFolder(run).root / side) for row in batch.to_pylist()]


def by_id(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same rows in the order of their ids."""
    return sorted(rows, key=lambda row: row["example_id"])
