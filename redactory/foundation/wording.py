"""A number and what it counts, several things in a row, as people write them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import ROUND_CEILING, Context, Decimal


def some(count: int, what: str, many: str | None = None) -> str:
    """``1 point``, ``2,000 points``; ``many`` is the plural where that is not ``what`` with an s."""
    return f"{count:,} {what if count == 1 else many or f'{what}s'}"


def upwards(value: float, digits: int = 4) -> str:
    """``value`` >= 0 with so many ``digits``, rounded up: an upper bound that is printed stays one."""
    if not math.isfinite(value):
        return f"{value:g}"
    rounded = Context(prec=digits, rounding=ROUND_CEILING).create_decimal(repr(value))
    return f"{float(Decimal(rounded)):.{digits}g}"


def listed(things: Iterable[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``; ``last`` stands before the last of them."""
    *before, end = things
    return f"{', '.join(before)} {last} {end}" if before else end
