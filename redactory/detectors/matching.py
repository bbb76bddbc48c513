"""Hits of Presidio's recognizers, without the analyzer around them.

What ``AnalyzerEngine.analyze`` makes of the same recognizers is made here too: the matches and their
checksums, then the context words, then the hits within hits dropped.  A regular expression that does not
come to an end is a failure of the text, not an empty answer.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import regex

from redactory.detectors.phones import phone_places
from redactory.detectors.presidio_messages import timeouts
from redactory.detectors.triggers import ALWAYS, MANY, OPEN, Gate, Lexicon, Traits, Trigger

if TYPE_CHECKING:
    from presidio_analyzer import EntityRecognizer


class PatternTimeout(Exception):
    """A regular expression did not come to an end on this text."""


class Hit(NamedTuple):
    """One match: code points [start, end), its label and score."""

    label: str
    start: int
    end: int
    score: float


class Step(NamedTuple):
    """One recognizer, ready to run: when, how, and with which context words."""

    recognizer: EntityRecognizer
    gate: Gate
    matches: Callable[[Traits], list[Hit]]
    context: tuple[str, ...]
    bounds: Mapping[str, float]

    def groups(self, digits: int) -> int | None:
        """Groups of words one of which a text with so many digits (``MANY``: or more) needs for a hit.

        0 where it needs none of them; None where such a text has no hit at all.
        """
        if self.gate.digits > digits:
            return None
        if self.gate.group or not isinstance(self.matches, _Patterns):
            return self.gate.group
        needed = [group for group, *_ in self.matches.forms[digits]]
        if not needed:
            return None
        return functools.reduce(operator.or_, needed) if all(needed) else 0

    def least(self, label: str) -> float:
        """The score under which the recognizer's author says that a hit is none."""
        return self.bounds.get(label, self.bounds.get("default", 0.0))


class Chosen(NamedTuple):
    """A recognizer with its trigger and, by their names, those of its patterns.

    ``linear`` tells that its expressions need no watch over a short text.
    """

    recognizer: EntityRecognizer
    needs: Trigger = ALWAYS
    within: Mapping[str, Trigger] = {}
    linear: bool = False

    def step(self, lexicon: Lexicon) -> Step:
        """The recognizer in the fastest form that hits the same."""
        from presidio_analyzer import PatternRecognizer
        from presidio_analyzer.predefined_recognizers import PhoneRecognizer

        recognizer: Any = self.recognizer
        kind = type(recognizer)
        matches: Callable[[Traits], list[Hit]]
        if kind.analyze is PatternRecognizer.analyze:
            gates = {name: lexicon.gate(needs) for name, needs in self.within.items()}
            matches = _Patterns(recognizer, gates, SHORT if self.linear else 0)
        elif kind.analyze is PhoneRecognizer.analyze:
            matches = _Phones(recognizer)
        else:
            matches = _Analyzed(recognizer)
        context = tuple(word.lower() for word in recognizer.context or ())
        return Step(recognizer, lexicon.gate(self.needs), matches, context, dict(recognizer.score_thresholds))


SHORT = 1_000
"""Code points in which expressions that take linear time are not timed: the clock costs as much as they."""


class _Patterns:
    """The patterns of a recognizer one after the other, as ``PatternRecognizer.analyze`` runs them."""

    def __init__(self, recognizer: Any, gates: Mapping[str, Gate], untimed: int) -> None:
        from presidio_analyzer import pattern_recognizer

        self._recognizer = recognizer
        self._clock: Any = pattern_recognizer
        self._untimed = untimed
        self._label = recognizer.supported_entities[0]
        forms = []
        for pattern in recognizer.patterns:
            gate = gates.get(pattern.name, OPEN)
            look = None if gate.form is None else gate.form.search
            expression = words_looked_up(pattern.regex)
            matches = regex.compile(expression, flags=recognizer.global_regex_flags or 0).finditer
            forms.append((gate.digits, gate.group, gate.shapes, look, matches, pattern.score))
        # by the number of digits of a text: those that may match it
        self.forms = [tuple(form[1:] for form in forms if form[0] <= digits) for digits in range(MANY + 1)]

    def __call__(self, traits: Traits) -> list[Hit]:
        text, shape, many, groups = traits
        seconds = None if len(text) < self._untimed else self._clock.REGEX_TIMEOUT_SECONDS
        hits = []
        try:
            for group, shapes, look, matches, score in self.forms[many]:
                if group and not group & groups:
                    continue
                for part in shapes:
                    if part in shape:
                        break
                else:
                    continue
                if look is not None and look(text) is None:
                    continue
                for match in matches(text, timeout=seconds):
                    start, end = match.span()
                    if start < end and (found := self._checked(text[start:end], score)) > 0:
                        hits.append(Hit(self._label, start, end, found))
        except TimeoutError:
            raise PatternTimeout from None
        return outermost(hits) if hits else hits

    def _checked(self, value: str, score: float) -> float:
        valid = self._recognizer.validate_result(value)
        if valid is not None:
            score = 1.0 if valid else 0.0
        return 0.0 if self._recognizer.invalidate_result(value) else score


class _Phones:
    """``PhoneRecognizer.analyze``, sparing what cannot be a number."""

    def __init__(self, recognizer: Any) -> None:
        self._label = recognizer.supported_entities[0]
        self._score = recognizer.SCORE
        self._regions = tuple(recognizer.supported_regions)
        self._leniency = recognizer.leniency

    def __call__(self, traits: Traits) -> list[Hit]:
        places = phone_places(traits.text, self._regions, self._leniency)
        return outermost([Hit(self._label, start, end, self._score) for start, end in places])


class _Analyzed:
    """A recognizer with an ``analyze`` of its own."""

    def __init__(self, recognizer: EntityRecognizer) -> None:
        self._recognizer: Any = recognizer

    def __call__(self, traits: Traits) -> list[Hit]:
        timeouts.seen = False
        results = (
            self._recognizer.analyze(text=traits.text, entities=self._recognizer.supported_entities) or ()
        )
        if timeouts.seen:
            raise PatternTimeout
        return [Hit(r.entity_type, r.start, r.end, r.score) for r in results]


_MANY_WORDS = regex.compile(r"\(\?:(?:\(\?:[a-z0-9-]+\)\|){30,}\(\?:[a-z0-9-]+\)\)")


def words_looked_up(expression: str) -> str:
    """``expression``, which still matches the same, with a look ahead of each long list of words.

    Presidio's links end in one of 675 domains, tried one after the other behind each full stop of each of
    253 places, from each place of the text; the look ahead costs the length of a word.
    """

    def looked_up(listed: regex.Match[str]) -> str:
        return f"(?={_tree(regex.findall(r'[a-z0-9-]+', listed[0]))}){listed[0]}"

    return str(_MANY_WORDS.sub(looked_up, expression))


def _tree(words: Iterable[str]) -> str:
    """An expression that matches where one of ``words`` does, each first letter tried once."""
    beyond: dict[str, list[str]] = {}
    for word in words:
        if not word:
            return ""  # what goes on from here is the longer kin of a word that matched
        beyond.setdefault(word[0], []).append(word[1:])
    return f"(?:{'|'.join(regex.escape(first) + _tree(rest) for first, rest in beyond.items())})"


def outermost(hits: Sequence[Hit]) -> list[Hit]:
    """Less the hits of score 0 and those within another of the same label and no lower score."""
    if len(hits) < 2:
        return [hit for hit in hits if hit.score > 0]
    kept: list[Hit] = []
    around: list[Hit] = []
    for hit in sorted(set(hits), key=lambda h: (h.label, h.start, -h.end, -h.score)):
        around = [other for other in around if other.label == hit.label and other.end >= hit.start]
        if hit.score > 0 and not any(o.end >= hit.end and o.score >= hit.score for o in around):
            kept.append(hit)
            around.append(hit)
    return kept
