"""Noise that floating point cannot reveal: an exactly rounded Gaussian, added as integers.

The clipped sum is rounded to a lattice of public spacing. The noise is round(s·Z) for a real Z ~ N(0, 1), whose
bits are drawn from the stream until they decide the rounding. Both are integers, so their sum is exact. The
output is therefore a function of (sum on the lattice + s·Z), the Gaussian mechanism over the real numbers:
post-processing (``docs/guarantees.md``, "Floating point").
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import CheckFailed
from redactory.foundation.stream import RandomStream

if TYPE_CHECKING:
    from torch import Tensor

NOISE_MARGIN = 2.0**-10
"""The noise is wider than accounted by this share, to cover what rounding adds to the sensitivity."""
_RELATIVE_SPACING = 2.0**-20
_CHUNK_SIZE = 1 << 16
"""Pairs of draws that are made at once: what they need stays in a processor's cache."""
_EXTRA_BITS, _PRECISION = 192, 512


class GaussianNoise(Protocol):
    """Noise of ``noise_deviation`` on each coordinate of a sum of vectors of norm at most ``clip_norm``."""

    @property
    def clip_norm(self) -> float:
        """C."""

    @property
    def noise_deviation(self) -> float:
        """σC."""


def choose_lattice_spacing(clip_norm: float, coordinates: int) -> float:
    """Return a power of two, at most 2⁻²⁰·C/√d: rounding a sum to it moves the sum by at most 2⁻²¹·C."""
    return 2.0 ** math.floor(math.log2(clip_norm * _RELATIVE_SPACING / math.sqrt(max(1, coordinates))))


def add_lattice_noise(
    total: NDArray[np.float64], mechanism: GaussianNoise, stream: RandomStream, step: int
) -> NDArray[np.float64]:
    """Return ``total`` [d], rounded to the lattice, plus the noise of ``step``: [d], multiples of the spacing.

    Formal guarantees: the result is a function of x + (1+MARGIN)·σC·Z with x the rounded sum and Z standard normal in
    d dimensions over the real numbers, if the stream's bytes are random.
    """
    spacing = choose_lattice_spacing(mechanism.clip_norm, len(total))
    scaled = total / spacing
    if not bool((np.abs(scaled) < 2.0**52).all()):
        raise CheckFailed("a clipped sum is not finite, or too large for its lattice")
    deviation = mechanism.noise_deviation * (1.0 + NOISE_MARGIN)
    noise = draw_rounded_normal(stream, "noise", step, len(total), deviation / spacing)
    noise += np.rint(scaled, out=scaled).astype(np.int64)
    return np.multiply(noise, spacing, out=scaled)


def draw_rounded_normal(stream: RandomStream, purpose: str, step: int, count: int, scale: float) -> NDArray[np.int64]:
    """Make ``count`` independent draws of round(``scale``·Z), Z ~ N(0, 1) over the real numbers.

    Box and Muller's transform of two uniforms given by their first 64 bits, in float64 with a bound on its error. If
    a draw could round either way (about one in 10⁵ at the finest spacing), it is computed again with more bits from
    the stream, and more digits. The result does not depend on the machine.
    """
    import torch

    # no draw of 64 bits is above 10
    if not scale < 2.0**58:
        raise CheckFailed("the noise is too large for its lattice: lower noise_multiplier")
    half = (count + 1) // 2
    words = np.frombuffer(bytearray(stream.random_bytes(purpose, step, 16 * half)), "<u8")
    result, is_unsure = np.empty(2 * half, np.int64), np.empty(2 * half, bool)
    drawn, rounded, unsure_flags = (torch.from_numpy(array) for array in (words.view("<i8"), result, is_unsure))
    for start in range(0, half, _CHUNK_SIZE):
        first_part = slice(start, min(start + _CHUNK_SIZE, half))
        radius, radius_error = _compute_normal_radius(drawn[first_part])
        second_part = slice(half + first_part.start, half + first_part.stop)
        # as signed words the angles are those around 0: the same points of the circle
        angle = drawn[second_part].to(torch.float64).add_(0.5).mul_(2.0**-63 * math.pi)
        # 4 units in the last place of log, sqrt, sin and cos, and rounding between: at most 3.25·2⁻⁵⁰·r
        error = radius_error.add_(radius, alpha=2.0**-48).mul_(scale)
        radius.mul_(scale)
        for part, coordinate in ((first_part, torch.cos(angle)), (second_part, angle.sin_())):
            value = coordinate.mul_(radius)
            nearest = torch.round(value)
            unsure_flags[part] = value.sub_(nearest).abs_().add_(error).lt(0.5).logical_not_()
            rounded[part] = nearest.to(torch.int64)
    for number in np.flatnonzero(is_unsure[:count]):
        result[number] = _round_draw_exactly(words, int(number), half, (stream, purpose, step), scale)
    return result[:count]


def _compute_normal_radius(words: Tensor) -> tuple[Tensor, Tensor]:
    """Compute √(−2 ln u) for u in the cell of the first 64 bits, and how far the cell's width moves it, float64.

    ``words`` int64 [n]: the bits as signed numbers, which PyTorch can read.
    """
    u = words.double().add_(0.5)
    u = u.where(u >= 0.0, u + 2.0**64).mul_(2.0**-64)
    radius = u.log().mul_(-2.0).sqrt_()
    return radius, u.reciprocal_().mul_(2.0**-63).add_(2.0**-50).div_(radius)


def _round_draw_exactly(
    words: NDArray[np.uint64], index: int, half: int, draw_name: tuple[RandomStream, str, int], scale: float
) -> int:
    """Make draw ``index`` with 256 bits of each uniform; ``CheckFailed`` if these do not decide it (2⁻²⁰⁰)."""
    from mpmath import mp

    stream, purpose, step = draw_name
    pair, size = index % half, _EXTRA_BITS // 8
    extra_bytes = stream.random_bytes(f"{purpose}, more bits", step, 2 * size, pair)
    first = (int(words[pair]) << _EXTRA_BITS) + int.from_bytes(extra_bytes[:size], "big")
    second = (int(words[half + pair]) << _EXTRA_BITS) + int.from_bytes(extra_bytes[size:], "big")
    with mp.workprec(_PRECISION):
        word_range = mp.mpf(2) ** (64 + _EXTRA_BITS)
        u, v = (first + mp.mpf(0.5)) / word_range, (second + mp.mpf(0.5)) / word_range
        radius = mp.sqrt(-2 * mp.log(u))
        coordinate = mp.cos(2 * mp.pi * v) if index < half else mp.sin(2 * mp.pi * v)
        value = mp.mpf(scale) * radius * coordinate
        nearest = mp.nint(value)
        error = mp.mpf(scale) * (1 / (u * word_range * radius) + 8 * radius / word_range)
        if not abs(value - nearest) + error < mp.mpf(0.5):
            raise CheckFailed("256 random bits did not decide a rounding: the stream is not random")
        return int(nearest)
