"""The preflight: refusals come before anything is written, and say what is missing."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

import redactory
from redactory.foundation.errors import RunStateError
from redactory.pipelines.curation import output_folder
from redactory.pipelines.curation.loading import load_config
from redactory.pipelines.curation.output_folder import DISK_FACTOR, check_disk_space
from tests.pipelines.support import NO_ENGINES, DigitDetector, read_files, write_rows

GB = 10**9
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A disk with 2 GB left; the places that were asked about."""
    asked: list[Path] = []

    def usage(place: Path) -> Usage:
        asked.append(place)
        return Usage(100 * GB, 98 * GB, 2 * GB)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return asked


def _config(folder: Path) -> Any:
    return load_config({"input": str(folder), "output": str(folder / "not" / "yet" / "run")})


def test_what_is_needed_is_asked_of_the_disk_that_will_hold_it(tmp_path: Path, small_disk: list[Path]) -> None:
    config = _config(tmp_path)
    check_disk_space(config, [("file:///rows.jsonl", GB // 10)])
    assert small_disk == [tmp_path]
    with pytest.raises(RunStateError, match=r"about 2\.4 GB at .*run plus a reserve of 0\.5 GB.*has 2\.0 GB"):
        check_disk_space(config, [("file:///rows.jsonl", GB // 10), ("file:///more.csv", GB // 10)])
    for end, times in ((".csv", 1), (".parquet", 4), (".CSV.GZ", 8)):
        with pytest.raises(RunStateError, match=f"about {24 * times}.0 GB"):
            check_disk_space(config, [(f"s3://b/rows{end}", 2 * GB)])
    output = Path(config.output)
    assert not output.parent.exists()
    # what an interrupted run has written is not asked for twice
    output.mkdir(parents=True)
    wanted = [("file:///rows.jsonl", (1_500_000_000 + 1_200) // DISK_FACTOR)]
    with pytest.raises(RunStateError):
        check_disk_space(config, wanted)
    (output / "part").write_bytes(b"x" * 1_200)
    check_disk_space(config, wanted)


def test_a_place_that_may_not_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.access
    closed = tmp_path / "closed"
    closed.mkdir()
    # whoever is root may write anywhere
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and real(path, mode))
    config = load_config({"input": str(tmp_path), "output": str(closed / "run")})
    with pytest.raises(RunStateError, match="closed is not writable"):
        check_disk_space(config, [])
    assert list(closed.iterdir()) == []


@pytest.mark.usefixtures("small_disk")
def test_curate_refuses_before_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"input": str(write_rows(tmp_path / "rows.jsonl", [{"text": "x"}])), "detect": NO_ENGINES}
    monkeypatch.setattr(output_folder, "RESERVED_BYTES", 3 * GB)
    with pytest.raises(RunStateError, match="make room"):
        redactory.curate(config, output=tmp_path / "run", detector=DigitDetector())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows.jsonl"]


def test_a_run_needs_less_than_the_default_says(tmp_path: Path) -> None:
    """The worst of small corpora: short sentences, each a point of its own, many of them masked."""
    texts = "".join(f"Hi there number {n}. It is me. Call 555{n:04d} now. " for n in range(8))
    rows = [{"id": f"d{n}", "user_id": f"u{n}", "text": f"{n} {texts}"} for n in range(250)]
    path = write_rows(tmp_path / "rows.jsonl", rows)
    config = load_config({"input": str(path), "detect": NO_ENGINES}, output=tmp_path / "run")
    peak = 0

    def weigh(*_: object) -> None:
        nonlocal peak
        peak = max(peak, sum(len(data) for data in read_files(tmp_path / "run").values()))

    redactory.curate(config, detector=DigitDetector(), progress=weigh)
    needed = path.stat().st_size * DISK_FACTOR
    assert 0.1 * needed < peak < needed
