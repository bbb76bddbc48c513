"""Two bounds that do not need a pair of their own: by a chain of worlds, and by revealing the coins.

Formal guarantees: both are upper bounds; what a Fourier transform rounds off is added to delta (``docs/guarantees.md``,
"Groups of points"; ``docs/explanation/uedp.md``, "Algorithm 1 with sound accounting").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

import numpy as np
from scipy import optimize
from scipy.special import log_ndtr, ndtr

from redactory.training.mechanisms.pairs import FloatArray, Mixture

MAX_EPSILON = 4096.0
MAX_FIRST_EPSILON, MIN_REMAINING_DELTA = 600.0, 1e-300
"""Of a chain: the largest first epsilon, and the smallest delta that is left for the second."""
CHAIN_SPLITS = (0.2, 0.5, 0.8)
FINE_SPLITS = (1 / 16, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 7 / 8, 15 / 16)
"""For two unlike curves, whose best split of delta is rarely near the middle."""
_MAX_GRID_SIZE = 1 << 21
_MIN_DEVIATION = 1e-100
"""Noise that costs more than 4096 anyway, and does not overflow."""
_TAIL_SHARE, _ROOT_TOLERANCE, _MAX_THINNED_VALUES = 1e-4, 1e-6, 4096
PrivacyCurve = Callable[[float], float]
"""From delta to epsilon; ``inf`` where there is none."""


def compute_chain_epsilon(
    first_curve: PrivacyCurve, second_curve: PrivacyCurve, delta: float, splits: Sequence[float] = CHAIN_SPLITS
) -> float:
    """Return the smallest a + b with H_{e^(a+b)}(P‖Q) <= H_{e^a}(P‖R) + e^a·H_{e^b}(R‖Q) <= ``delta``.

    ``first_curve`` is the curve of (P, R), ``second_curve`` that of (R, Q), each for both orders and after
    composition. Valid for both orders of (P, Q); ``inf`` if no share of ``delta`` in ``splits`` gives a + b below
    4096 (``docs/guarantees.md``, "Groups of points").
    """

    epsilon = compute_one_way_epsilon(first_curve, second_curve, delta, splits)
    if first_curve is second_curve:
        return epsilon
    return max(epsilon, compute_one_way_epsilon(second_curve, first_curve, delta, splits))


def compute_one_way_epsilon(
    first_curve: PrivacyCurve, second_curve: PrivacyCurve, delta: float, splits: Sequence[float]
) -> float:
    """Compute :func:`compute_chain_epsilon` of P against Q alone, not of Q against P."""
    best = math.inf
    for share in splits:
        a = first_curve(share * delta)
        rest = (1.0 - share) * delta * math.exp(-min(a, 700.0))
        if a < min(best, MAX_FIRST_EPSILON) and rest > MIN_REMAINING_DELTA:
            best = min(best, a + second_curve(rest))
    return best if best < MAX_EPSILON else math.inf


def compute_gaussian_delta(epsilon: float, shift: FloatArray) -> FloatArray:
    """Compute H_{e^ε} of N(0, 1) against N(``shift``, 1), for ε >= 0 and each ``shift`` >= 0."""
    deltas = np.zeros_like(shift)
    mu = shift[shift > 0.0]
    deltas[shift > 0.0] = ndtr(mu / 2.0 - epsilon / mu) - np.exp(epsilon + log_ndtr(-epsilon / mu - mu / 2.0))
    return np.maximum(deltas, 0.0)


def compute_gaussian_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon of N(0, 1) against N(``mu``, 1) at ``delta``, rounded up; ``inf`` above 4096.

    Source: Dong, Roth and Su 2022; LDP-NLP, equation 5.
    """
    shift = np.array([mu])

    def compute_delta_excess(epsilon: float) -> float:
        return float(compute_gaussian_delta(epsilon, shift)[0]) - delta

    if compute_delta_excess(0.0) <= 0.0:
        return 0.0
    if compute_delta_excess(MAX_EPSILON) > 0.0:
        return math.inf
    return float(optimize.brentq(compute_delta_excess, 0.0, MAX_EPSILON, xtol=1e-12, rtol=1e-12)) * (1.0 + 1e-9) + 1e-12


def compute_revealed_shift_epsilon(
    shifts: Mixture, deviation: float, steps: int, delta: float, coarsening: float = 1.0
) -> float:
    """Compute epsilon if the shift c_t of each step is revealed: c_t has the law ``shifts``.

    δ(ε) = E[δ_Gauss(ε; √(Σ c_t²)/``deviation``)]: a coin with the same law in both worlds may be revealed. The law
    of Σ c_t² comes from one FFT on a grid rounded up; the largest shifts, with a chance below δ/10⁴ in all steps,
    count as failures. ``inf`` above 4096. With ``coarsening`` above 1 the value is an approximation and no bound:
    that of a law of few values.
    """
    norms, law, slack = _compute_shift_norms(shifts, steps, delta)
    deviation = max(deviation, _MIN_DEVIATION)

    def make_delta_excess_curve(mu: FloatArray, weights: FloatArray) -> PrivacyCurve:
        return cache(lambda epsilon: float((weights * compute_gaussian_delta(epsilon, mu)).sum()) + slack - delta)

    exact = make_delta_excess_curve(norms / deviation, law)
    guess = _find_zero(make_delta_excess_curve(*_coarsen_distribution(norms / deviation, law)), 1.0, 1.0)
    if coarsening > 1.0:
        return guess
    guess = min(guess, MAX_EPSILON)
    epsilon = _find_zero(exact, guess, 1e-4 * guess + _ROOT_TOLERANCE)
    return epsilon + _ROOT_TOLERANCE if 0.0 < epsilon < math.inf else epsilon


def _find_zero(curve: PrivacyCurve, guess: float, stride: float) -> float:
    """Return the zero of a falling ``curve``, to 1e-6; ``inf`` above 4096, 0 if it starts below."""
    low = high = guess
    while curve(high) > 0.0:
        if high >= MAX_EPSILON:
            return math.inf
        low, high, stride = high, min(high + stride, MAX_EPSILON), 4.0 * stride
    while low > 0.0 and curve(low) <= 0.0:
        low, high, stride = max(low - stride, 0.0), low, 4.0 * stride
    return 0.0 if curve(low) <= 0.0 else float(optimize.brentq(curve, low, high, xtol=_ROOT_TOLERANCE))


def _coarsen_distribution(mu: FloatArray, probabilities: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return a similar law of few values: neighbouring ones are joined at their mean."""
    if len(probabilities) <= _MAX_THINNED_VALUES:
        return mu, probabilities
    starts = np.arange(0, len(probabilities), -(-len(probabilities) // _MAX_THINNED_VALUES))
    weights = np.add.reduceat(probabilities, starts)
    return np.add.reduceat(probabilities * mu, starts) / weights, weights


@lru_cache(maxsize=8)
def _compute_shift_norms(shifts: Mixture, steps: int, delta: float) -> tuple[FloatArray, FloatArray, float]:
    """Return the values of √(Σ c_t²), their probabilities, and the mass that these may lack."""
    sizes, weights = np.array(shifts.means, float), np.array(shifts.weights)
    order = np.argsort(-sizes, kind="stable")
    tail = np.cumsum(weights[order]) * steps
    usual = order[tail > _TAIL_SHARE * delta]
    sizes, weights = sizes[usual], weights[usual]
    resolution = max(1.0, float(sizes.max()) ** 2 * steps / _MAX_GRID_SIZE)
    squares = np.ceil(sizes**2 / resolution - 1e-12).astype(np.int64)
    step = np.bincount(squares, weights)
    fft_size = 1 << math.ceil(math.log2(steps * (len(step) - 1) + 2))
    law = np.maximum(np.fft.irfft(np.fft.rfft(step, fft_size) ** steps, fft_size), 0.0)
    # L1 error of the transform: at most √length times its L2 error, relative to the law's own L2 norm
    rounding = math.sqrt(fft_size) * steps * math.log2(fft_size) * 2.3e-16 * float(np.linalg.norm(law))
    non_negligible = law > 1e-18
    # what the law lacks is what was cut off, too
    slack = rounding + max(0.0, 1.0 - float(law.sum())) + float(law[~non_negligible].sum())
    return np.sqrt(np.flatnonzero(non_negligible) * resolution), law[non_negligible], slack
