"""Known values: find a value everywhere in a document once it was found there or declared in a column."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from redactory.detectors import Detection, Span
from redactory.detectors.lists import TermSearch, fold_term
from redactory.detectors.rules import iter_unlisted_words, load_optional_words
from redactory.detectors.settings import get_kind
from redactory.redaction.replacements import ReplacedSpan
from redactory.redaction.values import is_identifying

_NON_IDENTIFYING = frozenset({"DATE", "AGE", "TITLE", "NRP", "TIME", "MONEY", "CARDINAL", "ORDINAL", "PERCENT"})
_NAMES = frozenset({"PERSON", "LOCATION", "ORGANIZATION"})
_LISTED = re.compile(r"\s*[,;]\s*")
_MIN_NAME_SCORE = 0.8
"""Minimum score of a name that is looked for elsewhere in the document: a doubtful one is masked where it was found."""
_SHORTEST = 3
_NAME_PART = re.compile(r"[^\W\d_][\w'’-]+")


KNOWN_VALUE = "known"
"""Detector name of spans whose value was found or declared elsewhere in the document."""


def add_known_occurrences(
    texts: Sequence[str], spans: Sequence[Sequence[ReplacedSpan]], declared: Mapping[str, str], language: str = "en"
) -> list[list[ReplacedSpan]]:
    """Return ``spans`` and every other whole-word occurrence of their values in ``texts``.

    Only values that can identify somebody count (:func:`redactory.redaction.values.is_identifying`), and only names
    that were found with confidence; for a person's name also each part that is not a common word, for a name with
    commas also the parts between them. Values match in any spelling (:func:`redactory.detectors.lists.fold_text`),
    those made of common words only as written. ``declared`` are values with their labels.
    """
    words = load_optional_words(language)
    known = [*declared.items()]
    for text, row in zip(texts, spans, strict=True):
        known += [
            (text[span.start : span.end], span.label)
            for span in row
            if span.score >= _MIN_NAME_SCORE or get_kind(span.label) not in _NAMES
        ]
    labels: dict[str, dict[str, str]] = {}
    for known_value, of in known:
        for value, label in _iter_name_parts(known_value.strip(), of, words):
            if folded := fold_term(value):
                # "Bill Brown" is a name only by its capitals; "ozols" is one in any case
                labels.setdefault(folded, {})["" if _is_uncommon(folded, words) else value] = label
    search = TermSearch(labels)
    return [
        [
            *row,
            *(
                ReplacedSpan(start, end, span_label)
                for start, end, spellings in search.find_matches(text)
                if (span_label := spellings.get("") or spellings.get(text[start:end]))
            ),
        ]
        for text, row in zip(texts, spans, strict=True)
    ]


def find_known_spans(
    texts: Sequence[str],
    detections: Sequence[Detection],
    declared: Mapping[str, str] | None = None,
    language: str = "en",
) -> list[tuple[Span, ...]]:
    """Find the additional occurrences of known values outside of what π masks.

    A function of the ``texts`` of one document, the policies' findings in them, and ``declared``: no other document
    matters. Skips texts that could not be processed.
    """
    strict_spans = [[ReplacedSpan(*span[:4]) for span in detection.strict] for detection in detections]
    every = add_known_occurrences(texts, strict_spans, declared or {}, language)
    return [
        tuple(
            Span(*hit, KNOWN_VALUE)
            for hit in dict.fromkeys(more[len(row) :])
            if not any(one.start <= hit.start and hit.end <= one.end for one in row)
        )
        if detection.failure is None
        else ()
        for detection, row, more in zip(detections, strict_spans, every, strict=True)
    ]


def add_known_values(texts: Sequence[str], detections: Sequence[Detection], language: str = "en") -> list[Detection]:
    """Add :func:`find_known_spans` to the spans that π masks in the ``texts`` of one document."""
    more = find_known_spans(texts, detections, language=language)
    return [replace(one, strict=one.strict + hits) for one, hits in zip(detections, more, strict=True)]


def _is_uncommon(value: str, words: frozenset[str]) -> bool:
    return any(map(str.isdigit, value)) or any(end - start > 1 for start, end in iter_unlisted_words(value, words))


def _iter_name_parts(value: str, label: str, words: frozenset[str]) -> Iterator[tuple[str, str]]:
    kind = get_kind(label)
    if kind in _NON_IDENTIFYING:
        return
    # either part of "Danvers, Massachusetts" may occur
    for one in dict.fromkeys((value, *_LISTED.split(value))) if kind in _NAMES else (value,):
        if len(one) >= _SHORTEST and is_identifying(one, words):
            yield one, label
    for part in _NAME_PART.findall(value) if kind == "PERSON" else ():
        if len(part) >= _SHORTEST and part[0].isupper() and is_identifying(part, words):
            yield part, label
