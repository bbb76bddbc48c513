"""The engine of pattern recognizers: hits of Presidio's, ours and the configuration's, with context words.

What Presidio's analyzer finds, without the analyzer around it: its expressions run where a trigger fires, its
context words are weighed on a tokenizer alone, its logs are silenced and no host is asked.
"""

from __future__ import annotations

import itertools
import logging
import re
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import regex

from redactory.detectors.engine import TIMEOUT, Finds, Reading, Span
from redactory.detectors.phones import phone_places
from redactory.detectors.recognizers import (
    custom_recognizer,
    file_recognizers,
    names_of,
    own_labels,
    predefined_recognizers,
    presidio_triggers,
    shipped,
)
from redactory.detectors.settings import AUTO, PatternSettings
from redactory.detectors.spacy_model import lean_imports, lean_spacy, with_quick_suffixes
from redactory.detectors.triggers import ALWAYS, Traits, Trigger, traits_of
from redactory.foundation.canonical import file_sha256, version_of

if TYPE_CHECKING:
    from spacy.language import Language


timeouts = threading.local()
"""Presidio tells of a time-out by a warning alone; ``seen`` keeps it, for each thread, as a flag."""


def listen() -> None:
    """Hear Presidio's warnings however logging is set up, and keep its messages out of every log.

    Its messages quote matches and context words.  A log handler or filter would miss a warning under
    ``logging.disable`` or a higher level, and a time-out that is missed is a text let through.
    """
    logger = logging.getLogger("presidio-analyzer")
    vars(logger)["warning"] = _note
    if _silent not in logger.filters:
        logger.addFilter(_silent)


def stay_offline() -> None:
    """Keep the e-mail recognizer from fetching the list of public suffixes."""
    import tldextract

    tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)


def _note(message: object, *_: object, **__: object) -> None:
    if "timed out" in str(message):
        timeouts.seen = True


def _silent(record: logging.LogRecord) -> bool:
    return False


# Hits of Presidio's recognizers, without the analyzer around them.


class PatternTimeout(Exception):
    """A regular expression did not come to an end on this text."""


class Hit(NamedTuple):
    """One match: code points [start, end), its label and score."""

    label: str
    start: int
    end: int
    score: float


class Step:
    """One recognizer, ready to run, with its trigger and, by their names, those of its patterns.

    ``linear`` tells that its expressions need no watch over a short text.
    """

    def __init__(
        self,
        recognizer: Any,
        needs: Trigger = ALWAYS,
        within: Mapping[str, Trigger] = MappingProxyType({}),
        linear: bool = False,
    ) -> None:
        from presidio_analyzer import PatternRecognizer
        from presidio_analyzer.predefined_recognizers import PhoneRecognizer

        self.recognizer, self.needs = recognizer, needs
        kind = type(recognizer)
        self.matches: Callable[[Traits], list[Hit]]
        if kind.analyze is PatternRecognizer.analyze:
            self.matches = _Patterns(recognizer, within, SHORT if linear else 0)
        elif kind.analyze is PhoneRecognizer.analyze:
            self.matches = _phones(recognizer)
        else:
            self.matches = _analyzed(recognizer)
        self.context = tuple(word.lower() for word in recognizer.context or ())
        self.bounds: dict[str, float] = dict(recognizer.score_thresholds)


SHORT = 1_000
"""Code points in which expressions that take linear time are not timed: the clock costs as much as they."""


class _Patterns:
    """The patterns of a recognizer one after the other, as ``PatternRecognizer.analyze`` runs them."""

    def __init__(self, recognizer: Any, within: Mapping[str, Trigger], untimed: int) -> None:
        from presidio_analyzer import pattern_recognizer

        self._recognizer = recognizer
        self._clock: Any = pattern_recognizer
        self._untimed = untimed
        self._label = recognizer.supported_entities[0]
        self.forms = [
            (
                within.get(pattern.name, ALWAYS),
                finder_of(words_looked_up(pattern.regex), recognizer.global_regex_flags or 0),
                pattern.score,
            )
            for pattern in recognizer.patterns
        ]

    def __call__(self, traits: Traits) -> list[Hit]:
        text = traits.text
        seconds = None if len(text) < self._untimed else self._clock.REGEX_TIMEOUT_SECONDS
        hits = []
        try:
            for needs, matches, score in self.forms:
                if not needs.fires(traits):
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


def _phones(recognizer: Any) -> Callable[[Traits], list[Hit]]:
    """``PhoneRecognizer.analyze``, sparing what cannot be a number."""
    label, score = recognizer.supported_entities[0], recognizer.SCORE
    regions = tuple(recognizer.supported_regions)

    def hits(traits: Traits) -> list[Hit]:
        places = phone_places(traits.text, regions, recognizer.leniency)
        return outermost([Hit(label, start, end, score) for start, end in places])

    return hits


def _analyzed(recognizer: Any) -> Callable[[Traits], list[Hit]]:
    """A recognizer with an ``analyze`` of its own."""

    def hits(traits: Traits) -> list[Hit]:
        timeouts.seen = False
        results = recognizer.analyze(text=traits.text, entities=recognizer.supported_entities) or ()
        if timeouts.seen:
            raise PatternTimeout
        return [Hit(r.entity_type, r.start, r.end, r.score) for r in results]

    return hits


_MANY_WORDS = regex.compile(r"\(\?:(?:\(\?:[a-z0-9-]+\)\|){30,}\(\?:[a-z0-9-]+\)\)")


def words_looked_up(expression: str) -> str:
    """``expression``, which still matches the same, with a look ahead of each long list of words.

    Presidio's links end in one of 675 domains, tried one after the other behind each full stop of each of
    253 places, from each place of the text; the look ahead costs the length of a word.
    """

    def looked_up(listed: regex.Match[str]) -> str:
        return f"(?={_tree(regex.findall(r'[a-z0-9-]+', listed[0]))}){listed[0]}"

    return str(_MANY_WORDS.sub(looked_up, expression))


_HOST = r"(?i)((www\d{0,3}[.])?[a-z0-9.\-]{1,253}"
_REACH = 262
"""Code points, at most, from where a link without a scheme begins to the full stop before its domain."""


def finder_of(expression: str, flags: int) -> Callable[..., Iterator[regex.Match[str]]]:
    """``finditer`` of ``expression``; that of a link without a scheme begins near a domain and nowhere else.

    From each place of a long host it would look at all that may follow.
    """
    compiled = regex.compile(expression, flags)
    domain = re.match(re.escape(_HOST) + r"(\[\.\]\(\?=.*?\))\(\?:\(\?:", expression)
    if domain is None:
        find_all: Callable[..., Iterator[regex.Match[str]]] = compiled.finditer
        return find_all
    # with a sign of a host before it, a match begins at that sign at the latest: no search is in vain
    anchor = regex.compile(rf"(?<=[a-z0-9.\-]){domain[1]}", flags | regex.I)

    def find(text: str, timeout: float | None = None) -> Iterator[regex.Match[str]]:
        reached = 0
        for stop in anchor.finditer(text, timeout=timeout):
            if stop.start() > reached:
                match = compiled.search(text, max(reached, stop.start() - _REACH), timeout=timeout)
                if match is not None:
                    yield match
                    reached = match.end()

    return find


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


# Context words as Presidio's enhancer weighs them, on a tokenizer alone.


SEAM = "\0"
"""Parts neighbouring words; no term of context reaches across it."""
MOST_STRINGS = 200_000
"""Distinct strings that a tokenizer may learn before a fresh one takes its place: memory stays flat."""


class ContextWords:
    """The rules of the enhancer and a tokenizer of one language."""

    def __init__(self, language: str) -> None:
        with lean_imports():
            from presidio_analyzer.context_aware_enhancers import LemmaContextAwareEnhancer

        self._language = language
        self._nlp = blank(language)
        self.rules: Any = LemmaContextAwareEnhancer()

    def of(self, text: str) -> Surroundings:
        """What stands around the places of ``text``."""
        if len(self._nlp.vocab.strings) > MOST_STRINGS:
            self._nlp = blank(self._language)
        return Surroundings(text, self._nlp, self.rules)


class Surroundings:
    """The words of one text, cut when they are first asked for."""

    def __init__(self, text: str, nlp: Language, rules: Any) -> None:
        self._text = text
        self._lowered = text.lower()
        self._nlp = nlp
        self._rules = rules
        self._around: dict[int, str] = {}
        self._present: dict[tuple[str, ...], bool] = {}

    def raised(self, score: float, start: int, context: Sequence[str]) -> float:
        """The score of a hit at ``start``, higher if a keyword around it holds one of ``context``.

        ``context`` is in small letters.
        """
        rules = self._rules
        if score >= rules.MAX_SCORE:
            return score
        terms = tuple(context)
        if terms not in self._present:
            # other scripts may have letters whose small form depends on the word's end
            self._present[terms] = any(term in self._lowered or not term.isascii() for term in terms)
        if not self._present[terms]:
            return score
        around = self.around(start)
        if not any(term in around for term in context):
            return score
        raised = max(score + rules.context_similarity_factor, rules.min_score_with_context_similarity)
        return float(min(raised, rules.MAX_SCORE))

    def around(self, start: int) -> str:
        """The keywords that count as context of a hit at code point ``start``, joined by ``SEAM``.

        The word at ``start`` and some keywords to the left of it, then likewise to the right, where the
        word at ``start`` counts again or, if it is no keyword, the next that is one.
        """
        if start not in self._around:
            ends, words = self._cut
            index = min(bisect_right(ends, start), len(words) - 1)
            left = (words[i] for i in range(index, -1, -1) if words[i] in self._keywords)
            right = (words[i] for i in range(index, len(words)) if words[i] in self._keywords)
            self._around[start] = SEAM.join(
                (
                    *itertools.islice(left, self._rules.context_prefix_count + 1),
                    *itertools.islice(right, self._rules.context_suffix_count + 1),
                )
            )
        return self._around[start]

    @cached_property
    def _cut(self) -> tuple[list[int], list[str]]:
        text = self._text
        places = self._nlp.make_doc(text).to_array(["IDX", "LENGTH"]).tolist()
        ends = [start + length for start, length in places]
        return ends, [text[start : start + length].lower() for start, length in places]

    @cached_property
    def _keywords(self) -> frozenset[str]:
        """The words that carry meaning; where a colon is in one of the words, the parts between colons."""
        words = set(self._cut[1])
        lexemes = {word: self._nlp.vocab[word] for word in words if word != "be"}
        kept = frozenset(word for word, one in lexemes.items() if not (one.is_stop or one.is_punct))
        if not any(":" in word for word in words):
            return kept
        return frozenset(part for word in kept for part in word.split(":"))


def blank(language: str) -> Language:
    """A tokenizer of ``language``; the one for any language where spaCy has none that works here."""
    spacy: Any = lean_spacy()
    try:
        nlp: Language = spacy.blank(language)
    except ImportError:
        nlp = spacy.blank("xx")
    return with_quick_suffixes(nlp)


# The engine of pattern recognizers: Presidio's, ours, and those of the configuration.


DETECTOR = "presidio"
VERSIONED = ("presidio-analyzer", "phonenumbers", "tldextract", "regex", "spacy")
"""Packages whose version can change a hit."""


class PatternEngine:
    """Pattern hits of texts, with checksums and context words."""

    def __init__(self, settings: PatternSettings, language: str) -> None:
        """``ConfigurationError`` for a recognizer that cannot be had, or a file that cannot be read."""
        listen()
        stay_offline()
        self._context = ContextWords("en" if language == AUTO else language)
        self.steps = recognizers_of(settings, language)

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """One reading a text; one in which an expression did not come to an end has failed."""
        return [self._read(text) for text in texts]

    def _read(self, text: str) -> Reading:
        try:
            hits = self._hits(text)
        except PatternTimeout:
            return Reading(failure=TIMEOUT)
        if not hits:
            return Reading()
        return Reading(tuple(sorted(Span(h.start, h.end, h.label, round(h.score, 6), DETECTOR) for h in hits)))

    def _hits(self, text: str) -> list[Hit]:
        traits = traits_of(text)
        around = None
        hits: list[Hit] = []
        for one in self.steps:
            if not one.needs.fires(traits):
                continue
            for hit in one.matches(traits):
                around = around or self._context.of(text)
                score = around.raised(hit.score, hit.start, one.context) if one.context else hit.score
                # under this score, the recognizer's author says, a hit is none
                if score >= one.bounds.get(hit.label, one.bounds.get("default", 0.0)):
                    hits.append(hit if score == hit.score else hit._replace(score=score))
        return outermost(hits) if hits else hits

    @classmethod
    def finds(cls, settings: PatternSettings, language: str) -> list[Finds]:
        """The labels of each recognizer; patterns find forms and listed terms, no names in running text."""
        own = frozenset(own_labels(settings, language))
        given = (one.recognizer for one in recognizers_of(settings, language))
        labels = ((str(getattr(one, "name", "")), frozenset(one.supported_entities)) for one in given)
        return [Finds(name, found, None, found & own) for name, found in labels]

    @classmethod
    def identity(cls, settings: PatternSettings, language: str) -> dict[str, Any]:
        """The versions of the packages and the contents of the files that can change a hit."""
        return {
            "versions": {name: version_of(name) for name in VERSIONED},
            "files": [file_sha256(Path(file)) for file in settings.files],
        }


def recognizers_of(settings: PatternSettings, language: str) -> list[Step]:
    """Every recognizer of the settings, and those that are shipped, in a fixed order."""
    triggers = presidio_triggers()
    predefined = predefined_recognizers(names_of(settings, language), language)
    own = [custom_recognizer(recognizer, language) for recognizer in settings.custom]
    from_files = [one for file in settings.files for one in file_recognizers(file, language)]
    return [
        *(Step(one, *triggers.get(type(one).__name__, ())) for one in predefined),
        *(
            Step(one.recognizer(language), one.needs, {n: f.needs for n, f in one.forms.items()}, linear=True)
            for one in shipped()
            if one.runs_in(language)
        ),
        *map(Step, (*own, *from_files)),
    ]
