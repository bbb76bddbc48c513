"""A reliability plot: the confidence that was stated against the frequency that was met (SVG)."""

from __future__ import annotations

from collections.abc import Sequence

_SIZE, _EDGE = 320.0, 44.0


def reliability_plot(bins: Sequence[tuple[float, float, int]], error: float) -> str:
    """``bins`` as (mean confidence, share that was so, tokens); the diagonal is perfect calibration."""
    inner = _SIZE - 2 * _EDGE

    def place(confidence: float, share: float) -> tuple[float, float]:
        return _EDGE + confidence * inner, _SIZE - _EDGE - share * inner

    points = [(*place(mean, share), count) for mean, share, count in bins]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="#1f5f8b"><title>{count} tokens</title></circle>'
        for x, y, count in points
    )
    (left, bottom), (right, top) = place(0, 0), place(1, 1)
    ticks = "".join(
        f'<text x="{place(v, 0)[0]:.1f}" y="{bottom + 16:.1f}" text-anchor="middle">{v:g}</text>'
        f'<text x="{left - 8:.1f}" y="{place(0, v)[1] + 4:.1f}" text-anchor="end">{v:g}</text>'
        for v in (0, 0.5, 1)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIZE:.0f} {_SIZE:.0f}" '
        f'width="{_SIZE:.0f}" height="{_SIZE:.0f}" font-family="sans-serif" font-size="11" fill="#333">'
        f'<rect width="100%" height="100%" fill="#fff"/>'
        f'<path d="M{left:.1f},{bottom:.1f} L{right:.1f},{top:.1f}" stroke="#bbb" stroke-dasharray="4 3"/>'
        f'<path d="M{left:.1f},{top:.1f} V{bottom:.1f} H{right:.1f}" fill="none" stroke="#333"/>'
        f'<polyline points="{line}" fill="none" stroke="#1f5f8b" stroke-width="1.5"/>{dots}{ticks}'
        f'<text x="{_SIZE / 2:.1f}" y="{_SIZE - 8:.1f}" text-anchor="middle">'
        "stated probability of plain</text>"
        f'<text x="12" y="{_SIZE / 2:.1f}" text-anchor="middle" '
        f'transform="rotate(-90 12 {_SIZE / 2:.1f})">share that is plain</text>'
        f'<text x="{_SIZE / 2:.1f}" y="20" text-anchor="middle">calibration error {error:.4f}</text></svg>\n'
    )
