"""Killed and resumed: the same bits, no noise for two sums, every step once, nothing changed on the way."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from transformers.optimization import Adafactor

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed
from redactory.foundation.records import RecordLog, read_records
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.training import loop, steps, train_model
from redactory.training.loop import Checkpoint, ScheduledStep, iterate_remaining_steps
from redactory.training.mechanisms.ledger import NOISY_STEP, StepLedger
from redactory.training.mechanisms.mechanism import PoissonGaussian
from tests.training.conftest import make_small_settings
from tests.training.crashes import NoiseWitness

SETTINGS: dict[str, Any] = {"public_share": 0.5, "public_pretraining_epochs": 1, "warm_up": 0.25}
STEPS = 8
MakeRun = Callable[[], RunFolder]


@pytest.fixture(autouse=True, scope="module")
def frequent_checkpoints() -> Iterator[None]:
    """A checkpoint every three steps."""
    with mock.patch.object(loop, "CHECKPOINT_STEPS", 3):
        yield


class Killed(BaseException):
    """Stands for ``kill -9`` within a process: nothing that cleans up catches it."""


@contextmanager
def killing(moment: int) -> Iterator[list[int]]:
    """Raise at the ``moment``-th of all calls that touch the disk or the weights, before or after it."""
    seen = [0]

    def around(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            for late in (False, True):
                if late:
                    result = real(*arguments, **named)
                seen[0] += 1
                if seen[0] == moment:
                    raise Killed
            return result

        return call

    with (
        mock.patch.object(RecordLog, "append", around(RecordLog.append)),
        mock.patch.object(steps.ScheduledOptimizer, "step", around(steps.ScheduledOptimizer.step)),
        mock.patch.object(loop.torch, "save", around(loop.torch.save)),
        mock.patch.object(Checkpoint, "write", around(Checkpoint.write)),
    ):
        yield seen


@pytest.fixture(scope="module")
def whole(curated: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, int]:
    """The weights of an undisturbed training, and how many moments it has."""
    run = RunFolder(tmp_path_factory.mktemp("whole") / "RUN")
    shutil.copytree(curated, run.root)
    with killing(-1) as seen:
        train_model(run, make_small_settings(**SETTINGS))
    return file_sha256(run.get_model_folder("crt").weights), seen[0]


@pytest.mark.parametrize("seed", range(3))
def test_a_killed_training_keeps_its_bits(
    seed: int, fresh_run: MakeRun, whole: tuple[str, int], tmp_path: Path
) -> None:
    run = fresh_run()
    weights, moments = whole
    source = random.Random(seed)
    with NoiseWitness(tmp_path / "witness") as witness:
        for _ in range(3):
            with killing(source.randrange(1, moments)), suppress(Killed):
                train_model(run, make_small_settings(**SETTINGS))
        if not run.get_model_folder("crt").success.exists():
            train_model(run, make_small_settings(**SETTINGS))
    assert file_sha256(run.get_model_folder("crt").weights) == weights
    _each_step_once_and_no_noise_twice(run, witness)


def _each_step_once_and_no_noise_twice(run: RunFolder, witness: NoiseWitness) -> None:
    steps = [r.body["step"] for r in read_records(run.get_model_folder("crt").ledger) if r.type == "noisy_step"]
    assert steps == list(range(STEPS))
    served = witness.read_sums()
    assert all(len(sums) == 1 for sums in served.values())
    assert sorted(step for step, _ in served) == list(range(STEPS))


@mock.patch.object(loop, "CHECKPOINT_STEPS", 1000)
def test_a_state_is_due_by_the_clock_unless_writing_takes_long() -> None:
    """Steps of 7 seconds, a state written in 5: then one is due every 100 seconds, whatever was every 30."""
    now, written = [0.0], list[int]()

    class Phase:
        def step(self, number: int) -> None:
            now[0] += 7.0

    class Slow:
        kept = None

        def restore(self) -> int:
            return 0

        def write(self, done: int) -> None:
            written.append(done)
            now[0] += 5.0

    schedule: Any = [ScheduledStep(Phase(), number, "", 1, 1, False, False) for number in range(40)]
    slow: Any = Slow()
    for _, step in iterate_remaining_steps(schedule, slow, 0, lambda *_: None, clock=lambda: now[0]):
        step.kind.step(step.number)
    assert written == [5, 20, 35]


def test_states_by_the_clock_lose_no_step_and_change_no_bit(
    fresh_run: MakeRun, whole: tuple[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a training that is slower than the clock: every step is kept, at whatever moment it ends."""
    run = fresh_run()
    settings = make_small_settings(**SETTINGS)
    monkeypatch.setattr(loop, "CHECKPOINT_STEPS", 10_000)
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(loop, "_WRITE_TIME_FACTOR", 0.0)
    with killing(67), pytest.raises(Killed):
        train_model(run, settings)
    kept = torch.load(run.state / "train-crt.checkpoint", weights_only=True)["steps"]
    assert kept % 3
    assert kept < STEPS * 2
    train_model(run, settings)
    assert file_sha256(run.get_model_folder("crt").weights) == whole[0]


def test_a_ledger_without_a_record_is_begun(fresh_run: MakeRun, whole: tuple[str, int]) -> None:
    """What an interrupt leaves that comes before the first record."""
    run = fresh_run()
    with mock.patch("redactory.training.train.begin_or_resume_stream", side_effect=Killed), pytest.raises(Killed):
        train_model(run, make_small_settings(**SETTINGS, device="auto"))
    assert not run.get_model_folder("crt").root.exists()
    assert run.list_model_names() == []
    train_model(run, make_small_settings(**SETTINGS, device="auto"))
    assert file_sha256(run.get_model_folder("crt").weights) == whole[0]


@settings(max_examples=25)
@example([(0, 0), (0, 1)])
@example([(0, 0), (2, 0)])
@example([(0, 0), (1, 1), (1, 0), (0, 0), (3, 1), (2, 1)])
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1)), max_size=14))
def test_a_ledger_takes_every_step_in_its_turn_and_once(asked: list[tuple[int, int]]) -> None:
    """Whatever is asked for, again or too early: it holds steps 0, 1, ... each with its first sum."""
    known: list[int] = []
    with tempfile.TemporaryDirectory() as folder, RecordLog(Path(folder) / "ledger") as log:
        for step, kind in asked:
            # a ledger that was opened again knows as much
            ledger = StepLedger(log, PoissonGaussian(0.25, 1.0, 1.0, 1.0), RandomStream.from_seed(5))
            if step == len(known) or (step < len(known) and known[step] == kind):
                ledger.authorize_noisy_step(step, torch.full((3,), float(kind)))
                known += [kind] if step == len(known) else []
                continue
            with pytest.raises(CheckFailed, match="cannot follow" if step > len(known) else "a sum that differs"):
                ledger.authorize_noisy_step(step, torch.full((3,), float(kind)))
        bodies = [record.body for record in log.records]
    assert [body["step"] for body in bodies] == list(range(len(known)))
    assert all(body["event"] == PoissonGaussian(0.25, 1.0, 1.0, 1.0).to_event() for body in bodies)
    assert len({body["sum"] for body in bodies}) == len(set(known))


def test_a_checkpoint_holds_no_key_and_serves_its_training_only(fresh_run: MakeRun) -> None:
    run = fresh_run()
    with killing(60), pytest.raises(Killed):
        train_model(run, make_small_settings(**SETTINGS, seed=None))
    file, key = run.state / "train-crt.checkpoint", (run.state / "train-crt.key").read_bytes()
    assert key not in file.read_bytes()
    assert key.hex() not in file.read_bytes().decode("latin-1")
    assert set(torch.load(file, weights_only=True)) == {"binding", "steps", "network", "memory"}
    old = file.read_bytes()
    shutil.rmtree(run.get_model_folder("crt").root)
    with killing(20), pytest.raises(Killed):
        train_model(run, make_small_settings(**SETTINGS, seed=None))
    file.write_bytes(old)
    train_model(run, make_small_settings(**SETTINGS, seed=None))
    assert [r.type for r in read_records(run.get_model_folder("crt").ledger)].count("noisy_step") == STEPS


def test_a_checkpoint_holds_numbers_of_an_optimizer_that_are_no_tensors(tmp_path: Path) -> None:
    """As transformers' ``Adafactor`` counts its steps."""

    def make(name: str) -> tuple[torch.nn.Linear, Adafactor, Checkpoint]:
        network = torch.nn.Linear(4, 4)
        optimizer = Adafactor(list(network.parameters()))
        return network, optimizer, Checkpoint(tmp_path / name, "id", network, [optimizer])

    def step(network: torch.nn.Linear, optimizer: Adafactor) -> None:
        for parameter in network.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()

    whole, optimizer, checkpoint = make("checkpoint")
    step(whole, optimizer)
    checkpoint.write(1)
    resumed, later, same = make("checkpoint")
    assert same.restore() == 1
    step(whole, optimizer)
    step(resumed, later)
    assert torch.equal(whole.weight, resumed.weight)


def test_a_ledger_that_lacks_any_step_of_its_checkpoint_is_refused(fresh_run: MakeRun) -> None:
    run, counted = fresh_run(), list[int]()
    ledger, write = run.get_model_folder("crt").ledger, Checkpoint.write

    def noted(own: Checkpoint, steps: int) -> None:
        write(own, steps)
        counted.append(sum(record.type == NOISY_STEP for record in read_records(ledger)))

    with mock.patch.object(Checkpoint, "write", noted), killing(80), pytest.raises(Killed):
        train_model(run, make_small_settings(**SETTINGS))
    whole = [(record.type, record.body) for record in read_records(ledger)]
    assert counted[-1] > 1
    for left in range(counted[-1], -1, -1):
        ledger.unlink()
        with RecordLog(ledger) as log:
            for kind, body in whole[: 1 + left]:
                log.append(kind, body)
        # with as many steps as the checkpoint counts, it goes on
        refused = pytest.raises(CheckFailed, match="are in the checkpoint")
        with refused if left < counted[-1] else pytest.raises(Killed), killing(1):
            train_model(run, make_small_settings(**SETTINGS))
