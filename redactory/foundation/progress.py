"""Progress reports of long-running work, and stage reports: counts and seconds, never text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol


class Progress(Protocol):
    """Listener: gets the name of the work, units done so far, and the total if known.

    ``unit`` may add a remark after a comma: "steps, ε ≤ 1.2". Work of unknown size has no unit:
    :func:`report_start_and_end`.
    """

    def __call__(self, work: str, done: int, total: int | None, unit: str = "") -> None: ...


def ignore_progress(work: str, done: int, total: int | None, unit: str = "") -> None:
    """Ignore progress."""


@contextmanager
def report_start_and_end(progress: Progress, work: str) -> Iterator[None]:
    """Report the start and end of ``work`` of unknown size."""
    progress(work, 0, None)
    yield
    progress(work, 1, 1)


@dataclass(frozen=True)
class StageReport:
    """Counts of one stage over one partition (or over all of them, once merged)."""

    stage: str
    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    peak_mb: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """The report as JSON; :meth:`from_json` reads it back."""
        return {
            "stage": self.stage,
            "counts": dict(sorted(self.counts.items())),
            "seconds": round(self.seconds, 3),
            "peak_mb": round(self.peak_mb, 1),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> StageReport:
        """Read a report that :meth:`to_json` wrote."""
        return cls(value["stage"], Counter(value["counts"]), value["seconds"], value["peak_mb"])


def merge_reports(stage: str, reports: Iterable[StageReport]) -> StageReport:
    """Merge reports of a stage: add counts and seconds, keep the highest memory peak."""
    total, seconds, peak = Counter[str](), 0.0, 0.0
    for report in reports:
        total.update(report.counts)
        seconds += report.seconds
        peak = max(peak, report.peak_mb)
    return StageReport(stage, total, seconds, peak)
