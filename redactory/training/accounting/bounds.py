"""Two bounds that do not need a pair of their own: by a chain of worlds, and by revealing the coins."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import optimize
from scipy.special import log_ndtr, ndtr

LARGEST_EPSILON = 500.0
CHAIN_SPLITS = (0.2, 0.5, 0.8)
Curve = Callable[[float], float]
"""From delta to epsilon; ``inf`` where there is none."""


def chain(first: Curve, second: Curve, delta: float, splits: Sequence[float] = CHAIN_SPLITS) -> float:
    """The smallest a + b with H_{e^(a+b)}(P‖Q) <= H_{e^a}(P‖R) + e^a·H_{e^b}(R‖Q) <= ``delta``.

    ``first`` is the curve of (P, R), ``second`` that of (R, Q), each for both orders; both worlds are
    tried first.  ``inf`` where no share of ``delta`` in ``splits`` gives a + b below 500
    (``docs/guarantees.md``, "Groups of points").
    """

    def one_way(one: Curve, other: Curve) -> float:
        best = math.inf
        for share in splits:
            a = one(share * delta)
            if a < LARGEST_EPSILON:
                best = min(best, a + other((1.0 - share) * delta * math.exp(-a)))
        return best

    found = one_way(first, second)
    return found if first is second else max(found, one_way(second, first))


def gaussian_delta(epsilon: float, shift: NDArray[np.float64]) -> NDArray[np.float64]:
    """H_{e^ε} of N(0, 1) against N(``shift``, 1), for ε >= 0 and each ``shift`` >= 0."""
    found = np.zeros_like(shift)
    mu = shift[shift > 0.0]
    found[shift > 0.0] = ndtr(mu / 2.0 - epsilon / mu) - np.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2.0))
    return np.maximum(found, 0.0)


def revealed(
    shifts: Mapping[int, float], deviation: float, steps: int, delta: float, resolution: float = 1.0
) -> float:
    """Epsilon when the shift c of each step is told: c has the law ``shifts`` (size to probability).

    E[δ_Gauss(ε; √(Σ c²)/``deviation``)], the law of Σ c² by one FFT on a grid of ``resolution``,
    rounded upwards; sound because a coin with the same law in both worlds may be shown
    (``docs/guarantees.md``, "Groups of points").  ``inf`` above 500.
    """
    squares = np.ceil(np.array(list(shifts)) ** 2 / resolution - 1e-12).astype(np.int64)
    step = np.bincount(squares, np.array(list(shifts.values())))
    size = 1 << math.ceil(math.log2(steps * (len(step) - 1) + 2))
    law = np.maximum(np.fft.irfft(np.fft.rfft(step, size) ** steps, size), 0.0)
    kept = law > 1e-18
    lost = max(0.0, 1.0 - float(law[kept].sum())) + 1e-13
    mu = np.sqrt(np.arange(size)[kept] * resolution) / deviation

    def over(epsilon: float) -> float:
        return float(np.dot(law[kept], gaussian_delta(epsilon, mu))) + lost - delta

    if over(0.0) <= 0.0:
        return 0.0
    if over(LARGEST_EPSILON) > 0.0:
        return math.inf
    return float(optimize.brentq(over, 0.0, LARGEST_EPSILON, xtol=1e-6)) + 1e-6
