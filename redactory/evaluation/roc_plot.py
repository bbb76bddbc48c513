"""ROC curves over logarithmic axes, drawn from numbers alone (SVG, no script)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

_WIDTH, _HEIGHT = 620.0, 400.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 400.0, 40.0, 340.0
_LEAST = 1e-4
_COLOURS = ("#1f5f8b", "#b5541c", "#2a8a57", "#8a8a8a", "#7a4fa3")
_DASHES = ("", "7 4", "2 3", "9 3 2 3", "4 2")
_TICKS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_NAMES = {
    "individual": "perplexity",
    "reference": "likelihood ratio, one reference",
    "rmia": "the same, by rank (RMIA)",
    "reference_alone": "reference model alone",
}


def membership_plot(result: Mapping[str, Any]) -> str:
    """The attacks of :func:`redactory.evaluation.membership.membership` that have a curve."""
    curves = {name: result[key]["roc"] for key, name in _NAMES.items() if result.get(key)}
    return roc_plot(curves, f"Members told from others, {result['members']:,} sentences of each")


def roc_plot(curves: Mapping[str, Sequence[Sequence[float]]], title: str) -> str:
    """``curves`` of [false, true positives] by their meaning, rising; chance is the grey diagonal.

    A share of 0 has no logarithm: a curve begins where the first negative is taken for a positive, with
    the positives found until then.  At most five curves.
    """
    drawn = "".join(_curve(number, name, points) for number, (name, points) in enumerate(curves.items()))
    chance = _path([(_LEAST, _LEAST), (1.0, 1.0)])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" '
        f'width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" font-family="sans-serif" font-size="12" fill="#333">'
        '<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{_LEFT:.0f}" y="22" font-size="13">{escape(title)}</text>{_axes()}'
        f'<path d="{chance}" fill="none" stroke="#bbb"/>{drawn}'
        f"{_key(len(curves), 'chance', '#bbb', '')}</svg>\n"
    )


def _curve(number: int, name: str, points: Sequence[Sequence[float]]) -> str:
    colour, dashes = _COLOURS[number % len(_COLOURS)], _DASHES[number % len(_DASHES)]
    steps: list[tuple[float, float]] = []
    before = 0.0
    for false, true in points:
        if false > 0.0:
            # what was found before a rate that the sentences cannot show stands from the left edge on
            steps += [(false, before)] if steps else [(_LEAST, before), (false, before)]
            steps.append((false, true))
        before = true
    style = f'stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dashes}"'
    return f'<path d="{_path(steps)}" fill="none" {style}/>' + _key(number, name, colour, dashes)


def _path(points: Sequence[tuple[float, float]]) -> str:
    return "M" + " L".join(f"{_x(false):.1f},{_y(true):.1f}" for false, true in points)


def _key(number: int, name: str, colour: str, dashes: str) -> str:
    y = _TOP + 10.0 + 18.0 * number
    return (
        f'<path d="M{_RIGHT + 14:.0f},{y - 4:.0f} h24" stroke="{colour}" stroke-width="1.8" '
        f'stroke-dasharray="{dashes}"/><text x="{_RIGHT + 44:.0f}" y="{y:.0f}" font-size="11">'
        f"{escape(name)}</text>"
    )


def _axes() -> str:
    grid = "".join(
        f'<path d="M{_x(tick):.1f},{_TOP:.0f} V{_BOTTOM:.0f} M{_LEFT:.0f},{_y(tick):.1f} H{_RIGHT:.0f}" '
        f'stroke="#eee"/><text x="{_x(tick):.1f}" y="{_BOTTOM + 17:.0f}" text-anchor="middle">'
        f"{_share(tick)}</text>"
        f'<text x="{_LEFT - 6:.0f}" y="{_y(tick) + 4:.1f}" text-anchor="end">{_share(tick)}</text>'
        for tick in _TICKS
    )
    middle = (_TOP + _BOTTOM) / 2.0
    return (
        f'{grid}<path d="M{_LEFT:.0f},{_TOP:.0f} V{_BOTTOM:.0f} H{_RIGHT:.0f}" fill="none" stroke="#333"/>'
        f'<text x="{(_LEFT + _RIGHT) / 2:.0f}" y="{_HEIGHT - 20:.0f}" text-anchor="middle">'
        "false positives (share of others)</text>"
        f'<text x="18" y="{middle:.0f}" text-anchor="middle" transform="rotate(-90 18 {middle:.0f})">'
        "true positives (share of members)</text>"
    )


def _x(share: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * _place(share)


def _y(share: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * _place(share)


def _place(share: float) -> float:
    return 1.0 - math.log(max(share, _LEAST)) / math.log(_LEAST)


def _share(tick: float) -> str:
    return f"{100 * tick:g}%"
