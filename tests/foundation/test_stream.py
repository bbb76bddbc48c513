"""The random stream: named draws, the right laws, and tests that would tell a wrong law."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from redactory.foundation.stream import RandomStream

DRAWS = 20_000
ACCEPT, REJECT = 1e-3, 1e-9
STREAM = RandomStream.from_seed(20240607)
NAMES = st.tuples(st.sampled_from(["a", "a1", "1", "noise", "sample"]), st.integers(0, 200), st.integers(0, 200))


@pytest.mark.parametrize("stream", [STREAM, RandomStream.from_entropy()], ids=["seeded", "drawn"])
def test_names_that_differ_in_one_part_give_independent_draws(stream: RandomStream) -> None:
    names = [("noise", 0, 0), ("noise", 0, 1), ("noise", 1, 0), ("sample", 0, 0), ("noise", 11, 1), ("noise", 1, 11)]
    draws = np.array([stream.normal(p, s, 4000, i) for p, s, i in names])
    assert np.abs(np.corrcoef(draws) - np.eye(len(names))).max() < 5 / np.sqrt(4000)


@given(NAMES, st.integers(0, 300), st.integers(0, 300))
def test_a_draw_is_a_function_of_its_name(name: tuple[str, int, int], short: int, more: int) -> None:
    purpose, step, index = name
    again = RandomStream(STREAM.root)
    assert (
        again.random_bytes(purpose, step, short, index)
        == STREAM.random_bytes(purpose, step, short + more, index)[:short]
    )
    assert np.array_equal(again.normal(purpose, step, short, index), STREAM.normal(purpose, step, short, index))


def test_the_keystream_is_fixed_for_good() -> None:
    assert RandomStream.from_seed(0).random_bytes("noise", 3, 8, 2).hex() == "4a7b36298684eae3"


def test_roots() -> None:
    assert RandomStream.from_seed(1) == RandomStream.from_seed(1)
    assert RandomStream.from_seed(1).root != RandomStream.from_seed(2).root
    assert RandomStream.from_seed(1).seeded
    fresh = RandomStream.from_entropy()
    assert not fresh.seeded
    assert len(fresh.root) == 32
    assert fresh.root != RandomStream.from_entropy().root
    assert fresh.root.hex() not in repr(fresh)
    assert repr(fresh.root) not in repr(fresh)


def test_uniform_is_uniform() -> None:
    draws = np.concatenate([STREAM.uniform("u", step, DRAWS // 4) for step in range(4)])
    assert stats.kstest(draws, "uniform").pvalue > ACCEPT
    assert draws.min() > 0
    assert draws.max() < 1
    assert stats.kstest(draws**1.1, "uniform").pvalue < REJECT
    assert stats.kstest(draws * 0.95, "uniform").pvalue < REJECT


def test_uniform_never_reaches_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for octet in (b"\x00", b"\xff"):
        monkeypatch.setattr(RandomStream, "random_bytes", lambda _s, _p, _t, count, _i=0, o=octet: o * count)
        assert 0 < STREAM.uniform("u", 0, 1)[0] < 1
        assert np.isfinite(STREAM.normal("u", 0, 3)).all()


@pytest.mark.parametrize("count", [DRAWS, DRAWS + 1])
def test_normal_is_normal_with_its_own_sigma(count: int) -> None:
    draws = STREAM.normal("noise", 7, count)
    assert draws.shape == (count,)
    assert stats.kstest(draws, "norm").pvalue > ACCEPT
    for wrong in (2 / 3, 3 / 2):
        assert stats.kstest(wrong * draws, "norm").pvalue < REJECT
        assert stats.kstest(draws, stats.norm(0, wrong).cdf).pvalue < REJECT
    assert stats.kstest(draws + 0.1, "norm").pvalue < REJECT


def test_the_two_halves_of_a_normal_are_independent() -> None:
    draws = STREAM.normal("noise", 8, DRAWS)
    cosine, sine = draws[: DRAWS // 2], draws[DRAWS // 2 :]
    assert abs(np.corrcoef(cosine, sine)[0, 1]) < 5 / np.sqrt(DRAWS // 2)
    assert abs(np.corrcoef(cosine**2, sine**2)[0, 1]) < 5 / np.sqrt(DRAWS // 2)


@given(st.integers(0, 60), st.integers(0, 10**6))
def test_a_permutation_is_one(count: int, step: int) -> None:
    order = STREAM.permutation("order", step, count)
    assert order.dtype == np.int64
    assert sorted(order.tolist()) == list(range(count))


@pytest.mark.parametrize("count", [2, 3, 4])
def test_permutations_are_uniform(count: int) -> None:
    seen = Counter(tuple(STREAM.permutation("order", step, count).tolist()) for step in range(6000))
    assert stats.chisquare([seen[p] for p in itertools.permutations(range(count))]).pvalue > ACCEPT
