"""How high exposures are by chance alone, and how far planted canaries lie above those never planted.

A canary that the model has never seen has any rank among |R| candidates with the same probability, so its
exposure is at least x bits with probability 2^-x (exactly, for whole ranks): the law of one is exponential.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.stream import RandomStream

RESAMPLES, SEED = 2_000, 0
_NATS = math.log(2.0)


def exposure_against_chance(
    inserted: Sequence[float], control: Sequence[float], confidence: float = 0.95
) -> dict[str, Any]:
    """What to hold the exposures (bits) of ``inserted`` canaries against.

    Returns {confidence, chance, intervals}.  ``chance`` is the law of as many canaries that were never seen:
    {highest_expected, highest_95, mean_expected} in bits, and {highest_p_value, mean_p_value}, how probable
    it gives a highest or a mean exposure of at least what was found.  ``intervals`` are {mean_exposure,
    control_mean_exposure, mean_difference, highest_difference}, each {value, low, high} in bits, a percentile
    bootstrap over the canaries of each arm.  They say how far canaries differ within this one model; other
    trainings differ more.  Of a highest exposure a bootstrap is rough (its interval never reaches above what
    was found): go by ``chance``.  A figure over no canary is null.
    """
    planted, never = (np.asarray(bits, np.float64) for bits in (inserted, control))
    return {
        "confidence": confidence,
        "chance": _chance(planted),
        "intervals": _intervals(planted, never, confidence),
    }


def highest_quantile(canaries: int, confidence: float = 0.95) -> float:
    """The bits that the highest of ``canaries`` unseen ones stays below with probability ``confidence``."""
    return -math.log2(-math.expm1(math.log(confidence) / canaries))


def _chance(bits: NDArray[np.float64]) -> dict[str, float | None]:
    count = len(bits)
    if not count:
        names = ("highest_expected", "highest_95", "mean_expected", "highest_p_value", "mean_p_value")
        return dict.fromkeys(names)
    return {
        "highest_expected": sum(1.0 / k for k in range(1, count + 1)) / _NATS,
        "highest_95": highest_quantile(count),
        "mean_expected": 1.0 / _NATS,
        "highest_p_value": _highest_tail(float(bits.max()), count),
        "mean_p_value": _erlang_tail(float(bits.sum()) * _NATS, count),
    }


def _highest_tail(bits: float, count: int) -> float:
    """P(the highest of ``count`` is at least ``bits``)."""
    return 1.0 if bits <= 0.0 else -math.expm1(count * math.log1p(-(2.0**-bits)))


def _erlang_tail(total: float, count: int) -> float:
    """P(the sum of ``count`` exponentials of mean 1 is at least ``total``)."""
    if total <= 0.0:
        return 1.0
    k = np.arange(count, dtype=np.float64)
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(k[1:]))])
    terms = k * math.log(total) - total - log_factorial
    return min(1.0, float(np.exp(terms).sum()))


def _intervals(
    planted: NDArray[np.float64], never: NDArray[np.float64], confidence: float
) -> dict[str, dict[str, float | None]]:
    first, second = _resampled(planted, "inserted"), _resampled(never, "control")
    found, drawn = _figures(planted[None], never[None]), _figures(first, second)
    tail = 100.0 * (1.0 - confidence) / 2.0
    intervals: dict[str, dict[str, float | None]] = {}
    for name, values in drawn.items():
        if values is None:
            intervals[name] = {"value": None, "low": None, "high": None}
            continue
        low, high = np.percentile(values, [tail, 100.0 - tail])
        value = found[name]
        assert value is not None
        intervals[name] = {"value": float(value[0]), "low": float(low), "high": float(high)}
    return intervals


def _figures(
    planted: NDArray[np.float64], never: NDArray[np.float64]
) -> dict[str, NDArray[np.float64] | None]:
    """Each figure of m resamples of the two arms, [m, K] and [m, L]; None where an arm is empty."""
    some, others = planted.shape[1] > 0, never.shape[1] > 0
    both = some and others
    return {
        "mean_exposure": planted.mean(1) if some else None,
        "control_mean_exposure": never.mean(1) if others else None,
        "mean_difference": planted.mean(1) - never.mean(1) if both else None,
        "highest_difference": planted.max(1) - never.max(1) if both else None,
    }


def _resampled(bits: NDArray[np.float64], arm: str) -> NDArray[np.float64]:
    if not len(bits):
        return np.empty((RESAMPLES, 0))
    draws = RandomStream.from_seed(SEED).uniform(f"exposure {arm}", 0, RESAMPLES * len(bits))
    found: NDArray[np.float64] = bits[(draws * len(bits)).astype(np.int64)].reshape(RESAMPLES, len(bits))
    return found
