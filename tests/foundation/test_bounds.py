"""Bounds in print, compared in exact arithmetic with what they bound."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from redactory.foundation.bounds import (
    TEMPLATE_FILTERS,
    compute_privacy_factor,
    compute_success_bound,
    format_lower,
    format_odds,
    format_upper,
    round_down,
    round_up,
)

FLOATS = st.floats(1e-12, 1e6) | st.sampled_from([0.0, 1.0276, 24.3817, 1.3499, 0.0114, 0.1, 1e-5, 8.0, 999.96])


def _read(text: str) -> Fraction:
    """A printed number, its "%" as a hundredth."""
    return Fraction(text.removesuffix("%").replace(",", "")) / (100 if text.endswith("%") else 1)


def _exact(value: float) -> Fraction:
    """What a float stands for: the shortest decimal that reads back as it."""
    return Fraction(repr(value))


@settings(deadline=None)
@given(FLOATS, st.integers(1, 8))
def test_an_upper_bound_is_the_least_number_of_its_digits_that_holds(value: float, digits: int) -> None:
    assert round_up(value, digits) >= value >= round_down(value, digits) >= 0.0
    step = Fraction(10) ** (Decimal(repr(value)).adjusted() + 1 - digits)
    for unit in ("", "%"):
        above, below = (_read(f(value, digits, unit=unit)) for f in (format_upper, format_lower))
        assert below <= _exact(value) <= above
        # one step apart, or equal where the number has no more digits
        assert above - below == (0 if (_exact(value) / step).denominator == 1 else step)
    assert round_up(round_up(value, digits), digits) == round_up(value, digits)


@settings(deadline=None)
@given(FLOATS, st.integers(0, 6))
def test_places_round_as_digits_do(value: float, places: int) -> None:
    above, below = (_read(f(value, places=places)) for f in (format_upper, format_lower))
    assert below <= _exact(value) <= above <= below + Fraction(1, 10**places)
    assert len(format_upper(value, places=places).partition(".")[2]) == places
    assert format_lower(-value, places=places) == "-" + format_upper(value, places=places)
    assert round_up(value, places=places) == float(above)


def test_bounds_by_example() -> None:
    found = [format_upper(v, 3) for v in (1.2301, 1.1, 0.0, math.inf, 1234.5, 0.00001)]
    assert found == ["1.24", "1.1", "0", "inf", "1,240", "1e-05"]
    assert (format_lower(0.9999, 3), format_lower(1.0), format_upper(None)) == ("0.999", "1", "none")
    assert (format_upper(0.01487, 3, unit="%"), format_lower(0.95, 3, unit="%")) == ("1.49%", "95%")
    assert [TEMPLATE_FILTERS["both_percent"](c) for c in (0.95, 0.99, 0.4, 0.9)] == ["90%", "98%", "0%", "80%"]


@settings(deadline=None)
@given(st.floats(1e-12, 0.5))
@example(1e-5)
@example(0.3)
def test_one_in_n_is_not_below_the_probability(delta: float) -> None:
    times = int(format_odds(delta).removeprefix("1 in ").replace(",", ""))
    assert Fraction(1, times + 1) < _exact(delta) <= Fraction(1, times)


@settings(deadline=None)
@given(st.floats(0.0, 50.0))
@example(0.0)
@example(math.log(2.0))
def test_a_factor_is_never_below_e_to_the_epsilon(epsilon: float) -> None:
    with mpmath.workdps(120):
        exact = mpmath.exp(mpmath.mpf(repr(epsilon)))
        assert 0 <= mpmath.mpf(str(compute_privacy_factor(epsilon))) - exact <= exact * mpmath.mpf(10) ** -58
        assert mpmath.mpf(TEMPLATE_FILTERS["factor"](epsilon).replace(",", "")) >= exact
    assert TEMPLATE_FILTERS["factor"](0.0) == "1"


@settings(deadline=None)
@given(st.floats(0.0, 20.0), st.floats(1e-9, 0.1), st.integers(2, 7))
def test_success_from_a_prior_is_the_formula_rounded_up(epsilon: float, delta: float, digits: int) -> None:
    with mpmath.workdps(120):
        times, chance = mpmath.exp(mpmath.mpf(repr(epsilon))), mpmath.mpf(repr(delta))
        exact = (times + 99 * chance) / (99 + times)
        printed = mpmath.mpf(TEMPLATE_FILTERS["guess"](epsilon, delta, digits).rstrip("%")) / 100
        assert exact <= printed <= exact * (1 + mpmath.mpf(10) ** (1 - digits)) * (1 + mpmath.mpf(10) ** -50)


@pytest.mark.parametrize(("epsilon", "delta", "values"), [(0.0, 0.1, 3), (1.0, 0.0, 4), (1.0, 0.05, 5), (3.0, 0.01, 3)])
def test_no_mechanism_lets_a_guess_succeed_more_often(epsilon: float, delta: float, values: int) -> None:
    """The best of all mechanisms whose laws are pairwise (ε, δ)-close, by linear programming."""
    n, pairs = values, [(x, y) for x in range(values) for y in range(values) if x != y]
    # P[x, o] first, then the excess of P[x, o] over e^ε·P[y, o], by pair and outcome
    size = n * n + len(pairs) * n
    above, limits, whole = [], [], np.zeros((n, size))
    for x in range(n):
        whole[x, x * n : (x + 1) * n] = 1.0
    for number, (x, y) in enumerate(pairs):
        total = np.zeros(size)
        for o in range(n):
            row, slack = np.zeros(size), n * n + number * n + o
            row[x * n + o], row[y * n + o], row[slack], total[slack] = 1.0, -math.exp(epsilon), -1.0, 1.0
            above.append(row)
            limits.append(0.0)
        above.append(total)
        limits.append(delta)
    gain = np.zeros(size)
    gain[[x * n + x for x in range(n)]] = -1.0 / n
    best = linprog(gain, A_ub=np.array(above), b_ub=limits, A_eq=whole, b_eq=np.ones(n))
    assert best.status == 0
    assert -best.fun == pytest.approx(float(compute_success_bound(epsilon, delta, Decimal(1) / n)), rel=1e-6)
