"""A histogram of scores small enough to stand among many (SVG, no script)."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

_WIDTH, _HEIGHT, _LEAST = 200.0, 44.0, 1.5


def histogram(bins: Sequence[int]) -> Markup:
    """Bars over scores from 0 to 1, the highest bin at full height; no bin that counts is invisible."""
    step, highest = _WIDTH / max(1, len(bins)), max(bins, default=0)
    bars = Markup("").join(
        Markup('<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
            place * step + 0.75, _HEIGHT - tall, step - 1.5, tall
        )
        for place, count in enumerate(bins)
        if count
        for tall in (max(_LEAST, _HEIGHT * count / highest),)
    )
    base = Markup('<path class="base" d="M0,{0:.1f} H{1:.0f}"/>').format(_HEIGHT + 0.5, _WIDTH)
    return Markup(
        '<svg class="histogram" viewBox="0 0 {:.0f} {:.0f}" preserveAspectRatio="none" aria-hidden="true">'
        "{}{}</svg>"
    ).format(_WIDTH, _HEIGHT + 1, bars, base)
