"""Detection on labelled points: what π and π ∪ π_c find, what both miss, and what stays public."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from redactory.detectors import Detection, Span, TextDetector
from redactory.evaluation.bootstrap import RESAMPLES, SEED
from redactory.evaluation.detection_scores import (
    Counts,
    count_matches,
    figures,
    labelled_spans,
    proportion,
    share,
)
from redactory.evaluation.recall import measure_misses
from redactory.foundation.progress import Progress, silent
from redactory.redaction import PUBLIC, route

CONFIDENCE = 0.95
INTERVALS = {
    "confidence": CONFIDENCE,
    "clopper_pearson": {
        "figures": ["cover_recall", "gamma", "miss_rate"],
        "over": "secrets, as if each were drawn on its own",
    },
    "bootstrap": {
        "figures": ["exact", "cover", "overlap", "char_precision", "char_recall", "f1", "f2", "public_share"],
        "over": "rows of the labelled file",
        "kind": "percentile",
        "resamples": RESAMPLES,
        "seed": SEED,
    },
}
"""Which interval is which kind; all are two-sided."""

_WARM_UP = 20
_CHUNK = 256


def strict_marks(detection: Detection) -> tuple[Span, ...]:
    """What π masks."""
    return detection.strict


def all_marks(detection: Detection) -> tuple[Span, ...]:
    """What π or π_c marks."""
    return detection.strict + detection.conservative


POLICIES: dict[str, Callable[[Detection], tuple[Span, ...]]] = {
    "strict": strict_marks,
    "conservative": all_marks,
}
"""A policy's name in a report, and the marks that are scored under it."""


@dataclass(frozen=True, slots=True)
class LabelledPoint:
    """A data point of row ``row`` with its labelled spans ({start, end, label} mappings, code points)."""

    row: int
    text: str
    spans: Sequence[Mapping[str, Any]]


class Fates:
    """F, and what the policies mark; each distinct text is detected once, for F is a function of the text."""

    def __init__(self, detector: TextDetector) -> None:
        self._detector = detector
        self._detections: dict[str, Detection] = {}

    def read(self, texts: Iterable[str], progress: Progress = silent) -> tuple[int, float]:
        """Detect what is new among ``texts``: how many they were, and the seconds they took."""
        new = [text for text in dict.fromkeys(texts) if text not in self._detections]
        done, seconds = 0, 0.0
        while chunk := new[done : done + _CHUNK]:
            start = time.perf_counter()
            found = list(self._detector.detect(chunk))
            seconds += time.perf_counter() - start
            self._detections.update(zip(chunk, found, strict=True))
            done += len(chunk)
            progress("detect", done, len(new), "texts")
        return done, seconds

    def detection(self, text: str) -> Detection:
        """What the policies mark in a text that was read."""
        return self._detections[text]

    def is_public(self, text: str) -> bool:
        """Whether a text that was read goes public."""
        return route(text, self._detections[text]).side == PUBLIC

    def __call__(self, texts: Sequence[str]) -> list[tuple[str, str]]:
        """F: (side or "quarantined", text masked by π) of each text."""
        self.read(texts)
        fates = (route(text, self._detections[text]) for text in texts)
        return [("quarantined" if fate.failure else fate.side, fate.text) for fate in fates]


def measure_detection(
    detector: TextDetector,
    points: Sequence[LabelledPoint],
    policies: Sequence[str] = tuple(POLICIES),
    progress: Progress = silent,
) -> dict[str, Any]:
    """Recall and precision of the policies on labelled points, their misses, and the public share.

    ``strict`` scores the marks of π, ``conservative`` those of π and π_c together, as
    :func:`~redactory.evaluation.detection_scores.figures` says; a quarantined point has no marks, and
    ``quarantined`` counts them.  ``gamma`` (with ``strict`` only), ``miss_rate`` (δ₂: both missed it) and
    ``strata`` come of running F twice on every secret, :func:`~redactory.evaluation.recall.measure_misses`.
    ``public_share`` is the share of all points that go public; its ``of_clean`` that of the points without
    a labelled span.  ``texts_per_second`` counts distinct points, the engines being warm.

    ``interval`` says which interval is of which kind.  No text is in the result.
    """
    texts = [point.text for point in points]
    Fates(detector).read(texts[:_WARM_UP])
    fates = Fates(detector)
    distinct, seconds = fates.read(texts, progress)
    misses = measure_misses(fates, texts, [point.spans for point in points], CONFIDENCE, progress)
    result: dict[str, Any] = {
        name: figures(_by_row(points, fates, marks), CONFIDENCE)
        for name, marks in POLICIES.items()
        if name in policies
    }
    if "strict" in policies:
        result["gamma"] = _missed(misses["gamma"]["misses"], misses["n"])
        result["highest_gamma"] = misses["highest_gamma_of_strata"]
    return {
        **result,
        "miss_rate": _missed(misses["delta_2"]["misses"], misses["n"]),
        "public_share": public_share(points, fates.is_public),
        "strata": misses["strata"],
        "points": len(points),
        "distinct_points": distinct,
        "secrets": misses["n"],
        "quarantined": sum(fates.detection(text).failure is not None for text in texts),
        "texts_per_second": distinct / seconds if seconds else None,
        "interval": INTERVALS,
    }


def public_share(points: Iterable[LabelledPoint], is_public: Callable[[str], bool]) -> dict[str, Any]:
    """The share of the points that go public, and that of those without a labelled span.

    {value, low, high, points, public, of_clean: {value, low, high, points, public}}.
    """
    rows: dict[int, Counter[str]] = {}
    for point in points:
        row, public = rows.setdefault(point.row, Counter()), is_public(point.text)
        for kind in ("all", "clean")[: 1 if point.spans else 2]:
            row[kind] += 1
            row[f"{kind} public"] += public
    total = sum(rows.values(), Counter[str]())

    def of(kind: str) -> dict[str, Any]:
        pairs = [(row[f"{kind} public"], row[kind]) for row in rows.values()]
        counts = {"points": total[kind], "public": total[f"{kind} public"]}
        return {**share(pairs, CONFIDENCE), **counts}

    return {**of("all"), "of_clean": of("clean")}


def _by_row(
    points: Iterable[LabelledPoint], fates: Fates, marks: Callable[[Detection], tuple[Span, ...]]
) -> list[Counts]:
    rows: dict[int, Counts] = {}
    for point in points:
        places = [(span.start, span.end) for span in marks(fates.detection(point.text))]
        rows.setdefault(point.row, Counter()).update(
            count_matches(point.text, labelled_spans(point.spans), places)
        )
    return list(rows.values())


def _missed(misses: int, n: int) -> dict[str, Any]:
    return {**proportion(misses, n, CONFIDENCE), "misses": misses, "n": n}
