"""The exposure of each canary as a dot, planted ones beside those never planted (SVG, no script)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from redactory.foundation.wording import some

_WIDTH, _HEIGHT = 720.0, 350.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 60.0, 510.0, 40.0, 300.0
_MISSED, _CAUGHT, _PLANTED, _NEVER = (
    "planted, missed by π",
    "planted, caught by π",
    "planted",
    "never planted",
)
_COLOURS = {_MISSED: "#b5541c", _CAUGHT: "#1f5f8b", _PLANTED: "#1f5f8b", _NEVER: "#8a8a8a"}
_DOT = 4.0


def exposure_plot(result: Mapping[str, Any]) -> str:
    """A result of ``canary_exposure``: exposure in bits by kind of canary, with what chance gives.

    A canary without an exposure is not drawn; how many there are is said.
    """
    most = float(result["largest_possible"])
    top = 5.0 * math.ceil(most / 5.0)

    def height(bits: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * bits / top

    kinds = _kinds(result["canaries"])
    parts = [_frame(top, height), _levels(result, most, height)]
    width = (_RIGHT - _LEFT) / max(len(kinds), 1)
    for number, (kind, values) in enumerate(kinds.items()):
        middle = _LEFT + width * (number + 0.5)
        parts.append(f'<text x="{middle:.0f}" y="{_BOTTOM + 18:.0f}" text-anchor="middle">{kind}</text>')
        known = [value for value in values if value is not None]
        counted = some(len(values), "canary", "canaries") + (
            "" if len(known) == len(values) else f", {len(values) - len(known)} without a figure"
        )
        parts.append(
            f'<text x="{middle:.0f}" y="{_BOTTOM + 34:.0f}" text-anchor="middle" fill="#666">{counted}</text>'
        )
        parts += _dots(known, middle, width, height, _COLOURS[kind])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" '
        f'width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" font-family="sans-serif" font-size="12" fill="#333">'
        '<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{_LEFT:.0f}" y="22" font-size="14">Exposure of each canary</text>{"".join(parts)}</svg>\n'
    )


def _kinds(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """The exposures by kind of canary; planted ones in two kinds where π misses some."""
    some_missed = any(row.get("missed") for row in rows)
    kinds: dict[str, list[float | None]] = {}
    for row in rows:
        planted = (_MISSED if row.get("missed") else _CAUGHT) if some_missed else _PLANTED
        kinds.setdefault(planted if row["inserted"] else _NEVER, []).append(row["exposure"])
    order = (_MISSED, _CAUGHT, _PLANTED, _NEVER)
    return {kind: kinds[kind] for kind in order if kind in kinds}


def _dots(values: Sequence[float], middle: float, width: float, height: Any, colour: str) -> list[str]:
    """Dots side by side where they would overlap, as far as there is room."""
    placed: list[tuple[float, float]] = []
    parts = []
    step, room = 2.2 * _DOT, width / 2.0 - _DOT
    shifts = [0.0] + [side * step * n for n in range(1, int(room // step) + 1) for side in (1, -1)]
    for value in sorted(values):
        y = height(value)
        free = (s for s in shifts if all(math.hypot(s - x, y - z) >= step for x, z in placed))
        x = next(free, 0.0)
        placed.append((x, y))
        parts.append(
            f'<circle cx="{middle + x:.1f}" cy="{y:.1f}" r="{_DOT}" fill="{colour}" fill-opacity="0.75"/>'
        )
    return parts


def _frame(top: float, height: Any) -> str:
    ticks = "".join(
        f'<path d="M{_LEFT:.0f},{height(bits):.1f} H{_RIGHT:.0f}" stroke="#eee"/>'
        f'<text x="{_LEFT - 6:.0f}" y="{height(bits) + 4:.1f}" text-anchor="end">{bits}</text>'
        for bits in range(0, int(top) + 1, 5)
    )
    middle = (_TOP + _BOTTOM) / 2.0
    return (
        f'{ticks}<path d="M{_LEFT:.0f},{_TOP:.0f} V{_BOTTOM:.0f} H{_RIGHT:.0f}" fill="none" stroke="#333"/>'
        f'<text text-anchor="middle" transform="translate(18 {middle:.0f}) rotate(-90)">'
        "exposure (bits)</text>"
    )


def _levels(result: Mapping[str, Any], most: float, height: Any) -> str:
    """Lines across for what is possible and for what chance gives, each named beside the picture."""
    chance = (result.get("chance") or {}).get("highest_95")
    levels = [(most, "#333", "", f"known by heart: {most:.1f}")]
    if chance is not None:
        levels.append((chance, "#2e7d32", "6 4", f"95 % of chance's highest: {chance:.1f}"))
    levels.append((1.0 / math.log(2.0), "#2e7d32", "2 3", f"chance's mean: {1.0 / math.log(2.0):.1f}"))
    return "".join(
        f'<path d="M{_LEFT:.0f},{height(bits):.1f} H{_RIGHT:.0f}" stroke="{colour}" '
        f'stroke-dasharray="{dashes}"/>'
        f'<text x="{_RIGHT + 8:.0f}" y="{height(bits) + 4:.1f}" fill="{colour}">{name}</text>'
        for bits, colour, dashes, name in levels
    )
