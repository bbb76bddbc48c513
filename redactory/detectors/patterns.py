"""Find spans with pattern recognizers (Presidio's, ours and the configuration's) and context words.

Finds the same as Presidio's analyzer, without the analyzer: expressions run only where a trigger fires, context words
need only a tokenizer, logs are silenced, and no host is contacted.
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

from redactory.detectors.engine import TIMEOUT, Capability, EngineOutput, Span
from redactory.detectors.phones import find_phone_numbers
from redactory.detectors.recognizers import (
    create_custom_recognizer,
    create_predefined_recognizers,
    list_custom_labels,
    list_recognizer_names,
    load_builtin_recognizers,
    load_file_recognizers,
    load_presidio_triggers,
)
from redactory.detectors.settings import AUTO, PatternSettings
from redactory.detectors.spacy_model import hide_unused_packages, import_lean_spacy, speed_up_suffix_search
from redactory.detectors.triggers import ALWAYS_FIRES, TextTraits, Trigger, compute_traits
from redactory.foundation.canonical import file_sha256, get_package_version

if TYPE_CHECKING:
    from spacy.language import Language


timeouts = threading.local()
"""Presidio reports a timeout only by a warning; ``seen`` records it as a flag per thread."""


def patch_presidio_logger() -> None:
    """Catch Presidio's warnings under any logging setup, and keep its messages out of every log.

    The messages quote matches and context words. A log handler or filter would miss warnings under ``logging.disable``
    or a higher level, and after a missed timeout the text would pass unchecked.
    """
    logger = logging.getLogger("presidio-analyzer")
    vars(logger)["warning"] = _record_timeout
    if _reject_log_record not in logger.filters:
        logger.addFilter(_reject_log_record)


def disable_suffix_download() -> None:
    """Stop the e-mail recognizer from downloading the public suffix list."""
    import tldextract

    tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)


def _record_timeout(message: object, *_: object, **__: object) -> None:
    if "timed out" in str(message):
        timeouts.seen = True


def _reject_log_record(record: logging.LogRecord) -> bool:
    return False


class PatternTimeout(Exception):
    """A regular expression did not finish on this text."""


class PatternMatch(NamedTuple):
    """One match: code points [start, end), its label and score."""

    label: str
    start: int
    end: int
    score: float


class RecognizerRunner:
    """A recognizer with its trigger and its patterns' triggers; ``linear`` ones need no timeout on short texts."""

    def __init__(
        self,
        recognizer: Any,
        trigger: Trigger = ALWAYS_FIRES,
        pattern_triggers: Mapping[str, Trigger] = MappingProxyType({}),
        is_linear: bool = False,
    ) -> None:
        from presidio_analyzer import PatternRecognizer
        from presidio_analyzer.predefined_recognizers import PhoneRecognizer

        self.recognizer, self.trigger = recognizer, trigger
        kind = type(recognizer)
        self.find_matches: Callable[[TextTraits], list[PatternMatch]]
        if kind.analyze is PatternRecognizer.analyze:
            self.find_matches = _PatternRunner(recognizer, pattern_triggers, UNTIMED_CHARS if is_linear else 0)
        elif kind.analyze is PhoneRecognizer.analyze:
            self.find_matches = _make_phone_runner(recognizer)
        else:
            self.find_matches = _make_analyze_runner(recognizer)
        self.context = tuple(word.lower() for word in recognizer.context or ())
        self.score_thresholds: dict[str, float] = dict(recognizer.score_thresholds)


UNTIMED_CHARS = 1_000
"""Maximum code points for running linear-time expressions without a timeout, which costs as much as they do."""


class _PatternRunner:
    """Runs the patterns of a recognizer in order, like ``PatternRecognizer.analyze``."""

    def __init__(self, recognizer: Any, pattern_triggers: Mapping[str, Trigger], untimed_chars: int) -> None:
        from presidio_analyzer import pattern_recognizer

        self._recognizer = recognizer
        self._timeout_module: Any = pattern_recognizer
        self._untimed_chars = untimed_chars
        self._label = recognizer.supported_entities[0]
        self.compiled_patterns = [
            (
                pattern_triggers.get(pattern.name, ALWAYS_FIRES),
                compile_match_finder(add_word_lookahead(pattern.regex), recognizer.global_regex_flags or 0),
                pattern.score,
            )
            for pattern in recognizer.patterns
        ]

    def __call__(self, traits: TextTraits) -> list[PatternMatch]:
        text = traits.text
        seconds = None if len(text) < self._untimed_chars else self._timeout_module.REGEX_TIMEOUT_SECONDS
        results = []
        try:
            for trigger, find_all, score in self.compiled_patterns:
                if not trigger.fires(traits):
                    continue
                for match in find_all(text, timeout=seconds):
                    start, end = match.span()
                    if start < end and (match_score := self._adjust_score(text[start:end], score)) > 0:
                        results.append(PatternMatch(self._label, start, end, match_score))
        except TimeoutError:
            raise PatternTimeout from None
        return drop_contained_matches(results) if results else results

    def _adjust_score(self, value: str, score: float) -> float:
        is_valid = self._recognizer.validate_result(value)
        if is_valid is not None:
            score = 1.0 if is_valid else 0.0
        return 0.0 if self._recognizer.invalidate_result(value) else score


def _make_phone_runner(recognizer: Any) -> Callable[[TextTraits], list[PatternMatch]]:
    label, score = recognizer.supported_entities[0], recognizer.SCORE
    regions = tuple(recognizer.supported_regions)

    def find_matches(traits: TextTraits) -> list[PatternMatch]:
        places = find_phone_numbers(traits.text, regions, recognizer.leniency)
        return drop_contained_matches([PatternMatch(label, start, end, score) for start, end in places])

    return find_matches


def _make_analyze_runner(recognizer: Any) -> Callable[[TextTraits], list[PatternMatch]]:
    def find_matches(traits: TextTraits) -> list[PatternMatch]:
        timeouts.seen = False
        results = recognizer.analyze(text=traits.text, entities=recognizer.supported_entities) or ()
        if timeouts.seen:
            raise PatternTimeout
        return [PatternMatch(r.entity_type, r.start, r.end, r.score) for r in results]

    return find_matches


_WORD_ALTERNATION = regex.compile(r"\(\?:(?:\(\?:[a-z0-9-]+\)\|){30,}\(\?:[a-z0-9-]+\)\)")


def add_word_lookahead(expression: str) -> str:
    """Add a lookahead before each long word list of ``expression``, without changing its matches.

    Presidio's URLs end in one of 675 domains, tried in turn after each full stop, from each position of the text. The
    lookahead costs only the length of a word.
    """

    def add_lookahead(alternation: regex.Match[str]) -> str:
        return f"(?={_build_prefix_pattern(regex.findall(r'[a-z0-9-]+', alternation[0]))}){alternation[0]}"

    return str(_WORD_ALTERNATION.sub(add_lookahead, expression))


_HOST_PATTERN = r"(?i)((www\d{0,3}[.])?[a-z0-9.\-]{1,253}"
_MAX_HOST_CHARS = 262
"""Maximum code points from the start of a URL without a scheme to the full stop before its domain."""


def compile_match_finder(expression: str, flags: int) -> Callable[..., Iterator[regex.Match[str]]]:
    """Return ``finditer`` of ``expression``; for URLs without a scheme, search only near a domain.

    Otherwise every position of a long host would scan all that follows.
    """
    pattern = regex.compile(expression, flags)
    domain = re.match(re.escape(_HOST_PATTERN) + r"(\[\.\]\(\?=.*?\))\(\?:\(\?:", expression)
    if domain is None:
        find_all: Callable[..., Iterator[regex.Match[str]]] = pattern.finditer
        return find_all
    # a match begins at the latest at a host character before it, so every search succeeds
    anchor = regex.compile(rf"(?<=[a-z0-9.\-]){domain[1]}", flags | regex.I)

    def find_matches(text: str, timeout: float | None = None) -> Iterator[regex.Match[str]]:
        position = 0
        for stop in anchor.finditer(text, timeout=timeout):
            if stop.start() > position:
                match = pattern.search(text, max(position, stop.start() - _MAX_HOST_CHARS), timeout=timeout)
                if match is not None:
                    yield match
                    position = match.end()

    return find_matches


def _build_prefix_pattern(words: Iterable[str]) -> str:
    """Return an expression that matches any of ``words`` and tries each first letter once."""
    beyond: dict[str, list[str]] = {}
    for word in words:
        if not word:
            return ""  # longer words with this prefix match already
        beyond.setdefault(word[0], []).append(word[1:])
    return f"(?:{'|'.join(regex.escape(first) + _build_prefix_pattern(rest) for first, rest in beyond.items())})"


def drop_contained_matches(matches: Sequence[PatternMatch]) -> list[PatternMatch]:
    """Drop matches of score 0, and those inside a match with the same label and at least their score."""
    if len(matches) < 2:
        return [match for match in matches if match.score > 0]
    outer_matches: list[PatternMatch] = []
    enclosing: list[PatternMatch] = []
    for match in sorted(set(matches), key=lambda h: (h.label, h.start, -h.end, -h.score)):
        enclosing = [other for other in enclosing if other.label == match.label and other.end >= match.start]
        if match.score > 0 and not any(outer.end >= match.end and outer.score >= match.score for outer in enclosing):
            outer_matches.append(match)
            enclosing.append(match)
    return outer_matches


KEYWORD_SEPARATOR = "\0"
"""Separates neighbouring keywords; no context term spans it."""
MAX_STRINGS = 200_000
"""Distinct strings before a tokenizer is replaced by a fresh one, to bound memory."""


class ContextAnalyzer:
    """The rules of the enhancer, with a tokenizer for one language."""

    def __init__(self, language: str) -> None:
        with hide_unused_packages():
            from presidio_analyzer.context_aware_enhancers import LemmaContextAwareEnhancer

        self._language = language
        self._nlp = make_tokenizer(language)
        self.rules: Any = LemmaContextAwareEnhancer()

    def build_context(self, text: str) -> TextContext:
        """The context of ``text`` in which context words are looked up."""
        if len(self._nlp.vocab.strings) > MAX_STRINGS:
            self._nlp = make_tokenizer(self._language)
        return TextContext(text, self._nlp, self.rules)


class TextContext:
    """The words of one text, tokenized on first use."""

    def __init__(self, text: str, nlp: Language, rules: Any) -> None:
        self._text = text
        self._lowercase_text = text.lower()
        self._nlp = nlp
        self._rules = rules
        self._keywords_by_start: dict[int, str] = {}
        self._is_present: dict[tuple[str, ...], bool] = {}

    def boost_score(self, score: float, start: int, context: tuple[str, ...]) -> float:
        """Raise the score of a match at ``start`` if a nearby keyword contains one of ``context`` (lower case)."""
        rules = self._rules
        if score >= rules.MAX_SCORE:
            return score
        if context not in self._is_present:
            # in other scripts the lower case of a letter may depend on its place in the word
            self._is_present[context] = any(term in self._lowercase_text or not term.isascii() for term in context)
        if not self._is_present[context]:
            return score
        keywords = self.get_nearby_keywords(start)
        if not any(term in keywords for term in context):
            return score
        boosted = max(score + rules.context_similarity_factor, rules.min_score_with_context_similarity)
        return float(min(boosted, rules.MAX_SCORE))

    def get_nearby_keywords(self, start: int) -> str:
        """Return the context keywords of a match at code point ``start``, joined by ``KEYWORD_SEPARATOR``.

        These are the word at ``start`` and some keywords to its left, then to its right. On the right the word at
        ``start`` counts again or, if it is not a keyword, the next keyword does.
        """
        if start not in self._keywords_by_start:
            ends, words = self._tokens
            index = min(bisect_right(ends, start), len(words) - 1)
            left = (words[i] for i in range(index, -1, -1) if words[i] in self._keywords)
            right = (words[i] for i in range(index, len(words)) if words[i] in self._keywords)
            self._keywords_by_start[start] = KEYWORD_SEPARATOR.join(
                (
                    *itertools.islice(left, self._rules.context_prefix_count + 1),
                    *itertools.islice(right, self._rules.context_suffix_count + 1),
                )
            )
        return self._keywords_by_start[start]

    @cached_property
    def _tokens(self) -> tuple[list[int], list[str]]:
        text = self._text
        places = self._nlp.make_doc(text).to_array(["IDX", "LENGTH"]).tolist()
        ends = [start + length for start, length in places]
        return ends, [text[start : start + length].lower() for start, length in places]

    @cached_property
    def _keywords(self) -> frozenset[str]:
        """Return the meaningful words; if a word contains a colon, the parts between colons."""
        words = set(self._tokens[1])
        lexemes = {word: self._nlp.vocab[word] for word in words if word != "be"}
        keywords = frozenset(word for word, lexeme in lexemes.items() if not (lexeme.is_stop or lexeme.is_punct))
        if not any(":" in word for word in words):
            return keywords
        return frozenset(part for word in keywords for part in word.split(":"))


def make_tokenizer(language: str) -> Language:
    """Make a tokenizer for ``language``, or spaCy's multi-language one if there is none."""
    spacy: Any = import_lean_spacy()
    try:
        nlp: Language = spacy.blank(language)
    except ImportError:
        nlp = spacy.blank("xx")
    return speed_up_suffix_search(nlp)


DETECTOR = "presidio"
VERSIONED_PACKAGES = ("presidio-analyzer", "phonenumbers", "tldextract", "regex", "spacy")
"""Packages whose version can change a span."""


class PatternEngine:
    """Finds pattern spans in texts, with checksums and context words."""

    def __init__(self, settings: PatternSettings, language: str) -> None:
        patch_presidio_logger()
        disable_suffix_download()
        self._context = ContextAnalyzer("en" if language == AUTO else language)
        self.runners = build_runners(settings, language)

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        """Return one output per text; a text on which an expression timed out has failed."""
        return [self._read_text(text) for text in texts]

    def _read_text(self, text: str) -> EngineOutput:
        try:
            matches = self._find_matches(text)
        except PatternTimeout:
            return EngineOutput(failure=TIMEOUT)
        if not matches:
            return EngineOutput()
        return EngineOutput(tuple(sorted(Span(h.start, h.end, h.label, round(h.score, 6), DETECTOR) for h in matches)))

    def _find_matches(self, text: str) -> list[PatternMatch]:
        traits = compute_traits(text)
        context = None
        matches: list[PatternMatch] = []
        for runner in self.runners:
            if not runner.trigger.fires(traits):
                continue
            for match in runner.find_matches(traits):
                context = context or self._context.build_context(text)
                score = context.boost_score(match.score, match.start, runner.context) if runner.context else match.score
                # the recognizer's own minimum score
                if score >= runner.score_thresholds.get(match.label, runner.score_thresholds.get("default", 0.0)):
                    matches.append(match if score == match.score else match._replace(score=score))
        return drop_contained_matches(matches) if matches else matches

    @classmethod
    def list_capabilities(cls, settings: PatternSettings, language: str) -> list[Capability]:
        """Return the labels of each recognizer; patterns find forms, not names in running text."""
        custom_labels = frozenset(list_custom_labels(settings, language))
        recognizers = (recognizer.recognizer for recognizer in build_runners(settings, language))
        labels = (
            (str(getattr(recognizer, "name", "")), frozenset(recognizer.supported_entities))
            for recognizer in recognizers
        )
        return [Capability(name, entities, None, entities & custom_labels) for name, entities in labels]

    @classmethod
    def collect_fingerprint(cls, settings: PatternSettings, language: str) -> dict[str, Any]:
        """Package versions and file contents that can change a match."""
        return {
            "versions": {name: get_package_version(name) for name in VERSIONED_PACKAGES},
            "files": [file_sha256(Path(file)) for file in settings.files],
        }


def build_runners(settings: PatternSettings, language: str) -> list[RecognizerRunner]:
    """Build every configured and built-in recognizer, in a fixed order."""
    triggers = load_presidio_triggers()
    predefined = create_predefined_recognizers(list_recognizer_names(settings, language), language)
    custom = [create_custom_recognizer(recognizer, language) for recognizer in settings.custom]
    from_files = [entry for file in settings.files for entry in load_file_recognizers(file, language)]
    return [
        *(RecognizerRunner(entry, *triggers.get(type(entry).__name__, ())) for entry in predefined),
        *(
            RecognizerRunner(
                entry.build_recognizer(language),
                entry.trigger,
                {n: f.trigger for n, f in entry.forms.items()},
                is_linear=True,
            )
            for entry in load_builtin_recognizers()
            if entry.supports_language(language)
        ),
        *map(RecognizerRunner, (*custom, *from_files)),
    ]
