"""Drift: whether a run's figures lie where those of earlier runs lay (control charts).

Shares are judged by Laney's p' chart, counts a unit by his u' chart (D. B. Laney, "Improved Control Charts
for Attributes", Quality Engineering 14(4), 2002): around the pooled mean p̄ of the earlier runs lies
p̄ ± L·σ_i·σ_z.  σ_i is the standard deviation that the counts alone would give a run of this size, and
σ_z ≥ 1 says how much more the runs have varied from one to the next: a run's rows come in conversations,
not one by one, so that plain binomial limits would call every run unusual.

Three things are ours.  The limits are for a new run, so L follows from Student's t and √(1 + 1/k) of k runs.
A figure that vanished, which no lower limit may exclude, is judged by the Poisson probability of finding none
where the expected count over σ_z² was due.  A change under a floor, or to fewer than five, does not count,
however sure it is.
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

Kind = Literal["share", "rate"]
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
PER = 1_000
"""Rates are per so many units."""
LEAST = 5
"""Fewer hits, rows or points than this are never too many."""
_MEAN_RANGE = 2 / math.sqrt(math.pi)
"""The mean of \\|a - b\\| for two standard normal values, 1.128."""


class Floor(NamedTuple):
    """The least change that counts: of a share, of hits per 1,000 points, as a part of what was expected."""

    share: float = 0.01
    rate: float = 0.5
    ratio: float = 0.1


FLOOR = Floor()


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


class Key(NamedTuple):
    """Which figure: ``metric`` as in :data:`METRICS`, and of what."""

    metric: str
    label: str = ""


@dataclass(frozen=True)
class Count:
    """``count`` of ``of``: a share of rows or points, or hits among points."""

    kind: Kind
    count: int
    of: int

    @property
    def value(self) -> float:
        """The share, or the rate per 1,000."""
        return self.count / self.of * (1 if self.kind == "share" else PER)


@dataclass(frozen=True)
class Finding:
    """One figure beside its limits; ``n`` is what it is of today, ``history`` the earlier runs' values.

    Shares from 0 to 1, rates per 1,000 points.
    """

    metric: str
    label: str
    kind: Kind
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


Figures = Mapping[Key, Count]


def figures_of(manifest: Mapping[str, Any]) -> dict[Key, Count]:
    """Every figure of a run; a metric by label also stands without one, for labels that it has none of."""
    counts, earlier = manifest["counts"], manifest["dedup"].get("index")
    repeated = sum(earlier["duplicate_earlier"].values()) if earlier else 0
    points = counts["points"]
    figures = {
        Key("public"): Count("share", counts["public"], counts["public"] + counts["private"]),
        Key("quarantined"): Count("share", counts["quarantined"], points),
        Key("rejected"): Count("share", counts["rejected"], counts["rows"]),
        Key("duplicate"): Count("share", counts["duplicate"] - repeated, points),
    }
    if earlier:
        figures[Key("duplicate_earlier")] = Count("share", repeated, points)
    hits = Counter[Key]({Key(metric): 0 for metric in METRICS if metric.startswith("hits/")})
    for hit in manifest["hits"]:
        for by in ("label", "detector"):
            hits[Key(f"hits/{hit['policy']}/{by}", hit[by])] += hit["count"]
    return figures | {key: Count("rate", count, points) for key, count in hits.items()}


def compare(history: Sequence[Figures], today: Figures, settings: DriftSettings) -> list[Finding]:
    """Every figure of ``today`` beside the limits that ``history`` (oldest first) gives it.

    A label that a run does not have counts as none of it; figures of fewer than ``settings.min_history`` runs
    are left out, and so are those of nothing (a run without points).
    """
    compared = []
    for key in sorted({key for figures in (*history, today) for key in figures}):
        now = _of(today, key)
        # a rate without a label stands for the labels that a run does not have
        if now is None or {*key} & set(settings.ignore) or (now.kind == "rate" and not key.label):
            continue
        before = [count for figures in history if (count := _of(figures, key)) is not None]
        if len(before) >= settings.min_history:
            compared.append(_judged(key, before[-settings.runs :], now, settings.sigmas))
    return compared


def _of(figures: Figures, key: Key) -> Count | None:
    """The figure of one run: 0 of its points where it has none, None where it counts nothing of the kind."""
    found = figures.get(key, figures.get(Key(key.metric)))
    return found if found is not None and found.of else None


def _judged(key: Key, before: Sequence[Count], now: Count, sigmas: float) -> Finding:
    scale, floor, runs = (1 if now.kind == "share" else PER), FLOOR, len(before)
    centre, sigma, varied = laney(before, now.of)
    expected = centre * scale
    least = floor.share if now.kind == "share" else max(floor.rate, floor.ratio * expected)
    tail = math.erfc(sigmas / math.sqrt(2)) / 2
    room = max(width(tail, runs) * sigma * varied * scale, least)
    low, high = max(0.0, expected - room), expected + room
    high = min(1.0, high) if now.kind == "share" else high
    outside = now.value < low or (now.value > high and now.count >= LEAST)
    if not now.count and expected > least and math.exp(-centre * now.of / varied**2) < tail:
        outside, low = True, max(low, scale / now.of)
    history = tuple(count.value for count in before)
    return Finding(*key, now.kind, now.count, now.of, now.value, expected, low, high, runs, outside, history)


def laney(before: Sequence[Count], n: int) -> tuple[float, float, float]:
    """p̄, and σ_i and σ_z for a run of ``n`` units, as parts of one: Laney's chart without its L."""
    count, whole = sum(c.count for c in before), sum(c.of for c in before)
    share, centre = before[0].kind == "share", count / whole
    # one more of each kind is imagined: of what never varied nobody knows that it never does
    near = (count + 1) / (whole + 2) if share else (count + 1) / whole
    sigma = math.sqrt(near * (1 - near) if share else near)
    z = [(c.count / c.of - centre) / (sigma / math.sqrt(c.of)) for c in before]
    moving = sum(abs(b - a) for a, b in pairwise(z)) / (len(z) - 1)
    return centre, sigma / math.sqrt(n), max(1.0, moving / _MEAN_RANGE)


def width(tail: float, runs: int) -> float:
    """L for a new run judged by ``runs`` earlier ones (Student's t), above with probability ``tail``."""
    from scipy.special import stdtrit

    return float(-stdtrit(runs - 1, tail)) * math.sqrt(1 + 1 / runs)
