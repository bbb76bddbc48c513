"""Stocks: the lists that fillers draw from, one item a line under ``@name`` in ``stocks/*.txt``."""

from __future__ import annotations

from functools import cache
from pathlib import Path


@cache
def _sections(file: str) -> dict[str, tuple[str, ...]]:
    folder = Path(__file__).with_name("stocks")
    found: dict[str, list[str]] = {}
    for line in (folder / f"{file}.txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("@"):
            items = found.setdefault(line[1:], [])
        elif line:
            items.append(line)
    return {name: tuple(items) for name, items in found.items()}


def stock(file: str, name: str) -> tuple[str, ...]:
    """The items of section ``name``, in the file's order; ``KeyError`` where there is none.

    An item that stands twice is drawn twice as often.
    """
    return _sections(file)[name]
