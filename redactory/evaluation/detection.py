"""Measure detection on labelled examples: what the policies find and miss, and what stays public.

Other engines can be compared on the same examples.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from redactory.detectors import Detection, Span, TextDetector
from redactory.detectors.engine import trim_range
from redactory.evaluation import statistics as stats
from redactory.evaluation.recall import measure_misses
from redactory.evaluation.statistics import SumTable
from redactory.foundation.intervals import clopper_pearson_upper
from redactory.foundation.progress import Progress, ignore_progress
from redactory.redaction import PUBLIC, route_example
from redactory.redaction.mask import merge_intervals

Interval = tuple[int, int]
MatchCounts = Counter[tuple[str, str]]
"""Maps (label or :data:`ALL_LABELS`, match kind) to a count."""

INTERVAL_KINDS = {
    "confidence": stats.CONFIDENCE,
    "clopper_pearson": {
        "figures": ["cover_recall", "precision", "gamma", "miss_rate"],
        "over": "secrets, or masks (precision), as if each were drawn independently",
    },
    "bootstrap": {
        "figures": ["exact", "cover", "overlap", "char_precision", "char_recall", "f1", "f2", "public_share"],
        "over": "rows of the labelled file",
        "kind": "percentile",
        "resamples": stats.RESAMPLES,
        "seed": stats.BOOTSTRAP_SEED,
    },
}
"""The kind of each interval; all are two-sided, but ``upper`` is the one-sided Clopper-Pearson bound."""

_WARM_UP_TEXTS = 20
_CHUNK_TEXTS, _ROUND_TEXTS = 256, 64


POLICY_SPANS: dict[str, Callable[[Detection], tuple[Span, ...]]] = {
    "strict": lambda detection: detection.strict,
    "conservative": lambda detection: detection.strict + detection.conservative,
}
"""Scored spans by policy: those that the strict policy masks, or that either policy marks."""


@dataclass(frozen=True, slots=True)
class LabelledExample:
    """An example of row ``row`` with its labelled spans ({start, end, label} mappings, code points).

    ``public`` are spans with a public label, which are not secrets.
    """

    row: int
    text: str
    spans: Sequence[Mapping[str, Any]]
    public: Sequence[Mapping[str, Any]] = ()


class DetectionCache(dict[str, Detection]):
    """Detections by text, each computed once: the routing F is a function of the text."""

    def __init__(self, detector: TextDetector) -> None:
        super().__init__()
        self._detector = detector

    def detect_new_texts(self, texts: Iterable[str], progress: Progress = ignore_progress) -> tuple[int, float]:
        """Detect new texts and return their number and the processor's seconds."""
        new = [text for text in dict.fromkeys(texts) if text not in self]
        done, start = 0, time.process_time()
        while chunk := new[done : done + _CHUNK_TEXTS]:
            self.update(zip(chunk, self._detector.detect(chunk), strict=True))
            done += len(chunk)
            progress("detect", done, len(new), "texts")
        return done, time.process_time() - start

    def is_public(self, text: str) -> bool:
        """Whether a text that was read goes to the public split."""
        return route_example(text, self[text]).split == PUBLIC

    def __call__(self, texts: Sequence[str]) -> list[tuple[str, str]]:
        """Return F: (split or "quarantined", text masked by the strict policy) of each text."""
        self.detect_new_texts(texts)
        decisions = (route_example(text, self[text]) for text in texts)
        return [("quarantined" if decision.failure else decision.split, decision.text) for decision in decisions]


def _warm_up(detector: TextDetector, texts: Sequence[str]) -> None:
    # similar texts, not the same: an engine may keep what it has read
    DetectionCache(detector).detect_new_texts(f"{text} ." for text in texts[:_WARM_UP_TEXTS])


def measure_detection(
    detector: TextDetector, examples: Sequence[LabelledExample], progress: Progress = ignore_progress
) -> dict[str, Any]:
    """Measure recall, precision and misses of the policies on labelled examples, and the public share.

    ``strict`` scores the strict policy's spans, ``conservative`` those of both policies together
    (:func:`compute_detection_metrics`); a quarantined example has no spans. ``gamma``, ``miss_rate`` (δ₂) and
    ``strata`` come from :func:`~redactory.evaluation.recall.measure_misses`. ``measure_public_share`` covers all
    examples, its ``of_clean`` those without a labelled span. ``texts_per_second`` counts distinct examples per second
    of a processor core, after warm-up. ``interval`` names the kind of each interval. ``public`` counts the spans of
    each public label ({n, open}), and those without a strict mask. The result contains no text.
    """
    texts, cache = [example.text for example in examples], DetectionCache(detector)
    _warm_up(detector, texts)
    distinct, seconds = cache.detect_new_texts(texts, progress)
    misses = measure_misses(cache, texts, [example.spans for example in examples], progress=progress)
    return {
        **{
            name: compute_detection_metrics(_count_matches_by_row(examples, cache, select_spans))
            for name, select_spans in POLICY_SPANS.items()
        },
        "gamma": estimate_miss_rate(misses["gamma"]["misses"], misses["n"]),
        "highest_gamma": misses["highest_gamma_of_strata"],
        "miss_rate": estimate_miss_rate(misses["delta_2"]["misses"], misses["n"]),
        "public_share": measure_public_share(examples, cache.is_public),
        "public": _count_unmasked_public_spans(examples, cache),
        "strata": misses["strata"],
        "examples": len(examples),
        "distinct_examples": distinct,
        "secrets": misses["n"],
        "quarantined": sum(cache[text].failure is not None for text in texts),
        "texts_per_second": distinct / seconds if seconds else None,
        "interval": INTERVAL_KINDS,
    }


def compare_detectors(
    main_detector: TextDetector,
    rival_detectors: Mapping[str, TextDetector],
    examples: Sequence[LabelledExample],
    progress: Progress = ignore_progress,
) -> list[dict[str, Any]]:
    """Compare the strict policy, both policies and each of ``rival_detectors`` on the same examples, one row each.

    Each is scored as if it alone decided, with an example private if it finds a span in it. A secret is missed if its
    example is public, which is the δ₂ of both policies, and ``measure_public_share`` is that of the examples without a
    labelled span. Returns {engine, policy (None of a rival), cover_recall, char_precision, char_recall, miss_rate:
    {value, low, high, upper, misses, n}, public_share: {value, low, high, examples, public}, by_label: {label: {n,
    cover_recall}}, quarantined, texts_per_second: {value, low, high}}.

    All engines read the distinct examples in turns of a few, so that other load affects them equally. Seconds are those
    of a processor core, bootstrapped over these turns. The result contains no text.
    """
    caches = {name: DetectionCache(detector) for name, detector in {"": main_detector, **rival_detectors}.items()}
    texts = list(dict.fromkeys(example.text for example in examples))
    for detector in (main_detector, *rival_detectors.values()):
        _warm_up(detector, texts)
    turns: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for start in range(0, len(texts), _ROUND_TEXTS):
        # reverse the order in every turn
        order = list(caches) if start // _ROUND_TEXTS % 2 else list(reversed(caches))
        for name in order:
            turns[name].append(caches[name].detect_new_texts(texts[start : start + _ROUND_TEXTS]))
        progress("compare", min(start + _ROUND_TEXTS, len(texts)), len(texts), "texts")
    rows = []
    for name, cache in caches.items():
        speed, is_repeated = stats.bootstrap_ratio(turns[name]), len(turns[name]) > 1
        beside = {
            "quarantined": sum(cache[example.text].failure is not None for example in examples),
            # one turn gives no interval
            "texts_per_second": speed if is_repeated else stats.make_estimate(speed["value"]),
        }
        for policy, select_spans in POLICY_SPANS.items() if not name else [(None, POLICY_SPANS["strict"])]:
            metrics = _measure_single_engine(examples, cache, select_spans)
            rows.append({"engine": name or "redactory", "policy": policy, **metrics, **beside})
    return rows


def _measure_single_engine(
    examples: Sequence[LabelledExample],
    detections: Mapping[str, Detection],
    select_spans: Callable[[Detection], tuple[Span, ...]],
) -> dict[str, Any]:
    public = {
        text
        for text, detection in detections.items()
        if route_example(text, Detection(select_spans(detection), failure=detection.failure)).split == PUBLIC
    }
    metrics = compute_detection_metrics(_count_matches_by_row(examples, detections, select_spans))
    secrets = sum(len(example.spans) for example in examples)
    missed = sum(len(example.spans) for example in examples if example.text in public)
    return {
        **{name: metrics[name] for name in ("cover_recall", "char_precision", "char_recall")},
        "miss_rate": estimate_miss_rate(missed, secrets),
        "public_share": measure_public_share(examples, public.__contains__)["of_clean"],
        "by_label": {
            label: {key: scores[key] for key in ("n", "cover_recall")}
            for label, scores in metrics["by_label"].items()
            if scores["n"]
        },
    }


def estimate_miss_rate(missed: int, secrets: int) -> dict[str, Any]:
    """Return {value, low, high, upper, misses, n}; ``upper`` is the one-sided bound."""
    upper = clopper_pearson_upper(missed, secrets, stats.CONFIDENCE)
    return {**stats.estimate_proportion(missed, secrets), "upper": upper, "misses": missed, "n": secrets}


def _count_matches_by_row(
    examples: Iterable[LabelledExample],
    detections: Mapping[str, Detection],
    select_spans: Callable[[Detection], tuple[Span, ...]],
) -> list[MatchCounts]:
    rows: dict[int, MatchCounts] = defaultdict(Counter)
    for example in examples:
        spans, labelled = select_spans(detections[example.text]), parse_labelled_spans(example.spans)
        intervals = [(span.start, span.end) for span in spans]
        rows[example.row].update(count_matches(example.text, labelled, intervals))
        rows[example.row].update(count_masks_by_label(example.text, labelled, spans))
    return list(rows.values())


def _count_unmasked_public_spans(
    examples: Iterable[LabelledExample], detections: Mapping[str, Detection]
) -> dict[str, Any]:
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for example in examples:
        for start, end, label in parse_labelled_spans(example.public):
            is_masked = any(span.start < end and start < span.end for span in detections[example.text].strict)
            counts[label].update(n=1, open=not is_masked)
    return {
        label: {name: label_counts[name] for name in ("n", "open")} for label, label_counts in sorted(counts.items())
    }


def measure_public_share(examples: Iterable[LabelledExample], is_public: Callable[[str], bool]) -> dict[str, Any]:
    """Return the share of the examples that go public, and of those without a labelled span.

    {value, low, high, examples, public, of_clean: {value, low, high, examples, public}}.
    """
    known = [(example.row, bool(example.spans), is_public(example.text)) for example in examples]

    def summarize_rows(selected_rows: list[tuple[int, bool, bool]]) -> dict[str, Any]:
        rows: dict[int, list[bool]] = {row: [] for row, *_ in known}
        for row, _, public in selected_rows:
            rows[row].append(public)
        share = stats.bootstrap_ratio((sum(public_flags), len(public_flags)) for public_flags in rows.values())
        return {**share, "examples": len(selected_rows), "public": sum(public for *_, public in selected_rows)}

    return {**summarize_rows(known), "of_clean": summarize_rows([row for row in known if not row[1]])}


# Matches of predicted and labelled spans: counts of one text, and the metrics of their sums.
#
# Counts ignore labels, because label schemes of engines and corpora differ. White space is not
# counted, so that a mask over two names and the space between them is as good as two masks.


MATCH_KINDS = ("exact", "cover", "overlap")
"""Span matches: equal bounds, every character, or any character."""
ALL_LABELS = "\0"


def count_matches(text: str, labelled: Sequence[tuple[int, int, str]], predicted: Iterable[Interval]) -> MatchCounts:
    """Count matches of ``predicted`` spans and the ``labelled`` (start, end, label) spans of one text.

    A labelled span is found if a predicted span has its bounds (exact), if predicted spans cover all its characters
    (cover) or any (overlap). A predicted span is correct under the same conditions. Overlapping predicted spans count
    as one; outer white space, and a span of only white space, is ignored.
    """
    solid = np.fromiter((not letter.isspace() for letter in text), np.bool_, len(text))
    predicted_intervals = merge_intervals(text, _trim_intervals(text, predicted), merge_near=False)
    wanted = [(bounds, label) for start, end, label in labelled for bounds in _trim_intervals(text, [(start, end)])]
    masked, true = np.zeros_like(solid), np.zeros_like(solid)
    for flags, places in ((masked, predicted_intervals), (true, [bounds for bounds, _ in wanted])):
        for start, end in places:
            flags[start:end] = solid[start:end]
    counts: MatchCounts = Counter()
    for name, flags in (("chars_marked", masked), ("chars_labelled", true), ("chars_both", masked & true)):
        counts[ALL_LABELS, name] = int(flags.sum())
    exact = {bounds for bounds, _ in wanted} & set(predicted_intervals)
    spans = [("labelled", bounds, label, masked) for bounds, label in wanted]
    spans += [("marked", bounds, ALL_LABELS, true) for bounds in predicted_intervals]
    for kind, (start, end), label, other_flags in spans:
        chars, covered = int(solid[start:end].sum()), int(other_flags[start:end].sum())
        counts[ALL_LABELS, kind] += 1
        for name, hit in zip(MATCH_KINDS, ((start, end) in exact, covered == chars, covered > 0), strict=True):
            counts[ALL_LABELS, f"{name}_{kind}"] += hit
        if kind == "labelled":
            label_counts = {"labelled": 1, "cover_labelled": int(covered == chars), "chars_labelled": chars}
            counts.update({(label, name): count for name, count in {**label_counts, "chars_both": covered}.items()})
    return counts


def count_masks_by_label(text: str, labelled: Sequence[tuple[int, int, str]], predicted: Iterable[Span]) -> MatchCounts:
    """Count ``predicted`` spans by their label, and those that overlap a labelled span of any label.

    Overlapping spans of one label count as one. Labels of engines and corpora differ, so only places are compared.
    """
    intervals: dict[str, list[Interval]] = defaultdict(list)
    for span in predicted:
        intervals[span.label].append((span.start, span.end))
    counts: MatchCounts = Counter()
    for label, places in intervals.items():
        of_label = count_matches(text, labelled, places)
        counts.update({(label, name): of_label[ALL_LABELS, name] for name in ("marked", "overlap_marked")})
    return counts


def compute_detection_metrics(rows: Sequence[MatchCounts], confidence: float = 0.95) -> dict[str, Any]:
    """Return the metrics of counts by row: {value, low, high} of each, null if nothing was counted.

    {cover_recall, exact, cover, overlap: {precision, recall, f1, f2}, char_precision, char_recall, f1, f2 (of
    characters), precision, spans, marks, by_label: {label: {n, marks, cover_recall, char_recall, precision}}}.
    ``precision`` is the share of masks that overlap a labelled span; a label's is of the masks with it
    (:func:`count_masks_by_label`). It and ``cover_recall`` have their two-sided Clopper-Pearson intervals, every other
    metric a percentile bootstrap over rows.
    """
    total = sum(rows, Counter[tuple[str, str]]())
    places = {key: number for number, key in enumerate(total)}
    table = np.array([[row[key] for key in places] for row in rows], np.float64)
    bootstrap = stats.Bootstrap(table.reshape(len(rows), len(places)), confidence)

    def get_column(sums: SumTable, key: tuple[str, str]) -> SumTable:
        return sums[:, places[key]] if key in places else np.zeros(len(sums))

    def make_ratio(numerator: str, denominator: str, label: str = ALL_LABELS) -> Callable[[SumTable], SumTable]:
        return lambda sums: stats.divide_or_nan(
            get_column(sums, (label, numerator)), get_column(sums, (label, denominator))
        )

    def estimate_scores(name: str, kinds: tuple[str, str]) -> dict[str, Any]:
        precision, recall = (make_ratio(name.format(kind), kind) for kind in kinds)
        return {
            "precision": bootstrap.estimate(precision),
            "recall": bootstrap.estimate(recall),
            "f1": bootstrap.estimate(lambda sums: _compute_f_score(precision(sums), recall(sums), 1)),
            "f2": bootstrap.estimate(lambda sums: _compute_f_score(precision(sums), recall(sums), 2)),
        }

    def estimate_share(label: str, numerator: str, denominator: str) -> dict[str, Any]:
        return stats.estimate_proportion(total[label, numerator], total[label, denominator], confidence)

    chars = estimate_scores("chars_both", ("chars_marked", "chars_labelled"))
    return {
        "cover_recall": estimate_share(ALL_LABELS, "cover_labelled", "labelled"),
        "precision": estimate_share(ALL_LABELS, "overlap_marked", "marked"),
        **{name: estimate_scores(f"{name}_{{}}", ("marked", "labelled")) for name in MATCH_KINDS},
        "char_precision": chars["precision"],
        "char_recall": chars["recall"],
        "f1": chars["f1"],
        "f2": chars["f2"],
        "spans": total[ALL_LABELS, "labelled"],
        "marks": total[ALL_LABELS, "marked"],
        "by_label": {
            label: {
                "n": total[label, "labelled"],
                "marks": total[label, "marked"],
                "cover_recall": estimate_share(label, "cover_labelled", "labelled"),
                "precision": estimate_share(label, "overlap_marked", "marked"),
                "char_recall": bootstrap.estimate(make_ratio("chars_both", "chars_labelled", label)),
            }
            for label in sorted({label for label, _ in total} - {ALL_LABELS})
        },
    }


def parse_labelled_spans(spans: Iterable[Mapping[str, Any]]) -> list[tuple[int, int, str]]:
    """{start, end, label} mappings as (start, end, label)."""
    return [(int(span["start"]), int(span["end"]), str(span["label"])) for span in spans]


def _trim_intervals(text: str, intervals: Iterable[Interval]) -> list[Interval]:
    trimmed = (trim_range(text, start, end) for start, end in intervals)
    return [(start, end) for start, end in trimmed if start < end]


def _compute_f_score(precision: SumTable, recall: SumTable, beta: int) -> SumTable:
    neither = np.isnan(precision) & np.isnan(recall)
    p, r = np.nan_to_num(precision), np.nan_to_num(recall)
    under = beta**2 * p + r
    value = (1 + beta**2) * p * r / np.where(under == 0, 1.0, under)
    return np.where(neither, np.nan, value)
