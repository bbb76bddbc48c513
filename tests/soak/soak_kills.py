"""Thirty runs of the command line, each killed once at a random moment and resumed; run by ``make soak``."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.pipelines.faults import KINDS, Fault, curated, rows_file, state_of, survives
from tests.pipelines.kills import as_undisturbed, finish, killed_at, random_moments, stages_done, write_config
from tests.pipelines.test_synthesize import killed_and_asked_again, killed_at_the_histogram_and_asked_again, made
from tests.soak.conftest import KILLS

__all__ = ["made"]

SEED = 20260401
RUNS = 30
ROWS = 120
KILLING = ("torn", "before", "after")
"""The faults that are kills; the others are errors of the disk."""
FOUND: Counter[str] = Counter()


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of some partitions, two workers."""
    folder = tmp_path_factory.mktemp("corpus")
    rows = rows_file(folder / "rows.jsonl")
    more = ({"id": f"m{n}", "text": f"line {n % 7}\nMeet Anna at {n}"} for n in range(ROWS))
    with rows.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in more)
    return write_config(rows, folder / "redactory.yaml", partition={"documents": 20})


@pytest.fixture(scope="module")
def whole(config: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], float]:
    """What an undisturbed run ends as, and the seconds that it takes."""
    run = tmp_path_factory.mktemp("whole") / "run"
    seconds = finish(config, run)
    return state_of(run), seconds


@pytest.mark.parametrize("number", range(RUNS))
def test_killed_at_a_random_moment_and_resumed(
    config: Path, whole: tuple[dict[str, Any], float], tmp_path: Path, number: int
) -> None:
    undisturbed, seconds = whole
    # a moment at which the run is over already is no kill
    for attempt, moment in enumerate(random_moments(SEED + number, 0.2, seconds)):
        run = tmp_path / str(attempt) / "run"
        run.parent.mkdir()
        if killed_at(config, run, moment):
            break
    KILLS["curate"] += 1
    FOUND[stages_done(run)] += 1
    finish(config, run)
    as_undisturbed(run, undisturbed)


def test_killed_again_and_again(config: Path, whole: tuple[dict[str, Any], float], tmp_path: Path) -> None:
    undisturbed, seconds = whole
    run = tmp_path / "run"
    for moment in itertools.islice(random_moments(SEED, seconds / 3, seconds), 8):
        KILLS["curate"] += killed_at(config, run, moment)
    finish(config, run)
    as_undisturbed(run, undisturbed)


def test_where_the_kills_fell() -> None:
    print(f"\n{FOUND.total()} kills, the last thing done before: {dict(FOUND)}")
    assert FOUND.total() == RUNS
    assert len(FOUND) > 3


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_at_every_moment_one_after_the_other(
    rows: Path, moments: list[str], undisturbed: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    faults = [Fault(kind, step) for step in moments]
    assert survives(rows, tmp_path / "run", faults, undisturbed) == len(moments)
    KILLS["curate"] += len(moments) * (kind in KILLING)


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_at_every_moment_of_its_own_run(
    rows: Path, moments: list[str], undisturbed: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    for number, step in enumerate(moments):
        assert survives(rows, tmp_path / str(number) / "run", [Fault(kind, step)], undisturbed) == 1
        KILLS["curate"] += kind in KILLING


@pytest.mark.parametrize("size", range(100, 20_000, 400))
def test_a_disk_that_takes_so_many_bytes(rows: Path, undisturbed: dict[str, Any], tmp_path: Path, size: int) -> None:
    curated(rows, tmp_path / "run", largest_file=size)
    assert curated(rows, tmp_path / "run") == 0
    assert state_of(tmp_path / "run") == undisturbed


def test_synthesize_killed_at_each_moment(made: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    run = Path(shutil.copytree(made[0], tmp_path / "run"))
    kills = killed_and_asked_again(run, itertools.count())
    assert kills > 20
    KILLS["synthesize"] += kills + killed_at_the_histogram_and_asked_again(made[0], tmp_path, range(16))
