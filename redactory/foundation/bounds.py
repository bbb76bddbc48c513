"""Print bounds: round upper bounds up and lower bounds down, so that the printed bound remains valid.

A float means the shortest decimal that reads back as it: 0.1 stays 0.1. What ``e^epsilon`` and (ε, δ) mean for a
decision is computed in exact or 60-digit arithmetic, and rounded up at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import partial

Number = float | Decimal

PRIOR = Decimal("0.01")
"""The probability of a right guess without the model, used in cards and docs."""
_EXACT_DIGITS = 400
"""Digits in which a double, times 100, and sums of them are exact."""


def round_up(value: Number, digits: int = 4, places: int | None = None) -> float:
    """Return the least number with this many ``digits``, or decimal ``places``, that is at least ``value``."""
    return float(_round_towards(value, ROUND_CEILING, digits, places))


def round_down(value: Number, digits: int = 4, places: int | None = None) -> float:
    """Return the largest such number that is at most ``value``."""
    return float(_round_towards(value, ROUND_FLOOR, digits, places))


def format_upper(value: Number | None, digits: int = 4, places: int | None = None, unit: str = "") -> str:
    """Format an upper bound, rounded up; ``unit`` "%" for a percentage; ``none`` for None."""
    return _format_bound(value, ROUND_CEILING, digits, places, unit)


def format_lower(value: Number | None, digits: int = 4, places: int | None = None, unit: str = "") -> str:
    """Format a lower bound, rounded down."""
    return _format_bound(value, ROUND_FLOOR, digits, places, unit)


def compute_privacy_factor(epsilon: float) -> Decimal:
    """Return e^epsilon, rounded up at 60 digits."""
    exact = Context(prec=60, Emax=10**12, Emin=-(10**12))
    return exact.next_plus(exact.exp(_to_decimal(epsilon))) if epsilon else Decimal(1)


def compute_success_bound(epsilon: float, delta: float, prior: Decimal = PRIOR) -> Decimal:
    """Bound the success probability of a guess that is right with probability ``prior`` without the model.

    (e^ε·p + δ(1−p)) / (e^ε·p + 1 − p), if any value may be *exchanged* for any other at (ε, δ). Let P_x be the law of
    the model for the value x: P_x(guess x) ≤ e^ε·P_y(guess x) + δ for each y. Weighted by the probabilities of all
    values, the largest of which is p, this gives the bound (``docs/guarantees.md``, "What a decision can gain").
    """
    wide, up = Context(prec=_EXACT_DIGITS), Context(prec=60, rounding=ROUND_CEILING)
    weighted, miss_probability = wide.multiply(compute_privacy_factor(epsilon), prior), 1 - prior
    numerator = wide.add(weighted, wide.multiply(_to_decimal(delta), miss_probability))
    return min(Decimal(1), up.divide(numerator, wide.add(weighted, miss_probability)))


def format_odds(delta: float) -> str:
    """Format as ``1 in 100,000`` a probability of at least ``delta``, which is in (0, 1]."""
    odds = math.floor(1 / Fraction(_to_decimal(delta)))
    return f"1 in {odds:,}"


def _to_decimal(value: Number) -> Decimal:
    return value if isinstance(value, Decimal) else Decimal(repr(float(value)))


def _round_towards(value: Number, rounding: str, digits: int, places: int | None) -> Decimal:
    exact = _to_decimal(value)
    if places is None or not exact.is_finite():
        return Context(prec=digits, rounding=rounding).plus(exact)
    return exact.quantize(Decimal(1).scaleb(-places), rounding, Context(prec=_EXACT_DIGITS))


def _format_bound(value: Number | None, rounding: str, digits: int, places: int | None, unit: str) -> str:
    if value is None:
        return "none"
    exact = Context(prec=_EXACT_DIGITS).multiply(_to_decimal(value), Decimal(100 if unit == "%" else 1))
    number = _round_towards(exact, rounding, digits, places)
    is_large = number.is_finite() and 10**digits <= abs(number) < 10**15
    return (f"{number:,f}" if is_large or places is not None else f"{float(number):,.{digits}g}") + unit


TEMPLATE_FILTERS: dict[str, Callable[..., str]] = {
    "up": format_upper,
    "down": format_lower,
    "up_percent": partial(format_upper, digits=3, unit="%"),
    "down_percent": partial(format_lower, digits=3, unit="%"),
    "one_in": format_odds,
    "factor": lambda epsilon, digits=3: format_upper(compute_privacy_factor(epsilon), digits),
    "both_percent": lambda each: format_lower(max(2 * _to_decimal(each) - 1, Decimal(0)), 3, unit="%"),
    "guess": lambda epsilon, delta, digits=3: format_upper(compute_success_bound(epsilon, delta), digits, unit="%"),
}
"""Template filters for bounds; every template must use them."""
