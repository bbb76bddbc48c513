"""What the shards give away by themselves: each attack's share beside what chance gives (SVG, no script)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from xml.sax.saxutils import escape

from redactory.foundation.wording import some

_WIDTH, _LEFT, _RIGHT = 720.0, 250.0, 640.0
_FOUND, _CHANCE = "#b5541c", "#8a8a8a"
_BAR, _GAP, _FOOT = 16.0, 10.0, 56.0
_STEPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)

Figure = Mapping[str, Any]
Row = tuple[str, Figure, str]
"""What a bar stands for, its share {value, low, high}, and its colour."""


def redaction_plot(result: Mapping[str, Any]) -> str:
    """A result of ``evaluate_redaction``: two panels of bars with their intervals, each on its own axis.

    Above: of the private points that were tied to a public one, how many by an author of both, and how many
    would be by chance.  Below: the share of points in which an engine that did not mask still finds
    something.  What was not measured is said in its place; near-duplicates across the split are a count.
    """
    parts = ['<text x="20" y="24" font-size="14">Private points tied to a public one</text>']
    bottom = _panel(parts, 34.0, _linked(result), "share of claims that are right")
    named = "" if result["residual"] is None else f" by {result['residual']['engine']}"
    parts.append(
        f'<text x="20" y="{bottom + 14:.0f}" font-size="14">'
        f"Suspected identifiers that are left, found{escape(named)}</text>"
    )
    bottom = _panel(parts, bottom + 24.0, _left(result), "share of the points looked at")
    below = f"{_across(result)}. Thin lines are 95 % intervals."
    parts.append(f'<text x="20" y="{bottom + 14:.0f}">{escape(below)}</text>')
    height = bottom + 30.0
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {height:.0f}" '
        f'width="{_WIDTH:.0f}" height="{height:.0f}" font-family="sans-serif" font-size="12" fill="#333">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _linked(result: Mapping[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for unit, own in result["linkage"].items():
        if own is not None and own["claimed"]:
            rows.append((f"same {unit}, {own['claimed']:,} claims", own["share"], _FOUND))
            rows.append(("the same by chance", own["chance"], _CHANCE))
    return rows


def _left(result: Mapping[str, Any]) -> list[Row]:
    sides = [] if result["residual"] is None else ["public", "private"]
    return [
        (f"{side}, {some(own['looked_at'], 'point')}", own["share"], _FOUND)
        for side in sides
        if (own := result["residual"][side])["looked_at"]
    ]


def _across(result: Mapping[str, Any]) -> str:
    found = result["across"]
    if found is None:
        return "Public points that nearly duplicate a private one: not measured"
    return f"Public points that nearly duplicate a private one: {found['public_points']:,}"


def _panel(parts: list[str], top: float, rows: list[Row], title: str) -> float:
    """Draw one panel from ``top`` downwards; where it ends."""
    if not rows:
        parts.append(f'<text x="{_LEFT:.0f}" y="{top + 20:.0f}" fill="#666">not measured</text>')
        return top + 44.0
    bottom = top + _GAP + (_BAR + _GAP) * len(rows)
    most = max(row[1]["high"] for row in rows)
    end = next(step for step in _STEPS if step >= min(most, 1.0))

    def across(share: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * min(share, end) / end

    parts.append(_axis(top, bottom, end, across, title))
    for number, row in enumerate(rows):
        parts.append(_bar(row, top + _GAP + (_BAR + _GAP) * number, across))
    return bottom + _FOOT


def _axis(top: float, bottom: float, end: float, across: Callable[[float], float], title: str) -> str:
    ticks = "".join(
        f'<path d="M{across(end * part / 5):.1f},{top:.0f} V{bottom:.0f}" stroke="#eee"/>'
        f'<text x="{across(end * part / 5):.1f}" y="{bottom + 16:.0f}" text-anchor="middle">'
        f"{100 * end * part / 5:.3g} %</text>"
        for part in range(6)
    )
    return (
        f'{ticks}<path d="M{_LEFT:.0f},{top:.0f} V{bottom:.0f} H{_RIGHT:.0f}" fill="none" stroke="#333"/>'
        f'<text x="{(_LEFT + _RIGHT) / 2:.0f}" y="{bottom + 34:.0f}" text-anchor="middle">{title}</text>'
    )


def _bar(row: Row, top: float, across: Callable[[float], float]) -> str:
    name, figure, colour = row
    middle, end = top + _BAR / 2.0, across(figure["value"])
    return (
        f'<text x="{_LEFT - 8:.0f}" y="{middle + 4:.1f}" text-anchor="end">{escape(name)}</text>'
        f'<rect x="{_LEFT:.0f}" y="{top:.1f}" width="{end - _LEFT:.1f}" height="{_BAR:.0f}" '
        f'fill="{colour}" fill-opacity="0.7"/>'
        f'<path d="M{across(figure["low"]):.1f},{middle:.1f} H{across(figure["high"]):.1f}" stroke="#333"/>'
        f'<text x="{_RIGHT + 12:.0f}" y="{middle + 4:.1f}">{100 * figure["value"]:.3g} %</text>'
    )
