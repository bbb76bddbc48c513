"""Presidio's pattern recognizers over a document that is already tokenised.

Presidio's analyzer is handed the artifacts of our own NLP pass, so no model runs twice, and its
failures are made to show: a regular expression that times out is a failure of the text here, not an
empty answer.  Its log messages quote context words and are silenced.
"""

from __future__ import annotations

import logging
import re
import threading
from typing import TYPE_CHECKING, Any

from redactory.detectors.chosen import custom_recognizer, predefined_recognizers
from redactory.detectors.recognizers import shipped_recognizers
from redactory.detectors.settings import DEFAULT_RECOGNIZERS, CustomRecognizer
from redactory.detectors.span import Span

if TYPE_CHECKING:
    from presidio_analyzer import AnalyzerEngine, EntityRecognizer
    from spacy.language import Language
    from spacy.tokens import Doc

TRIGGER = re.compile(r"\d|@|\.\w|::|[A-Fa-f]:[A-Fa-f]|[A-Fa-f]{2}-[A-Fa-f]{2}-[A-Fa-f]{2}|[A-Z]{8}")
"""None of the default recognizers, nor of ours, can match a text without one of these.

The hexadecimal ones are for hardware and IPv6 addresses without a digit.
"""


class PatternTimeout(Exception):
    """A regular expression did not come to an end on this text."""


class _Watch(threading.local):
    """Presidio tells of a time-out by a warning alone; this keeps it, for each thread, as a flag."""

    timed_out = False


_WATCH = _Watch()


class PresidioPatterns:
    """Pattern hits of one document, with checksums and context words."""

    def __init__(
        self, nlp: Language, language: str, recognizers: tuple[str, ...], custom: tuple[CustomRecognizer, ...]
    ) -> None:
        _stay_offline()
        self._language = language
        self._engine_nlp = _wrap(nlp, language)
        default = [name for name in recognizers if name in DEFAULT_RECOGNIZERS]
        shipped = [*predefined_recognizers(default, language), *shipped_recognizers(language)]
        # the trigger is known to be safe for the default recognizers only; all others see every text
        others = [name for name in recognizers if name not in DEFAULT_RECOGNIZERS]
        own = [
            *predefined_recognizers(others, language),
            *(custom_recognizer(recognizer, language) for recognizer in custom),
        ]
        self._triggered = _analyzer(self._engine_nlp, language, [*shipped, *own])
        self._always = _analyzer(self._engine_nlp, language, own) if own else None
        _listen()

    def read(self, doc: Doc) -> list[Span]:
        """Hits in ``doc`` in text order; ``PatternTimeout`` where an expression did not end."""
        analyzer = self._triggered if TRIGGER.search(doc.text) else self._always
        if analyzer is None:
            return []
        _WATCH.timed_out = False
        hits = analyzer.analyze(
            doc.text, self._language, score_threshold=0.0, nlp_artifacts=self._artifacts(doc)
        )
        if _WATCH.timed_out:
            raise PatternTimeout
        return sorted(Span(h.start, h.end, h.entity_type, round(h.score, 6), "presidio") for h in hits)

    def _artifacts(self, doc: Doc) -> Any:
        from presidio_analyzer.nlp_engine import NlpArtifacts

        # context words are matched against lemmas; without a lemmatizer they would silently never match
        return NlpArtifacts(
            entities=[],
            tokens=doc,
            tokens_indices=[token.idx for token in doc],
            lemmas=[token.lower_ for token in doc],
            nlp_engine=self._engine_nlp,
            language=self._language,
        )


def _listen() -> None:
    """Hear Presidio's warnings however logging is set up, and keep its messages out of every log.

    A log handler or filter would miss a warning under ``logging.disable`` or a higher level, and a
    time-out that is missed is a text let through.
    """
    logger = logging.getLogger("presidio-analyzer")
    vars(logger)["warning"] = _note
    logger.addFilter(_silent)


def _note(message: object, *_: object, **__: object) -> None:
    if "timed out" in str(message):
        _WATCH.timed_out = True


def _silent(record: logging.LogRecord) -> bool:
    return False


def _stay_offline() -> None:
    """Keep the e-mail recognizer from fetching the list of public suffixes."""
    import tldextract

    tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)


def _wrap(nlp: Language, language: str) -> Any:
    from presidio_analyzer.nlp_engine import SpacyNlpEngine

    engine: Any = SpacyNlpEngine(models=[{"lang_code": language, "model_name": "loaded"}])
    engine.nlp = {language: nlp}
    return engine


def _analyzer(engine: Any, language: str, recognizers: list[EntityRecognizer]) -> AnalyzerEngine:
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry

    registry = RecognizerRegistry(recognizers=recognizers, supported_languages=[language])
    return AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=[language])
