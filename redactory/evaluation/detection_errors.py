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

import yaml

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
        text, detection, names = example.text, detections[example.text], dict[Span, list[str]]()
        problems = list(_find_problems(example, detection)) if detection.failure is None else []
        with suppress(TimeoutError):
            for runner, span in patterns.iter_spans(text) if patterns and problems else ():
                names.setdefault(span._replace(score=0.0), []).append(runner.recognizer.name)
        for problem, start, end, label, spans in problems:
            touching = [span for span in spans if span.start < end and start < span.end]
            sources = {f"{s.detector}:{name}" for s in touching for name in names.get(s._replace(score=0.0), [s.label])}
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


@dataclass(frozen=True, slots=True)
class Suggestions:
    """Terms that fix errors, original text: to deny by label, to allow, and the number of those not to be allowed."""

    deny: Mapping[str, Sequence[str]] = field(repr=False)
    allow: Sequence[str] = field(repr=False)
    withheld: int

    def to_yaml(self) -> str:
        """Return the section ``detect.lists`` of a configuration."""
        deny = [{"label": label, "words": list(words)} for label, words in self.deny.items()]
        lists = {"deny": deny, "allow": [{"words": list(self.allow)}] if self.allow else []}
        return str(yaml.safe_dump({"detect": {"lists": lists}}, allow_unicode=True, sort_keys=False))


def suggest_terms(examples: Iterable[LabelledExample], errors: Iterable[DetectionError]) -> Suggestions:
    """Suggest to deny what was missed and to allow what was wrongly masked, most frequent first.

    What a labelled secret of ``examples`` contains, or what contains one, is not allowed: it could unmask the secret.
    """
    secrets = {fold_term(example.text[span["start"] : span["end"]]) for example in examples for span in example.spans}
    groups: dict[tuple[bool, str], list[DetectionError]] = {}
    for error in errors:
        if folded := fold_term(error.text):
            groups.setdefault((error.problem == WRONG, folded), []).append(error)
    deny, allow, withheld = dict[str, list[str]](), list[str](), 0
    for (is_wrong, folded), group in sorted(groups.items(), key=lambda item: -len(item[1])):
        term, label = " ".join(group[0].text.split()), group[0].label
        if not is_wrong:
            # a list's label is published, so it must look like one
            deny.setdefault(label if _LABEL.fullmatch(label) else "LISTED", []).append(term)
        elif any(folded in secret or secret in folded for secret in secrets - {""}):
            withheld += 1
        else:
            allow.append(term)
    return Suggestions(deny, allow, withheld)
