"""Where a training's arithmetic is done: what ``auto`` settles on, what is refused, what is assumed."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch

import redactory
from redactory.foundation.errors import ConfigurationError
from redactory.foundation.files import read_json
from redactory.foundation.records import RecordLog, read_records
from redactory.foundation.stream import RandomStream
from redactory.pipelines.curation.loading import load_config
from redactory.redaction import RunFolder
from redactory.training import numerics, train_model
from redactory.training.data import TokenizedExamples
from redactory.training.guarantee.card import make_guarantee_card
from redactory.training.guarantee.spec import LedgerFacts, read_ledger_facts
from redactory.training.loop import Checkpoint
from redactory.training.mechanisms.mechanism import PoissonGaussian
from redactory.training.model import build_language_network
from redactory.training.models.network import Network
from redactory.training.numerics import resolve_device, use_deterministic_numerics
from redactory.training.steps import NoiseFreeSteps, NoisySteps, ScheduledOptimizer, make_optimizer
from redactory.training.tokenizer import Tokenizer
from tests.integrations.elsewhere import ELSEWHERE, MixedDevices, another_device
from tests.training.conftest import PUBLIC_TEXTS, make_small_settings, write_run

KINDS: dict[str, dict[str, Any]] = {
    "lstm": {"embedding_size": 6, "hidden_size": 8},
    "llama": {"kind": "llama", "layers": 1, "width": 8, "heads": 2, "context": 64},
}


@pytest.fixture(scope="module", autouse=True)
def without_a_card() -> Iterator[None]:
    """What is tested here is a machine without a graphics card, whatever this one has."""
    patch = pytest.MonkeyPatch()
    patch.setattr(numerics, "_has_gpu", lambda: False)
    yield
    patch.undo()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with a model that was trained on ``auto``."""
    folder = write_run(tmp_path_factory.mktemp("device") / "RUN")
    train_model(folder, make_small_settings(device="auto", group_sizes=()))
    return folder


def test_auto_is_settled_before_anything_is_written(run: RunFolder) -> None:
    model = run.get_model_folder("crt")
    assert read_records(model.ledger)[0].body["settings"]["device"] == "cpu"
    assert read_json(model.manifest)["settings"]["device"] == "cpu"
    assert "Clipped sums computed on cpu." in model.card.read_text()
    assert train_model(run, make_small_settings(device="auto", group_sizes=()))["guarantee"] == read_json(
        model.guarantee
    )


def test_auto_takes_a_card_where_there_is_one(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numerics, "_has_gpu", lambda: True)
    assert resolve_device(make_small_settings(device="auto"), run.get_model_folder("absent")).device == "cuda"


def test_cuda_is_refused_where_there_is_none_before_anything_is_read(run: RunFolder, tmp_path: Path) -> None:
    """A whole run would be curated first, and its training refused at the end of it."""
    with pytest.raises(ConfigurationError, match=r"train\.device.*cuda.*only the cpu is available: set device to auto"):
        train_model(run, make_small_settings(device="cuda", name="other"))
    assert not run.get_model_folder("other").root.exists()
    train = {"device": "cuda"}
    config = {"input": str(tmp_path / "absent.jsonl"), "output": str(tmp_path / "run"), "train": train}
    written = write_run(tmp_path / "run", counts={"examples": 3}, encryption=None)
    for job in (redactory.run, redactory.train):
        with pytest.raises(ConfigurationError, match=r"train\.device: this training is on cuda"):
            job(config)
    assert not written.models.exists()


@pytest.mark.parametrize("device", ["mps", "cuda:1", "gpu"])
def test_a_device_that_nothing_is_trained_on_is_refused_with_those_that_are(device: str) -> None:
    with pytest.raises(ConfigurationError, match=r"train\.device: training runs on 'cpu', or on 'cuda'.*'auto'"):
        load_config({"input": "a.jsonl", "train": {"device": device}})


def test_what_was_begun_on_a_card_goes_on_there(run: RunFolder, tmp_path: Path) -> None:
    copy = RunFolder(shutil.copytree(run.root, tmp_path / "RUN"))
    with RecordLog(copy.get_model_folder("begun").ledger) as log:
        head = read_records(run.get_model_folder("crt").ledger)[0].body
        log.append("head", {**head, "settings": {**head["settings"], "device": "cuda"}})
    assert resolve_device(make_small_settings(device="auto"), copy.get_model_folder("begun")).device == "cuda"
    assert resolve_device(make_small_settings(device="auto"), copy.get_model_folder("absent")).device == "cpu"
    with pytest.raises(ConfigurationError, match=r"train\.device"):
        train_model(copy, make_small_settings(device="auto", name="begun"))


def test_a_card_that_was_computed_elsewhere_says_so(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_cuda(folder: RunFolder, model: Any) -> LedgerFacts:
        facts = read_ledger_facts(folder, model)
        return dataclasses.replace(facts, settings=facts.settings.model_copy(update={"device": "cuda"}))

    plain = read_json(run.get_model_folder("crt").guarantee)
    monkeypatch.setattr("redactory.training.guarantee.card.read_ledger_facts", on_cuda)
    card = make_guarantee_card(run, "crt")
    jsonschema.validate(card, redactory.schema("guarantee"))
    assert card["device"] == "cuda"
    assert "device" not in plain
    assert [line for line in card["assumptions"] if line not in plain["assumptions"]] != []


def test_products_are_not_rounded_to_fewer_bits_while_training() -> None:
    torch.set_float32_matmul_precision("medium")
    assert torch.backends.cudnn.allow_tf32
    try:
        with use_deterministic_numerics(1):
            assert not torch.backends.cudnn.allow_tf32
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
        assert torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision("highest")


class _Anything:
    """Admits every sum, and keeps where it lay."""

    def __init__(self) -> None:
        self.devices: list[torch.device] = []

    def authorize_noisy_step(self, step: int, clipped_sum: torch.Tensor) -> None:
        self.devices.append(clipped_sum.device)
        assert clipped_sum.detach().cpu().contiguous().numpy().size


def _trained(kind: str, device: torch.device, folder: Path) -> list[np.ndarray[Any, Any]]:
    """Parameters after two steps without noise and two with it, through a checkpoint."""
    words = Tokenizer.from_texts(PUBLIC_TEXTS, 20)
    network: Network = build_language_network(make_small_settings(model=KINDS[kind], max_tokens=64).model, words)
    stream = RandomStream.from_seed(5)
    network.initialise(stream)
    network.to(device)
    points = TokenizedExamples.from_texts(PUBLIC_TEXTS[:12], words, 20)
    optimizer = make_optimizer(network, "adam")
    ledger = _Anything()
    plain = NoiseFreeSteps(network, ScheduledOptimizer(optimizer, 0.01), points, np.arange(12), 5, stream)
    noisy = NoisySteps(
        network=network,
        scheduled_optimizer=ScheduledOptimizer(optimizer, 0.01),
        examples=points,
        mechanism=PoissonGaussian(0.5, 1.0, 0.1, 6.0, noise="lattice" if kind == "lstm" else "float"),
        max_physical_batch_tokens=40,
        stream=stream,
        ledger=ledger,
    )
    checkpoint = Checkpoint(folder / f"{kind}-{device.type}", "binding", network, [optimizer])
    for number in range(2):
        plain.step(number)
        noisy.step(number)
        checkpoint.write(number)
        assert checkpoint.restore() == number
    assert ledger.devices == [device, device]
    return [p.detach().cpu().numpy() for p in network.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_steps_on_another_device_meet_no_tensor_of_the_processor(kind: str, tmp_path: Path) -> None:
    here = _trained(kind, torch.device("cpu"), tmp_path)
    with another_device():
        there = _trained(kind, ELSEWHERE, tmp_path)
    for one, other in zip(here, there, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_device_that_was_assumed_would_be_found() -> None:
    with another_device():
        moved = torch.ones(3).to(ELSEWHERE)
        assert moved.device == ELSEWHERE
        assert (moved + moved).cpu().tolist() == [2.0, 2.0, 2.0]
        with pytest.raises(MixedDevices):
            moved + torch.ones(3)
        with pytest.raises(RuntimeError):
            moved.numpy()
