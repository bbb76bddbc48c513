"""One small corpus and its undisturbed run, for all tests that disturb one."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from redactory.pipelines.curation import finish
from tests.pipelines import faults


@pytest.fixture(scope="module")
def unsynced() -> Iterator[None]:
    """That files outlast a power cut is tested elsewhere; syncing takes most of the time of so small runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        yield


@pytest.fixture(scope="module")
def unreported() -> Iterator[None]:
    """Reports are views, and take most of the rest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "write_report", lambda _run: None)
        yield


@pytest.fixture(scope="module")
def few_hash_ranges() -> Iterator[None]:
    """Hash ranges of a plan are files and take time; how many there are is tested elsewhere."""
    importlib.import_module("redactory.pipelines.curation.curate")
    with pytest.MonkeyPatch.context() as patch:
        for module, constant in faults.range_constants():
            patch.setattr(module, constant, faults.FEW)
        yield


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
