"""Plots of the UeDP figures as SVG: lines over a logarithmic or linear axis, with names at the side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

import numpy as np

LEFT, RIGHT, TOP, BOTTOM = 78.0, 520.0, 58.0, 360.0
WIDTH, HEIGHT = 800, 430
COLOURS = {
    "noiseless": "#444",
    "de-identification": "#8a8a8a",
    "user-level": "#b58900",
    "uedp-alg1": "#cb4b16",
    "uedp-alg1-all-users": "#d33682",
    "uedp-bounded": "#268bd2",
}


@dataclass(frozen=True)
class Line:
    """A line: ``points`` (x, y), or one y across the whole width where there is a ``level``."""

    name: str
    points: Sequence[tuple[float, float]] = ()
    level: float | None = None
    colour: str = "#333"
    dash: str = ""


@dataclass(frozen=True)
class Axis:
    """An axis: its title, whether it is logarithmic, and the numbers that are written (else chosen)."""

    title: str
    log: bool = False
    ticks: Sequence[float] = ()

    def value(self, number: float) -> float:
        """Where ``number`` lies on the axis, before scaling."""
        return math.log10(number) if self.log else number

    def written(self, low: float, high: float) -> list[float]:
        """The numbers written between ``low`` and ``high``, which are places of :meth:`value`."""
        if self.ticks:
            return list(self.ticks)
        if not self.log:
            step = _round_step((high - low) / 5)
            return [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
        tens = range(math.floor(low), math.ceil(high) + 1)
        factors = (1, 2, 5) if high - low < 2.5 else (1,)
        if high - low < 0.7:
            factors = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
        found = [factor * 10.0**ten for ten in tens for factor in factors]
        return [number for number in found if low - 1e-9 <= math.log10(number) <= high + 1e-9]


def plot(title: str, note: str, x: Axis, y: Axis, lines: Sequence[Line]) -> str:
    """An SVG document; the note stands below the title, each line's name to the right in its colour."""
    xs = [x.value(p[0]) for line in lines for p in line.points] + [x.value(t) for t in x.ticks]
    ys = [y.value(p[1]) for line in lines for p in line.points]
    ys += [y.value(line.level) for line in lines if line.level is not None]
    left, right = _wider(xs)
    low, high = _wider(ys)

    def across(number: float) -> float:
        return LEFT + (RIGHT - LEFT) * (x.value(number) - left) / (right - left)

    def up(number: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (y.value(number) - low) / (high - low)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="22" font-size="14">{escape(title)}</text>',
        f'<text x="{LEFT}" y="41" fill="#555">{escape(note)}</text>',
        f'<path d="M{LEFT} {TOP}V{BOTTOM}H{RIGHT}" fill="none" stroke="#333"/>',
        _text((LEFT + RIGHT) / 2, BOTTOM + 42, x.title, "middle"),
        f'<text transform="translate(20 {(TOP + BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        f"{escape(y.title)}</text>",
    ]
    for number in x.written(left, right):
        parts.append(f'<path d="M{across(number):.1f} {BOTTOM}v5" stroke="#333"/>')
        parts.append(_text(across(number), BOTTOM + 20, f"{number:g}", "middle"))
    for number in y.written(low, high):
        parts.append(f'<path d="M{LEFT} {up(number):.1f}H{RIGHT}" stroke="#e5e5e5"/>')
        parts.append(_text(LEFT - 8, up(number) + 4, f"{number:g}", "end"))
    for place, line in enumerate(lines):
        dash = f' stroke-dasharray="{line.dash}"' if line.dash else ""
        if line.level is not None:
            path = f"M{LEFT} {up(line.level):.1f}H{RIGHT}"
        else:
            path = "M" + "L".join(f"{across(a):.1f} {up(b):.1f}" for a, b in line.points)
        parts.append(f'<path d="{path}" fill="none" stroke="{line.colour}" stroke-width="2"{dash}/>')
        if len(line.points) < 10:
            parts += [
                f'<circle cx="{across(a):.1f}" cy="{up(b):.1f}" r="3.5" fill="{line.colour}"/>'
                for a, b in line.points
            ]
        key = TOP + 10 + 24 * place
        parts.append(f'<path d="M{RIGHT + 16} {key - 4}h26" stroke="{line.colour}" stroke-width="2"{dash}/>')
        parts.append(_text(RIGHT + 48, key, line.name, "start"))
    return "\n".join([*parts, "</svg>\n"])


def _wider(values: Sequence[float]) -> tuple[float, float]:
    margin = 0.06 * (max(values) - min(values)) or 0.1
    return min(values) - margin, max(values) + margin


def _round_step(step: float) -> float:
    ten = 10.0 ** math.floor(math.log10(step))
    return float(ten * min((1, 2, 5, 10), key=lambda factor: abs(factor * ten - step)))


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def steps_grid(most: int) -> list[int]:
    """About twenty numbers of steps from 1 to ``most``, closer together at the start."""
    return sorted({round(float(n)) for n in np.geomspace(1, most, 20)})
