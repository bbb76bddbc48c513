"""A number and what it counts, as people write it."""

from __future__ import annotations


def some(count: int, what: str, many: str | None = None) -> str:
    """``1 point``, ``2,000 points``; ``many`` is the plural where that is not ``what`` with an s."""
    return f"{count:,} {what if count == 1 else many or f'{what}s'}"
