"""Compare a run's metrics with those of earlier runs (control charts).

Shares are judged by Laney's p' chart, counts per unit by his u' chart (D. B. Laney, "Improved Control Charts for
Attributes", Quality Engineering 14(4), 2002): a run is outside if a metric is not in p̄ ± k·σ_i·σ_z. p̄ is the pooled
mean of the earlier runs, σ_i the standard deviation that the counts alone would give a run of this size, and σ_z ≥ 1
the additional variation between runs: rows come in conversations, not independently, so plain binomial limits would
call every run unusual. Because σ_z is uncertain after few runs, and a run has many metrics, k is the quantile of
Student's t at :data:`LEVEL` divided by their number. Small changes do not count, however certain they are.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
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
MAX_HISTORY, MIN_HISTORY = 14, 5
"""Compare with at most this many of the latest released runs; with fewer than the second number, not at all."""
LEVEL = 0.02
"""Probability to hold a steady run with normally distributed metrics; counts are skewed, and hold up to one in ten."""
MIN_SHARE_CHANGE, MIN_RATE_CHANGE, MIN_RELATIVE_CHANGE = 0.01, 0.5, 0.1
"""The smallest relevant change: of a share; of spans per 1,000 examples, and relative to their expected rate."""
MIN_COUNT = 5
"""Fewer spans, rows or examples than this are never too many."""
RATE_SCALE = 1_000
_MEAN_NORMAL_RANGE = 2 / math.sqrt(math.pi)
r"""The mean of \|a - b\| for two standard normal values, 1.128."""


class DriftSettings(Settings):
    """When a run is held back because it differs from earlier ones (section ``nightly.drift``)."""

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
    history: Sequence[RunMetrics], today: RunMetrics, ignore: Collection[str] = ()
) -> list[dict[str, Any]]:
    """Compare every metric of ``today`` with the limits from ``history`` (oldest first).

    ``{"metric", "label", "kind", "count", "n", "value", "expected", "low", "high", "outside", "history"}`` of each:
    ``n`` is its denominator, ``history`` the earlier runs' values; shares are from 0 to 1, rates per 1,000 examples.
    A label missing from a run counts as zero. Metrics with fewer than ``MIN_HISTORY`` runs are left out, and so are
    those with a denominator of zero.
    """
    judged = []
    for key in sorted({key for run_metrics in (*history, today) for key in run_metrics}):
        now = _get_metric_count(today, key)
        # a rate without a label is used for labels that a run does not have
        if now is None or {*key} & {*ignore} or (now.kind == "rate" and not key.label):
            continue
        before = [count for run_metrics in history if (count := _get_metric_count(run_metrics, key)) is not None]
        if len(before) >= MIN_HISTORY:
            judged.append((key, before[-MAX_HISTORY:], now))
    return [_compare_metric(*metric, compute_limit_width(len(metric[1]), len(judged))) for metric in judged]


def compute_limit_width(runs: int, metrics: int) -> float:
    """Return k after a number of ``runs``: with 40 metrics 10 after five runs, 6 after eight and 4.6 after 14."""
    from scipy.special import stdtrit

    return float(stdtrit(runs - 1, 1 - LEVEL / (2 * metrics)))


def _get_metric_count(run_metrics: RunMetrics, key: MetricKey) -> MetricCount | None:
    """Return a metric of one run: 0 of its examples if missing, None if the run has nothing of its kind."""
    metric_count = run_metrics.get(key, run_metrics.get(MetricKey(key.metric)))
    return metric_count if metric_count is not None and metric_count.total else None


def _compare_metric(
    key: MetricKey, history: Sequence[MetricCount], now: MetricCount, limit_width: float
) -> dict[str, Any]:
    centre, deviation = compute_laney_limits(history, now.total)
    if now.kind == "share":
        expected, room, highest = centre, max(limit_width * deviation, MIN_SHARE_CHANGE), 1.0
    else:
        expected, highest = centre * RATE_SCALE, math.inf
        room = max(limit_width * deviation * RATE_SCALE, MIN_RATE_CHANGE, MIN_RELATIVE_CHANGE * expected)
    low, high = max(0.0, expected - room), min(highest, expected + room)
    outside = now.value < low or (now.value > high and now.count >= MIN_COUNT)
    facts = {**key._asdict(), "kind": now.kind, "count": now.count, "n": now.total, "value": now.value}
    limits = {"expected": expected, "low": low, "high": high, "outside": outside}
    return {**facts, **limits, "history": [count.value for count in history]}


def compute_laney_limits(history: Sequence[MetricCount], n: int) -> tuple[float, float]:
    """Return p̄ and σ_i·σ_z for a run of ``n`` units, as fractions."""
    count, total = sum(c.count for c in history), sum(c.total for c in history)
    is_share, centre = history[0].kind == "share", count / total
    # add one of each kind: a metric that never varied may still vary
    near = (count + 1) / (total + 2) if is_share else (count + 1) / total
    sigma = math.sqrt(near * (1 - near) if is_share else near)
    z = [(c.count / c.total - centre) / (sigma / math.sqrt(c.total)) for c in history]
    sigma_z = sum(abs(b - a) for a, b in pairwise(z)) / (len(z) - 1) / _MEAN_NORMAL_RANGE
    return centre, sigma / math.sqrt(n) * max(1.0, sigma_z)
