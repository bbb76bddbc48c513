"""Percentile bootstrap over rows, from sums: a figure that is a function of sums needs no row twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.stream import RandomStream

Sums = NDArray[np.float64]

RESAMPLES = 1_000
SEED = 0
_BLOCK_DRAWS = 1 << 20


def resampled_sums(rows: Sums, resamples: int = RESAMPLES, seed: int = SEED) -> Sums:
    """Sums of ``rows`` (n, k) over ``resamples`` draws of n rows with replacement: (resamples, k).

    The same rows and seed give the same sums.  Without rows every sum is 0.
    """
    n, k = rows.shape
    sums = np.zeros((resamples, k))
    if not n:
        return sums
    stream = RandomStream.from_seed(seed)
    block = max(1, _BLOCK_DRAWS // n)
    for number, first in enumerate(range(0, resamples, block)):
        size = min(block, resamples - first)
        drawn = (stream.uniform("bootstrap", number, size * n) * n).astype(np.int64)
        drawn += np.repeat(np.arange(size) * n, n)
        weights = np.bincount(drawn, minlength=size * n).reshape(size, n)
        sums[first : first + size] = weights @ rows
    return sums


class Bootstrap:
    """Figures of one table of rows, each with its percentile interval over the same resamples.

    ``rows`` (n, k) holds sufficient statistics: row i's share of every sum.
    """

    def __init__(
        self, rows: Sums, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = SEED
    ) -> None:
        self._total = rows.sum(axis=0)[np.newaxis]
        self._resampled = resampled_sums(rows, resamples, seed)
        self._tail = 100 * (1 - confidence) / 2

    def figure(self, of: Callable[[Sums], Sums]) -> dict[str, Any]:
        """{value, low, high} of ``of``, which maps sums (m, k) to m values; null where nothing counts.

        A resample in which the figure is undefined (a ratio over nothing: NaN) is left out.
        """
        value = float(of(self._total)[0])
        if np.isnan(value):
            return {"value": None, "low": None, "high": None}
        values = of(self._resampled)
        low, high = np.nanpercentile(values, [self._tail, 100 - self._tail])
        return {"value": value, "low": float(low), "high": float(high)}

    def resamples(self, of: Callable[[Sums], Sums]) -> Sums:
        """``of`` over every resample: what a figure of two independent tables is made of."""
        return of(self._resampled)
