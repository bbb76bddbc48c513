"""Errors of the strict policy on labelled examples, grouped, and as lines for deny and allow lists.

A :class:`DetectionError` and the lines hold original text: show them only to people, on a terminal or in a private
file. :func:`count_errors` returns no text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from redactory.detectors import Detection, DetectSettings, Span
from redactory.detectors.lists import fold_term
from redactory.detectors.patterns import PatternEngine
from redactory.evaluation.detection import LabelledExample, count_matches, parse_labelled_spans
from redactory.redaction import PUBLIC, route_example
from redactory.redaction.mask import merge_intervals

Spans = Sequence[Span]
MISSED, PARTLY, WRONG = "missed", "covered in part", "wrongly masked"
_LABEL, _MAX_ROWS = re.compile("[A-Z][A-Z0-9_]*"), 20
"""Form of a list's label; row numbers given per group of errors."""


@dataclass(frozen=True, slots=True)
class DetectionError:
    """An error in row ``row`` (from 1): a labelled span that is not masked whole, or a mask that touches none.

    ``label`` is the annotator's, or that of the mask's longest span. ``sources`` are ``engine:recognizer`` (without
    one, ``engine:LABEL``) of the spans there: masks or, for a missed span, spans that only make its example private. An
    unmasked span in an example of the public ``split`` is released. ``start`` and ``end`` are code points of
    ``example``.
    """

    row: int
    problem: str
    label: str
    sources: tuple[str, ...]
    split: str
    start: int
    end: int
    example: str = field(repr=False)

    @property
    def text(self) -> str:
        """The text of the span."""
        return self.example[self.start : self.end]


def find_errors(
    examples: Iterable[LabelledExample], detections: Mapping[str, Detection], settings: DetectSettings
) -> Iterator[DetectionError]:
    """Yield the errors of each example; a quarantined one has none, because it is not released.

    ``settings`` are those of the ``detections``: patterns are matched again to name the recognizers.
    """
    patterns = settings.patterns and PatternEngine(settings.patterns, settings.language)
    for example in examples:
        text, detection, names = example.text, detections[example.text], dict[Span, str]()
        problems = list(_find_problems(example, detection)) if detection.failure is None else []
        with suppress(TimeoutError):
            for runner, span in patterns.iter_spans(text) if patterns and problems else ():
                names[span._replace(score=0.0)] = str(runner.recognizer.name)
        for problem, start, end, label, spans in problems:
            touching = [span for span in spans if span.start < end and start < span.end]
            sources = {f"{s.detector}:{names.get(s._replace(score=0.0), s.label)}" for s in touching}
            split = route_example(text, detection).split
            yield DetectionError(example.row + 1, problem, label, tuple(sorted(sources)), split, start, end, text)


def _find_problems(example: LabelledExample, detection: Detection) -> Iterator[tuple[str, int, int, str, Spans]]:
    """Yield problem, bounds, label, and the spans that may explain it."""
    masks = [(span.start, span.end) for span in detection.strict]
    labelled = parse_labelled_spans(example.spans)
    for start, end, label in labelled:
        counts = count_matches(example.text, [(start, end, label)], masks)
        if not counts[label, "chars_both"]:
            yield MISSED, start, end, label, detection.conservative
        elif not counts[label, "cover_labelled"]:
            yield PARTLY, start, end, label, detection.strict
    wrong = [span for span in detection.strict if not any(a < span.end and span.start < b for a, b, _ in labelled)]
    for start, end in merge_intervals(example.text, [(span.start, span.end) for span in wrong], merge_near=False):
        longest = max((s for s in wrong if start <= s.start < end), key=lambda span: span.end - span.start)
        yield WRONG, start, end, longest.label, wrong


def count_errors(errors: Iterable[DetectionError]) -> list[dict[str, Any]]:
    """Count errors by kind and source, most frequent first within each problem; no text.

    {problem, label, sources, count, public, rows}: ``public`` counts those in examples of the public split, ``rows``
    are the first rows that have one.
    """
    groups: dict[tuple[str, str, tuple[str, ...]], list[DetectionError]] = {}
    for error in errors:
        groups.setdefault((error.problem, error.label, error.sources), []).append(error)
    return [
        {
            **dict(zip(("problem", "label", "sources"), key, strict=True)),
            "count": len(group),
            "public": sum(error.split == PUBLIC for error in group),
            "rows": list(dict.fromkeys(error.row for error in group))[:_MAX_ROWS],
        }
        for key, group in sorted(groups.items(), key=lambda item: (item[0][0], -len(item[1]), item[0]))
    ]


def suggest_lists(examples: Iterable[LabelledExample], errors: Sequence[DetectionError]) -> dict[str, Any]:
    """Return ``detect.lists`` that denies what was missed and allows what was wrongly masked, most frequent first.

    What a labelled secret of ``examples`` contains, or what contains one, is not allowed: it could unmask the secret.
    """
    secrets = {fold_term(example.text[span["start"] : span["end"]]) for example in examples for span in example.spans}
    groups: dict[tuple[bool, str], list[DetectionError]] = {}
    for error in errors:
        if folded := fold_term(error.text):
            groups.setdefault((error.problem == WRONG, folded), []).append(error)
    deny, allow = dict[str, list[str]](), list[str]()
    for (is_wrong, folded), group in sorted(groups.items(), key=lambda item: -len(item[1])):
        term, label = " ".join(group[0].text.split()), group[0].label
        if not is_wrong:
            # the label of a list is published, so another form than a label's is not
            deny.setdefault(label if _LABEL.fullmatch(label) else "LISTED", []).append(term)
        elif not any(folded in secret or secret in folded for secret in secrets - {""}):
            allow.append(term)
    lists = {"deny": [{"label": label, "words": words} for label, words in deny.items()]}
    return lists | {"allow": [{"words": allow}] if allow else []}
