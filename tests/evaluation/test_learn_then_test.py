"""Fixed-sequence testing keeps its promise over many data sets; procedures that look like it do not."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from redactory.evaluation.statistics import (
    compute_binomial_p_value,
    compute_percentile_interval,
    count_passing_settings,
    count_secrets_needed,
    estimate_proportion,
)
from redactory.foundation.intervals import clopper_pearson_upper

BOUND, CONFIDENCE, SETS = 0.01, 0.95, 2_000
Procedure = Callable[[list[int], int], int]
"""Misses of each setting and n to how many settings it keeps, the last of which is used."""

NESTED = np.array([0.0, 0.0005, 0.002, 0.004, 0.007, 0.0101, 0.012, 0.02, 0.05])
"""True miss rates along a monotone path: the sixth setting is the first above the bound, just."""


def _learn_then_test(misses: list[int], n: int) -> int:
    return count_passing_settings(misses, n, BOUND, CONFIDENCE)


def _best_point_estimate(misses: list[int], n: int) -> int:
    return max((j + 1 for j, missed in enumerate(misses) if missed / n <= BOUND), default=0)


def _best_of_all_tests(misses: list[int], n: int) -> int:
    kept = (j + 1 for j, missed in enumerate(misses) if compute_binomial_p_value(missed, n, BOUND) <= 1 - CONFIDENCE)
    return max(kept, default=0)


def _broken_share(procedure: Procedure, rates: np.ndarray, misses: np.ndarray, n: int) -> float:
    """In how many of the data sets (rows of ``misses``) the chosen setting's true rate is above the bound."""
    chosen = [procedure(row.tolist(), n) for row in misses]
    return float(np.mean([kept > 0 and rates[kept - 1] > BOUND for kept in chosen]))


def _nested(n: int) -> np.ndarray:
    """Misses of SETS data sets: each secret is missed from some setting of the path on."""
    steps = np.diff(NESTED, prepend=0.0, append=1.0)
    return np.random.default_rng(1).multinomial(n, steps, size=SETS).cumsum(axis=1)[:, :-1]


# three standard deviations of a share of 5 % among SETS data sets
ALLOWED = 1 - CONFIDENCE + 3 * math.sqrt(CONFIDENCE * (1 - CONFIDENCE) / SETS)


@pytest.mark.parametrize("n", [299, 1_500, 6_000])
def test_the_chosen_setting_keeps_the_bound_as_often_as_promised(n: int) -> None:
    misses = _nested(n)
    assert _broken_share(_learn_then_test, NESTED, misses, n) <= ALLOWED
    # the same check rejects the choice by the measured rate
    assert _broken_share(_best_point_estimate, NESTED, misses, n) > 2 * ALLOWED


def test_stopping_at_the_first_failure_is_what_pays_for_many_tests() -> None:
    """Settings that are not nested, all of them too risky: only the order keeps them out."""
    n, rates = 1_500, np.full(20, BOUND * 1.0001)
    misses = np.random.default_rng(2).binomial(n, rates, size=(SETS, len(rates)))
    assert _broken_share(_learn_then_test, rates, misses, n) <= ALLOWED
    assert _broken_share(_best_of_all_tests, rates, misses, n) > 0.3
    # and an order that was chosen by the misses is caught
    assert _broken_share(lambda row, n: _learn_then_test(sorted(row), n), rates, misses, n) > 0.3


@settings(max_examples=200, deadline=None)
@given(
    n=st.integers(1, 100_000),
    share=st.floats(0, 0.02),
    miss_rate=st.floats(1e-5, 0.5),
    confidence=st.sampled_from([0.5, 0.9, 0.95, 0.999]),
)
def test_the_p_value_is_exact_and_agrees_with_the_interval(
    n: int, share: float, miss_rate: float, confidence: float
) -> None:
    misses = round(share * n)
    p_value = compute_binomial_p_value(misses, n, miss_rate)
    assert p_value == pytest.approx(binom.cdf(misses, n, miss_rate), rel=1e-6, abs=1e-30)
    if abs(p_value - (1 - confidence)) > 1e-9:
        below = clopper_pearson_upper(misses, n, confidence) <= miss_rate
        assert below == (p_value <= 1 - confidence)


@pytest.mark.parametrize(
    ("miss_rate", "confidence", "needed"),
    [(0.001, 0.95, 2_995), (8e-5, 0.95, 37_446), (1e-5, 0.95, 299_572), (0.01, 0.95, 299), (0.5, 0.5, 1)],
)
def test_published_sample_sizes(miss_rate: float, confidence: float, needed: int) -> None:
    assert count_secrets_needed(miss_rate, confidence) == needed
    assert count_passing_settings([0], needed, miss_rate, confidence) == 1
    assert count_passing_settings([0], needed - 1, miss_rate, confidence) == 0


def test_nothing_follows_the_first_failure() -> None:
    assert count_passing_settings([0, 0, 40, 0, 0], 1_000, BOUND, CONFIDENCE) == 2
    assert count_passing_settings([], 1_000, BOUND, CONFIDENCE) == 0
    assert count_passing_settings([1_000], 1_000, BOUND, CONFIDENCE) == 0
    for wrong in ((0.0, 0.95), (1.0, 0.95), (0.01, 1.0)):
        with pytest.raises(ValueError, match="between 0 and 1"):
            count_passing_settings([0], 10, *wrong)
    with pytest.raises(ValueError, match="misses"):
        compute_binomial_p_value(3, 2, BOUND)


@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.99])
def test_an_interval_is_two_sided_and_covers_as_often_as_it_says(confidence: float) -> None:
    for n in (1, 4, 9, 30):
        intervals = [estimate_proportion(hits, n, confidence) for hits in range(n + 1)]
        for hits, own in enumerate(intervals):
            exact = binomtest(hits, n).proportion_ci(confidence, method="exact")
            assert (own["low"], own["high"]) == pytest.approx((exact.low, exact.high), abs=1e-9)
        for rate in np.linspace(0.01, 0.99, 33):
            inside = [own["low"] <= rate <= own["high"] for own in intervals]
            assert binom.pmf(np.arange(n + 1), n, rate)[inside].sum() >= confidence - 1e-12
            # no tail alone takes more than its half
            for missed in ([own["low"] > rate for own in intervals], [own["high"] < rate for own in intervals]):
                assert binom.pmf(np.arange(n + 1), n, rate)[missed].sum() <= (1 - confidence) / 2 + 1e-12


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99])
def test_percentiles_leave_half_of_the_error_on_either_side(confidence: float) -> None:
    values = np.random.default_rng(3).gamma(2.0, size=4001)
    low, high = compute_percentile_interval([*values, np.nan], confidence)
    assert (np.mean(values < low), np.mean(values > high)) == pytest.approx([(1 - confidence) / 2] * 2, abs=3e-4)
    assert (low, high) == pytest.approx(np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2]))
