"""Drift: whether a run's figures lie where those of earlier runs lay (control charts).

Shares are judged by Laney's p' chart, counts a unit by his u' chart (D. B. Laney, "Improved Control Charts
for Attributes", Quality Engineering 14(4), 2002): around the pooled mean p̄ of the earlier runs lies
p̄ ± L·σ_i·σ_z.  σ_i is the standard deviation that the counts alone would give a run of this size, and
σ_z ≥ 1 says how much more the runs have varied from one to the next: a run's rows come in conversations,
not one by one, so that plain binomial limits would call every run unusual.

Three things are ours.  The limits are for a new run, so L follows from Student's t and √(1 + 1/k) of k runs. A figure
that vanished, which no lower limit may exclude, is judged by the Poisson probability of finding none where the expected
count over σ_z² was due.  A change under a floor, or to fewer than five, does not count, however sure it is.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from pydantic import Field

from redactory.foundation.settings import Settings

MetricKind = Literal["share", "rate"]
METRICS = {
    "public": "public examples, of those in the shards",
    "quarantined": "quarantined examples",
    "rejected": "rejected rows",
    "duplicate": "duplicates within the run",
    "duplicate_earlier": "duplicates of earlier runs",
    "hits/strict/label": "spans of the strict policy per 1,000 examples, by label",
    "hits/strict/detector": "spans of the strict policy per 1,000 examples, by detector",
    "hits/conservative/label": "spans of the conservative policy per 1,000 examples, by label",
    "hits/conservative/detector": "spans of the conservative policy per 1,000 examples, by detector",
    "hits/public/label": "spans with public labels per 1,000 examples, by label",
    "hits/public/detector": "spans with public labels per 1,000 examples, by detector",
}
"""Each metric in words."""
RATE_SCALE = 1_000
"""Rates are per so many units."""
MIN_COUNT = 5
"""Fewer hits, rows or points than this are never too many."""
_MEAN_NORMAL_RANGE = 2 / math.sqrt(math.pi)
"""The mean of \\|a - b\\| for two standard normal values, 1.128."""


class MinimumChange(NamedTuple):
    """The least change that counts: of a share, of hits per 1,000 points, as a part of what was expected."""

    share: float = 0.01
    rate: float = 0.5
    ratio: float = 0.1


MINIMUM_CHANGE = MinimumChange()


class DriftSettings(Settings):
    """When a run is held back because it differs from earlier ones (section ``nightly.drift``)."""

    runs: int = Field(14, ge=2, description="Compare with this many of the latest released runs.")
    min_history: int = Field(5, ge=2, description="With fewer earlier runs drift is not checked.")
    sigmas: float = Field(
        3.5, gt=0, le=8, description="Width of the limits, in standard deviations of a normal metric."
    )
    ignore: tuple[str, ...] = Field(
        (), description="Labels, detectors or metrics (public, duplicate, ...) that do not hold a run."
    )


class MetricKey(NamedTuple):
    """Which figure: ``metric`` as in :data:`METRICS`, and of what."""

    metric: str
    label: str = ""


@dataclass(frozen=True)
class MetricCount:
    """``count`` of ``of``: a share of rows or points, or hits among points."""

    kind: MetricKind
    count: int
    total: int

    @property
    def value(self) -> float:
        """The share, or the rate per 1,000."""
        return self.count / self.total * (1 if self.kind == "share" else RATE_SCALE)


@dataclass(frozen=True)
class DriftResult:
    """One figure beside its limits; ``n`` is what it is of today, ``history`` the earlier runs' values.

    Shares from 0 to 1, rates per 1,000 points.
    """

    metric: str
    label: str
    kind: MetricKind
    count: int
    n: int
    value: float
    expected: float
    low: float
    high: float
    runs: int
    outside: bool
    history: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The figure as JSON, without its history; no text."""
        return {name: value for name, value in asdict(self).items() if name not in ("history", "outside")}


RunMetrics = Mapping[MetricKey, MetricCount]


def extract_metrics(manifest: Mapping[str, Any]) -> dict[MetricKey, MetricCount]:
    """Every figure of a run; a metric by label also stands without one, for labels that it has none of."""
    counts, earlier = manifest["counts"], manifest["dedup"].get("index")
    repeated = sum(earlier["duplicate_earlier"].values()) if earlier else 0
    points = counts["points"]
    metrics = {
        MetricKey("public"): MetricCount("share", counts["public"], counts["public"] + counts["private"]),
        MetricKey("quarantined"): MetricCount("share", counts["quarantined"], points),
        MetricKey("rejected"): MetricCount("share", counts["rejected"], counts["rows"]),
        MetricKey("duplicate"): MetricCount("share", counts["duplicate"] - repeated, points),
    }
    if earlier:
        metrics[MetricKey("duplicate_earlier")] = MetricCount("share", repeated, points)
    hits = Counter[MetricKey]({MetricKey(metric): 0 for metric in METRICS if metric.startswith("hits/")})
    for entry in manifest["hits"]:
        for by in ("label", "detector"):
            hits[MetricKey(f"hits/{entry['policy']}/{by}", entry[by])] += entry["count"]
    return metrics | {key: MetricCount("rate", count, points) for key, count in hits.items()}


def compare_with_history(
    history: Sequence[RunMetrics], today: RunMetrics, settings: DriftSettings
) -> list[DriftResult]:
    """Every figure of ``today`` beside the limits that ``history`` (oldest first) gives it.

    A label that a run does not have counts as none of it; figures of fewer than ``settings.min_history`` runs
    are left out, and so are those of nothing (a run without points).
    """
    results = []
    for key in sorted({key for run_metrics in (*history, today) for key in run_metrics}):
        now = _find_count(today, key)
        # a rate without a label stands for the labels that a run does not have
        if now is None or {*key} & set(settings.ignore) or (now.kind == "rate" and not key.label):
            continue
        before = [count for run_metrics in history if (count := _find_count(run_metrics, key)) is not None]
        if len(before) >= settings.min_history:
            results.append(_compare_metric(key, before[-settings.runs :], now, settings.sigmas))
    return results


def _find_count(run_metrics: RunMetrics, key: MetricKey) -> MetricCount | None:
    """The figure of one run: 0 of its points where it has none, None where it counts nothing of the kind."""
    metric_count = run_metrics.get(key, run_metrics.get(MetricKey(key.metric)))
    return metric_count if metric_count is not None and metric_count.total else None


def _compare_metric(
    key: MetricKey, earlier_counts: Sequence[MetricCount], today_count: MetricCount, sigmas: float
) -> DriftResult:
    scale, floor, runs = (1 if today_count.kind == "share" else RATE_SCALE), MINIMUM_CHANGE, len(earlier_counts)
    centre, sigma, variation = compute_laney_limits(earlier_counts, today_count.total)
    expected = centre * scale
    least = floor.share if today_count.kind == "share" else max(floor.rate, floor.ratio * expected)
    tail = math.erfc(sigmas / math.sqrt(2)) / 2
    room = max(compute_limit_width(tail, runs) * sigma * variation * scale, least)
    low, high = max(0.0, expected - room), expected + room
    high = min(1.0, high) if today_count.kind == "share" else high
    outside = today_count.value < low or (today_count.value > high and today_count.count >= MIN_COUNT)
    if not today_count.count and expected > least and math.exp(-centre * today_count.total / variation**2) < tail:
        outside, low = True, max(low, scale / today_count.total)
    history = tuple(count.value for count in earlier_counts)
    return DriftResult(
        *key,
        today_count.kind,
        today_count.count,
        today_count.total,
        today_count.value,
        expected,
        low,
        high,
        runs,
        outside,
        history,
    )


def compute_laney_limits(earlier_counts: Sequence[MetricCount], n: int) -> tuple[float, float, float]:
    """p̄, and σ_i and σ_z for a run of ``n`` units, as parts of one: Laney's chart without its L."""
    count, total = sum(c.count for c in earlier_counts), sum(c.total for c in earlier_counts)
    is_share, centre = earlier_counts[0].kind == "share", count / total
    # one more of each kind is imagined: of what never varied nobody knows that it never does
    near = (count + 1) / (total + 2) if is_share else (count + 1) / total
    sigma = math.sqrt(near * (1 - near) if is_share else near)
    z = [(c.count / c.total - centre) / (sigma / math.sqrt(c.total)) for c in earlier_counts]
    moving = sum(abs(b - a) for a, b in pairwise(z)) / (len(z) - 1)
    return centre, sigma / math.sqrt(n), max(1.0, moving / _MEAN_NORMAL_RANGE)


def compute_limit_width(tail: float, runs: int) -> float:
    """L for a new run judged by ``runs`` earlier ones (Student's t), above with probability ``tail``."""
    from scipy.special import stdtrit

    return float(-stdtrit(runs - 1, tail)) * math.sqrt(1 + 1 / runs)
