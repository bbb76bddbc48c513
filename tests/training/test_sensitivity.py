"""Grey box: what enters the noise on neighbouring data under equal randomness; sabotage is seen."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from redactory.foundation.stream import RandomStream
from redactory.redaction.mask import MASK
from redactory.training.clipping import clipped_sum
from redactory.training.mechanism import PoissonGaussian, Relation
from redactory.training.network import LstmLanguageModel
from redactory.training.phases import NoisyPhase, make_optimizer
from redactory.training.points import EncodedPoints
from redactory.training.sampling import PoissonSampler
from redactory.training.tokenizer import Tokenizer
from tests.training.conftest import PRIVATE_TEXTS, PUBLIC_TEXTS

TOKENIZER = Tokenizer.from_texts(PUBLIC_TEXTS, 50)
MECHANISM = PoissonGaussian(sampling_rate=0.4, noise_multiplier=0.5, clip_norm=0.2, normaliser=8.0)
STEPS = 6
SECRET, MASKED = "Hello, my name is Grace Hopper 4711.", f"Hello, my name is {MASK}."
Clipper = Callable[..., Tensor]


class Recorder:
    """Keeps what is admitted: the grey box's view of the noise primitive's input."""

    def __init__(self) -> None:
        self.sums: list[Tensor] = []

    def admit(self, step: int, clipped_sum: Tensor) -> None:
        assert step == len(self.sums)
        self.sums.append(clipped_sum.clone())


class Keyed(PoissonSampler):
    """Coins that travel with a point: row i of the shorter table keeps its coin when a row is dropped."""

    dropped: int | None = None

    def rows(self, stream: RandomStream, step: int, points: int) -> NDArray[np.int64]:
        if Keyed.dropped is None:
            return super().rows(stream, step, points)
        rows = super().rows(stream, step, points + 1)
        rows = rows[rows != Keyed.dropped]
        return rows - (rows > Keyed.dropped)


def phase_on(texts: list[str], recorder: Recorder, clipper: Clipper, sampler: PoissonSampler) -> NoisyPhase:
    network = LstmLanguageModel(TOKENIZER.size, 5, 6).double()
    network.initialise(RandomStream.from_seed(2))
    return NoisyPhase(
        network=network,
        optimizer=make_optimizer(network, "sgd", 0.5),
        points=EncodedPoints.from_texts(texts, TOKENIZER, 20),
        mechanism=MECHANISM,
        sampler=sampler,
        steps_per_epoch=STEPS,
        physical_tokens=64,
        stream=RandomStream.from_seed(9),
        ledger=recorder,
        clipped_sum=clipper,
    )


def distances(
    first: list[str], second: list[str], clipper: Clipper = clipped_sum, dropped: int | None = None
) -> Iterator[float]:
    """‖sum on D − sum on D'‖ at every step, D' walking with the parameters that D released."""
    ours, theirs = Recorder(), Recorder()
    one = phase_on(first, ours, clipper, PoissonSampler(MECHANISM.sampling_rate))
    other = phase_on(second, theirs, clipper, Keyed(MECHANISM.sampling_rate))
    for step in range(STEPS):
        other.network.load_state_dict(one.network.state_dict())
        one.step(step)
        Keyed.dropped = dropped
        other.step(step)
        Keyed.dropped = None
        yield float((ours.sums[-1] - theirs.sums[-1]).norm())


DATA = PRIVATE_TEXTS[:20]


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 19), st.text("ab 19", max_size=12))
def test_exchanging_a_point_moves_the_sum_by_at_most_the_declared_sensitivity(place: int, other: str) -> None:
    exchanged = [*DATA[:place], other, *DATA[place + 1 :]]
    bound = MECHANISM.sensitivity(Relation.SUBSTITUTION)
    assert max(distances(DATA, exchanged)) <= bound * (1 + 1e-9)


def test_a_secret_against_its_mask_and_a_missing_point() -> None:
    with_secret, with_mask = [*DATA, SECRET], [*DATA, MASKED]
    found = list(distances(with_secret, with_mask))
    assert 0.0 < max(found) <= 2 * MECHANISM.clip_norm * (1 + 1e-9)
    assert 0.0 in found  # steps whose coin left the point out do not differ at all
    gone = list(distances(with_secret, DATA, dropped=20))
    assert 0.5 * MECHANISM.clip_norm < max(gone) <= MECHANISM.clip_norm * (1 + 1e-9)


def test_the_bound_is_met_by_points_that_pull_apart() -> None:
    """The sensitivity is not only an upper bound: without it a factor of two could hide."""
    found = max(distances([*DATA, "9" * 18], [*DATA, "a" * 18]))
    assert found > 1.2 * MECHANISM.clip_norm


def unclipped(
    network: LstmLanguageModel, points: EncodedPoints, rows: Any, clip_norm: float, tokens: int
) -> Tensor:
    return clipped_sum(network, points, rows, 1e9, tokens)


def clipped_after_summing(
    network: LstmLanguageModel, points: EncodedPoints, rows: Any, clip_norm: float, tokens: int
) -> Tensor:
    total = clipped_sum(network, points, rows, 1e9, tokens)
    return total * min(1.0, len(rows) * clip_norm / max(float(total.norm()), 1e-12))


def realised_batch_size(
    network: LstmLanguageModel, points: EncodedPoints, rows: Any, clip_norm: float, tokens: int
) -> Tensor:
    total = clipped_sum(network, points, rows, clip_norm, tokens)
    return total * MECHANISM.normaliser / max(len(rows), 1)


@pytest.mark.parametrize("sabotage", [unclipped, clipped_after_summing])
def test_sums_that_are_not_clipped_point_by_point_are_seen(sabotage: Clipper) -> None:
    first, second = [*["a"] * 15, "9" * 18], [*["a"] * 15, "b" * 18]
    bound = MECHANISM.sensitivity(Relation.SUBSTITUTION)
    assert max(distances(first, second)) <= bound * (1 + 1e-9)
    assert max(distances(first, second, sabotage)) > bound * 1.2


def test_dividing_by_the_realised_batch_size_is_seen() -> None:
    """Alone in its batch a point is then multiplied, and every other point moves when one is missing."""
    few = ["9" * 18, SECRET]
    found = max(distances(few, few[:1], realised_batch_size, dropped=1))
    assert found > MECHANISM.clip_norm * (1 + 1e-6)
    assert max(distances(few, few[:1], clipped_sum, dropped=1)) <= MECHANISM.clip_norm * (1 + 1e-9)


@pytest.mark.parametrize("factor", [2 / 3, 1.0, 3 / 2])
def test_the_noise_that_reaches_the_parameters_has_the_declared_deviation(factor: float) -> None:
    """From the outside: parameters before and after one plain gradient step give the noise back."""
    recorder = Recorder()
    phase = phase_on(DATA, recorder, clipped_sum, PoissonSampler(MECHANISM.sampling_rate))
    before = torch.cat([p.detach().flatten().clone() for p in phase.network.parameters()])
    phase.step(0)
    after = torch.cat([p.detach().flatten() for p in phase.network.parameters()])
    noise = (before - after) / 0.5 * MECHANISM.normaliser - recorder.sums[0]
    scaled = noise.numpy() / (factor * MECHANISM.noise_deviation)
    rejected = abs(scaled.std() - 1.0) > 0.1
    assert rejected == (factor != 1.0)
    assert len(scaled) > 2000


def test_an_empty_batch_is_a_step_of_noise() -> None:
    recorder = Recorder()
    phase = phase_on([], recorder, clipped_sum, PoissonSampler(MECHANISM.sampling_rate))
    before = [p.detach().clone() for p in phase.network.parameters()]
    phase.epoch(0, lambda *_: None)
    assert len(recorder.sums) == STEPS
    assert not any(bool(total.any()) for total in recorder.sums)
    pairs = zip(before, phase.network.parameters(), strict=True)
    assert all(bool((old != new).all()) for old, new in pairs)


def test_sums_are_admitted_before_their_noise_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    draw = RandomStream.normal

    def drawn(self: RandomStream, *arguments: Any) -> Any:
        order.append("noise")
        return draw(self, *arguments)

    class Ordered(Recorder):
        def admit(self, step: int, clipped_sum: Tensor) -> None:
            order.append("admitted")

    phase = phase_on(DATA, Ordered(), clipped_sum, PoissonSampler(MECHANISM.sampling_rate))
    monkeypatch.setattr(RandomStream, "normal", drawn)
    phase.epoch(0, lambda *_: None)
    assert order == list(itertools.chain.from_iterable(("admitted", "noise") for _ in range(STEPS)))
