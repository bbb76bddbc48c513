"""Several processes: the weights, the ledger and the guarantee of one, to the bit, whatever becomes of it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor, nn

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.training import parallel, train, train_model
from redactory.training import parallel as leading
from redactory.training.clipping import clipped_sum
from redactory.training.mechanism import PoissonGaussian
from redactory.training.models.recurrent import AwdLstm
from redactory.training.models.settings import AwdLstmSettings
from redactory.training.parallel import Task, octets_of
from redactory.training.pieces import Piece, PieceMap, alone, summed
from redactory.training.points import EncodedPoints
from redactory.training.settings import settings_json
from redactory.training.trainers import trainer_of
from redactory.training.uedp.local_update import packed
from tests.training.conftest import small
from tests.training.dealt_work import QUOTED, failing

CRT: dict[str, Any] = {
    "trainer": "crt",
    "interleaving": "mixed",
    "physical_tokens": 64,
    "checkpoint_steps": 3,
}
GPT2: dict[str, Any] = {
    "trainer": "dpsgd",
    "physical_tokens": 64,
    "epochs": 1,
    "max_tokens": 40,
    "model": {"kind": "gpt2", "layers": 1, "width": 16, "heads": 2, "context": 64},
}
STREAM = RandomStream.from_seed(11)
Made = dict[str, str]


class Stopped(BaseException):
    """Stands for a leader that was interrupted."""


@pytest.fixture(scope="module")
def copy(curated: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], RunFolder]:
    """Makes own copies of the finished run."""

    def make() -> RunFolder:
        run = RunFolder(tmp_path_factory.mktemp("parallel") / "RUN")
        shutil.copytree(curated, run.root)
        return run

    return make


def made(run: RunFolder, changes: dict[str, Any], progress: Any = None, **more: Any) -> Made:
    """What a training leaves: the digests of its weights, ledger and guarantee."""
    given = small(**changes, **more)
    train_model(run, given, *(() if progress is None else (progress,)))
    folder = run.model(given.model_name)
    assert not list(run.state.iterdir())
    return {path.name: file_sha256(path) for path in (folder.weights, folder.ledger, folder.guarantee)}


@pytest.fixture(scope="module")
def by_one(copy: Callable[[], RunFolder]) -> Made:
    """The LSTM's training in this process."""
    return made(copy(), CRT)


# ------------------------------------------------------------------------------------------ trainings


def test_two_processes_train_the_lstm_of_one(copy: Callable[[], RunFolder], by_one: Made) -> None:
    run, seen = copy(), []

    def look(work: str, done: int, total: int | None, unit: str = "") -> None:
        if not unit:
            return
        meeting = run.state / "train-crt.processes"
        seen.append((stat.S_IMODE(meeting.stat().st_mode), len(multiprocessing.active_children())))

    assert made(run, CRT, look, workers=2) == by_one
    assert {mode for mode, _ in seen} == {0o600}
    assert all(children for _, children in seen)


def test_two_processes_train_the_gpt2_of_one(copy: Callable[[], RunFolder]) -> None:
    assert made(copy(), GPT2, workers=2) == made(copy(), GPT2)


def test_a_killed_process_is_named_and_one_process_goes_on(
    copy: Callable[[], RunFolder], by_one: Made
) -> None:
    run, steps = copy(), 0
    before = multiprocessing.active_children()

    def kill(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 5:
            for child in set(multiprocessing.active_children()) - set(before):
                assert child.pid is not None
                os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(CheckFailed, match=r"process 2 of 2 was ended by signal 9 .* any train\.workers"):
        made(run, CRT, kill, workers=2)
    assert set(multiprocessing.active_children()) <= set(before)
    assert (run.state / "train-crt.checkpoint").exists()
    assert made(run, CRT) == by_one


def test_two_processes_go_on_where_one_was_stopped(copy: Callable[[], RunFolder], by_one: Made) -> None:
    run, steps = copy(), 0

    def stop(work: str, done: int, total: int | None, unit: str = "") -> None:
        nonlocal steps
        steps += bool(unit)
        if steps == 5:
            raise Stopped

    with pytest.raises(Stopped):
        made(run, CRT, stop)
    (run.state / "train-crt.processes").write_bytes(b"of a training that was killed")
    assert made(run, CRT, workers=2) == by_one


def test_processes_are_started_where_there_is_something_to_share_out() -> None:
    def started(**changes: Any) -> int:
        settings = small(workers=3, **changes)
        return settings.workers if trainer_of(settings).in_pieces(settings) else 1

    assert started(trainer="crt") == started(trainer="dpsgd") == 3
    assert started(trainer="sgd") == 1
    with pytest.raises(ValidationError, match="device cpu"):
        small(workers=2, device="cuda")


def test_the_ledger_does_not_know_the_processes() -> None:
    assert "workers" not in settings_json(small(workers=2))
    assert settings_json(small(workers=2)) == settings_json(small())


# ------------------------------------------------------------------------------------------- sabotage


@contextmanager
def backwards(*_: Any) -> Iterator[PieceMap]:
    def map_(network: nn.Module, pieces: Sequence[Piece], /) -> Iterator[Tensor]:
        yield from reversed([*alone(network, pieces)])

    yield map_


@contextmanager
def added_elsewhere(*_: Any) -> Iterator[PieceMap]:
    """As an all-reduce would: each process adds its own pieces first."""

    def map_(network: nn.Module, pieces: Sequence[Piece], /) -> Iterator[Tensor]:
        for rank in range(min(2, len(pieces))):
            yield summed(network, pieces[rank::2], alone)

    yield map_


@pytest.mark.parametrize("sum_", [backwards, added_elsewhere])
def test_another_order_of_the_sum_is_seen(
    sum_: Any, copy: Callable[[], RunFolder], by_one: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "piece_map", sum_)
    found = made(copy(), CRT)
    assert found["ledger.jsonl"] != by_one["ledger.jsonl"]
    assert found["model.safetensors"] != by_one["model.safetensors"]


def test_noise_of_each_process_is_seen(
    copy: Callable[[], RunFolder], by_one: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PoissonGaussian.noisy_mean

    def twice(own: PoissonGaussian, total: Tensor, stream: RandomStream, step: int) -> Tensor:
        return real(own, total, stream, step) + real(own, torch.zeros_like(total), stream, step)

    monkeypatch.setattr(PoissonGaussian, "noisy_mean", twice)
    assert made(copy(), CRT)["model.safetensors"] != by_one["model.safetensors"]


# --------------------------------------------------------------------------------------- single sums


def network_of(seed: int) -> AwdLstm:
    own = AwdLstmSettings(kind="awd-lstm", embedding_size=6, hidden_size=8, layers=2)
    network = AwdLstm(30, own)
    network.initialise(RandomStream.from_seed(seed))
    return network.train()


def points_of(lengths: Sequence[int]) -> EncodedPoints:
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    ids = np.random.default_rng(3).integers(3, 30, int(offsets[-1])).astype(np.int32)
    return EncodedPoints(ids, offsets, begin_id=0, pad_id=1)


POINTS = points_of([*range(1, 14), *range(1, 14)])


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PieceMap]:
    """Three processes that live through the tests of single sums; they were started with other parameters."""
    with parallel.piece_map(3, network_of(0), 1, tmp_path_factory.mktemp("three") / "meeting") as every:
        yield every


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.sets(st.integers(0, len(POINTS) - 1)),
    tokens=st.sampled_from([1, 10, 30, 10_000]),
    step=st.integers(0, 9),
)
def test_a_sum_has_the_bits_of_one_process(three: PieceMap, rows: set[int], tokens: int, step: int) -> None:
    network = network_of(step)
    network.begin_step(STREAM, "noisy step", step)
    drawn = np.asarray(sorted(rows), np.int64)
    both = [clipped_sum(network, POINTS, drawn, 0.3, tokens, every) for every in (alone, three)]
    assert torch.equal(*both)


def test_dropout_of_other_seeds_is_seen(three: PieceMap, monkeypatch: pytest.MonkeyPatch) -> None:
    network, rows = network_of(1), np.arange(len(POINTS))
    network.begin_step(STREAM, "noisy step", 1)
    right = clipped_sum(network, POINTS, rows, 0.3, 10, three)
    own = network_of(1)
    own.begin_step(STREAM, "noisy step", 2)
    monkeypatch.setattr(AwdLstm, "step_seeds", lambda _, rows: own._dropout.seeds(rows, 3))
    assert not torch.equal(clipped_sum(network, POINTS, rows, 0.3, 10, three), right)


def test_what_is_dealt_holds_no_key(three: PieceMap, monkeypatch: pytest.MonkeyPatch) -> None:
    network, sent = network_of(1), []
    network.begin_step(STREAM, "noisy step", 1)

    def kept(value: Any) -> Tensor:
        sent.append(pickle.dumps(value))
        return octets_of(value)

    monkeypatch.setattr(leading, "octets_of", kept)
    clipped_sum(network, POINTS, np.arange(len(POINTS)), 0.3, 10, three)
    assert len(sent) == 2
    assert STREAM.root in pickle.dumps(network)  # what would be sent if the network were
    for octets in (*sent, packed(network)):
        assert STREAM.root not in octets


def test_a_process_that_fails_says_what_kind_of_error_and_no_more(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    network = network_of(1)
    pieces = [Piece(POINTS, np.asarray([row]), failing) for row in (0, 1)]
    with (
        parallel.piece_map(2, network, 1, tmp_path / "meeting") as every,
        pytest.raises(CheckFailed, match=r"process 2 of 2 failed \(ValueError\)") as caught,
    ):
        summed(network, pieces, every)
    said = capfd.readouterr()
    assert QUOTED not in f"{caught.value!r} {caught.value.__context__!r} {said.out} {said.err}"


def test_a_process_that_answers_for_other_points_or_not_at_all_ends_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, rows, before = network_of(1), np.arange(len(POINTS)), set(multiprocessing.active_children())
    real = Task.of

    def short(place: int, piece: Piece, seeds: Any) -> Task:
        few = piece if place != 3 or len(piece.rows) < 2 else Piece(piece.points, piece.rows[1:], piece.work)
        return real(place, few, seeds)

    with parallel.piece_map(2, network, 1, tmp_path / "meeting") as every:
        monkeypatch.setattr(Task, "of", short)
        with pytest.raises(CheckFailed, match="other points than its own"):
            clipped_sum(network, POINTS, rows, 0.3, 30, every)
        (process,) = set(multiprocessing.active_children()) - before
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr(leading, "PATIENCE", 0.5)
        with pytest.raises(CheckFailed, match="process 2 of 2 does not answer"):
            clipped_sum(network, POINTS, rows, 0.3, 30, every)
    assert set(multiprocessing.active_children()) <= before
    assert not (tmp_path / "meeting").exists()
