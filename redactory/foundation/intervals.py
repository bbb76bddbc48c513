"""Exact (Clopper-Pearson) bounds of a probability from counts: quantiles of the beta distribution."""

from __future__ import annotations


def clopper_pearson_upper(misses: int, n: int, confidence: float = 0.95) -> float:
    """Return the one-sided Clopper-Pearson upper bound of a probability, for ``misses`` in ``n`` independent trials.

    The p at which ``misses`` or fewer have probability 1 - confidence; 1 if all missed or n is 0
    (``docs/guarantees.md``, "Coverage failure": 0 of 200 at 0.95 gives 0.0149).
    """
    _check_counts(misses, n, confidence)
    if misses == n:
        return 1.0
    # imported on first use: scipy takes a fifth of a second
    from scipy.special import betaincinv

    return float(betaincinv(misses + 1, n - misses, confidence))


def clopper_pearson_lower(misses: int, n: int, confidence: float = 0.95) -> float:
    """Return the one-sided Clopper-Pearson lower bound; 0 if nothing was missed or n is 0."""
    _check_counts(misses, n, confidence)
    return 0.0 if misses == 0 else 1.0 - clopper_pearson_upper(n - misses, n, confidence)


def _check_counts(misses: int, n: int, confidence: float) -> None:
    if not (0 <= misses <= n and 0 < confidence < 1):
        raise ValueError("needs 0 <= misses <= n and a confidence between 0 and 1")
