"""Several processes: the weights, the ledger and the guarantee of one, to the bit, whatever becomes of it."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import CheckFailed
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.training import parallel, train, train_model
from redactory.training.clipping import compute_clipped_sum
from redactory.training.data import MicroBatchMap, TokenizedExamples, map_micro_batches
from redactory.training.mechanisms.mechanism import PoissonGaussian
from redactory.training.models.recurrent import AwdLstm
from redactory.training.models.settings import AwdLstmSettings
from redactory.training.settings import settings_to_json
from redactory.training.trainers import get_trainer
from tests.training.conftest import make_small_settings
from tests.training.worker_functions import QUOTED_TEXT, fail_with_quote

CRT: dict[str, Any] = {"trainer": "crt", "public_share": 0.5, "max_physical_batch_tokens": 64, "checkpoint_steps": 3}
GPT2: dict[str, Any] = {
    "trainer": "dpsgd",
    "max_physical_batch_tokens": 64,
    "epochs": 1,
    "max_tokens": 40,
    "model": {"kind": "gpt2", "layers": 1, "width": 16, "heads": 2, "context": 64},
}
STREAM = RandomStream.from_seed(11)
Made = dict[str, str]


@pytest.fixture(scope="module")
def copy(curated: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], RunFolder]:
    """Makes own copies of the finished run."""
    return lambda: RunFolder(shutil.copytree(curated, tmp_path_factory.mktemp("parallel") / "RUN"))


def made(run: RunFolder, changes: dict[str, Any], progress: Any = None, **more: Any) -> Made:
    """What a training leaves: the digests of its weights, ledger and guarantee."""
    given = make_small_settings(**changes, **more)
    train_model(run, given, *(() if progress is None else (progress,)))
    folder = run.get_model_folder(given.model_name)
    assert not list(run.state.iterdir())
    return {path.name: file_sha256(path) for path in (folder.weights, folder.ledger, folder.guarantee)}


@pytest.fixture(scope="module")
def by_one(copy: Callable[[], RunFolder]) -> Made:
    """The LSTM's training in this process."""
    return made(copy(), CRT)


@pytest.mark.slow
def test_two_processes_train_the_lstm_of_one(copy: Callable[[], RunFolder], by_one: Made) -> None:
    children = list[int]()

    def look(work: str, done: int, total: int | None, unit: str = "") -> None:
        if unit:
            children.append(len(multiprocessing.active_children()))

    assert made(copy(), CRT, look, workers=2) == by_one
    assert all(children)
    assert not {"workers"} & settings_to_json(make_small_settings(workers=2)).keys()


@pytest.mark.slow
def test_two_processes_train_the_gpt2_of_one(copy: Callable[[], RunFolder]) -> None:
    assert made(copy(), GPT2, workers=2) == made(copy(), GPT2)


@pytest.mark.slow
@pytest.mark.parametrize("after", ["one", "two"])
def test_a_killed_process_is_named_and_others_go_on(after: str, copy: Callable[[], RunFolder], by_one: Made) -> None:
    run, steps = copy(), 0
    before = multiprocessing.active_children()

    def kill(*_: Any) -> None:
        nonlocal steps
        steps += 1
        if steps == 9:
            for child in set(multiprocessing.active_children()) - set(before):
                assert child.pid is not None
                os.kill(child.pid, signal.SIGKILL)

    with pytest.raises(CheckFailed, match=r"process 2 of 2 was ended by signal 9 .* any train\.workers"):
        made(run, CRT, kill, workers=2)
    assert set(multiprocessing.active_children()) <= set(before)
    assert (run.state / "train-crt.checkpoint").exists()
    assert made(run, CRT, workers=1 if after == "one" else 2) == by_one


def test_processes_are_started_where_there_is_something_to_share_out() -> None:
    for trainer, shared in (("crt", True), ("dpsgd", True), ("sgd", False)):
        own = make_small_settings(trainer=trainer, workers=3)
        assert get_trainer(own).uses_micro_batches(own) is shared
    with pytest.raises(ValidationError, match="device cpu"):
        make_small_settings(workers=2, device="cuda")


@contextmanager
def backwards(*_: Any) -> Iterator[MicroBatchMap]:
    yield lambda *own: reversed([*map_micro_batches(*own)])


@contextmanager
def added_elsewhere(*_: Any) -> Iterator[MicroBatchMap]:
    """As an all-reduce would: each process adds its own pieces first."""

    def map_(network: Any, work: Any, points: Any, pieces: Sequence[Any]) -> Iterator[Tensor]:
        for rank in range(min(2, len(pieces))):
            yield torch.stack([*map_micro_batches(network, work, points, pieces[rank::2])]).sum(0)

    yield map_


@pytest.mark.parametrize("sum_", [backwards, added_elsewhere])
def test_another_order_of_the_sum_is_seen(
    sum_: Any, copy: Callable[[], RunFolder], by_one: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "open_micro_batch_map", sum_)
    found = made(copy(), CRT)
    assert found["ledger.jsonl"] != by_one["ledger.jsonl"]
    assert found["model.safetensors"] != by_one["model.safetensors"]


def test_noise_drawn_twice_is_seen(
    copy: Callable[[], RunFolder], by_one: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PoissonGaussian.compute_noisy_mean

    def twice(own: PoissonGaussian, total: Tensor, stream: RandomStream, step: int) -> Tensor:
        return real(own, total, stream, step) + real(own, torch.zeros_like(total), stream, step)

    monkeypatch.setattr(PoissonGaussian, "compute_noisy_mean", twice)
    assert made(copy(), CRT)["model.safetensors"] != by_one["model.safetensors"]


def network_of(seed: int) -> AwdLstm:
    network = AwdLstm(30, AwdLstmSettings(kind="awd-lstm", embedding_size=6, hidden_size=8, layers=2))
    network.initialise(RandomStream.from_seed(seed))
    return network.train()


def points_of(lengths: Sequence[int]) -> TokenizedExamples:
    draw = np.random.default_rng(3)
    return TokenizedExamples.from_rows((draw.integers(3, 30, length) for length in lengths), begin_id=0, pad_id=1)


POINTS = points_of([*range(1, 14), *range(1, 14)])
ROWS = np.arange(len(POINTS))


@pytest.fixture(scope="module")
def three() -> Iterator[MicroBatchMap]:
    """Three processes that live through the tests of single sums; they were started with other parameters."""
    with parallel.open_micro_batch_map(3, network_of(0), 1) as every:
        yield every


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.sets(st.integers(0, len(POINTS) - 1)), tokens=st.sampled_from([1, 10, 30, 10_000]), step=st.integers(0, 9)
)
def test_a_sum_has_the_bits_of_one_process(three: MicroBatchMap, rows: set[int], tokens: int, step: int) -> None:
    network = network_of(step)
    network.begin_step(STREAM, "noisy step", step)
    drawn = np.asarray(sorted(rows), np.int64)
    assert torch.equal(
        *(compute_clipped_sum(network, POINTS, drawn, 0.3, tokens, every) for every in (map_micro_batches, three))
    )


def test_other_dropout_is_seen_and_no_key_is_sent(three: MicroBatchMap, monkeypatch: pytest.MonkeyPatch) -> None:
    network, sent = network_of(1), list[bytes]()
    network.begin_step(STREAM, "noisy step", 1)

    def kept(value: Any, *rest: Any) -> bytes:
        sent.append(pickle.dumps(value, *rest))
        return sent[-1]

    monkeypatch.setattr(parallel, "pickle", SimpleNamespace(dumps=kept, loads=pickle.loads, HIGHEST_PROTOCOL=5))
    right = compute_clipped_sum(network, POINTS, ROWS, 0.3, 10, three)
    own = network_of(1)
    own.begin_step(STREAM, "noisy step", 2)
    monkeypatch.setattr(AwdLstm, "collect_step_seeds", lambda _, rows: own._dropout.collect_seeds(rows, 3))
    assert not torch.equal(compute_clipped_sum(network, POINTS, ROWS, 0.3, 10, three), right)
    assert len(sent) == 4
    assert not [octets for octets in sent if STREAM.root in octets]


@pytest.mark.slow
def test_a_process_that_fails_says_what_kind_of_error_and_no_more(capfd: pytest.CaptureFixture[str]) -> None:
    network = network_of(1)
    with (
        parallel.open_micro_batch_map(2, network, 1) as every,
        pytest.raises(CheckFailed, match=r"process 2 of 2 failed \(ValueError\)") as caught,
    ):
        list(every(network, fail_with_quote, POINTS, [np.asarray([row]) for row in (0, 1)]))
    said = capfd.readouterr()
    assert QUOTED_TEXT not in f"{caught.value!r} {caught.value.__context__!r} {said.out} {said.err}"


@pytest.mark.slow
def test_a_worker_with_a_wrong_or_no_answer_ends_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    network, before = network_of(1), set(multiprocessing.active_children())
    with parallel.open_micro_batch_map(2, network, 1) as every:
        half = every(network, fail_with_quote, POINTS, [np.asarray([0])] * 4)
        assert not any(next(half).any() for _ in range(2))  # the other answer of this dealing is never taken
        with pytest.raises(CheckFailed, match="a micro-batch that was not assigned"):
            compute_clipped_sum(network, POINTS, ROWS, 0.3, 30, every)
    with parallel.open_micro_batch_map(2, network, 1) as every:
        compute_clipped_sum(network, POINTS, ROWS, 0.3, 30, every)
        (process,) = set(multiprocessing.active_children()) - before
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)
        monkeypatch.setattr(parallel, "WORKER_TIMEOUT", 0.5)
        monkeypatch.setattr(parallel, "_TIMEOUT_FACTOR", 0.0)
        with pytest.raises(CheckFailed, match="process 2 of 2 does not answer"):
            compute_clipped_sum(network, POINTS, ROWS, 0.3, 30, every)
    assert set(multiprocessing.active_children()) <= before
