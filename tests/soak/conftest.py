"""The long tests share what the short ones disturb, and count their kills, and how each ended, together."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.pipelines import faults
from tests.pipelines.conftest import moments, rows, undisturbed

__all__ = ["moments", "rows", "undisturbed"]

LEAST_KILLS = 300
KILLS: Counter[str] = Counter()
"""How often a process was killed, by what it was doing."""
FOUND: dict[str, list[str]] = {"stuck": [], "lost": [], "leaked": []}
"""What did not go on when it was asked for again; what was missing then; what left that was not to."""

faults._FORKED.set_forkserver_preload(
    [
        "tests.pipelines.faults",
        "tests.pipelines.nightly.test_decision_kills",
        "redactory.evaluation.report",
        "redactory.pipelines.operations.export",
        "redactory.pipelines.operations.erase",
        "pyarrow.parquet",
        "pandas",
        "datasketch",
        "fsspec.implementations.local",
    ]
)


def pytest_unconfigure(config: pytest.Config) -> None:
    """The last lines of all."""
    if KILLS:
        for what, count in sorted(KILLS.items()):
            print(f"{count:5} kills of {what}")
        print(f"{KILLS.total()} kills: " + ", ".join(f"{len(found)} {how}" for how, found in FOUND.items()))
