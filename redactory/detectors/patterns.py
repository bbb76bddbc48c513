"""Find spans with Presidio's pattern recognizers (its own, ours and the configuration's) and context words.

Finds what Presidio's analyzer finds with a tokenizer in place of a model. Expressions run only where a trigger fires.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, lru_cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import regex

from redactory.detectors.engine import TIMEOUT, Capability, EngineOutput, Span
from redactory.detectors.recognizers import (
    create_recognizers,
    list_custom_labels,
    load_builtin_recognizers,
    load_presidio_triggers,
)
from redactory.detectors.settings import AUTO, PatternSettings
from redactory.detectors.spacy_model import get_package_versions, import_lean_spacy, speed_up_suffix_search
from redactory.detectors.triggers import ALWAYS_FIRES, TextTraits, Trigger, compute_traits
from redactory.foundation.canonical import file_sha256

if TYPE_CHECKING:
    from spacy.language import Language

DETECTOR = "presidio"
VERSIONED_PACKAGES = ("presidio-analyzer", "phonenumbers", "tldextract", "regex", "spacy")
"""Packages whose version can change a span."""


@contextmanager
def detect_timeouts() -> Iterator[None]:
    """Raise ``TimeoutError`` after a Presidio call during which an expression may have timed out.

    Presidio only logs a timeout, at a level that an application may have disabled. Its timeouts count processor time.
    """
    from presidio_analyzer import pattern_recognizer

    started = time.process_time()
    yield
    # the clock of the timeouts counts in microseconds
    if time.process_time() - started >= pattern_recognizer.REGEX_TIMEOUT_SECONDS - 1e-5:
        raise TimeoutError


def _reject_log_record(record: logging.LogRecord) -> bool:
    """Keep Presidio's messages, which quote matches, out of every log."""
    return False


class RecognizerRunner:
    """A recognizer with its trigger and those of its patterns; expressions that ``is_linear`` need no timeout."""

    def __init__(
        self,
        recognizer: Any,
        trigger: Trigger = ALWAYS_FIRES,
        pattern_triggers: Mapping[str, Trigger] = MappingProxyType({}),
        is_linear: bool = False,
    ) -> None:
        from presidio_analyzer import PatternRecognizer, pattern_recognizer

        self.recognizer, self.trigger = recognizer, trigger
        self.context = tuple(word.lower() for word in recognizer.context or ())
        self.requires_context: bool = getattr(recognizer, "require_context", False)
        self._score_thresholds: dict[str, float] = dict(recognizer.score_thresholds)
        self._timeout_module: Any = None if is_linear else pattern_recognizer
        self.patterns: list[tuple[Trigger, tuple[str, int], float]] | None = None
        if type(recognizer).analyze is PatternRecognizer.analyze:
            self.patterns = [
                (
                    pattern_triggers.get(pattern.name, ALWAYS_FIRES),
                    (pattern.regex, recognizer.global_regex_flags or 0),
                    pattern.score,
                )
                for pattern in recognizer.patterns
            ]

    def find_spans(self, traits: TextTraits) -> list[Span]:
        """Find what ``recognizer.analyze`` finds; ``TimeoutError`` if an expression does not end."""
        if self.patterns is not None:
            spans = list(self._match_patterns(traits, self.patterns))
            return drop_contained_spans(spans) if len(spans) > 1 else spans
        with detect_timeouts():
            results = self.recognizer.analyze(traits.text, self.recognizer.supported_entities) or ()
        return [Span(r.start, r.end, r.entity_type, r.score, DETECTOR) for r in results]

    def _match_patterns(
        self, traits: TextTraits, patterns: Iterable[tuple[Trigger, tuple[str, int], float]]
    ) -> Iterator[Span]:
        text, recognizer = traits.text, self.recognizer
        label = recognizer.supported_entities[0]
        timeout = self._timeout_module and self._timeout_module.REGEX_TIMEOUT_SECONDS
        for trigger, expression, pattern_score in patterns:
            if not trigger.fires(traits):
                continue
            for match in _compile_expression(*expression).finditer(text, timeout=timeout):
                if value := match[0]:
                    is_valid = recognizer.validate_result(value)
                    score = pattern_score if is_valid is None else 1.0 if is_valid else 0.0
                    if score > 0 and not recognizer.invalidate_result(value):
                        yield Span(match.start(), match.end(), label, score, DETECTOR)

    def get_score_threshold(self, label: str) -> float:
        """Return the recognizer's own minimum score for ``label``."""
        return self._score_thresholds.get(label, self._score_thresholds.get("default", 0.0))


@cache
def _compile_expression(expression: str, flags: int) -> regex.Pattern[str]:
    """Compile an expression when its trigger first fires: all of them together take half a second."""
    compiled: regex.Pattern[str] = regex.compile(add_word_lookahead(expression), flags)
    return compiled


_WORD_ALTERNATION = regex.compile(r"\(\?:(?:\(\?:[a-z0-9-]+\)\|){30,}\(\?:[a-z0-9-]+\)\)")


def add_word_lookahead(expression: str) -> str:
    """Add a lookahead before each long word list of ``expression``, without changing its matches.

    Presidio's URLs end in one of 675 domains, tried in turn after each full stop, from each position of the text. The
    lookahead costs only the length of a word.
    """

    def add_lookahead(alternation: regex.Match[str]) -> str:
        return f"(?={_build_prefix_pattern(regex.findall(r'[a-z0-9-]+', alternation[0]))}){alternation[0]}"

    return str(_WORD_ALTERNATION.sub(add_lookahead, expression))


def _build_prefix_pattern(words: Iterable[str]) -> str:
    """Return an expression that matches any of ``words`` and tries each first letter once."""
    beyond: dict[str, list[str]] = {}
    for word in words:
        if not word:
            return ""  # longer words with this prefix match already
        beyond.setdefault(word[0], []).append(word[1:])
    return f"(?:{'|'.join(regex.escape(first) + _build_prefix_pattern(rest) for first, rest in beyond.items())})"


def drop_contained_spans(spans: Iterable[Span]) -> list[Span]:
    """Drop spans inside a span with the same label and at least their score."""
    outer_spans: list[Span] = []
    enclosing: list[Span] = []
    for span in sorted(set(spans), key=lambda s: (s.label, s.start, -s.end, -s.score)):
        enclosing = [other for other in enclosing if other.label == span.label and other.end >= span.start]
        if not any(other.end >= span.end and other.score >= span.score for other in enclosing):
            outer_spans.append(span)
            enclosing.append(span)
    return outer_spans


KEYWORD_SEPARATOR = "\0"
"""Separates neighbouring keywords; no context term spans it."""
MAX_STRINGS = 200_000
"""Distinct strings before a tokenizer is replaced by a fresh one, to bound memory."""


class TextContext:
    """The words of one text, tokenized on first use; the rules are those of Presidio's ``LemmaContextAwareEnhancer``.

    With a tokenizer for lemmas: the enhancer copies every result and searches all tokens for each.
    """

    def __init__(self, text: str, nlp: Language, rules: Any) -> None:
        self._text, self._nlp, self._rules = text, nlp, rules
        self._lowercase_text = text.lower()
        self._keywords_by_start: dict[int, str] = {}

    def boost_score(self, score: float, start: int, context: tuple[str, ...]) -> float:
        """Raise the score of a span at ``start`` if a nearby keyword contains one of ``context`` (lower case)."""
        rules = self._rules
        # in other scripts the lower case of a letter may depend on its place in the word
        if score >= rules.MAX_SCORE or not any(term in self._lowercase_text or not term.isascii() for term in context):
            return score
        if not self.has_nearby(start, context):
            return score
        boosted = max(score + rules.context_similarity_factor, rules.min_score_with_context_similarity)
        return float(min(boosted, rules.MAX_SCORE))

    def has_nearby(self, start: int, context: tuple[str, ...]) -> bool:
        """Whether a keyword near ``start`` contains one of ``context`` (lower case)."""
        keywords = self.get_nearby_keywords(start)
        return any(term in keywords for term in context)

    def get_nearby_keywords(self, start: int) -> str:
        """Return the context keywords of a span at code point ``start``, joined by ``KEYWORD_SEPARATOR``.

        These are the word at ``start`` and some keywords to its left, then to its right. On the right the word at
        ``start`` counts again or, if it is not a keyword, the next keyword does.
        """
        if start not in self._keywords_by_start:
            ends, words = self._tokens
            index = min(bisect_right(ends, start), len(words) - 1)
            left = (words[i] for i in range(index, -1, -1) if words[i] in self._keywords)
            right = (words[i] for i in range(index, len(words)) if words[i] in self._keywords)
            nearby = (*islice(left, self._rules.context_prefix_count + 1),
                      *islice(right, self._rules.context_suffix_count + 1))  # fmt: skip
            self._keywords_by_start[start] = KEYWORD_SEPARATOR.join(nearby)
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


@lru_cache(maxsize=4)
def load_tokenizer(language: str) -> Language:
    """Load the tokenizer of ``language``, or spaCy's multi-language one if there is none; it takes half a second."""
    spacy: Any = import_lean_spacy()
    try:
        nlp: Language = spacy.blank(language)
    except ImportError:
        nlp = spacy.blank("xx")
    return speed_up_suffix_search(nlp)


class PatternEngine:
    """Finds pattern spans in texts, with checksums and context words."""

    def __init__(self, settings: PatternSettings, language: str) -> None:
        logging.getLogger("presidio-analyzer").addFilter(_reject_log_record)
        self._language = "en" if language == AUTO else language
        self._nlp = load_tokenizer(self._language)
        self.runners = build_runners(settings, language)
        from presidio_analyzer.context_aware_enhancers import LemmaContextAwareEnhancer

        self._rules: Any = LemmaContextAwareEnhancer()

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        """Return one output per text; a text on which an expression timed out has failed."""
        return [self._read_text(text) for text in texts]

    def _read_text(self, text: str) -> EngineOutput:
        try:
            spans = drop_contained_spans(span for _, span in self.iter_spans(text))
        except TimeoutError:
            return EngineOutput(failure=TIMEOUT)
        return EngineOutput(tuple(sorted(span._replace(score=round(span.score, 6)) for span in spans)))

    def iter_spans(self, text: str) -> Iterator[tuple[RecognizerRunner, Span]]:
        """Yield what each recognizer finds, with the score that context words give it."""
        traits = compute_traits(text)
        context: TextContext | None = None
        for runner in self.runners:
            if not runner.trigger.fires(traits):
                continue
            for span in runner.find_spans(traits):
                if runner.context:
                    context = context or self.build_context(text)
                    if runner.requires_context and not context.has_nearby(span.start, runner.context):
                        continue
                    span = span._replace(score=context.boost_score(span.score, span.start, runner.context))
                if span.score >= runner.get_score_threshold(span.label):
                    yield runner, span

    def build_context(self, text: str) -> TextContext:
        """Return the context of ``text`` in which context words are looked up."""
        if len(self._nlp.vocab.strings) > MAX_STRINGS:
            load_tokenizer.cache_clear()
            self._nlp = load_tokenizer(self._language)
        return TextContext(text, self._nlp, self._rules)

    @classmethod
    def list_capabilities(cls, settings: PatternSettings, language: str) -> list[Capability]:
        """Return the labels of each recognizer; patterns find forms, not names in running text."""
        custom_labels = frozenset(list_custom_labels(settings, language))
        recognizers = (runner.recognizer for runner in build_runners(settings, language))
        labels = ((str(r.name), frozenset(r.supported_entities)) for r in recognizers)
        return [Capability(name, entities, None, entities & custom_labels) for name, entities in labels]

    @classmethod
    def collect_fingerprint(cls, settings: PatternSettings, language: str) -> dict[str, Any]:
        """Package versions and file contents that can change a span."""
        return {
            "versions": get_package_versions(*VERSIONED_PACKAGES),
            "files": [file_sha256(Path(file)) for file in settings.files],
        }


def build_runners(settings: PatternSettings, language: str) -> list[RecognizerRunner]:
    """Build every configured and built-in recognizer, in a fixed order."""
    triggers = load_presidio_triggers()
    predefined, custom = create_recognizers(settings, language)
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
        *map(RecognizerRunner, custom),
    ]
