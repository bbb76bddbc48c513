"""A number and what it counts, several things in a row, as people write them."""

from __future__ import annotations

from collections.abc import Iterable


def some(count: int, what: str, many: str | None = None) -> str:
    """``1 point``, ``2,000 points``; ``many`` is the plural where that is not ``what`` with an s."""
    return f"{count:,} {what if count == 1 else many or f'{what}s'}"


def listed(things: Iterable[str], last: str = "and") -> str:
    """``a``, ``a and b``, ``a, b and c``; ``last`` stands before the last of them."""
    *before, end = things
    return f"{', '.join(before)} {last} {end}" if before else end
