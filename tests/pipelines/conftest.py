"""One small corpus and its undisturbed run, for all tests that disturb one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pipelines import faults


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The input of the runs that are disturbed."""
    return faults.rows_file(tmp_path_factory.mktemp("rows") / "rows.jsonl")


@pytest.fixture(scope="session")
def moments(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Every moment at which a run commits something, in order."""
    return faults.moments(rows, tmp_path_factory.mktemp("moments") / "run")


@pytest.fixture(scope="session")
def undisturbed(rows: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a run that nothing happens to ends as."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    assert faults.curated(rows, run) == 0
    return faults.state_of(run)
