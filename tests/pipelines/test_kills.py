"""``kill -9`` at random moments, and of a worker; ``make soak`` does the first thirty times."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from redactory.detectors import Detection
from tests.pipelines.faults import KILLED, REFUSED, FewRanges, curated, outcome, said, start, state_of
from tests.pipelines.kills import is_alive, random_moments

SEED = 20260401


@dataclass
class OnceOnly(FewRanges):
    """Before its first text, what ``what`` says happens to the process; ``marker`` remembers that it has."""

    marker: Path
    what: str

    def __post_init__(self) -> None:
        super().__init__()

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        try:
            self.marker.touch(exist_ok=False)
        except FileExistsError:
            yield from super().detect(texts)
            return
        self.marker.write_text(str(os.getpid()), encoding="utf-8")
        if self.what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        while True:
            time.sleep(0.01)


@pytest.mark.parametrize("number", range(3))
def test_killed_at_random_and_resumed(rows: Path, undisturbed: dict[str, Any], tmp_path: Path, number: int) -> None:
    run = tmp_path / "run"
    begun = time.monotonic()
    assert curated(rows, tmp_path / "timed" / "run") == 0
    moments = random_moments(SEED + number, 0.02, time.monotonic() - begun)
    while not (run / "_SUCCESS").exists():
        process = start(rows, run)
        process.join(next(moments))
        process.kill()
        assert outcome(process) in (KILLED, 0)
    assert curated(rows, run) == 0
    assert state_of(run) == undisturbed


@pytest.mark.slow
def test_a_lost_worker_ends_the_run_and_loses_nothing(rows: Path, undisturbed: dict[str, Any], tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert curated(rows, run, workers=2, detector=OnceOnly(tmp_path / "died", "die")) == REFUSED
    assert "a worker process was lost" in said(run)
    assert "number" not in said(run)
    assert curated(rows, run, workers=1) == 0
    assert state_of(run) == undisturbed


@pytest.mark.slow
def test_workers_end_with_the_run_that_is_killed(rows: Path, tmp_path: Path) -> None:
    run, marker = tmp_path / "run", tmp_path / "worker"
    process = start(rows, run, workers=2, detector=OnceOnly(marker, "wait"))
    while not marker.exists() or not marker.read_text(encoding="utf-8"):
        assert process.is_alive()
        time.sleep(0.01)
    worker = int(marker.read_text(encoding="utf-8"))
    process.kill()
    assert outcome(process) == KILLED
    deadline = time.monotonic() + 60
    while is_alive(worker):
        assert time.monotonic() < deadline, "the worker outlives its run"
        time.sleep(0.02)
