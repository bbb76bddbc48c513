"""Compare a run's metrics with those of earlier runs (control charts).

Shares are judged by Laney's p' chart, counts per unit by his u' chart (D. B. Laney, "Improved Control Charts for
Attributes", Quality Engineering 14(4), 2002): around the pooled mean p̄ of the earlier runs lies p̄ ± L·σ_i·σ_z. σ_i is
the standard deviation that the counts alone would give a run of this size. σ_z ≥ 1 is the additional variation between
runs: rows come in conversations, not independently, so plain binomial limits would call every run unusual.

Three things are our additions. The limits are for a new run, so L follows from Student's t and √(1 + 1/k) of k runs. A
metric that dropped to 0, which no lower limit can exclude, is judged by the Poisson probability of none given the
expected count over σ_z². A change below a floor, or to fewer than five, does not count, however certain it is.
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
    "spans/strict/label": "spans of the strict policy per 1,000 examples, by label",
    "spans/strict/detector": "spans of the strict policy per 1,000 examples, by detector",
    "spans/conservative/label": "spans of the conservative policy per 1,000 examples, by label",
    "spans/conservative/detector": "spans of the conservative policy per 1,000 examples, by detector",
    "spans/public/label": "spans with public labels per 1,000 examples, by label",
    "spans/public/detector": "spans with public labels per 1,000 examples, by detector",
}
"""Description of each metric."""
RATE_SCALE = 1_000
MIN_COUNT = 5
"""Fewer spans, rows or examples than this are never too many."""
_MEAN_NORMAL_RANGE = 2 / math.sqrt(math.pi)
r"""The mean of \|a - b\| for two standard normal values, 1.128."""


class MinimumChange(NamedTuple):
    """The smallest relevant change: of a share, of spans per 1,000 examples, relative to the expectation."""

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
    """A metric: ``metric`` as in :data:`METRICS`, and its subject."""

    metric: str
    label: str = ""


@dataclass(frozen=True)
class MetricCount:
    """``count`` of ``total``: a share of rows or examples, or spans per example."""

    kind: MetricKind
    count: int
    total: int

    @property
    def value(self) -> float:
        """The share, or the rate per 1,000."""
        return self.count / self.total * (1 if self.kind == "share" else RATE_SCALE)


@dataclass(frozen=True)
class DriftResult:
    """A metric and its limits; ``n`` is its denominator in this run, ``history`` the earlier runs' values.

    Shares are from 0 to 1, rates per 1,000 examples.
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
        """The metric as JSON, without its history or any text."""
        return {name: value for name, value in asdict(self).items() if name not in ("history", "outside")}


RunMetrics = Mapping[MetricKey, MetricCount]


def extract_metrics(manifest: Mapping[str, Any]) -> dict[MetricKey, MetricCount]:
    """Return every metric of a run; a metric by label also appears without one, for missing labels."""
    counts, earlier = manifest["counts"], manifest["dedup"].get("index")
    repeated = sum(earlier["duplicate_earlier"].values()) if earlier else 0
    points = counts["examples"]
    metrics = {
        MetricKey("public"): MetricCount("share", counts["public"], counts["public"] + counts["private"]),
        MetricKey("quarantined"): MetricCount("share", counts["quarantined"], points),
        MetricKey("rejected"): MetricCount("share", counts["rejected"], counts["rows"]),
        MetricKey("duplicate"): MetricCount("share", counts["duplicate"] - repeated, points),
    }
    if earlier:
        metrics[MetricKey("duplicate_earlier")] = MetricCount("share", repeated, points)
    hits = Counter[MetricKey]({MetricKey(metric): 0 for metric in METRICS if metric.startswith("spans/")})
    for entry in manifest["spans"]:
        for by in ("label", "detector"):
            hits[MetricKey(f"spans/{entry['policy']}/{by}", entry[by])] += entry["count"]
    return metrics | {key: MetricCount("rate", count, points) for key, count in hits.items()}


def compare_with_history(
    history: Sequence[RunMetrics], today: RunMetrics, settings: DriftSettings
) -> list[DriftResult]:
    """Compare every metric of ``today`` with the limits from ``history`` (oldest first).

    A label missing from a run counts as zero. Metrics with fewer than ``settings.min_history`` runs are left out, and
    so are those with a denominator of zero.
    """
    results = []
    for key in sorted({key for run_metrics in (*history, today) for key in run_metrics}):
        now = _get_metric_count(today, key)
        # a rate without a label is used for labels that a run does not have
        if now is None or {*key} & set(settings.ignore) or (now.kind == "rate" and not key.label):
            continue
        before = [count for run_metrics in history if (count := _get_metric_count(run_metrics, key)) is not None]
        if len(before) >= settings.min_history:
            results.append(_compare_metric(key, before[-settings.runs :], now, settings.sigmas))
    return results


def _get_metric_count(run_metrics: RunMetrics, key: MetricKey) -> MetricCount | None:
    """Return a metric of one run: 0 of its examples if missing, None if the run has nothing of its kind."""
    metric_count = run_metrics.get(key, run_metrics.get(MetricKey(key.metric)))
    return metric_count if metric_count is not None and metric_count.total else None


def _compare_metric(
    key: MetricKey, earlier_counts: Sequence[MetricCount], now: MetricCount, sigmas: float
) -> DriftResult:
    from scipy.special import stdtrit

    scale, floor, runs = (1 if now.kind == "share" else RATE_SCALE), MINIMUM_CHANGE, len(earlier_counts)
    centre, sigma, variation = compute_laney_limits(earlier_counts, now.total)
    expected = centre * scale
    least = floor.share if now.kind == "share" else max(floor.rate, floor.ratio * expected)
    tail = math.erfc(sigmas / math.sqrt(2)) / 2
    # Student's t: L for a new run given the earlier ones, exceeded with probability `tail`
    width = float(-stdtrit(runs - 1, tail)) * math.sqrt(1 + 1 / runs)
    room = max(width * sigma * variation * scale, least)
    low, high = max(0.0, expected - room), expected + room
    high = min(1.0, high) if now.kind == "share" else high
    outside = now.value < low or (now.value > high and now.count >= MIN_COUNT)
    if not now.count and expected > least and math.exp(-centre * now.total / variation**2) < tail:
        outside, low = True, max(low, scale / now.total)
    history = tuple(count.value for count in earlier_counts)
    return DriftResult(*key, now.kind, now.count, now.total, now.value, expected, low, high, runs, outside, history)


def compute_laney_limits(earlier_counts: Sequence[MetricCount], n: int) -> tuple[float, float, float]:
    """Return p̄, σ_i and σ_z for a run of ``n`` units, as fractions: Laney's chart without its L."""
    count, total = sum(c.count for c in earlier_counts), sum(c.total for c in earlier_counts)
    is_share, centre = earlier_counts[0].kind == "share", count / total
    # add one of each kind: a metric that never varied may still vary
    near = (count + 1) / (total + 2) if is_share else (count + 1) / total
    sigma = math.sqrt(near * (1 - near) if is_share else near)
    z = [(c.count / c.total - centre) / (sigma / math.sqrt(c.total)) for c in earlier_counts]
    moving = sum(abs(b - a) for a, b in pairwise(z)) / (len(z) - 1)
    return centre, sigma / math.sqrt(n), max(1.0, moving / _MEAN_NORMAL_RANGE)
