"""What ``redactory evaluate accuracy`` prints for people."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from redactory.flows.output import out, table
from redactory.foundation.wording import some

_MOST_CLASSES = 12


def accuracy(result: dict[str, Any]) -> None:
    """Error rates by class, and the confusion where it fits a terminal."""
    rows = [
        (escape(one["class"]), f"{one['texts']:,}", _rate(one["error_rate"]), f"{one['said']:,}")
        for one in result["by_class"]
    ]
    rows.append(("all", f"{result['texts']:,}", _rate(result["error_rate"]), f"{result['texts']:,}"))
    table(f"Test error rate of {result['model']}", rows, ("class", "texts", "errors", "texts taken for it"))
    out.print(f"Always saying the most frequent class: {_rate(result['majority_error_rate'])}")
    left = result["left_out"]
    out.print(
        f"Left out: {some(left['without_class'], 'text')} without a class, {left['other_class']:,} with "
        "another\n"
    )
    names = [escape(name) for name in result["classes"]]
    if len(names) <= _MOST_CLASSES:
        counts = [(n, *(f"{c:,}" for c in row)) for n, row in zip(names, result["confusion"], strict=True)]
        table("Taken for", counts, ("class", *names))


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.2%}"
