"""Errors of the strict policy on labelled examples: by kind and engine, and as terms for deny and allow lists.

A :class:`DetectionError` and a suggested term hold original text: show them only to people, on a terminal or in a
private file. :func:`count_errors` returns no text.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import yaml

from redactory.detectors import Detection, Span
from redactory.detectors.engine_registry import iter_capabilities
from redactory.detectors.lists import DETECTOR as LIST_DETECTOR
from redactory.detectors.lists import LABEL_FORM, ListEngine, fold_term
from redactory.detectors.patterns import DETECTOR as PATTERN_DETECTOR
from redactory.detectors.patterns import PatternEngine
from redactory.detectors.settings import DetectSettings, ListSettings, PatternSettings, WordList
from redactory.evaluation.detection import Interval, LabelledExample, count_matches, parse_labelled_spans
from redactory.foundation.errors import pluralize
from redactory.redaction import PUBLIC, route_example
from redactory.redaction.mask import merge_intervals

Problem = Literal["missed", "covered in part", "wrongly masked"]
PROBLEMS: tuple[Problem, ...] = ("missed", "covered in part", "wrongly masked")
_MAX_ROWS = 20
"""Row numbers listed per group of errors."""


@dataclass(frozen=True, slots=True)
class DetectionError:
    """An error in row ``row`` (from 1): a labelled span that is not masked whole, or a mask that touches none.

    ``label`` is the annotator's, or that of the mask's longest span. ``engines`` and ``recognizers`` have spans there: masks or, for a
    missed span, spans that only make its example private. ``split`` is where the example goes: an unmasked span in the
    public split is released. ``start`` and ``end`` are code points of ``example``.
    """

    row: int
    problem: Problem
    label: str
    engines: tuple[str, ...]
    recognizers: tuple[str, ...]
    split: str
    start: int
    end: int
    example: str = field(repr=False)

    @property
    def text(self) -> str:
        """The text of the span."""
        return self.example[self.start : self.end]


class RecognizerNames:
    """Names the component of an engine that found a span: a pattern recognizer, a model or a list."""

    def __init__(self, settings: DetectSettings) -> None:
        self._settings, self._names = settings, dict[tuple[str, str], list[str]]()
        for engine, capability in iter_capabilities(settings):
            detector = {"patterns": PATTERN_DETECTOR, "lists": LIST_DETECTOR}.get(engine, engine)
            for label in capability.labels:
                self._names.setdefault((detector, label), []).append(capability.component)
        # a span does not record its recognizer, so patterns are matched again
        self._find_pattern_names = functools.lru_cache(1)(self._match_patterns)

    def find_name(self, text: str, span: Span) -> str:
        """Return the name, or each possible one; that of a rule is its label."""
        names = self._names.get((span.detector, span.label), [span.label])
        if span.detector == PATTERN_DETECTOR and self._settings.patterns is not None:
            names = [*self._find_pattern_names(text).get((span.start, span.end, span.label), names)]
        return ", ".join(dict.fromkeys(names))

    @functools.cached_property
    def _pattern_engine(self) -> PatternEngine:
        return PatternEngine(self._settings.patterns or PatternSettings(), self._settings.language)

    def _match_patterns(self, text: str) -> dict[tuple[int, int, str], list[str]]:
        names: dict[tuple[int, int, str], list[str]] = {}
        with suppress(TimeoutError):
            for runner, span in self._pattern_engine.iter_spans(text):
                names.setdefault((span.start, span.end, span.label), []).append(str(runner.recognizer.name))
        return names


def find_errors(
    examples: Iterable[LabelledExample],
    detections: Mapping[str, Detection],
    find_recognizer: Callable[[str, Span], str],
) -> Iterator[DetectionError]:
    """Yield the errors of each example; a quarantined one has none, because it is not released.

    ``find_recognizer`` names the recognizer of a span in a text, as :class:`RecognizerNames` does.
    """
    for example in examples:
        detection = detections[example.text]
        if detection.failure is not None:
            continue
        split, masks = (
            route_example(example.text, detection).split,
            [(span.start, span.end) for span in detection.strict],
        )
        labelled = parse_labelled_spans(example.spans)
        problems = list[tuple[Problem, Interval, str, Sequence[Span]]]()
        for start, end, label in labelled:
            counts = count_matches(example.text, [(start, end, label)], masks)
            if counts[label, "cover_labelled"]:
                continue
            if counts[label, "chars_both"]:
                problems.append(("covered in part", (start, end), label, detection.strict))
            else:
                problems.append(("missed", (start, end), label, detection.conservative))
        wrong = [
            span
            for span in detection.strict
            if not any(_overlap((span.start, span.end), (start, end)) for start, end, _ in labelled)
        ]
        for place in merge_intervals(example.text, [(span.start, span.end) for span in wrong], merge_near=False):
            spans = [span for span in wrong if _overlap((span.start, span.end), place)]
            longest = max(spans, key=lambda span: span.end - span.start)
            problems.append(("wrongly masked", place, longest.label, spans))
        for problem, place, label, spans in problems:
            touching = [span for span in spans if _overlap((span.start, span.end), place)]
            engines = sorted({span.detector for span in touching})
            named = sorted({find_recognizer(example.text, span) for span in touching})
            yield DetectionError(
                example.row + 1, problem, label, tuple(engines), tuple(named), split, *place, example.text
            )


def _overlap(one: Interval, other: Interval) -> bool:
    return one[0] < other[1] and other[0] < one[1]


def count_errors(errors: Iterable[DetectionError]) -> list[dict[str, Any]]:
    """Count errors by kind, engine and recognizer, most frequent first within each problem; no text.

    {problem, label, engines, recognizers, count, public, rows}: ``public`` counts those in examples of the public
    split, ``rows`` are the first rows that have one.
    """
    groups: dict[tuple[Any, ...], list[DetectionError]] = {}
    for error in errors:
        groups.setdefault((error.problem, error.label, error.engines, error.recognizers), []).append(error)
    keys, ranked = ("problem", "label", "engines", "recognizers"), sorted(groups.items(), key=_rank_group)
    return [
        {
            **dict(zip(keys, group, strict=True)),
            "count": len(members),
            "public": sum(error.split == PUBLIC for error in members),
            "rows": list(dict.fromkeys(error.row for error in members))[:_MAX_ROWS],
        }
        for group, members in ranked
    ]


def _rank_group(item: tuple[tuple[Any, ...], Sequence[DetectionError]]) -> tuple[Any, ...]:
    group, members = item
    return PROBLEMS.index(group[0]), -len(members), group


@dataclass(frozen=True, slots=True)
class SuggestedTerm:
    """A term for a deny or allow list: ``count`` errors that it fixes, and where else a deny term would mask."""

    term: str = field(repr=False)
    label: str
    count: int
    elsewhere: int = 0


@dataclass(frozen=True, slots=True)
class Suggestions:
    """Terms for ``detect.lists``, most frequent first; ``withheld`` counts those that a labelled secret contains."""

    deny: Sequence[SuggestedTerm]
    allow: Sequence[SuggestedTerm]
    withheld: int


def suggest_terms(examples: Sequence[LabelledExample], errors: Iterable[DetectionError]) -> Suggestions:
    """Suggest to deny what was missed, and to allow what was wrongly masked.

    An allow term that a labelled secret of these examples contains, or that contains one, is withheld: it could unmask
    the secret.
    """
    labelled = (example.text[span["start"] : span["end"]] for example in examples for span in example.spans)
    secrets = set(map(fold_term, labelled)) - {""}
    terms: dict[bool, dict[str, list[DetectionError]]] = {True: {}, False: {}}
    for error in errors:
        if folded := fold_term(error.text):
            terms[error.problem == "wrongly masked"].setdefault(folded, []).append(error)
    unsafe = {term for term in terms[True] if any(term in secret or secret in term for secret in secrets)}
    elsewhere = _count_elsewhere(examples, [group[0].text for group in terms[False].values()])
    deny = [_summarize_term(group, elsewhere[folded]) for folded, group in terms[False].items()]
    allow = [_summarize_term(group) for folded, group in terms[True].items() if folded not in unsafe]
    deny.sort(key=lambda suggested: -suggested.count)
    allow.sort(key=lambda suggested: -suggested.count)
    return Suggestions(deny, allow, len(unsafe))


def _summarize_term(errors: Sequence[DetectionError], elsewhere: int = 0) -> SuggestedTerm:
    label = Counter(error.label for error in errors).most_common(1)[0][0]
    valid = label if LABEL_FORM.fullmatch(label) else str(WordList.model_fields["label"].default)
    return SuggestedTerm(" ".join(errors[0].text.split()), valid, len(errors), elsewhere)


def _count_elsewhere(examples: Sequence[LabelledExample], words: Sequence[str]) -> Counter[str]:
    """Count by folded term where a deny list with ``words`` would mask what is not labelled."""
    if not words:
        return Counter()
    engine = ListEngine(ListSettings(deny=(WordList(words=tuple(words)),)), "en")
    counts = Counter[str]()
    for example, output in zip(examples, engine.read([example.text for example in examples]), strict=True):
        labelled = parse_labelled_spans(example.spans)
        for span in output.spans:
            if not any(_overlap((span.start, span.end), (start, end)) for start, end, _ in labelled):
                counts[fold_term(example.text[span.start : span.end])] += 1
    return counts


def format_lists(suggestions: Suggestions) -> str:
    """Format the terms as the section ``detect.lists`` of a configuration, with counts as comments."""
    lines = ["detect:", "  lists:"]
    by_label: dict[str, list[SuggestedTerm]] = {}
    for suggested in suggestions.deny:
        by_label.setdefault(suggested.label, []).append(suggested)
    if by_label:
        lines.append("    deny:")
    for label, terms in by_label.items():
        lines += [f"      - label: {label}", "        words:"]
        for suggested in terms:
            cost = f"; would mask {suggested.elsewhere:,} unlabelled" if suggested.elsewhere else ""
            lines.append(f"          - {_quote(suggested.term)}  # missed {pluralize(suggested.count, 'time')}{cost}")
    if suggestions.allow:
        lines += ["    allow:", "      - words:"]
    lines += (
        f"          - {_quote(suggested.term)}  # wrongly masked {pluralize(suggested.count, 'time')}"
        for suggested in suggestions.allow
    )
    return "\n".join(lines) + "\n" if len(lines) > 2 else ""


def _quote(term: str) -> str:
    return str(yaml.safe_dump(term, default_style='"', allow_unicode=True, width=float("inf"))).strip()
