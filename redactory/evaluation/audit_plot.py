"""What an audit shows beside what a guarantee states, drawn from numbers alone (SVG, no script)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

_WIDTH, _LEFT, _RIGHT, _TOP, _STEP = 620.0, 210.0, 560.0, 52.0, 34.0
_BARS = (
    ("epsilon_lower", "shown, for any training", "#b5541c"),
    ("epsilon_lower_gaussian", "shown, if it is like a Gaussian", "#d9a441"),
    ("epsilon_upper", "stated by the guarantee", "#1f5f8b"),
)


def audit_plot(result: Mapping[str, Any]) -> str:
    """The bars of a result of ``redactory evaluate audit``: two lower bounds and the upper bound."""
    top = max((result[key] or 0.0 for key, *_ in _BARS), default=0.0) * 1.1 or 1.0
    bottom = _TOP + _STEP * len(_BARS)
    bars = "".join(_bar(result[key], name, colour, n, top) for n, (key, name, colour) in enumerate(_BARS))
    unit = 10.0 ** math.floor(math.log10(top))
    step = next(unit * part for part in (0.1, 0.2, 0.5, 1.0, 2.0) if top / (unit * part) <= 6.0)
    ticks = "".join(
        f'<path d="M{_x(tick, top):.1f},{_TOP - 6:.0f} V{bottom:.0f}" stroke="#eee"/>'
        f'<text x="{_x(tick, top):.1f}" y="{bottom + 17:.0f}" text-anchor="middle">'
        f"{tick:.3g}</text>"
        for tick in (step * n for n in range(int(top / step) + 1))
    )
    title = (
        f"{result['correct']:,} of {result['guesses']:,} guesses right, of {result['canaries']:,} canaries"
    )
    axis = f"epsilon at delta {result['delta']:g}, lower bounds at confidence {result['confidence']:g}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {bottom + 50:.0f}" '
        f'width="{_WIDTH:.0f}" height="{bottom + 50:.0f}" font-family="sans-serif" font-size="12" '
        'fill="#333">'
        '<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{_LEFT:.0f}" y="24" font-size="13">{escape(title)}</text>{ticks}{bars}'
        f'<path d="M{_LEFT:.0f},{_TOP - 6:.0f} V{bottom:.0f} H{_RIGHT:.0f}" fill="none" stroke="#333"/>'
        f'<text x="{(_LEFT + _RIGHT) / 2:.0f}" y="{bottom + 38:.0f}" text-anchor="middle">'
        f"{escape(axis)}</text>"
        "</svg>\n"
    )


def _bar(value: float | None, name: str, colour: str, number: int, top: float) -> str:
    y = _TOP + _STEP * number
    label = f'<text x="{_LEFT - 8:.0f}" y="{y + 15:.0f}" text-anchor="end">{escape(name)}</text>'
    if value is None:
        return f'{label}<text x="{_LEFT + 6:.0f}" y="{y + 15:.0f}" fill="#666">none</text>'
    width = _x(value, top) - _LEFT
    return (
        f'{label}<rect x="{_LEFT:.0f}" y="{y:.0f}" width="{width:.1f}" height="22" fill="{colour}"/>'
        f'<text x="{_LEFT + width + 5:.1f}" y="{y + 15:.0f}">{value:.3g}</text>'
    )


def _x(value: float, top: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * value / top
