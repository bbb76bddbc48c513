"""Lines with ranges over a common axis, as the pages of results show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from textwrap import fill
from typing import Any

from redactory.evaluation.plots import draw_svg, set_log_scale


@dataclass(frozen=True)
class Line:
    """One line: (x, y), or (x, y, least y, greatest y), a point; ``flat`` draws one value right across."""

    name: str
    colour: str
    points: Sequence[tuple[float, ...]] = ()
    style: str = "-"
    flat: float | None = None


@dataclass(frozen=True)
class Axes:
    """Titles (with units), and whether an axis is logarithmic; ``low`` and ``high`` widen the y axis.

    ``ticks`` are the numbers that stand on the x axis, the points' own where there are few of them.
    """

    title: str
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False
    low: float | None = None
    high: float | None = None
    notes: Sequence[str] = field(default_factory=tuple)
    ticks: Sequence[float] = ()


def line_plot(lines: Sequence[Line], axes: Axes) -> str:
    """The picture as SVG, the lines' names at its side and the notes below its title."""

    def draw(panel: Any) -> None:
        for line in lines:
            if line.flat is not None:
                panel.axhline(line.flat, color=line.colour, linestyle=line.style, label=line.name)
                continue
            x, y, *ends = zip(*line.points, strict=True)
            style = {"color": line.colour, "linestyle": line.style, "label": line.name}
            if len(x) < 12:
                style |= {"marker": "o", "markersize": 4}
            reach = [[b - a for a, b in zip(ends[0], y, strict=True)]] if ends else None
            if reach is not None:
                reach.append([b - a for a, b in zip(y, ends[1], strict=True)])
            panel.errorbar(x, y, yerr=reach, elinewidth=0.8, **style)
        if axes.log_x:
            set_log_scale(panel.xaxis)
        ticks = axes.ticks or sorted({point[0] for line in lines for point in line.points})
        if len(ticks) < 8:
            panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks], minor=False)
            panel.set_xticks([], minor=True)
        seen = [value for line in lines for point in line.points for value in point[1:]]
        seen += [line.flat for line in lines if line.flat is not None]
        seen += [value for value in (axes.low, axes.high) if value is not None]
        if axes.log_y:
            set_log_scale(panel.yaxis, (1, 2, 5) if max(seen) > 5 * min(seen) else range(1, 10))
        if axes.low is not None:
            panel.set_ylim(bottom=min(seen))
        if axes.high is not None:
            panel.set_ylim(top=max(seen))
        panel.set_title(fill("; ".join(axes.notes), 60), loc="left", fontsize=9, color="#666666")
        panel.figure.legend(loc="outside right upper")

    return draw_svg(draw, axes.title, axes.x, axes.y, size=(7.5, 4.0))
