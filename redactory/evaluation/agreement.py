"""Agreement of two annotators on the same rows: Cohen's kappa over tokens, F1 of spans, and the rows that differ.

Kappa counts tokens (a word, or one symbol), not characters: a span that ends a letter too early is one disagreement,
and a long address is not forty decisions. Most tokens are in no span, so kappa depends on how rare labels are; F1
ignores them (G. Hripcsak, A. S. Rothschild, "Agreement, the F-Measure, and Reliability", JAMIA 12(3), 2005).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from redactory.detectors.engine import trim_range
from redactory.evaluation.labelled import read_labelled_rows
from redactory.evaluation.statistics import Bootstrap, SumTable, bootstrap_ratio, divide_or_nan, make_estimate
from redactory.foundation.errors import InputError

Spans = set[tuple[int, int, str]]
TokenPairs = Counter[tuple[tuple[str, ...], tuple[str, ...]]]
"""Number of tokens by the labels of both annotators; empty for a token in no span."""
_TOKEN = re.compile(r"\w+|[^\w\s]")


def label_agreement(first: str | Path, second: str | Path) -> dict[str, Any]:
    """Compare two annotators' copies of the same rows: JSON lines, or Label Studio's JSON export.

    Returns {files, rows} and :func:`compare_labels`; no text. ``InputError`` names the first row whose texts differ.
    """
    paths = Path(first), Path(second)
    rows = [list(read_labelled_rows(path, to_fit=True)) for path in paths]
    for number, (one, other) in enumerate(zip_longest(*rows, fillvalue={}), 1):
        if one.get("text") != other.get("text"):
            raise InputError(
                f"{paths[1].name}, row {number}: not the text of row {number} in {paths[0].name}; both annotators' "
                "files need the same rows in the same order"
            )
    return {"files": [str(path) for path in paths], "rows": len(rows[0]), **compare_labels(*rows)}


def compare_labels(first: Sequence[Mapping[str, Any]], second: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Compare the spans of two lists of labelled rows with the same texts.

    {tokens, spans: [first, second], kappa, exact, overlap, by_label: {label: {spans, kappa, exact, overlap}},
    differing_rows: [{row, first, second}]}. Metrics are {value, low, high} with 95 % bootstrap intervals over rows,
    null if undefined. ``exact`` is F1 of spans with equal labels and bounds, ``overlap`` the share of all spans that
    share a character with a span of the other annotator with the same label. Kappa of a label compares tokens with and
    without it. Each differing row, from 1, has the number of spans, by label, that only one annotator has. The result
    contains no text.
    """
    texts = [str(row["text"]) for row in first]
    sides = [[_trim_spans(row["text"], row["spans"]) for row in rows] for rows in (first, second)]
    labels = sorted({label for rows in sides for spans in rows for *_, label in spans})
    differing_rows = [
        {"row": number, "first": _count_labels(one - other), "second": _count_labels(other - one)}
        for number, (one, other) in enumerate(zip(*sides, strict=True), 1)
        if one != other
    ]
    return {
        "tokens": sum(len(_TOKEN.findall(text)) for text in texts),
        **_measure_agreement(texts, *sides),
        "by_label": {
            label: _measure_agreement(
                texts, *([{s for s in spans if s[2] == label} for spans in rows] for rows in sides)
            )
            for label in labels
        },
        "differing_rows": differing_rows,
    }


def estimate_kappa(rows: Sequence[TokenPairs]) -> dict[str, Any]:
    """Return Cohen's kappa {value, low, high} of the categories of both annotators; null if all tokens share one."""
    pairs = list(sum(rows, TokenPairs()))
    categories = list({category for pair in pairs for category in pair})
    if not pairs:
        return make_estimate(None)
    first, second = (np.array([[pair[i] == c for c in categories] for pair in pairs], np.float64) for i in (0, 1))

    def compute_kappa(sums: SumTable) -> SumTable:
        total, chance = sums.sum(axis=1), ((sums @ first) * (sums @ second)).sum(axis=1)
        return divide_or_nan(total * (sums @ (first * second).sum(axis=1)) - chance, total**2 - chance)

    return Bootstrap(np.array([[row[pair] for pair in pairs] for row in rows], np.float64)).estimate(compute_kappa)


def _trim_spans(text: str, spans: Iterable[Mapping[str, Any]]) -> Spans:
    trimmed = ((*trim_range(text, span["start"], span["end"]), str(span["label"])) for span in spans)
    return {(start, end, label) for start, end, label in trimmed if start < end}


def _count_labels(spans: Spans) -> dict[str, int]:
    return dict(Counter(label for *_, label in sorted(spans)))


def _measure_agreement(texts: Sequence[str], first: Sequence[Spans], second: Sequence[Spans]) -> dict[str, Any]:
    rows = list(zip(first, second, strict=True))
    tokens = [
        Counter(zip(*(_label_tokens(text, spans) for spans in row), strict=True))
        for text, row in zip(texts, rows, strict=True)
    ]
    sizes = [len(one) + len(other) for one, other in rows]
    exact = [2 * len(one & other) for one, other in rows]
    overlap = [_count_overlapping(one, other) + _count_overlapping(other, one) for one, other in rows]
    return {
        "spans": [sum(map(len, first)), sum(map(len, second))],
        "kappa": estimate_kappa(tokens),
        "exact": bootstrap_ratio(zip(exact, sizes, strict=True)),
        "overlap": bootstrap_ratio(zip(overlap, sizes, strict=True)),
    }


def _label_tokens(text: str, spans: Spans) -> list[tuple[str, ...]]:
    """Return the labels of each token: those of every span that touches it."""
    places = (match.span() for match in _TOKEN.finditer(text))
    return [tuple(sorted({label for a, b, label in spans if a < end and start < b})) for start, end in places]


def _count_overlapping(spans: Spans, others: Spans) -> int:
    return sum(any(s < end and start < e and label == name for s, e, name in others) for start, end, label in spans)
