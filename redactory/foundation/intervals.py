"""Exact (Clopper-Pearson) bounds of a probability from counts: quantiles of the beta distribution."""

from __future__ import annotations

import scipy


def clopper_pearson_upper(misses: int, n: int, confidence: float = 0.95) -> float:
    """Return the one-sided Clopper-Pearson upper bound of a probability, for ``misses`` in ``n`` independent trials.

    The p at which ``misses`` or fewer have probability 1 - confidence; 1 if all missed or n is 0
    (``docs/guarantees.md``, "Coverage failure": 0 of 200 at 0.95 gives 0.0149).
    """
    if not (0 <= misses <= n and 0 < confidence < 1):
        raise ValueError("needs 0 <= misses <= n and a confidence between 0 and 1")
    return 1.0 if misses == n else float(scipy.special.betaincinv(misses + 1, n - misses, confidence))


def clopper_pearson_lower(misses: int, n: int, confidence: float = 0.95) -> float:
    """Return the one-sided Clopper-Pearson lower bound; 0 if nothing was missed or n is 0."""
    return 1.0 - clopper_pearson_upper(n - misses, n, confidence)
