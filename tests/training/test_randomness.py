"""Sampling and noise are what the ledger says: the tests accept the right law and reject near ones."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from redactory.foundation.stream import RandomStream
from redactory.training.mechanism import PoissonGaussian
from redactory.training.steps import sampled_rows

POINTS, STEPS, RATE = 200, 2000, 0.05
Sampler = Callable[[RandomStream, int, int], NDArray[np.int64]]


def poisson(rate: float) -> Sampler:
    """What is drawn at ``rate``."""
    mechanism = PoissonGaussian(rate, 1.0, 1.0, 1.0)
    return lambda stream, step, points: sampled_rows(mechanism, stream, step, points)


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
    both_points = stats.binomtest(
        int((drawn[:, 1:] & drawn[:, :-1]).sum()), drawn[:, 1:].size, rate**2
    ).pvalue
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


def noise_of(mechanism: PoissonGaussian, step: int = 0, seed: int = 3) -> NDArray[np.float64]:
    released = mechanism.noisy_mean(
        torch.zeros(20_000, dtype=torch.float64), RandomStream.from_seed(seed), step
    )
    return np.asarray(released.numpy() * mechanism.normaliser)


@pytest.mark.parametrize(("sigma", "clip_norm"), [(0.6, 1.0), (2.0, 0.25)])
def test_noise_is_normal_with_the_stated_deviation_and_no_other(sigma: float, clip_norm: float) -> None:
    noise = noise_of(PoissonGaussian(0.1, sigma, clip_norm, 64.0))

    def pvalue(deviation: float) -> float:
        return float(stats.kstest(noise / deviation, "norm").pvalue)

    assert pvalue(sigma * clip_norm) > 1e-6
    assert pvalue(sigma * clip_norm * 2 / 3) < 1e-30
    assert pvalue(sigma * clip_norm * 3 / 2) < 1e-30
