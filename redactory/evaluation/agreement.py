"""Agreement of two annotators on the same rows: Cohen's kappa over tokens, F1 of spans, and the rows that differ.

Kappa counts tokens (a word, or one symbol), not characters: a span that ends a letter too early is one disagreement,
and a long address is not forty decisions. Most tokens are in no span, so kappa depends on how rare labels are; F1
ignores them (G. Hripcsak, A. S. Rothschild, "Agreement, the F-Measure, and Reliability", JAMIA 12(3), 2005).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from redactory.detectors.engine import trim_range
from redactory.evaluation.labelled import read_labelled_rows
from redactory.evaluation.statistics import Bootstrap, SumTable, bootstrap_ratio, divide_or_nan, make_estimate
from redactory.foundation.errors import InputError

Row = Mapping[str, Any]
Spans = set[tuple[int, int, str]]
TokenPairs = Counter[tuple[tuple[str, ...], tuple[str, ...]]]
"""Number of tokens by the labels of both annotators; empty for a token in no span."""
_TOKEN = re.compile(r"\w+|[^\w\s]")


def label_agreement(first: str | Path, second: str | Path) -> dict[str, Any]:
    """Compare two annotators' files on the rows whose text is in both: JSON lines, or Label Studio's JSON export.

    Returns {files} and :func:`compare_labels`, with the numbers of the rows in ``first``; no text. Rows with the same
    text are compared in order. ``InputError`` if no text is in both.
    """
    rows = [list(read_labelled_rows(Path(path), to_fit=True)) for path in (first, second)]
    numbers = defaultdict[str, deque[int]](deque)
    for number, row in enumerate(rows[0], 1):
        numbers[row["text"]].append(number)
    # a row only in the second has a number that no row of the first has
    seconds = {numbers[r["text"]].popleft() if numbers[r["text"]] else -n: r for n, r in enumerate(rows[1])}
    result = compare_labels(dict(enumerate(rows[0], 1)), seconds)
    if not result["rows"]:
        raise InputError(f"{Path(second).name}: no row has a text of {Path(first).name}; give files of the same rows")
    return {"files": [str(first), str(second)], **result}


def compare_labels(first: Mapping[int, Row], second: Mapping[int, Row]) -> dict[str, Any]:
    """Compare the spans of labelled rows by number; rows with a number in both have the same text.

    {rows (in both), only: [in the first, in the second], tokens, spans: [first, second], kappa, exact, overlap,
    by_label: {label: {spans, kappa, exact, overlap}}, differing_rows: [{row, first, second}]}. Metrics are {value, low,
    high} with 95 % bootstrap intervals over rows, null if undefined. ``exact`` is F1 of spans with equal labels and
    bounds, ``overlap`` the share of all spans that share a character with a span of the other annotator with the same
    label. Kappa of a label compares tokens with and without it. Each differing row has the number of spans, by label,
    that only one annotator has. The result contains no text.
    """
    common = sorted(first.keys() & second.keys())
    texts = [str(first[number]["text"]) for number in common]
    sides = [[_trim_spans(rows[n]["text"], rows[n]["spans"]) for n in common] for rows in (first, second)]
    labels = sorted({label for rows in sides for spans in rows for *_, label in spans})
    differing_rows = [
        {"row": number, "first": _count_labels(one - other), "second": _count_labels(other - one)}
        for number, one, other in zip(common, *sides, strict=True)
        if one != other
    ]
    return {
        "rows": len(common),
        "only": [len(rows) - len(common) for rows in (first, second)],
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
