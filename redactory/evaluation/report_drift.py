"""How a night compares with earlier ones, for the report: what was held back, and why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from redactory.evaluation.drift_figures import METRICS
from redactory.foundation.files import read_json
from redactory.foundation.wording import some
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import is_finished

_METRICS = {
    **METRICS,
    **{
        f"hits/{policy}/{by}": f"hits of {sign} per 1,000 points"
        for policy, sign in (("strict", "π"), ("conservative", "π_c"))
        for by in ("label", "detector")
    },
}


@dataclass(frozen=True)
class Chart:
    """Where this run's figure and the earlier ones lie, and their limits: percents from the upper edge."""

    values: list[float]
    expected: float
    low: float
    high: float

    @classmethod
    def of(cls, figure: Mapping[str, Any]) -> Chart:
        """A chart as high as all of them need, this run last."""
        values = [*figure["history"], figure["value"]]
        lowest, highest = min(*values, figure["low"]), max(*values, figure["high"])
        room = (highest - lowest or abs(highest) or 1.0) * 0.06

        def down(value: float) -> float:
            return float(100 * (highest + room - value) / (highest - lowest + 2 * room))

        return cls([down(value) for value in values], *(down(figure[k]) for k in ("expected", "low", "high")))


@dataclass(frozen=True)
class Row:
    """One figure beside its limits, as it is shown."""

    name: str
    metric: str
    value: str
    expected: str
    limits: str
    of: str
    outside: bool
    chart: Chart


@dataclass(frozen=True)
class Drift:
    """The judgement of the gate, or that there was none to make."""

    verdict: str
    empty: bool
    runs: list[str]
    other_policies: int
    least: int
    outside: list[Row]
    within: list[Row]


def drift_of(run: RunFolder) -> Drift | None:
    """What the gate kept of ``run``; None where it never stood before one."""
    if not is_finished(run.gate):
        return None
    result = read_json(run.gate.root / "result.json")
    rows = [_row(figure) for figure in result["compared"]]
    return Drift(
        result["verdict"],
        result.get("empty", False),
        result["runs"],
        len(result["other_policies"]),
        result["settings"]["least"],
        [row for row in rows if row.outside],
        [row for row in rows if not row.outside],
    )


def _row(figure: Mapping[str, Any]) -> Row:
    shares = figure["kind"] == "share"

    def said(value: float) -> str:
        return f"{100 * value:.1f}%" if shares else f"{value:,.1f}"

    metric = _METRICS[figure["metric"]]
    return Row(
        figure["label"] or metric,
        metric if figure["label"] else "",
        said(figure["value"]),
        said(figure["expected"]),
        f"{said(figure['low'])} to {said(figure['high'])}",
        f"{figure['count']:,} of {figure['n']:,}" if shares else some(figure["count"], "hit"),
        figure["outside"],
        Chart.of(figure),
    )
