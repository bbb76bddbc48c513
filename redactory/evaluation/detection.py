"""Detection on labelled points: what π and π ∪ π_c find, what both miss, and what stays public.

And what other engines find of the same points, beside them.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from redactory.detectors import Detection, Span, TextDetector
from redactory.evaluation.recall import measure_misses
from redactory.evaluation.statistics import (
    CONFIDENCE,
    RESAMPLES,
    SEED,
    Bootstrap,
    Sums,
    figure,
    proportion,
    quotient,
    share,
)
from redactory.foundation.progress import Progress, silent
from redactory.redaction import PUBLIC, route
from redactory.redaction.mask import merge_intervals

Interval = tuple[int, int]
Counts = Counter[tuple[str, str]]
"""(label, or :data:`ALL`; what is counted) -> how often."""

INTERVALS = {
    "confidence": CONFIDENCE,
    "clopper_pearson": {
        "figures": ["cover_recall", "gamma", "miss_rate"],
        "over": "secrets, as if each were drawn independently",
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
_CHUNK, _TURN = 256, 64


POLICIES: dict[str, Callable[[Detection], tuple[Span, ...]]] = {
    "strict": lambda detection: detection.strict,
    "conservative": lambda detection: detection.strict + detection.conservative,
}
"""A policy's name in a report, and the marks that are scored under it: what π masks; what π or π_c marks."""


@dataclass(frozen=True, slots=True)
class LabelledPoint:
    """A data point of row ``row`` with its labelled spans ({start, end, label} mappings, code points).

    ``public`` are those with a public label, which are no secrets.
    """

    row: int
    text: str
    spans: Sequence[Mapping[str, Any]]
    public: Sequence[Mapping[str, Any]] = ()


class Fates(dict[str, Detection]):
    """F, and what the policies mark; each distinct text is detected once, for F is a function of the text."""

    def __init__(self, detector: TextDetector) -> None:
        super().__init__()
        self._detector = detector

    def read(self, texts: Iterable[str], progress: Progress = silent) -> tuple[int, float]:
        """Detect what is new among ``texts``: how many they were, and the processor's seconds they took."""
        new = [text for text in dict.fromkeys(texts) if text not in self]
        done, start = 0, time.process_time()
        while chunk := new[done : done + _CHUNK]:
            self.update(zip(chunk, self._detector.detect(chunk), strict=True))
            done += len(chunk)
            progress("detect", done, len(new), "texts")
        return done, time.process_time() - start

    def is_public(self, text: str) -> bool:
        """Whether a text that was read goes public."""
        return route(text, self[text]).side == PUBLIC

    def __call__(self, texts: Sequence[str]) -> list[tuple[str, str]]:
        """F: (side or "quarantined", text masked by π) of each text."""
        self.read(texts)
        fates = (route(text, self[text]) for text in texts)
        return [("quarantined" if fate.failure else fate.side, fate.text) for fate in fates]


def measure_detection(
    detector: TextDetector, points: Sequence[LabelledPoint], progress: Progress = silent
) -> dict[str, Any]:
    """Recall and precision of the policies on labelled points, their misses, and the public share.

    ``strict`` scores the marks of π, ``conservative`` those of π and π_c together (:func:`figures`); a
    quarantined point has no marks. ``gamma``, ``miss_rate`` (δ₂) and ``strata`` come
    of :func:`~redactory.evaluation.recall.measure_misses`; ``public_share`` is of all points, its
    ``of_clean`` of those without a labelled span. ``texts_per_second`` counts distinct points in a second of
    a processor core, the engines being warm; ``interval`` says which interval is of which kind; ``public``
    counts the spans of each public label ({n, open}), and those of which π masks nothing. No text is in the
    result.
    """
    texts, fates = [point.text for point in points], Fates(detector)
    Fates(detector).read(texts[:_WARM_UP])
    distinct, seconds = fates.read(texts, progress)
    misses = measure_misses(fates, texts, [point.spans for point in points], CONFIDENCE, progress)
    result: dict[str, Any] = {}
    for name, marks in POLICIES.items():
        result[name] = figures(_by_row(points, lambda text, own=marks: own(fates[text])), CONFIDENCE)  # type: ignore[misc]
    missed = {
        rate: {**proportion(own["misses"], misses["n"], CONFIDENCE), "misses": own["misses"], "n": misses["n"]}
        for rate, own in ((rate, misses[rate]) for rate in ("gamma", "delta_2"))
    }
    return {
        **result,
        "gamma": missed["gamma"],
        "highest_gamma": misses["highest_gamma_of_strata"],
        "miss_rate": missed["delta_2"],
        "public_share": public_share(points, fates.is_public),
        "public": _left_open(points, fates),
        "strata": misses["strata"],
        "points": len(points),
        "distinct_points": distinct,
        "secrets": misses["n"],
        "quarantined": sum(fates[text].failure is not None for text in texts),
        "texts_per_second": distinct / seconds if seconds else None,
        "interval": INTERVALS,
    }


def measure_beside(
    ours: TextDetector, rivals: Mapping[str, TextDetector], points: Sequence[LabelledPoint], progress: Progress = silent
) -> list[dict[str, Any]]:
    """What π alone, π ∪ π_c and each of ``rivals`` find of the same points, a row each.

    As if each were all that decides, a point in which it marks something being private: a secret is missed
    whose point is public, which is the δ₂ of both policies, and ``public_share`` is that of the points
    without a labelled span. {engine, policy (None of a rival), cover_recall, char_precision, char_recall,
    miss_rate: {value, low, high, misses, n}, public_share: {value, low, high, points, public}, quarantined,
    texts_per_second: {value, low, high}}. Distinct points are read in turn, a few at a time by each, so that
    what else the machine does weighs on all alike; seconds are those of a processor core, and their
    bootstrap is over these turns. No text is in the result.
    """
    fates = {name: Fates(detector) for name, detector in {"": ours, **rivals}.items()}
    texts = list(dict.fromkeys(point.text for point in points))
    for detector in (ours, *rivals.values()):
        Fates(detector).read(texts[:_WARM_UP])
    turns: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for start in range(0, len(texts), _TURN):
        # whoever comes first in one turn comes last in the next
        order = list(fates) if start // _TURN % 2 else list(reversed(fates))
        for name in order:
            turns[name].append(fates[name].read(texts[start : start + _TURN]))
        progress("compare", min(start + _TURN, len(texts)), len(texts), "texts")
    rows = []
    for name, own in fates.items():
        beside = {
            "quarantined": sum(own[point.text].failure is not None for point in points),
            "texts_per_second": _speed(turns[name]),
        }
        for policy, marks in POLICIES.items() if not name else [(None, POLICIES["strict"])]:
            rows.append({"engine": name or "redactory", "policy": policy, **_alone(points, own, marks), **beside})
    return rows


def _speed(turns: Sequence[tuple[int, float]]) -> dict[str, Any]:
    """Texts per second of turns of (texts, seconds); of one turn nobody knows how much it varies."""
    speed = Bootstrap(np.array(turns), CONFIDENCE).figure(lambda sums: quotient(sums[:, 0], sums[:, 1]))
    return speed if len(turns) > 1 else figure(speed["value"])


def _alone(
    points: Sequence[LabelledPoint], fates: Mapping[str, Detection], marks: Callable[[Detection], tuple[Span, ...]]
) -> dict[str, Any]:
    """The figures of what ``marks`` takes of each detection, as if nothing else decided."""
    detections = {text: Detection(marks(one), failure=one.failure) for text, one in fates.items()}
    public = {text for text, one in detections.items() if route(text, one).side == PUBLIC}
    found = figures(_by_row(points, lambda text: detections[text].strict), CONFIDENCE)
    secrets = sum(len(point.spans) for point in points)
    missed = sum(len(point.spans) for point in points if point.text in public)
    return {
        **{name: found[name] for name in ("cover_recall", "char_precision", "char_recall")},
        "miss_rate": {**proportion(missed, secrets, CONFIDENCE), "misses": missed, "n": secrets},
        "public_share": public_share(points, public.__contains__)["of_clean"],
    }


def _by_row(points: Iterable[LabelledPoint], marks: Callable[[str], Iterable[Span]]) -> list[Counts]:
    rows: dict[int, Counts] = defaultdict(Counter)
    for point in points:
        places = [(span.start, span.end) for span in marks(point.text)]
        rows[point.row].update(count_matches(point.text, labelled_spans(point.spans), places))
    return list(rows.values())


def _left_open(points: Iterable[LabelledPoint], fates: Mapping[str, Detection]) -> dict[str, Any]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for point in points:
        for start, end, label in labelled_spans(point.public):
            touched = any(mark.start < end and start < mark.end for mark in fates[point.text].strict)
            counts[label].update(n=1, open=not touched)
    return {label: {name: own[name] for name in ("n", "open")} for label, own in sorted(counts.items())}


def public_share(points: Iterable[LabelledPoint], is_public: Callable[[str], bool]) -> dict[str, Any]:
    """The share of the points that go public, and that of those without a labelled span.

    {value, low, high, points, public, of_clean: {value, low, high, points, public}}.
    """
    known = [(point.row, bool(point.spans), is_public(point.text)) for point in points]

    def of(some: list[tuple[int, bool, bool]]) -> dict[str, Any]:
        rows: dict[int, list[bool]] = {row: [] for row, *_ in known}
        for row, _, public in some:
            rows[row].append(public)
        counts = {"points": len(some), "public": sum(public for *_, public in some)}
        return {**share([(sum(own), len(own)) for own in rows.values()], CONFIDENCE), **counts}

    return {**of(known), "of_clean": of([one for one in known if not one[1]])}


# What marks find of labelled spans: counts of one text, and the figures that sums of them give.
#
# Every count is free of types: label schemes of engines and corpora differ.  Characters of white space
# count nowhere, so that a mask over two names and the space between them is as good as two masks.


MATCHES = ("exact", "cover", "overlap")
"""The same bounds; every character; any character."""
ALL = "\0"


def count_matches(text: str, labelled: Sequence[tuple[int, int, str]], marks: Iterable[Interval]) -> Counts:
    """Count what ``marks`` find of the ``labelled`` (start, end, label) spans of one text.

    A labelled span is found when a mark has its bounds (exact), when marks cover all its characters (cover),
    when they cover any (overlap); a mark is right under the same conditions towards the labelled spans. Marks
    that overlap count as one; outer white space, and a span of nothing else, counts nowhere.
    """
    solid = np.fromiter((not letter.isspace() for letter in text), np.bool_, len(text))
    found = merge_intervals(text, _bare(text, marks), near=False)
    wanted = [(bounds, label) for start, end, label in labelled for bounds in _bare(text, [(start, end)])]
    masked, true = np.zeros_like(solid), np.zeros_like(solid)
    for flags, places in ((masked, found), (true, [bounds for bounds, _ in wanted])):
        for start, end in places:
            flags[start:end] = solid[start:end]
    counts: Counts = Counter()
    for name, flags in (("chars_marked", masked), ("chars_labelled", true), ("chars_both", masked & true)):
        counts[ALL, name] = int(flags.sum())
    exact = {bounds for bounds, _ in wanted} & set(found)
    spans = [("labelled", bounds, label, masked) for bounds, label in wanted]
    spans += [("marked", bounds, ALL, true) for bounds in found]
    for kind, (start, end), label, other in spans:
        chars, covered = int(solid[start:end].sum()), int(other[start:end].sum())
        counts[ALL, kind] += 1
        for name, hit in zip(MATCHES, ((start, end) in exact, covered == chars, covered > 0), strict=True):
            counts[ALL, f"{name}_{kind}"] += hit
        if kind == "labelled":
            own = {"labelled": 1, "cover_labelled": int(covered == chars), "chars_labelled": chars}
            counts.update({(label, name): count for name, count in {**own, "chars_both": covered}.items()})
    return counts


def figures(rows: Sequence[Counts], confidence: float = 0.95) -> dict[str, Any]:
    """The figures of counts by row: {value, low, high} of each; a figure over nothing is null.

    {cover_recall, exact, cover, overlap: {precision, recall, f1, f2}, char_precision, char_recall, f1, f2 (of
    characters), spans, marks, by_label: {label: {n, cover_recall, char_recall}}}. ``cover_recall`` has its
    two-sided Clopper-Pearson interval, every other figure a percentile bootstrap over rows.
    """
    total = sum(rows, Counter[tuple[str, str]]())
    places = {key: number for number, key in enumerate(total)}
    table = np.zeros((len(rows), len(places)))
    for number, row in enumerate(rows):
        for key in row.keys() & places.keys():
            table[number, places[key]] = row[key]
    bootstrap = Bootstrap(table, confidence)

    def column(sums: Sums, key: tuple[str, str]) -> Sums:
        return sums[:, places[key]] if key in places else np.zeros(len(sums))

    def ratio(over: str, under: str, label: str = ALL) -> Callable[[Sums], Sums]:
        return lambda sums: quotient(column(sums, (label, over)), column(sums, (label, under)))

    def scores(name: str, kinds: tuple[str, str]) -> dict[str, Any]:
        precision, recall = (ratio(name.format(kind), kind) for kind in kinds)
        return {
            "precision": bootstrap.figure(precision),
            "recall": bootstrap.figure(recall),
            "f1": bootstrap.figure(lambda sums: _f(precision(sums), recall(sums), 1)),
            "f2": bootstrap.figure(lambda sums: _f(precision(sums), recall(sums), 2)),
        }

    def cover(label: str) -> dict[str, Any]:
        return proportion(total[label, "cover_labelled"], total[label, "labelled"], confidence)

    chars = scores("chars_both", ("chars_marked", "chars_labelled"))
    return {
        "cover_recall": cover(ALL),
        **{name: scores(f"{name}_{{}}", ("marked", "labelled")) for name in MATCHES},
        "char_precision": chars["precision"],
        "char_recall": chars["recall"],
        "f1": chars["f1"],
        "f2": chars["f2"],
        "spans": total[ALL, "labelled"],
        "marks": total[ALL, "marked"],
        "by_label": {
            label: {
                "n": total[label, "labelled"],
                "cover_recall": cover(label),
                "char_recall": bootstrap.figure(ratio("chars_both", "chars_labelled", label)),
            }
            for label in sorted({label for label, _ in total} - {ALL})
        },
    }


def labelled_spans(spans: Iterable[Mapping[str, Any]]) -> list[tuple[int, int, str]]:
    """{start, end, label} mappings as (start, end, label)."""
    return [(int(span["start"]), int(span["end"]), str(span["label"])) for span in spans]


def _bare(text: str, intervals: Iterable[Interval]) -> list[Interval]:
    """``intervals`` without outer white space; those of nothing else are left out."""
    bare = []
    for start, end in intervals:
        piece = text[start:end]
        first, last = start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())
        if first < last:
            bare.append((first, last))
    return bare


def _f(precision: Sums, recall: Sums, beta: int) -> Sums:
    """F_beta: 0 where nothing is right, undefined where neither precision nor recall is defined."""
    neither = np.isnan(precision) & np.isnan(recall)
    p, r = np.nan_to_num(precision), np.nan_to_num(recall)
    under = beta**2 * p + r
    value = (1 + beta**2) * p * r / np.where(under == 0, 1.0, under)
    return np.where(neither, np.nan, value)
