"""Sampling and noise are what the ledger says: the tests accept the right law and reject near ones."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from redactory.foundation.stream import RandomStream
from redactory.training.histogram import Histogram
from redactory.training.ldp.user import LdpClient, make_user_spending
from redactory.training.mechanisms.counted_texts import CountSelectionGaussian
from redactory.training.mechanisms.hidden_class import HiddenClassGaussian
from redactory.training.mechanisms.mechanism import Mechanism, NoiseKind, PoissonGaussian, parse_mechanism_json
from redactory.training.mechanisms.users import PoissonUsersGaussian
from tests.draws import require_unique_draws
from tests.training.greybox import GreyBoxTrial, Recorder
from tests.training.ldp.ldp_sides import WordEncoder, settings_with
from tests.training.uedp import federation

POINTS, STEPS, RATE = 200, 2000, 0.05
Sampler = Callable[[RandomStream, int, int], NDArray[np.int64]]


def poisson(rate: float) -> Sampler:
    """What is drawn at ``rate``."""
    mechanism = PoissonGaussian(rate, 1.0, 1.0, 1.0)
    return lambda stream, step, points: mechanism.sample_rows(stream, step, points)


def looks_poisson(sampler: Sampler, rate: float, seed: int = 5) -> bool:
    """Every point's rate, every step's size and pairs of points agree with independent coins of ``rate``."""
    stream = RandomStream.from_seed(seed)
    drawn = np.zeros((STEPS, POINTS), bool)
    for step in range(STEPS):
        drawn[step, sampler(stream, step, POINTS)] = True
    total = stats.binomtest(int(drawn.sum()), drawn.size, rate).pvalue
    sizes, variance = drawn.sum(1), POINTS * rate * (1 - rate)
    spread = (STEPS - 1) * sizes.var(ddof=1) / variance
    dispersion = 2 * min(stats.chi2.cdf(spread, STEPS - 1), stats.chi2.sf(spread, STEPS - 1))
    points = (drawn.sum(0) - STEPS * rate) ** 2 / (STEPS * rate * (1 - rate))
    uniform = 2 * min(stats.chi2.cdf(points.sum(), POINTS), stats.chi2.sf(points.sum(), POINTS))
    both_steps = stats.binomtest(int((drawn[1:] & drawn[:-1]).sum()), drawn[1:].size, rate**2).pvalue
    both_points = stats.binomtest(int((drawn[:, 1:] & drawn[:, :-1]).sum()), drawn[:, 1:].size, rate**2).pvalue
    return min(total, dispersion, uniform, both_steps, both_points) > 1e-3


def fixed_size(stream: RandomStream, step: int, points: int) -> NDArray[np.int64]:
    return stream.permutation("coins", step, points)[: int(points * RATE)]


def shuffled_pass(stream: RandomStream, step: int, points: int) -> NDArray[np.int64]:
    size = int(points * RATE)
    order, place = stream.permutation("coins", step * size // points, points), step * size % points
    return order[place : place + size]


def never_empty(stream: RandomStream, step: int, points: int) -> NDArray[np.int64]:
    rows = poisson(RATE)(stream, step, points)
    return rows[: int(points * RATE * 1.2)]


def same_every_second_step(stream: RandomStream, step: int, points: int) -> NDArray[np.int64]:
    return poisson(RATE)(stream, step // 2, points)


def test_the_sampler_is_poisson() -> None:
    assert looks_poisson(poisson(RATE), RATE)


@pytest.mark.parametrize("sampler", [fixed_size, shuffled_pass, never_empty, same_every_second_step])
def test_other_samplers_are_told_apart(sampler: Sampler) -> None:
    assert not looks_poisson(sampler, RATE)


@pytest.mark.parametrize("rate", [RATE * 0.95, RATE * 1.05])
def test_another_rate_is_told_apart(rate: float) -> None:
    assert not looks_poisson(poisson(rate), RATE)


def test_rate_one_takes_every_point_and_no_points_give_an_empty_batch() -> None:
    stream = RandomStream.from_seed(1)
    assert poisson(1.0)(stream, 0, 50).tolist() == list(range(50))
    assert poisson(0.5)(stream, 0, 0).tolist() == []


# Noise: of every mechanism, and of everything that draws it, against what the record says.

MADE: dict[type[Mechanism], dict[str, Any]] = {
    PoissonGaussian: {},
    CountSelectionGaussian: {"deviation": 5.0, "threshold": 40, "texts": 2},
    HiddenClassGaussian: {"classes": 3},
    PoissonUsersGaussian: {"users": 9},
}
"""What each mechanism needs beside what all have: a new one has to be given here."""
LEVEL, DRAWN = 1e-6, 20_001


def mechanisms(kind: type[Mechanism] = Mechanism) -> set[type[Mechanism]]:
    """Every mechanism of the product that can be made."""
    found = {own for below in kind.__subclasses__() for own in {below, *mechanisms(below)}}
    return {own for own in found if own.__module__.startswith("redactory.") and "sampler" in vars(own)}


def accounted(record: dict[str, Any]) -> float:
    """The standard deviation of the noise that a ledger's record names: its multiplier times its clip."""
    event = record["event"]
    return float(event.get("event", event)["noise_multiplier"] * record["clip_norm"])


def has_deviation(noise: NDArray[np.float64], deviation: float) -> bool:
    """Two-sided tests at LEVEL that all of ``noise`` [..., d] is independent N(0, ``deviation``²)."""
    own = noise.ravel() / deviation
    tail = stats.chi2.cdf(float(own @ own), own.size)
    apart = abs(own[1:] @ own[:-1]) / math.sqrt(own.size)
    # a draw that is used again, with either sign
    distinct = len(np.unique(np.abs(own))) / own.size
    fits = LEVEL < tail < 1 - LEVEL and stats.kstest(own, "norm").pvalue > LEVEL
    return bool(fits and apart < 6.0 and distinct > 0.98)


def require_deviation(noise: NDArray[np.float64], deviation: float) -> None:
    """It has this deviation, and none that is a twentieth off."""
    assert has_deviation(noise, deviation)
    for wrong in (0.95, 1.05):
        assert not has_deviation(noise, wrong * deviation)


def test_every_mechanism_is_looked_at() -> None:
    assert mechanisms() == set(MADE)


@pytest.mark.parametrize("noise", get_args(NoiseKind))
@pytest.mark.parametrize("kind", MADE, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("sizes", [(0.6, 1.0, 64.0), (2.0, 0.25, 1.0), (30.0, 1e-3, 0.5)])
def test_the_noise_of_every_mechanism_is_that_of_its_record(
    kind: type[Mechanism], noise: NoiseKind, sizes: tuple[float, float, float]
) -> None:
    """Whatever the sum, the step and the shape; the record that is read again draws the same."""
    sigma, clip, normaliser = sizes
    own = kind(0.1, sigma, clip, normaliser, noise, **MADE[kind])
    record = json.loads(json.dumps(own.to_json()))
    assert parse_mechanism_json(record) == own
    assert (own.noise_multiplier, own.noise_deviation) == (sigma, pytest.approx(accounted(record)))
    stream, total = RandomStream.from_seed(3), clip * torch.linspace(-1.0, 1.0, DRAWN, dtype=torch.float64)
    with require_unique_draws() as drawn:
        first = own.compute_noisy_sum(total, stream, 0)
        steps = [own.compute_noisy_sum(total[:2001].view(-1, 3), stream, step).ravel() for step in (1, 2, 999_999)]
        mean = own.compute_noisy_mean(total, stream, 7)
    assert drawn
    for found in (first, mean * normaliser):
        require_deviation((found - total).numpy(), accounted(record))
    apart = np.corrcoef([(found - total[:2001]).numpy() for found in (first[:2001], *steps)])
    assert np.abs(apart[np.triu_indices(4, 1)]).max() < 6.0 / math.sqrt(2001)
    assert all(has_deviation((found - total[:2001]).numpy(), accounted(record)) for found in steps)


@pytest.mark.parametrize("noise", get_args(NoiseKind))
@pytest.mark.parametrize("steps", [4, 10])
def test_a_step_adds_the_recorded_noise(steps: int, noise: NoiseKind) -> None:
    own = PoissonGaussian(0.2, 0.8, 0.5, 8.0, noise)
    phase = GreyBoxTrial(mechanism=own).make_step([], Recorder())
    zero = torch.zeros(6000, dtype=torch.float64)
    with require_unique_draws():
        means = [own.compute_noisy_mean(zero, phase.stream, step).numpy() for step in range(steps)]
    found = np.stack(means) * own.normaliser
    require_deviation(found, accounted(own.to_json()))
    assert np.abs(np.corrcoef(found)[np.triu_indices(steps, 1)]).max() < 6.0 / math.sqrt(6000)


def test_what_a_step_of_users_adds_is_that_of_the_record() -> None:
    own = federation.mechanism(sampling_rate=1e-9, noise_multiplier=3.0)
    phase, steps = federation.Federation(own).phase(federation.WORLD, Recorder()), []
    with require_unique_draws("user coins"):
        for step in range(40):
            before = federation.moved(phase)
            phase.step(step)
            steps.append((federation.moved(phase) - before).numpy() * own.normaliser)
    assert has_deviation(np.stack(steps), accounted(own.to_json()))
    assert not has_deviation(np.stack(steps), 0.9 * accounted(own.to_json()))


@pytest.mark.parametrize("deviation", [0.5, 3.0, 200.0])
def test_what_a_histogram_adds_is_what_it_spends(deviation: float) -> None:
    labels = [str(number) for number in range(2000)]
    drawn = Histogram.draw_noisy_counts([], labels, deviation, RandomStream.from_seed(1))
    require_deviation(np.array(list(drawn.counts.values())), accounted(drawn.compute_spending(1).mechanism.to_json()))
    assert drawn.compute_spending(1).steps == 1


WAYS: list[dict[str, Any]] = [
    {"kind": "fixed", "sends": 3},
    {"kind": "public_bernoulli", "rate": 0.5, "steps": 3},
    {"kind": "secret_bernoulli", "rate": 0.01, "steps": 3},
]


@pytest.mark.parametrize("vectors", [1, 2])
@pytest.mark.parametrize(
    ("purpose", "way"),
    [*(("query", way) for way in WAYS), *(("train", way) for way in (*WAYS, {**WAYS[2], "classes": 2}))],
)
def test_what_a_message_adds_is_what_its_user_is_booked_for(purpose: str, way: dict[str, Any], vectors: int) -> None:
    """In units of C: a message of a pair is one vector of norm √2·C."""
    changes: dict[str, Any] = {"sampling": way, "noise_multiplier": 2.0}
    settings = settings_with(
        pairs=vectors == 2, seed=None, clip_norm=0.5, **({"query": changes} if purpose == "query" else changes)
    )
    user, texts = LdpClient(WordEncoder(), settings), [""] * 2_000 if vectors == 1 else [("", "")] * 2_000
    with require_unique_draws():
        sent = (
            user.make_query_messages(texts) if purpose == "query" else user.make_training_messages(texts, [0] * 2_000)
        )
        noise = np.stack([message.values for message in sent]).astype(np.float64)
    spent = make_user_spending(settings.make_query_settings(()) if purpose == "query" else settings, 1)
    record = spent.mechanism.to_json()
    assert record["clip_norm"] == pytest.approx(math.sqrt(vectors))
    assert has_deviation(noise, accounted(record) * settings.clip_norm)
    for wrong in (0.9, 1.1):
        assert not has_deviation(noise, wrong * accounted(record) * settings.clip_norm)
