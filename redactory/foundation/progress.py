"""How long-running work reports its progress, without knowing who listens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol


class Progress(Protocol):
    """Called with the name of the work, units done so far, and the total where it is known.

    ``unit`` may carry a remark behind a comma: "steps, ε ≤ 1.2".  Work that cannot say how far it is has
    no unit: :func:`report_loading`.
    """

    def __call__(self, work: str, done: int, total: int | None, unit: str = "") -> None: ...


def no_progress(work: str, done: int, total: int | None, unit: str = "") -> None:
    """A listener that says nothing."""


@contextmanager
def report_loading(progress: Progress, work: str) -> Iterator[None]:
    """Tell that ``work`` has begun and that it is done; how far a model is loaded, nobody knows."""
    progress(work, 0, None)
    yield
    progress(work, 1, 1)


# What a stage hands back: counts and seconds, never text.


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
        """A report as :meth:`to_json` wrote it."""
        return cls(value["stage"], Counter(value["counts"]), value["seconds"], value["peak_mb"])


def merge_reports(stage: str, reports: Iterable[StageReport]) -> StageReport:
    """One report of a stage: counts and seconds added, the highest peak of memory kept."""
    total, seconds, peak = Counter[str](), 0.0, 0.0
    for report in reports:
        total.update(report.counts)
        seconds += report.seconds
        peak = max(peak, report.peak_mb)
    return StageReport(stage, total, seconds, peak)
