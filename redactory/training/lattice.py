"""Noise that floating point cannot give away: an exactly rounded Gaussian, added as whole numbers.

The clipped sum is rounded to a lattice of public spacing; the noise is round(s·Z) for a real Z ~ N(0, 1)
whose bits are drawn from the stream as far as the rounding needs them; both are whole numbers, so
their sum is exact.  What leaves is therefore a function of (sum on the lattice + s·Z), the Gaussian
mechanism over the real numbers: post-processing (``docs/guarantees.md``, "Floating point").
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import CheckFailed
from redactory.foundation.stream import RandomStream

MARGIN = 2.0**-10
"""The noise is wider than accounted by this share, to cover what rounding adds to the sensitivity."""
_FINENESS = 2.0**-20
_MORE_BITS, _PRECISION = 192, 512


class Gaussian(Protocol):
    """Noise of ``noise_deviation`` on each coordinate of a sum of vectors of norm at most ``clip_norm``."""

    @property
    def clip_norm(self) -> float:
        """C."""

    @property
    def noise_deviation(self) -> float:
        """σC."""


def spacing(clip_norm: float, coordinates: int) -> float:
    """A power of two, at most 2⁻²⁰·C/√d: rounding a sum to it moves the sum by at most 2⁻²¹·C."""
    return 2.0 ** math.floor(math.log2(clip_norm * _FINENESS / math.sqrt(max(1, coordinates))))


def noisy_on_lattice(
    total: NDArray[np.float64], mechanism: Gaussian, stream: RandomStream, step: int
) -> NDArray[np.float64]:
    """``total`` [d], rounded to the lattice, with the noise of ``step``: [d], multiples of the spacing.

    Formal guarantees: the result is a function of x + (1+MARGIN)·σC·Z with x the rounded sum and Z
    standard normal in d dimensions over the real numbers, as far as the stream's octets are random.
    """
    unit = spacing(mechanism.clip_norm, len(total))
    if not bool((np.abs(total) < unit * 2.0**52).all()):
        raise CheckFailed("a clipped sum is not finite, or too large for its lattice")
    deviation = mechanism.noise_deviation * (1.0 + MARGIN)
    noise = rounded_normal(stream, "noise", step, len(total), deviation / unit)
    return (np.rint(total / unit).astype(np.int64) + noise).astype(np.float64) * unit


def rounded_normal(
    stream: RandomStream, purpose: str, step: int, count: int, scale: float
) -> NDArray[np.int64]:
    """``count`` independent draws of round(``scale``·Z), Z ~ N(0, 1) over the real numbers.

    Box and Muller's transform of two uniforms given by their first 64 bits, in float64 with a bound on
    its error: what could round either way (about one draw in 10⁵ at the finest spacing) is computed
    again with more bits, from the stream, and more digits.  The result does not depend on the machine.
    """
    half = (count + 1) // 2
    words = np.frombuffer(stream.octets(purpose, step, 16 * half), "<u8")
    radius, radius_error = _radius(words[:half])
    angle = (words[half:].astype(np.float64) + 0.5) * (2.0**-63 * math.pi)
    found = np.empty(2 * half, np.int64)
    unsure = np.empty(2 * half, bool)
    # 4 units in the last place of log, sqrt, sin and cos, and the rounding in between, are below 2⁻⁴⁶·r
    error = scale * (radius * 2.0**-46 + radius_error)
    for part, wave in ((slice(0, half), np.cos(angle)), (slice(half, None), np.sin(angle))):
        value = scale * radius * wave
        nearest = np.rint(value)
        unsure[part] = ~(np.abs(value - nearest) + error < 0.5)
        with np.errstate(invalid="ignore"):
            found[part] = nearest.astype(np.int64)
    for place in np.flatnonzero(unsure[:count]):
        found[place] = _exactly(words, int(place), half, (stream, purpose, step), scale)
    return found[:count]


def _radius(words: NDArray[np.uint64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """√(−2 ln u) for u in the cell of the first 64 bits, and how far the cell's width moves it."""
    u = (words.astype(np.float64) + 0.5) * 2.0**-64
    with np.errstate(divide="ignore"):
        radius = np.sqrt(-2.0 * np.log(u))
        return radius, (2.0**-50 + 2.0**-63 / u) / radius


def _exactly(
    words: NDArray[np.uint64], place: int, half: int, name: tuple[RandomStream, str, int], scale: float
) -> int:
    """Draw ``place`` with 256 bits of each uniform; ``CheckFailed`` where these do not decide (2⁻²⁰⁰)."""
    from mpmath import mp

    stream, purpose, step = name
    pair, size = place % half, _MORE_BITS // 8
    more = stream.octets(f"{purpose}, more bits", step, 2 * size, pair)
    first = (int(words[pair]) << _MORE_BITS) + int.from_bytes(more[:size], "big")
    second = (int(words[half + pair]) << _MORE_BITS) + int.from_bytes(more[size:], "big")
    with mp.workprec(_PRECISION):
        whole = mp.mpf(2) ** (64 + _MORE_BITS)
        u, v = (first + mp.mpf(0.5)) / whole, (second + mp.mpf(0.5)) / whole
        radius = mp.sqrt(-2 * mp.log(u))
        wave = mp.cos(2 * mp.pi * v) if place < half else mp.sin(2 * mp.pi * v)
        value = mp.mpf(scale) * radius * wave
        nearest = mp.nint(value)
        error = mp.mpf(scale) * (1 / (u * whole * radius) + 8 * radius / whole)
        if not abs(value - nearest) + error < mp.mpf(0.5):
            raise CheckFailed("256 random bits did not decide a rounding: the stream is not random")
        return int(nearest)
