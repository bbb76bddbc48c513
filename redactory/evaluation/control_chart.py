"""A control chart small enough to stand among many: earlier values, limits, today (SVG, no script)."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

_WIDTH, _HEIGHT = 320.0, 120.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.0, 320.0, 12.0, 108.0
_HALO = 4.5


def control_chart(history: Sequence[float], today: float, expected: float, low: float, high: float) -> Markup:
    """Points from the oldest run to today's, a band between the limits, a line at what was expected."""
    lowest, highest = min(*history, today, low), max(*history, today, high)
    room = (highest - lowest or abs(highest) or 1.0) * 0.06

    def up(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - lowest + room) / (highest - lowest + 2 * room)

    def across(number: int) -> float:
        return _LEFT + 8 + (_RIGHT - _LEFT - 16) * number / len(history)

    places = [(across(n), up(value)) for n, value in enumerate((*history, today))]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    dots = Markup("").join(
        Markup('<circle cx="{:.1f}" cy="{:.1f}" r="2.6"/>').format(*p) for p in places[:-1]
    )
    return Markup(
        '<svg class="control" viewBox="0 0 {w:.0f} {h:.0f}" role="img" aria-label="Earlier runs, then this">'
        '<rect class="band" x="{left:.1f}" y="{top:.1f}" width="{across:.1f}" height="{tall:.1f}"/>'
        '<path class="expected" d="M{left:.1f} {middle:.1f}H{right:.1f}"/>'
        '<polyline points="{path}"/>{dots}'
        '<circle class="today" cx="{x:.1f}" cy="{y:.1f}" r="{halo}"/></svg>'
    ).format(
        w=_WIDTH,
        h=_HEIGHT,
        left=_LEFT,
        right=_RIGHT,
        across=_RIGHT - _LEFT,
        top=up(high),
        tall=max(1.0, up(low) - up(high)),
        middle=up(expected),
        path=path,
        dots=dots,
        x=places[-1][0],
        y=places[-1][1],
        halo=_HALO,
    )
