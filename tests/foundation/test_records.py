"""The append-only log: what a crash leaves is dropped, what somebody changed is found."""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.errors import CheckFailed, RunStateError
from redactory.foundation.records import GENESIS, Record, RecordLog, compute_chain_head, read_records

BODIES: list[dict[str, Any]] = [{"step": n, "note": "é" * n, "value": n / 7} for n in range(6)]


def write(path: Path, bodies: list[dict[str, Any]] = BODIES) -> list[Record]:
    with RecordLog(path) as log:
        return [log.append("step", body) for body in bodies]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The lines of a good log of six records."""
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    write(path)
    return path.read_bytes().splitlines(keepends=True)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    written = write(tmp_path / "deep" / "log.jsonl")
    assert read_records(tmp_path / "deep" / "log.jsonl") == written
    assert [(r.seq, r.type, r.body) for r in written] == [(n, "step", body) for n, body in enumerate(BODIES)]
    assert stat.S_IMODE((tmp_path / "deep" / "log.jsonl").stat().st_mode) == 0o600


def test_every_line_names_the_one_before(lines: list[bytes], tmp_path: Path) -> None:
    before = [GENESIS, *(hashlib.sha256(line.rstrip(b"\n")).hexdigest() for line in lines)]
    assert [json.loads(line)["prev"] for line in lines] == before[:-1]
    (tmp_path / "log").write_bytes(b"".join(lines))
    assert compute_chain_head(tmp_path / "log") == before[-1]


@pytest.mark.parametrize("left", [1, 17, -1])
def test_a_torn_last_line_is_dropped_and_written_over(lines: list[bytes], tmp_path: Path, left: int) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(lines[:-1]) + lines[-1][:left])
    assert len(read_records(path)) == 5
    with RecordLog(path) as log:
        assert [r.body for r in log.records] == BODIES[:-1]
        log.append("step", BODIES[-1])
    assert path.read_bytes() == b"".join(lines)


@settings(max_examples=300)
@given(data=st.data(), bit=st.integers(0, 7))
def test_a_flipped_bit_is_found(lines: list[bytes], data: st.DataObject, bit: int) -> None:
    """In the last line it is at least another head than the log had."""
    whole = bytearray(b"".join(lines))
    place = data.draw(st.integers(0, len(whole) - 1))
    whole[place] ^= 1 << bit
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        path.write_bytes(whole)
        with (
            pytest.raises(CheckFailed, match="breaks at line")
            if place < len(whole) - len(lines[-1])
            else suppress(CheckFailed)
        ):
            assert compute_chain_head(path) != hashlib.sha256(lines[-1].rstrip(b"\n")).hexdigest()


@pytest.mark.parametrize(
    "order",
    [
        [0, 1, 3, 4, 5],  # dropped from the middle
        [1, 2, 3, 4, 5],  # dropped from the front
        [0, 2, 1, 3, 4, 5],  # reordered
        [0, 1, 1, 2, 3, 4, 5],  # put in twice
        [0, 1, 2, 3, 5, 4],
        [5, 4, 3, 2, 1, 0],
    ],
)
def test_dropped_inserted_and_reordered_lines_are_found(lines: list[bytes], tmp_path: Path, order: list[int]) -> None:
    (tmp_path / "log").write_bytes(b"".join(lines[n] for n in order))
    with pytest.raises(CheckFailed, match="breaks at line"):
        read_records(tmp_path / "log")


def test_a_second_writer_is_refused_and_a_broken_log_is_not_kept_locked(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with RecordLog(path) as log:
        log.append("step", {})
        with pytest.raises(RunStateError, match="another process"):
            RecordLog(path)
        log.append("step", {})
    assert len(read_records(path)) == 2
    whole = path.read_bytes()
    path.write_bytes(b"no record\n")
    with pytest.raises(CheckFailed, match="breaks at line 1") as kept:
        RecordLog(path)
    path.write_bytes(whole)
    RecordLog(path).close()
    assert kept.value


def test_a_body_that_json_lacks_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    with RecordLog(tmp_path / "log") as log:
        log.append("step", {"epsilon": None})
        before = (tmp_path / "log").read_bytes()
        with pytest.raises(ValueError, match="JSON compliant"):
            log.append("step", {"epsilon": math.inf})
        assert (tmp_path / "log").read_bytes() == before
        log.append("step", {"epsilon": 1.0})
    assert [r.body["epsilon"] for r in read_records(tmp_path / "log")] == [None, 1.0]


def test_a_file_that_is_taken_away_before_it_is_locked_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever was refused may take its empty file away between another's opening and locking."""
    path, real, taken = tmp_path / "a" / "log.jsonl", fcntl.flock, []

    def late(file: int, how: int) -> None:
        if not taken:
            path.unlink()
            path.parent.rmdir()
            taken.append(path)
        real(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with RecordLog(path) as log:
        log.append("one", {})
        with pytest.raises(RunStateError, match="being written by another process"):
            RecordLog(path)
    assert [record.type for record in read_records(path)] == ["one"]
