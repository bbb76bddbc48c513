"""Learn-then-Test: the riskiest setting whose miss rate is bounded with a stated confidence.

Angelopoulos, Bates, Candès, Jordan and Lei, *Learn then Test* (2021), with fixed-sequence testing and exact
binomial p-values.  The settings λ_1, …, λ_m stand in an order that was fixed before the labels were looked
at.  For each in turn H_j: "λ_j misses more than the bound" is tested at level α = 1 - confidence, up to the
first that cannot be rejected.  A false rejection needs the first true H_j of the order to be rejected, one
test at level α: so *all* rejected settings keep the bound at once with the stated confidence, however many
were tested, and any of them may be chosen, by any rule.

This needs n secrets that are drawn independently from where the bound is to hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def binomial_p_value(misses: int, n: int, miss_rate: float) -> float:
    """P(Bin(n, miss_rate) <= misses): the p-value of "the rate is above ``miss_rate``", exact.

    It is at most 1 - c just when the one-sided Clopper-Pearson upper bound at confidence c is at most
    ``miss_rate``.
    """
    _check(miss_rate, 0.5)
    if not 0 <= misses <= n:
        raise ValueError("needs 0 <= misses <= n")
    if misses == n:
        return 1.0
    k = np.arange(misses + 1, dtype=np.float64)
    log_choose = np.concatenate([[0.0], np.cumsum(np.log(n - k[1:] + 1) - np.log(k[1:]))])
    log_terms = log_choose + k * math.log(miss_rate) + (n - k) * math.log1p(-miss_rate)
    highest = log_terms.max()
    return min(1.0, math.exp(highest + math.log(np.exp(log_terms - highest).sum())))


def secrets_needed(miss_rate: float, confidence: float) -> int:
    """The least n with which no miss at all shows the bound: (1 - miss_rate)ⁿ <= 1 - confidence.

    2,995 for 0.001 at 0.95 (``docs/guarantees.md``, "Coverage failure").
    """
    _check(miss_rate, confidence)
    n = max(1, math.floor(math.log(1 - confidence) / math.log1p(-miss_rate)))
    while binomial_p_value(0, n, miss_rate) > 1 - confidence:
        n += 1
    return n


def fixed_sequence(misses: Sequence[int], n: int, miss_rate: float, confidence: float) -> int:
    """How many settings, from the start of the order on, keep ``miss_rate`` at ``confidence``, together.

    ``misses[j]`` of the ``n`` secrets are missed by the j-th setting.  0 where the first already fails.
    """
    _check(miss_rate, confidence)
    for kept, missed in enumerate(misses):
        if binomial_p_value(missed, n, miss_rate) > 1 - confidence:
            return kept
    return len(misses)


def _check(miss_rate: float, confidence: float) -> None:
    if not (0 < miss_rate < 1 and 0 < confidence < 1):
        raise ValueError("needs a miss rate and a confidence between 0 and 1, both ends excluded")
