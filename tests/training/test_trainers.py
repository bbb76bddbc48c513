"""The trainers and their variants: what each learns from, in which order, and what it must not depend on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from redactory.foundation.records import read_records
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.redaction.sealing import read_manifest, seal_folder
from redactory.redaction.shards import SPANS, list_parts, write_part
from redactory.training import selective_dp, train_model
from redactory.training.data import TokenizedExamples
from redactory.training.loop import ScheduledStep, StepKinds, TrainingContext, schedule_steps
from redactory.training.mechanisms.mechanism import Relation
from redactory.training.models.recurrent import LstmLanguageModel
from redactory.training.selective_dp import build_private_token_mask, compute_selective_losses, flag_private_tokens
from redactory.training.settings import TRAINERS, TrainSettings
from redactory.training.steps import ScheduledOptimizer, flatten_parameters, make_optimizer
from redactory.training.tokenizer import Tokenizer
from tests.training.conftest import PRIVATE_TEXTS, PUBLIC_TEXTS, build_lstm, make_small_settings, write_run
from tests.training.greybox import Recorder

UNMASKED = ["I live in a small place", "the weather is fine", "call me at noon"]


def test_dropping_is_accounted_as_a_point_there_or_not(curated: Path, tmp_path: Path) -> None:
    run = write_run(tmp_path / "RUN")
    assert TRAINERS["crt-drop"].relation is Relation.ADD_OR_REMOVE
    assert TRAINERS["crt"].relation is Relation.SUBSTITUTION
    asked = make_small_settings(noise_multiplier=None, epsilon=2.0)
    dropping: Any = TRAINERS["crt-drop"].make_mechanism(asked, 1)
    keeping: Any = TRAINERS["crt"].make_mechanism(asked, 1)
    assert 0.4 < dropping.noise_multiplier / keeping.noise_multiplier < 0.8
    summary = train_model(run, make_small_settings(trainer="crt-drop"))
    assert summary["guarantee"]["relation"] == "add_or_remove"
    head = read_records(run.get_model_folder("crt-drop").ledger)[0].body
    assert head["relation"] == "add_or_remove"


@pytest.mark.parametrize("trainer", ["redact-only", "sgd"])
def test_what_is_learnt_without_noise_has_no_guarantee(trainer: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "RUN")
    summary = train_model(run, make_small_settings(trainer=trainer, epochs=1))
    assert summary["steps"] == 0
    assert summary["guarantee"]["holds"] is False
    assert summary["guarantee"]["epsilon_substitution"] is None
    stream = RandomStream.from_seed(1)
    tokenizer = Tokenizer.from_texts(PUBLIC_TEXTS, 30)
    settings = make_small_settings(trainer=trainer)
    ingredients = TrainingContext(run, settings, build_lstm(tokenizer.size, 4, 4), tokenizer, stream)
    _, plain, noisy = ingredients.make_step_kinds(None, None)
    assert noisy is None
    assert len(plain.rows) == len(PUBLIC_TEXTS) + len(PRIVATE_TEXTS)
    seen = {tokenizer.decode(plain.examples.make_batch([row]).targets[0].tolist()) for row in range(96)}
    assert any(MASK in text for text in seen) == (trainer == "redact-only")


def test_an_epoch_in_the_papers_order_and_a_mixed_one() -> None:
    def order(epochs: int, plain: int, noisy: int, mixed: bool = False, before: int = 0) -> list[Any]:
        kinds: Any = [SimpleNamespace(name=name, rows=[0], steps_per_pass=1) for name in ("before", "plain", "noisy")]
        share = plain / (plain + noisy) if mixed else None
        changes = {"epochs": epochs, "sampling_rate": 1.0 / noisy, "min_public_steps": plain, "public_share": share}
        own = make_small_settings().model_copy(update={**changes, "pretraining_epochs": before})
        schedule = schedule_steps(own, StepKinds(*kinds), RandomStream.from_seed(3))
        return [(step.kind.name, step.number, step.ends_epoch) for step in schedule]  # type: ignore[attr-defined]

    epoch = [("plain", 0, False), ("plain", 1, False), ("noisy", 0, False), ("noisy", 1, True)]
    # the best weights are chosen at the end of an epoch, so after noisy steps
    assert order(1, 2, 2, before=2) == [("before", 0, False), ("before", 1, False), *epoch]
    assert order(2, 2, 2) == [*epoch, *((kind, number + 2, ends) for kind, number, ends in epoch)]
    steps = order(4, 30, 20, mixed=True)
    for kind, count in (("plain", 120), ("noisy", 80)):
        assert [number for own, number, _ in steps if own == kind] == list(range(count))
    kinds = [tuple(own for own, *_ in steps[start : start + 50]) for start in range(0, 200, 50)]
    assert all(epoch.count("noisy") == 20 for epoch in kinds)
    assert len(set(kinds)) == 4


def schedule_of(run: RunFolder, **changes: Any) -> tuple[list[ScheduledStep], Any]:
    """The steps of crt and their kinds, nothing trained yet."""
    own, tokenizer = make_small_settings(**changes), Tokenizer.from_texts(PUBLIC_TEXTS, 30)
    made = TrainingContext(run, own, build_lstm(tokenizer.size, 4, 4), tokenizer, RandomStream.from_seed(1))
    kinds = made.make_step_kinds(TRAINERS["crt"].make_mechanism(own), Recorder())
    return schedule_steps(own, kinds, made.stream), kinds


def test_each_kind_of_step_has_a_state_and_a_rate_of_its_own(curated: Path) -> None:
    _, (_, plain, noisy) = schedule_of(RunFolder(curated), learning_rate=0.1, dp_learning_rate=0.2)
    assert plain.scheduled_optimizer.optimizer is not noisy.scheduled_optimizer.optimizer
    assert (plain.scheduled_optimizer.learning_rate, noisy.scheduled_optimizer.learning_rate) == (0.1, 0.2)


def test_a_falling_step_size_is_a_function_of_the_steps_number(curated: Path) -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    descent = ScheduledOptimizer(torch.optim.SGD([parameter], lr=1.0), learning_rate=0.5, steps=4)
    walked = []
    for number in (0, 1, 3):
        parameter.grad = -torch.ones(1)
        before = float(parameter.detach())
        descent.step(number)
        walked.append(float(parameter.detach()) - before)
    assert walked == pytest.approx([0.5, 0.375, 0.125])
    for rule, expected in (("linear", 2 * 8), ("constant", None)):
        changes = {"learning_rate_schedule": rule, "min_public_steps": 8, "public_batch_size": 6}
        _, (_, plain, noisy) = schedule_of(RunFolder(curated), **changes)
        assert (plain.scheduled_optimizer.steps, noisy.scheduled_optimizer.steps) == (expected, expected and 8)


def _selective() -> tuple[LstmLanguageModel, list[torch.Tensor], TokenizedExamples, Tokenizer]:
    tokenizer = Tokenizer.from_texts(PUBLIC_TEXTS, 30)
    network = build_lstm(tokenizer.size, 5, 6).double()
    network.initialise(RandomStream.from_seed(1))
    points = TokenizedExamples.from_texts(["Hello 47 there", "no", "Hello 99 there"], tokenizer, 40)
    return network, list(network.parameters()), points, tokenizer


def test_selective_losses_without_marks_are_the_networks_own() -> None:
    network, weights, points, _ = _selective()
    batch = points.make_batch([0, 1, 2])
    none = torch.zeros_like(batch.real)
    noise = torch.zeros(*none.shape, 12, dtype=torch.float64)
    public, private = compute_selective_losses(weights, batch, none, noise)
    torch.testing.assert_close(public, network.example_losses(batch))
    assert not private.any()
    everything = compute_selective_losses(weights, batch, batch.real, noise)
    torch.testing.assert_close(everything[1], network.example_losses(batch))
    assert not everything[0].any()


def test_public_tokens_see_a_private_run_through_its_noised_state_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    _, weights, points, tokenizer = _selective()
    batch = points.make_batch([0, 2])
    marks = torch.tensor([flag_private_tokens(text, [(6, 8)], tokenizer) for text in ("Hello 47 there",) * 2])
    read = torch.cat([torch.zeros(2, 1, dtype=torch.bool), marks], dim=1)
    private = read | torch.cat([marks, torch.zeros(2, 1, dtype=torch.bool)], dim=1)
    noise = torch.randn(2, 1, 12, dtype=torch.float64).expand(2, private.shape[1], 12)[:1].repeat(2, 1, 1)
    monkeypatch.setattr(selective_dp, "STATE_CLIP", 1e-12)
    hidden = compute_selective_losses(weights, batch, private, noise)[0]
    torch.testing.assert_close(hidden[0], hidden[1])
    monkeypatch.setattr(selective_dp, "STATE_CLIP", 10.0)
    shown = compute_selective_losses(weights, batch, private, noise)[0]
    assert float((shown[0] - shown[1]).detach().abs()) > 1e-6


def test_marks_fall_on_the_tokens_that_a_span_touches() -> None:
    tokenizer = Tokenizer.from_texts(PUBLIC_TEXTS, 30)
    text = "Hello, Ada 1 é"
    marked = flag_private_tokens(text, [(7, 10), (13, 14)], tokenizer)
    ids, places = tokenizer.encode(text), tokenizer.token_offsets(text)
    assert len(marked) == len(ids) == len(places)
    touched = "".join(text[a:b] for (a, b), mark in zip(places, marked, strict=True) if mark)
    assert {"A", "d", "a", "é"} <= set(touched)
    assert "1" not in touched


def test_sdp_reads_the_strict_policys_spans_and_promises_nothing(tmp_path: Path) -> None:
    private = ["Ada Smith is here", "call Ada Smith"]
    run = write_run(tmp_path / "RUN", private=[text.replace("Ada Smith", MASK) for text in private])
    base = len(PUBLIC_TEXTS)
    rows = [
        {"example_id": base, "start": 0, "end": 9, "label": "PERSON", "score": 1.0, "detector": "t", "policy": p}
        for p in ("strict", "conservative")
    ]
    table = pa.Table.from_pylist([{k: v for k, v in row.items() if k in SPANS.names} for row in rows], SPANS)
    write_part(run.spans / "part-00000.parquet", table)
    sealed = [p for folder in (run.public, run.private, run.vault, run.spans) for p in list_parts(folder)]
    body = {k: v for k, v in read_manifest(run).items() if k != "files"}
    seal_folder(run, body, sealed)
    tokenizer = Tokenizer.from_texts(PUBLIC_TEXTS, 30)
    originals = PUBLIC_TEXTS + private
    points = TokenizedExamples.from_texts(originals, tokenizer, 40)
    marks = build_private_token_mask(run, tokenizer, 40)
    assert len(marks) == len(points.ids)
    per_point = [marks[a:b].sum() for a, b in zip(points.offsets, points.offsets[1:], strict=False)]
    assert np.flatnonzero(per_point).tolist() == [base]
    summary = train_model(run, make_small_settings(trainer="sdp", epochs=1))
    assert summary["guarantee"]["epsilon_substitution"] is None
    assert summary["guarantee"]["holds"] is False
    with pytest.raises(ValueError, match="noise_multiplier"):
        TrainSettings(trainer="sdp")
    with pytest.raises(ValueError, match="one LSTM layer"):
        TrainSettings(trainer="sdp", noise_multiplier=1.0, model={"layers": 2})


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [0.25, 0.5, 1.0, 1.0, 1.0, 1.0]),
        ("linear", [0.25, 0.5, 1.0, 0.8, 0.6, 0.2]),
        ("cosine", [0.25, 0.5, 1.0, 0.9045, 0.6545, 0.0955]),
    ],
)
def test_a_step_size_rises_and_falls_by_the_steps_number_alone(schedule: str, expected: list[float]) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    descent = ScheduledOptimizer(optimizer, 1.0, steps=8, schedule=schedule, warm_up=0.375)
    found = [descent.get_learning_rate(number) for number in (0, 1, 3, 4, 5, 7)]
    assert found == pytest.approx(expected, abs=1e-4)


def test_passes_over_the_public_side_come_first_and_are_counted_on(curated: Path) -> None:
    changes: dict[str, Any] = {"public_pretraining_epochs": 2, "learning_rate_schedule": "linear"}
    steps, phases = schedule_of(RunFolder(curated), **changes)
    first = 2 * phases.noise_free.steps_per_pass
    assert not any(step.is_noisy for step in steps[:first])
    numbers = [step.number for step in steps if not step.is_noisy]
    assert numbers == list(range(len(numbers)))
    assert phases.noise_free.scheduled_optimizer.steps == len(numbers)
    assert sum(step.is_noisy for step in steps) == TRAINERS["crt"].count_noisy_steps(make_small_settings(**changes))


def test_weight_decay_is_decoupled_and_none_is_adam() -> None:
    def walked(rule: str, decay: float) -> float:
        network = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.ones_(network.weight)
        network.weight.grad = torch.zeros(1, 1)
        descent = ScheduledOptimizer(make_optimizer(network, rule, decay), 0.1)
        descent.step(0)
        return float(network.weight.detach())

    assert walked("adam", 0.0) == 1.0
    assert walked("adam", 0.5) == pytest.approx(0.95)
    assert walked("sgd", 0.5) == pytest.approx(0.95)


@pytest.mark.parametrize(("rule", "plain"), [("adam", torch.optim.AdamW), ("sgd", torch.optim.SGD)])
def test_an_optimizer_takes_torchs_steps_to_the_bit(rule: str, plain: Any) -> None:
    def walk(make: Callable[[torch.nn.Module], Any]) -> tuple[list[torch.Tensor], dict[str, Any]]:
        torch.manual_seed(0)
        network = torch.nn.Linear(7, 5)
        optimizer, weights = make(network), []
        for number in range(6):
            if number == 3:  # resumed
                state, optimizer = optimizer.state_dict(), make(network)
                optimizer.load_state_dict(state)
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (number + 1)
            optimizer.zero_grad()
            network(torch.randn(4, 7)).square().sum().backward()
            optimizer.step()
            weights.append(flatten_parameters(network))
        return weights, optimizer.state_dict()["state"]

    rate = {} if rule == "adam" else {"lr": 1.0}
    ours = walk(lambda network: make_optimizer(network, rule, 0.01))
    theirs = walk(lambda network: plain(network.parameters(), weight_decay=0.01, **rate))
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=0.0)
