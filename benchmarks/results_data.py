"""What every section of the page of results is made with: the data, and how figures are written."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[1] / "docs" / "results"


Row = Mapping[str, Any]


@cache
def read(name: str) -> Any:
    """The JSON file ``name``."""
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def where(sentence: str, *conditions: bool) -> str:
    """``sentence``, which is true where all ``conditions`` are."""
    if not all(conditions):
        raise SystemExit(f"the data do not say so any more: {sentence}")
    return sentence


def files(*names: str) -> str:
    """Where the figures come from."""
    return "Data: " + ", ".join(f"[{name}.json](results/{name}.json)" for name in names) + "."


def table(heads: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A table of Markdown."""
    return "\n".join("| " + " | ".join(map(str, row)) + " |" for row in [heads, ["---"] * len(heads), *lines])


def digits(value: float | None, places: int = 3) -> str:
    """A number with so many significant digits at least; "none" where there is none."""
    if value is None:
        return "none"
    first = math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, places - 1 - first)}f}"


def spread(row: Row, key: str = "value", places: int = 3) -> str:
    """A mean with the least and the greatest over seeds or draws; of one there is one figure."""
    if row["least"] == row["greatest"]:
        return digits(row[key], places)
    return f"{digits(row[key], places)} ({digits(row['least'], places)} to {digits(row['greatest'], places)})"


def share(row: Row, key: str) -> str:
    """The same of a share, with three decimals."""
    return f"{row[key]:.3f} ({row['least']:.3f} to {row['greatest']:.3f})"


def more(value: float, than: float) -> str:
    """By how many per cent ``value`` is larger."""
    return "0" if value == than else f"{100 * (value / than - 1):+.0f}%"


def spread_of(values: Iterable[float]) -> str:
    """The least and the greatest."""
    known = sorted(values)
    return f"{digits(known[0], 2)} to {digits(known[-1], 2)}"


def seeds_of(rows: Sequence[Row]) -> str:
    """Over how many seeds a table is."""
    most = max(row["seeds"] for row in rows)
    return "one seed" if most == 1 else f"{most} seeds"
