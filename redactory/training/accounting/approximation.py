"""Approximate epsilons in milliseconds, for sweeps and curves: no bound, and never a promise.

Saddle-point method (Alghamdi et al. 2023): with K the logarithm of E e^(tS) of the sum S of all losses,
δ(ε) = E(1 − e^(ε−S))₊ is about e^F(t)/√(2πF″(t)), where F(t) = K(t) − tε − log t − log(1 + t) and F′(t) = 0.
Every t has one ε and one δ, and δ falls with t.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from scipy import optimize

from redactory.training.accounting.loss_distributions import compute_log_density, compute_loss, find_line_ends
from redactory.training.mechanisms.pairs import MAX_SHIFT_DEVIATIONS, Composition, DominatingPair, FloatArray

_POINTS = 1025
_MIN_LOG_TILT, _MAX_LOG_TILT = math.log(1e-6), math.log(1e7)


def approximate_epsilon(composition: Composition, delta: float) -> float:
    """Approximate epsilon of all of ``composition`` together at ``delta``, the worse order; ``inf`` if there is none.

    For delta up to 1e-3 it is usually within 1% of the truth; within 5% where an example is drawn a few times in all.
    """
    pairs = [pair for branches, _ in composition for _, pair in branches]
    if any(max(map(abs, pair.means)) > MAX_SHIFT_DEVIATIONS * pair.deviation for pair in pairs):
        return math.inf
    back = tuple((tuple((share, pair.reversed) for share, pair in branches), count) for branches, count in composition)
    return max(_approximate_one_order(order, delta) for order in {composition, back})


def _approximate_one_order(composition: Composition, delta: float) -> float:
    def compute_point(log_tilt: float) -> tuple[float, float]:
        """Compute epsilon, and how far the logarithm of its delta is above the target."""
        tilt = math.exp(log_tilt)
        total, slope, curvature = _compute_cumulants(composition, tilt)
        epsilon = slope - 1.0 / tilt - 1.0 / (1.0 + tilt)
        curvature += tilt**-2 + (1.0 + tilt) ** -2
        log_delta = total - tilt * epsilon - math.log(tilt * (1.0 + tilt)) - 0.5 * math.log(2.0 * math.pi * curvature)
        return epsilon, log_delta - math.log(delta)

    if compute_point(_MIN_LOG_TILT)[1] <= 0.0:
        return 0.0
    if compute_point(_MAX_LOG_TILT)[1] > 0.0:
        return math.inf
    root = optimize.brentq(lambda log_tilt: compute_point(log_tilt)[1], _MIN_LOG_TILT, _MAX_LOG_TILT, xtol=1e-4)
    return max(compute_point(root)[0], 0.0)


def _compute_cumulants(composition: Composition, tilt: float) -> tuple[float, float, float]:
    """Return log E e^(``tilt``·S) and its first two derivatives."""
    sums = np.zeros(3)
    for branches, count in composition:
        weights, losses = zip(*(_sample_losses(pair) for _, pair in branches), strict=True)
        parts = zip(branches, weights, losses, strict=True)
        exponents = np.concatenate([math.log(share) + weight + tilt * loss for (share, _), weight, loss in parts])
        loss = np.concatenate(losses)
        top = float(exponents.max())
        law = np.exp(exponents - top)
        mass = float(law.sum())
        mean = float(law @ loss) / mass
        sums += count * np.array([top + math.log(mass), mean, float(law @ (loss - mean) ** 2) / mass])
    return float(sums[0]), float(sums[1]), float(sums[2])


@lru_cache(maxsize=64)
def _sample_losses(pair: DominatingPair) -> tuple[FloatArray, FloatArray]:
    """Return the logarithm of P's mass at points of the line [n], and the loss at each [n]."""
    line = np.linspace(*find_line_ends(pair), _POINTS)
    spacing = math.log((line[1] - line[0]) / (pair.deviation * math.sqrt(2.0 * math.pi)))
    base = spacing - line**2 / (2.0 * pair.deviation**2)
    return base + compute_log_density(pair.p, pair.deviation, line), compute_loss(pair, line)
