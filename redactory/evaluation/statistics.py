"""Metrics with intervals: exact ones of proportions, bootstrap percentiles, and tests of a rate.

Everywhere in this package a metric is {value, low, high}, with a null value if nothing was counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from redactory.foundation.intervals import clopper_pearson_lower, clopper_pearson_upper

SumTable = NDArray[np.float64]

CONFIDENCE = 0.95
RESAMPLES, BOOTSTRAP_SEED = 1_000, 0


def estimate_proportion(successes: int, n: int, confidence: float = CONFIDENCE) -> dict[str, Any]:
    """Return {value, low, high} of hits in n independent trials: two-sided Clopper-Pearson, 0 to 1 if n is 0."""
    side = 1 - (1 - confidence) / 2
    return make_estimate(
        successes / n if n else None,
        clopper_pearson_lower(successes, n, side),
        clopper_pearson_upper(successes, n, side),
    )


def make_estimate(value: float | None, low: float | None = None, high: float | None = None) -> dict[str, Any]:
    """{value, low, high}."""
    return {"value": value, "low": low, "high": high}


def compute_percentile_interval(values: ArrayLike, confidence: float = CONFIDENCE) -> NDArray[np.float64]:
    """Return both ends of the percentile interval of resampled ``values`` (axis 0), ignoring NaN."""
    tail = 50.0 * (1.0 - confidence)
    return np.asarray(np.nanpercentile(np.asarray(values), [tail, 100.0 - tail], axis=0))


def divide_or_nan(numerator: SumTable, denominator: SumTable) -> SumTable:
    """Return ``numerator`` / ``denominator``, NaN for a denominator of 0."""
    return np.asarray(np.divide(numerator, denominator, out=np.full(len(numerator), np.nan), where=denominator > 0))


def bootstrap_ratio(rows: Iterable[tuple[float, float]]) -> dict[str, Any]:
    """Return {value, low, high} of a ratio from (numerator, denominator) by row: a bootstrap over the rows."""
    table = np.array(list(rows), dtype=np.float64).reshape(-1, 2)
    return Bootstrap(table).estimate(lambda sums: divide_or_nan(sums[:, 0], sums[:, 1]))


def compute_fisher_p_value(secrets: int, secrets_found: int, controls: int, controls_found: int) -> float:
    """Return P(at least as many found values are secrets) if secrets are no easier to find than controls."""
    table = [(secrets_found, secrets - secrets_found), (controls_found, controls - controls_found)]
    return float(scipy.stats.fisher_exact(table, alternative="greater").pvalue)


def resample_sums(rows: SumTable, resamples: int = RESAMPLES, seed: int = BOOTSTRAP_SEED) -> SumTable:
    """Return sums of ``rows`` (n, k) over ``resamples`` draws of n rows with replacement: (resamples, k).

    The same rows and seed give the same sums. Without rows every sum is 0.
    """
    n, rng = len(rows), np.random.default_rng(seed)
    draws = (rng.integers(n, size=n) for _ in range(resamples if n else 0))
    sums = [np.bincount(drawn, minlength=n) @ rows for drawn in draws]
    return np.array(sums) if n else np.zeros((resamples, rows.shape[1]))


class Bootstrap:
    """Metrics of one table of rows, each with its percentile interval over the same resamples.

    ``rows`` (n, k) holds sufficient statistics: row i's share of every sum.
    """

    def __init__(self, rows: SumTable, confidence: float = CONFIDENCE) -> None:
        self._total = rows.sum(axis=0)[np.newaxis]
        self._resamples = resample_sums(rows)
        self._confidence = confidence

    def estimate(self, statistic: Callable[[SumTable], SumTable]) -> dict[str, Any]:
        """Return {value, low, high} of ``statistic``, which maps sums (m, k) to m values; null without counts.

        A resample with an undefined metric (NaN) is left out.
        """
        value = float(statistic(self._total)[0])
        if np.isnan(value):
            return make_estimate(None)
        low, high = compute_percentile_interval(statistic(self._resamples), self._confidence)
        return make_estimate(value, float(low), float(high))


# Learn-then-Test: the riskiest setting whose miss rate is bounded with a stated confidence.


def compute_binomial_p_value(misses: int, n: int, miss_rate: float) -> float:
    """Return P(Bin(n, miss_rate) <= misses): the exact p-value of "the rate is above ``miss_rate``".

    It is at most 1 - c exactly if the one-sided Clopper-Pearson upper bound at confidence c is at most ``miss_rate``.
    """
    _check_rates(miss_rate, 0.5)
    if not 0 <= misses <= n:
        raise ValueError("needs 0 <= misses <= n")
    return float(scipy.special.bdtr(misses, n, miss_rate)) if n else 1.0


def count_secrets_needed(miss_rate: float, confidence: float) -> int:
    """Return the smallest n for which zero misses show the bound: (1 - miss_rate)ⁿ <= 1 - confidence.

    2,995 for 0.001 at 0.95 (``docs/guarantees.md``, "Coverage failure").
    """
    _check_rates(miss_rate, confidence)
    n = max(1, math.floor(math.log(1 - confidence) / math.log1p(-miss_rate)))
    while compute_binomial_p_value(0, n, miss_rate) > 1 - confidence:
        n += 1
    return n


def count_passing_settings(misses: Sequence[int], n: int, miss_rate: float, confidence: float) -> int:
    """Return how many settings, from the first on, jointly keep ``miss_rate`` at ``confidence``.

    The j-th setting misses ``misses[j]`` of the ``n`` secrets. 0 if the first already fails.
    """
    _check_rates(miss_rate, confidence)
    keeps = (compute_binomial_p_value(missed, n, miss_rate) <= 1 - confidence for missed in misses)
    return sum(takewhile(bool, keeps))


def _check_rates(miss_rate: float, confidence: float) -> None:
    if not (0 < miss_rate < 1 and 0 < confidence < 1):
        raise ValueError("needs a miss rate and a confidence strictly between 0 and 1")
