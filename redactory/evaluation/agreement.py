"""Agreement of two annotators on the same rows: Cohen's kappa over tokens, F1 of spans, and the rows that differ.

Kappa counts tokens (a word, or one symbol), not characters: a span that ends a letter too early is one disagreement,
and a long address is not forty decisions. Almost all tokens are in no span, so agreement by chance is high, and kappa
depends on how rare labels are; F1 ignores tokens that nobody labelled (G. Hripcsak, A. S. Rothschild, "Agreement, the
F-Measure, and Reliability in Information Retrieval", JAMIA 12(3), 2005).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from redactory.detectors.engine import trim_range
from redactory.evaluation.detection import ALL_LABELS, MatchCounts, compute_detection_metrics, count_matches
from redactory.evaluation.labelled import read_labelled_rows
from redactory.evaluation.statistics import Bootstrap, SumTable, divide_or_nan, make_estimate
from redactory.foundation.errors import InputError
from redactory.redaction.mask import merge_intervals

Row = Mapping[str, Any]
LabelledRange = tuple[int, int, str]
TokenPairs = Counter[tuple[tuple[str, ...], tuple[str, ...]]]
"""Number of tokens by the labels of both annotators; empty for a token in no span."""

_TOKEN = re.compile(r"\w+|[^\w\s]")


def label_agreement(first: str | Path, second: str | Path) -> dict[str, Any]:
    """Compare two annotators' copies of the same rows: JSON lines, or Label Studio's JSON export.

    Returns {files, rows} and :func:`compare_labels`; no text. ``InputError`` names the first row whose text differs, or
    that one file lacks.
    """
    paths = Path(first), Path(second)
    rows = [list(read_labelled_rows(path, to_fit=True)) for path in paths]
    for number, (one, other) in enumerate(zip_longest(*rows), 1):
        problem = f"{paths[1].name}, row {number}: its text differs from that row of {paths[0].name}"
        if one is None or other is None:
            problem = f"{paths[one is not None].name} ends before row {number} of {paths[one is None].name}"
        elif one["text"] == other["text"]:
            continue
        raise InputError(f"{problem}; both annotators' files need the same rows in the same order")
    if not rows[0]:
        raise InputError(f"{paths[0].name} and {paths[1].name} have no row to compare")
    return {"files": [str(path) for path in paths], "rows": len(rows[0]), **compare_labels(*rows)}


def compare_labels(first: Sequence[Row], second: Sequence[Row]) -> dict[str, Any]:
    """Compare the spans of two lists of labelled rows with the same texts.

    {tokens, spans: [first, second], kappa, exact, overlap, by_label: {label: {spans, kappa, exact, overlap}},
    token_labels: [{first, second, tokens}] of tokens with different labels, differing_rows: [{row, first, second}]}.
    Metrics are {value, low, high} with 95 % bootstrap intervals over rows; null if undefined. ``exact`` and ``overlap``
    are F1 of spans with equal labels and the same, or common, characters. Kappa of a label compares tokens with and
    without it. Rows count from 1; each differing one has the number of spans, by label, that only one annotator has.
    The result contains no text.
    """
    pairs, differing_rows = list[TokenPairs](), list[dict[str, Any]]()
    counts: dict[str, list[MatchCounts]] = {}
    for number, (one, other) in enumerate(zip(first, second, strict=True)):
        text: str = one["text"]
        spans = [_trim_spans(text, row["spans"]) for row in (one, other)]
        pairs.append(Counter(zip(*(_label_tokens(text, ranges) for ranges in spans), strict=True)))
        only = [Counter(label for *_, label in a - b) for a, b in (spans, spans[::-1])]
        if any(only):
            row_counts = (dict(sorted(counter.items())) for counter in only)
            differing_rows.append({"row": number + 1, **dict(zip(("first", "second"), row_counts, strict=True))})
        for label in {label for ranges in spans for *_, label in ranges}:
            # a row without the label counts nothing, but is drawn by the bootstrap
            rows = counts.setdefault(label, [Counter() for _ in first])
            rows[number] = _count_label_matches(text, spans, label)
    totals = [sum((rows[number] for rows in counts.values()), MatchCounts()) for number in range(len(first))]
    tokens = sum(pairs, TokenPairs())
    return {
        "tokens": tokens.total(),
        **_compute_agreement(totals),
        "kappa": estimate_kappa(pairs),
        "by_label": {
            label: {**_compute_agreement(rows), "kappa": estimate_kappa([_has_label(row, label) for row in pairs])}
            for label, rows in sorted(counts.items())
        },
        "token_labels": [
            {"first": [*a], "second": [*b], "tokens": count} for (a, b), count in tokens.most_common() if a != b
        ],
        "differing_rows": differing_rows,
    }


def estimate_kappa(rows: Sequence[TokenPairs]) -> dict[str, Any]:
    """Return Cohen's kappa of both annotators' categories, {value, low, high}; null if chance explains everything."""
    pairs = list(sum(rows, TokenPairs()))
    if not pairs:
        return make_estimate(None)
    categories = list(dict.fromkeys(category for pair in pairs for category in pair))
    first, second = (np.array([[pair[i] == c for c in categories] for pair in pairs], np.float64) for i in (0, 1))

    def compute_kappa(sums: SumTable) -> SumTable:
        total = sums.sum(axis=1)
        observed = divide_or_nan(sums @ (first * second).sum(axis=1), total)
        expected = divide_or_nan(((sums @ first) * (sums @ second)).sum(axis=1), total**2)
        return divide_or_nan(observed - expected, 1 - expected)

    return Bootstrap(np.array([[row[pair] for pair in pairs] for row in rows], np.float64)).estimate(compute_kappa)


def _trim_spans(text: str, spans: Iterable[Row]) -> set[LabelledRange]:
    trimmed = ((*trim_range(text, span["start"], span["end"]), str(span["label"])) for span in spans)
    return {(start, end, label) for start, end, label in trimmed if start < end}


def _label_tokens(text: str, spans: Iterable[LabelledRange]) -> list[tuple[str, ...]]:
    """Return the labels of each token of ``text``; a token has the label of every span that touches it."""
    places = [match.span() for match in _TOKEN.finditer(text)]
    starts, ends = [start for start, _ in places], [end for _, end in places]
    labels: list[set[str]] = [set() for _ in places]
    for start, end, label in spans:
        for token_labels in labels[bisect_right(ends, start) : bisect_left(starts, end)]:
            token_labels.add(label)
    return [tuple(sorted(token_labels)) for token_labels in labels]


def _has_label(row: TokenPairs, label: str) -> TokenPairs:
    """Reduce the categories of ``row`` to ``label`` or nothing."""
    reduced = TokenPairs()
    for (first, second), count in row.items():
        reduced[(label,) * (label in first), (label,) * (label in second)] += count
    return reduced


def _count_label_matches(text: str, spans: Sequence[Iterable[LabelledRange]], label: str) -> MatchCounts:
    one, other = (
        merge_intervals(text, [(start, end) for start, end, name in ranges if name == label], merge_near=False)
        for ranges in spans
    )
    counted = count_matches(text, [(*place, label) for place in one], other)
    return Counter({key: count for key, count in counted.items() if key[0] == ALL_LABELS})


def _compute_agreement(rows: Sequence[MatchCounts]) -> dict[str, Any]:
    metrics = compute_detection_metrics(rows)
    spans = {"spans": [metrics["spans"], metrics["marks"]]}
    return {**spans, "exact": metrics["exact"]["f1"], "overlap": metrics["overlap"]["f1"]}
