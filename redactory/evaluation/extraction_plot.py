"""The share of secrets that a model wrote, by times seen, beside controls (SVG, no script)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from redactory.foundation.intervals import lower_bound, upper_bound
from redactory.foundation.wording import some

_WIDTH, _HEIGHT = 640.0, 380.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 66.0, 620.0, 62.0, 300.0
_SECRET, _CONTROL = "#b5541c", "#8a8a8a"
_BAR = 22.0
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def extraction_plot(result: Mapping[str, Any]) -> str:
    """A result of ``extraction``: bars with 95 % Clopper-Pearson intervals, for groups that hold a secret."""
    groups = [group for group in result["by_times_seen"] if group["secrets"]]
    highest = [
        _interval(group, kind)[2] for group in groups for kind in ("secrets", "controls") if group[kind]
    ]
    top = next(step for step in _STEPS if step >= max([0.0, *(min(v, 1.0) for v in highest)]))

    def height(share: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * share / top

    parts = [_frame(top, height), _legend()]
    width = (_RIGHT - _LEFT) / max(len(groups), 1)
    for number, group in enumerate(groups):
        middle = _LEFT + width * (number + 0.5)
        for side, kind, colour in ((-1.0, "secrets", _SECRET), (1.0, "controls", _CONTROL)):
            if group[kind]:
                parts.append(_bar(middle + side * _BAR / 2.0, _interval(group, kind), height, colour))
        for line, text in enumerate((_times(group), some(group["secrets"], "secret"))):
            colour = "#666" if line else "#333"
            parts.append(
                f'<text x="{middle:.0f}" y="{_BOTTOM + 18 + 16 * line:.0f}" text-anchor="middle" '
                f'fill="{colour}">{text}</text>'
            )
    if not groups:
        parts.append(f'<text x="{_LEFT + 20:.0f}" y="{_TOP + 40:.0f}">no secret was tried</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" '
        f'width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" font-family="sans-serif" font-size="12" fill="#333">'
        '<rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{_LEFT:.0f}" y="22" font-size="14">Secrets found in {some(result["samples"], "text")} '
        f"that the model wrote</text>{''.join(parts)}</svg>\n"
    )


def _interval(group: Mapping[str, Any], kind: str) -> tuple[float, float, float]:
    found, n = group[f"{kind}_found"], group[kind]
    return found / n, lower_bound(found, n, 0.975), upper_bound(found, n, 0.975)


def _times(group: Mapping[str, Any]) -> str:
    low, high = group["from"], group["to"]
    return f"{low:,} or more" if high is None else f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _bar(x: float, interval: Sequence[float], height: Any, colour: str) -> str:
    value, low, high = interval
    y = height(value)
    return (
        f'<rect x="{x - _BAR / 2 + 1:.1f}" y="{y:.1f}" width="{_BAR - 2:.1f}" height="{_BOTTOM - y:.1f}" '
        f'fill="{colour}" fill-opacity="0.7"/>'
        f'<path d="M{x:.1f},{height(low):.1f} V{height(min(high, 1.0)):.1f}" stroke="#333"/>'
    )


def _frame(top: float, height: Any) -> str:
    ticks = "".join(
        f'<path d="M{_LEFT:.0f},{height(top * part / 5):.1f} H{_RIGHT:.0f}" stroke="#eee"/>'
        f'<text x="{_LEFT - 6:.0f}" y="{height(top * part / 5) + 4:.1f}" text-anchor="end">'
        f"{100 * top * part / 5:.3g} %</text>"
        for part in range(6)
    )
    middle = (_TOP + _BOTTOM) / 2.0
    return (
        f'{ticks}<path d="M{_LEFT:.0f},{_TOP:.0f} V{_BOTTOM:.0f} H{_RIGHT:.0f}" fill="none" stroke="#333"/>'
        f'<text text-anchor="middle" transform="translate(14 {middle:.0f}) rotate(-90)">found (share)</text>'
        f'<text x="{(_LEFT + _RIGHT) / 2:.0f}" y="{_BOTTOM + 58:.0f}" text-anchor="middle">'
        "times that a secret stands in what the model was trained on</text>"
    )


def _legend() -> str:
    parts = []
    for x, colour, text in (
        (_LEFT, _SECRET, "secrets"),
        (_LEFT + 90, _CONTROL, "controls: values of the same form that it never saw"),
    ):
        parts.append(f'<rect x="{x:.0f}" y="36" width="12" height="12" fill="{colour}" fill-opacity="0.7"/>')
        parts.append(f'<text x="{x + 18:.0f}" y="46">{text}</text>')
    return "".join(parts)
