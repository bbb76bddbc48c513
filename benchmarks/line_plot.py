"""Lines with ranges over a common axis, drawn from numbers alone (SVG, no script)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 680.0, 400.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 470.0, 44.0, 336.0
_LEGEND_STEP = 17.0


@dataclass(frozen=True)
class Line:
    """One line: (x, y, least y, greatest y) a point; ``flat`` draws one value right across."""

    name: str
    colour: str
    points: Sequence[tuple[float, float, float, float]] = ()
    dashes: str = ""
    flat: float | None = None
    width: float = 1.8


@dataclass(frozen=True)
class Axes:
    """Titles (with units), and whether an axis is logarithmic; ``low`` and ``high`` widen the y axis."""

    title: str
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    low: float | None = None
    high: float | None = None
    notes: Sequence[str] = field(default_factory=tuple)


def line_plot(lines: Sequence[Line], axes: Axes) -> str:
    """The picture; lines that lie on each other are set apart along x by a hair, so that each is seen."""
    xs = sorted({p[0] for line in lines for p in line.points}) or [0.0, 1.0]
    ys = [v for line in lines for p in line.points for v in p[1:]]
    ys += [line.flat for line in lines if line.flat is not None]
    ys += [v for v in (axes.low, axes.high) if v is not None]
    across = _Scale.over(xs, _LEFT + 14, _RIGHT - 14, axes.log_x)
    up = _Scale.over(ys or [0.0, 1.0], _BOTTOM, _TOP, axes.log_y, margin=0.04)
    parts = [_frame(axes), _ticks(xs, up, across)]
    for number, line in enumerate(lines):
        parts.append(_line(line, across, up, (number - (len(lines) - 1) / 2) * 2.0))
        parts.append(_legend(line, _TOP + 8 + _LEGEND_STEP * number))
    for number, note in enumerate(axes.notes):
        y = _TOP + 16 + _LEGEND_STEP * (len(lines) + 0.5) + 15 * number
        parts.append(
            f'<text x="{_RIGHT + 14:.0f}" y="{y:.1f}" fill="#666" font-size="11">{escape(note)}</text>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" '
        f'width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" font-family="sans-serif" font-size="12" fill="#333">'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


@dataclass(frozen=True)
class _Scale:
    low: float
    high: float
    start: float
    end: float
    log: bool

    @classmethod
    def over(
        cls, values: Sequence[float], start: float, end: float, log: bool, margin: float = 0.0
    ) -> _Scale:
        low, high = (math.log(v) if log else v for v in (min(values), max(values)))
        if high - low < 1e-9:
            low, high = low - 0.5, high + 0.5
        room = margin * (high - low)
        return cls(low - room, high + room, start, end, log)

    def __call__(self, value: float) -> float:
        at = math.log(value) if self.log else value
        return self.start + (self.end - self.start) * (at - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.log:
            return _log_ticks(math.exp(self.low), math.exp(self.high))
        step = _round((self.high - self.low) / 5)
        first = math.ceil(self.low / step)
        return [round(step * n, 10) for n in range(first, math.floor(self.high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten; of a range that holds fewer than three of these, all nine multiples."""
    powers = [10.0**n for n in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]
    for steps in ((1.0, 2.0, 5.0), tuple(float(n) for n in range(1, 10))):
        found = [power * step for power in powers for step in steps if low <= power * step <= high]
        if len(found) > 2:
            return found
    return [low, high]


def _round(value: float) -> float:
    """1, 2, 2.5 or 5 times a power of ten, not below ``value``."""
    unit = 10.0 ** math.floor(math.log10(value))
    return next(unit * step for step in (1.0, 2.0, 2.5, 5.0, 10.0) if unit * step >= value * (1 - 1e-9))


def _frame(axes: Axes) -> str:
    middle = (_TOP + _BOTTOM) / 2
    return (
        f'<text x="{_LEFT:.0f}" y="22" font-size="14">{escape(axes.title)}</text>'
        f'<path d="M{_LEFT} {_TOP}V{_BOTTOM}H{_RIGHT}" fill="none" stroke="#333"/>'
        f'<text x="{(_LEFT + _RIGHT) / 2:.0f}" y="{_BOTTOM + 42:.0f}" text-anchor="middle">'
        f"{escape(axes.x)}</text>"
        f'<text text-anchor="middle" transform="translate(16 {middle:.0f}) rotate(-90)">'
        f"{escape(axes.y)}</text>"
    )


def _ticks(xs: Sequence[float], up: _Scale, across: _Scale) -> str:
    parts = []
    last = -math.inf
    for x in xs:
        if across(x) - last >= 26:
            last = across(x)
            parts.append(
                f'<path d="M{last:.1f} {_BOTTOM}v4" stroke="#333"/>'
                f'<text x="{last:.1f}" y="{_BOTTOM + 18:.0f}" text-anchor="middle">{x:g}</text>'
            )
    for y in up.ticks():
        parts.append(
            f'<path d="M{_LEFT} {up(y):.1f}H{_RIGHT}" stroke="#eee"/>'
            f'<text x="{_LEFT - 6:.0f}" y="{up(y) + 4:.1f}" text-anchor="end">{y:.3g}</text>'
        )
    return "".join(parts)


def _line(line: Line, across: _Scale, up: _Scale, shift: float) -> str:
    dashes = f' stroke-dasharray="{line.dashes}"' if line.dashes else ""
    stroke = f'stroke="{line.colour}" stroke-width="{line.width:g}"{dashes}'
    if line.flat is not None:
        return f'<path d="M{_LEFT} {up(line.flat):.1f}H{_RIGHT}" {stroke}/>'
    places = [(across(x) + shift, up(y), up(low), up(high)) for x, y, low, high in line.points]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _, _ in places)
    ranges = "".join(
        f'<path d="M{x:.1f} {low:.1f}V{high:.1f}" stroke="{line.colour}"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.6" fill="{line.colour}"/>'
        for x, y, low, high in places
    )
    return f'<polyline points="{path}" fill="none" {stroke}/>{ranges}'


def _legend(line: Line, y: float) -> str:
    dashes = f' stroke-dasharray="{line.dashes}"' if line.dashes else ""
    return (
        f'<path d="M{_RIGHT + 14:.0f} {y - 4:.1f}h22" stroke="{line.colour}" stroke-width="2"{dashes}/>'
        f'<text x="{_RIGHT + 42:.0f}" y="{y:.1f}">{escape(line.name)}</text>'
    )
