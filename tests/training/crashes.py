"""Trainings that are killed by ``kill -9``, and a witness of every noise draw that outlives them."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.training import TrainSettings, train_model
from redactory.training.mechanisms.mechanism import PoissonGaussian

WITNESS_FILE = "witness.jsonl"


class NoiseWitness:
    """Writes down, on the disk, which sum each step's noise was drawn for; told to all processes alike.

    In a context it stands in the place of ``PoissonGaussian.noisy_mean``, which it calls.
    """

    def __init__(self, file: Path) -> None:
        self.file = file

    def __enter__(self) -> NoiseWitness:
        real, file = PoissonGaussian.compute_noisy_mean, self.file

        def record_and_call(mechanism: PoissonGaussian, total: Tensor, stream: RandomStream, step: int) -> Tensor:
            sums = hashlib.sha256(total.detach().cpu().numpy().tobytes()).hexdigest()
            key = hashlib.sha256(stream.random_bytes("noise", step, 16)).hexdigest()
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps([step, key, sums]) + "\n")
                lines.flush()
                os.fsync(lines.fileno())
            return real(mechanism, total, stream, step)

        PoissonGaussian.compute_noisy_mean = record_and_call  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        del PoissonGaussian.compute_noisy_mean  # inherited again: a patch of the base must be seen

    def read_sums(self) -> dict[tuple[int, str], set[str]]:
        """The sums that each (step, noise key) was drawn for, over all attempts."""
        sums_by_draw: dict[tuple[int, str], set[str]] = defaultdict(set)
        for line in self.file.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # the torn last line of a killed process
                step, key, sums = json.loads(line)
                sums_by_draw[step, key].add(sums)
        return sums_by_draw

    def count_sums(self) -> int:
        """How many sums were ever given noise, replays included."""
        return len(self.file.read_text(encoding="utf-8").splitlines())


def start_training(run: RunFolder, settings: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A process that trains, or goes on training; it says on its standard output when it is at work."""
    command = [sys.executable, "-m", "tests.training.crashes", str(run.root), json.dumps(settings)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def kill_after(run: RunFolder, settings: dict[str, Any], records: int, seconds: float) -> bool:
    """Kill a training so long after its ledger had so many records; whether it was still at work."""
    process = start_training(run, settings)
    ledger = run.get_model_folder("crt").ledger
    while process.poll() is None and _count_records(ledger) < records:
        time.sleep(0.001)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    at_work = process.poll() is None
    process.kill()
    process.wait()
    process.stdout.close()
    return at_work


def _count_records(ledger: Path) -> int:
    return ledger.read_bytes().count(b"\n") if ledger.exists() else 0


def train_to_end(run: RunFolder, settings: dict[str, Any]) -> None:
    """Train to the end."""
    process = start_training(run, settings)
    assert process.wait() == 0
    process.stdout.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    own = RunFolder(Path(sys.argv[1]))
    print("at work", flush=True)
    with NoiseWitness(own.root.parent / WITNESS_FILE):
        train_model(own, TrainSettings.model_validate(json.loads(sys.argv[2])))
