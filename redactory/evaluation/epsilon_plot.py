"""Epsilon against steps, drawn from numbers alone (SVG, no script)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT, _EDGE = 480.0, 300.0, 52.0
Lines = tuple[tuple[str, str, str, str], ...]
"""What is drawn: the key in a row, its meaning, colour and dashes."""
SECRETS: Lines = (
    ("epsilon", "one named secret", "#1f5f8b", ""),
    ("epsilon_bayesian", "a secret that a policy catches", "#b5541c", "6 4"),
)
UNITS: Lines = (
    ("epsilon", "sound", "#1f5f8b", ""),
    ("epsilon_as_published", "as published, not a guarantee", "#8a8a8a", "2 3"),
)


def epsilon_plot(curve: Sequence[Mapping[str, Any]], title: str, lines: Lines = SECRETS) -> str:
    """``curve`` as rows of ``steps`` and epsilons, as the plan gives it; a line ends where none is finite."""
    last = max((row["steps"] for row in curve), default=1)
    every = [row[name] for row in curve for name, *_ in lines if row.get(name) is not None]
    top = _above(max(every, default=1.0))

    def place(steps: float, value: float) -> tuple[float, float]:
        x = _EDGE + steps / last * (_WIDTH - 1.5 * _EDGE)
        return x, _HEIGHT - _EDGE - value / top * (_HEIGHT - 2.0 * _EDGE)

    parts = [_axes(place, last, top), _drawn(curve, place, lines)]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" '
        f'width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" font-family="sans-serif" font-size="11" fill="#333">'
        '<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{_WIDTH / 2:.0f}" y="16" text-anchor="middle">{escape(title)}</text>'
        f"{''.join(parts)}</svg>\n"
    )


def _axes(place: Any, last: int, top: float) -> str:
    (left, bottom), (right, high) = place(0, 0), place(last, top)
    ticks = "".join(
        f'<text x="{place(last * part, 0)[0]:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">'
        f"{last * part:,.0f}</text>"
        f'<path d="M{left:.1f},{place(0, top * part)[1]:.1f} H{right:.1f}" stroke="#eee"/>'
        f'<text x="{left - 6:.1f}" y="{place(0, top * part)[1] + 4:.1f}" text-anchor="end">'
        f"{top * part:g}</text>"
        for part in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    middle = (bottom + high) / 2.0
    return (
        f'{ticks}<path d="M{left:.1f},{high:.1f} V{bottom:.1f} H{right:.1f}" fill="none" stroke="#333"/>'
        f'<text x="{(left + right) / 2:.1f}" y="{_HEIGHT - 16:.1f}" text-anchor="middle">noisy steps</text>'
        f'<text x="14" y="{middle:.1f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle:.1f})">epsilon</text>'
    )


def _drawn(curve: Sequence[Mapping[str, Any]], place: Any, lines: Lines) -> str:
    drawn = []
    for number, (name, meaning, colour, dashes) in enumerate(lines):
        points = [place(row["steps"], row[name]) for row in curve if row.get(name) is not None]
        if not points:
            continue
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        y = 34.0 + 14.0 * number
        drawn.append(
            f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8" '
            f'stroke-dasharray="{dashes}"/><path d="M{_EDGE + 8:.0f},{y - 4:.0f} h22" stroke="{colour}" '
            f'stroke-width="1.8" stroke-dasharray="{dashes}"/>'
            f'<text x="{_EDGE + 36:.0f}" y="{y:.0f}">{escape(meaning)}</text>'
        )
    return "".join(drawn)


def _above(value: float) -> float:
    """The next of 1, 2, 4, 8 times a power of ten."""
    if value <= 0.0:
        return 1.0
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * step for step in (1.0, 2.0, 4.0, 8.0, 10.0) if unit * step >= value)
