"""The exactly rounded Gaussian: its law, its exactness, and what its sum does not give away."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from scipy import stats

from redactory.foundation.errors import CheckFailed
from redactory.foundation.stream import RandomStream
from redactory.training.mechanisms import lattice
from redactory.training.mechanisms.mechanism import PoissonGaussian
from tests.draws import require_unique_draws

STREAM = RandomStream.from_seed(11)


@given(st.integers(0, 10**6), st.sampled_from([0.4, 3.0, 2.0**12, 2.0**30, 2.0**36]))
@settings(max_examples=15, deadline=None)
def test_every_draw_is_the_exact_rounding(step: int, scale: float) -> None:
    count = 21
    found = lattice.draw_rounded_normal(STREAM, "noise", step, count, scale)
    half = (count + 1) // 2
    words = np.frombuffer(STREAM.random_bytes("noise", step, 16 * half), "<u8")
    exact = [lattice._round_draw_exactly(words, place, half, (STREAM, "noise", step), scale) for place in range(count)]
    assert found.tolist() == exact


@pytest.mark.parametrize("count", [1, 2, 7])
def test_what_64_bits_leave_open_is_decided_by_bits_of_each_uniform_s_own(count: int) -> None:
    """At a scale where the first bits decide nothing: the transform of 2 × 256 bits, by mpmath."""
    scale, half = 2.0**150, (count + 1) // 2
    octets = STREAM.random_bytes("noise", 3, 16 * half)
    words = np.frombuffer(octets, "<u8")
    with require_unique_draws("noise, more bits") as drawn:
        found = [lattice._round_draw_exactly(words, place, half, (STREAM, "noise", 3), scale) for place in range(count)]
    # both draws of a pair have its bits, and no other pair has them
    assert {(one.index, one.count) for one in drawn} == {(pair, 48) for pair in range(half)}
    with mp.workprec(600):
        for place, value in enumerate(found):
            pair = place % half
            more = STREAM.random_bytes("noise, more bits", 3, 48, pair)
            u, v = (
                (int.from_bytes(octets[8 * at : 8 * at + 8], "little") + _fraction(rest)) / mp.mpf(2) ** 64
                for at, rest in ((pair, more[:24]), (half + pair, more[24:]))
            )
            wave = mp.cos if place < half else mp.sin
            exact = scale * mp.sqrt(-2 * mp.log(u)) * wave(2 * mp.pi * v)
            assert abs(exact - value) <= 0.5


def _fraction(octets: bytes) -> mp.mpf:
    """The binary digits after the point, and half of the last place."""
    return (int.from_bytes(octets, "big") + mp.mpf(0.5)) / mp.mpf(2) ** (8 * len(octets))


def test_the_error_bound_covers_float64_with_room() -> None:
    half = 300
    words = np.frombuffer(STREAM.random_bytes("bound", 0, 16 * half), "<u8")
    radius, error = lattice._compute_normal_radius(torch.from_numpy(words[:half].astype("<i8")))
    with mp.workprec(200):
        for word, found, own in zip(words[:half], radius.tolist(), error.tolist(), strict=True):
            exact = mp.sqrt(-2 * mp.log((mp.mpf(int(word)) + 0.5) / 2**64))
            assert abs(float(exact - found)) < 0.1 * (found * 2.0**-48 + own)


def test_without_the_error_bound_draws_would_be_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    scale, count = 2.0**44, 400
    right = lattice.draw_rounded_normal(STREAM, "noise", 0, count, scale)
    asked: list[int] = []
    exactly = lattice._round_draw_exactly

    def counted(words: object, place: int, *rest: object) -> int:
        asked.append(place)
        return exactly(words, place, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(lattice, "_round_draw_exactly", counted)
    lattice.draw_rounded_normal(STREAM, "noise", 0, count, scale)
    assert len(asked) > 10
    monkeypatch.setattr(lattice, "_round_draw_exactly", lambda words, place, half, name, scale: 0)
    assert (lattice.draw_rounded_normal(STREAM, "noise", 0, count, scale) != right).sum() == len(asked)


@pytest.mark.parametrize("scale", [0.7, 5.0, 2.0**25])
def test_the_law_is_that_of_a_rounded_normal(scale: float) -> None:
    draws = lattice.draw_rounded_normal(STREAM, "law", 1, 20_000, scale)
    if scale > 100:
        assert stats.kstest(draws / scale, "norm").pvalue > 1e-3
        assert stats.kstest(draws / (1.1 * scale), "norm").pvalue < 1e-9
        return
    cells = np.arange(-math.ceil(3 * scale), math.ceil(3 * scale) + 1)
    expected = np.diff(stats.norm.cdf(np.append(cells - 0.5, cells[-1] + 0.5) / scale))
    seen = np.array([(draws == cell).sum() for cell in cells])
    other = len(draws) - seen.sum()
    table, law = np.append(seen, other), np.append(expected, 1 - expected.sum()) * len(draws)
    assert stats.chisquare(table, law).pvalue > 1e-3


def test_the_release_is_a_point_of_the_lattice_whatever_the_sum() -> None:
    mechanism = PoissonGaussian(0.1, 1.0, 0.5, 1.0, noise="lattice")
    unit = lattice.choose_lattice_spacing(0.5, 40)
    assert math.log2(unit) == round(math.log2(unit))
    assert unit * math.sqrt(40) <= 0.5 * 2.0**-20
    for total in (np.zeros(40), np.full(40, 1 / 3), STREAM.normal("sum", 0, 40)):
        released = lattice.add_lattice_noise(total, mechanism, STREAM, 0)
        assert np.array_equal(released / unit, np.rint(released / unit))
        assert np.abs(released - total).max() < 6.0


def test_neighbouring_sums_can_release_the_same_points_with_this_noise_only() -> None:
    """In double precision the last bits tell two sums apart; on the lattice every point is open to both."""
    one, other = np.zeros(4000), np.full(4000, 1 / 3)
    unit = lattice.choose_lattice_spacing(1.0, 4000)
    mechanism = PoissonGaussian(0.1, 1.0, 1.0, 1.0, noise="lattice")
    shift = int(np.rint(other[0] / unit))
    noise = lattice.add_lattice_noise(one, mechanism, STREAM, 0) / unit
    moved = lattice.add_lattice_noise(other, mechanism, STREAM, 0) / unit
    assert np.array_equal(moved, noise + shift)
    floats = STREAM.normal("noise", 0, 4000)
    assert not np.array_equal((floats + 1 / 3) - 1 / 3, floats)  # the traces that an attack reads


def test_the_mechanism_adds_it_with_its_margin_and_as_the_tensor_is() -> None:
    mechanism = PoissonGaussian(0.1, 2.0, 0.5, 4.0, noise="lattice")
    total = torch.zeros(20_000, dtype=torch.float32)
    released = mechanism.compute_noisy_mean(total, STREAM, 3)
    assert released.dtype == torch.float32
    deviation = float((released * 4.0).double().std()) / mechanism.noise_deviation
    assert deviation == pytest.approx(1.0, abs=0.03)
    assert torch.equal(released, mechanism.compute_noisy_mean(total, STREAM, 3))
    assert not torch.equal(released, mechanism.compute_noisy_mean(total, STREAM, 4))


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e30])
def test_a_sum_beyond_the_lattice_is_refused(value: float) -> None:
    total = np.array([0.0, value])
    with pytest.raises(CheckFailed):
        lattice.add_lattice_noise(total, PoissonGaussian(0.1, 1.0, 1.0, 1.0, noise="lattice"), STREAM, 0)


def test_noise_beyond_the_lattice_is_refused() -> None:
    for scale in (2.0**58, math.inf, math.nan):
        with pytest.raises(CheckFailed, match="noise_multiplier"):
            lattice.draw_rounded_normal(STREAM, "noise", 0, 4, scale)
    assert (np.abs(lattice.draw_rounded_normal(STREAM, "noise", 0, 4_000, 2.0**57)) > 2.0**50).any()
