"""Twenty trainings, each killed by ``kill -9`` at a random moment and resumed; run by ``make soak``."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from redactory.foundation.canonical import file_sha256
from redactory.foundation.records import read_records
from redactory.redaction.folder import RunFolder
from tests.training.conftest import make_small_settings, write_run
from tests.training.crashes import WITNESS_FILE, NoiseWitness, kill_after, train_to_end

SEED, KILLS = 20260401, 20
CHANGES: dict[str, Any] = {"epochs": 6, "sampling_rate": 0.02, "model": {"embedding_size": 16, "hidden_size": 24}}
SETTINGS = make_small_settings(**CHANGES).model_dump(mode="json", exclude_unset=True)
STEPS = 300
FOUND: Counter[str] = Counter()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights of an undisturbed training."""
    run = write_run(tmp_path_factory.mktemp("whole") / "RUN")
    train_to_end(run, SETTINGS)
    return file_sha256(run.get_model_folder("crt").weights)


def _moment(source: random.Random) -> tuple[int, float]:
    """After how many records of the ledger, and how long after that, to kill."""
    return source.randrange(STEPS + 1), source.uniform(0.0, 0.05)


@pytest.mark.parametrize("number", range(KILLS))
def test_killed_at_a_random_moment_and_resumed(number: int, whole: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "RUN")
    at_work = kill_after(run, SETTINGS, *_moment(random.Random(SEED + number)))
    FOUND[_where(run) if at_work else "not killed"] += 1
    train_to_end(run, SETTINGS)
    assert file_sha256(run.get_model_folder("crt").weights) == whole
    _sound(run, tmp_path)


def test_killed_again_and_again(whole: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "RUN")
    for records, seconds in sorted(_moment(random.Random(SEED + n)) for n in range(100, 106)):
        kill_after(run, SETTINGS, records, seconds)
    train_to_end(run, SETTINGS)
    assert file_sha256(run.get_model_folder("crt").weights) == whole
    _sound(run, tmp_path)


def test_where_the_kills_fell() -> None:
    print(f"\nkilled in: {dict(FOUND)}")
    assert sum(FOUND.values()) == KILLS
    assert FOUND["not killed"] < KILLS // 4


def _where(run: RunFolder) -> str:
    """The tenth of its noisy steps in which a training was killed."""
    ledger = run.get_model_folder("crt").ledger
    if not ledger.exists() or not ledger.read_bytes():
        return "nothing written"
    records = read_records(ledger)
    return f"{10 * sum(r.type == 'noisy_step' for r in records) // STEPS}0%"


def _sound(run: RunFolder, folder: Path) -> None:
    steps = [r.body["step"] for r in read_records(run.get_model_folder("crt").ledger) if r.type == "noisy_step"]
    assert steps == list(range(STEPS))
    witness = NoiseWitness(folder / WITNESS_FILE)
    assert all(len(sums) == 1 for sums in witness.read_sums().values())
    assert len(witness.read_sums()) == STEPS
    print(f"sums given noise, replays included: {witness.count_sums()} of {STEPS} steps")
