"""Detection: texts in, what each policy marks in each of them out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from redactory.detectors.engine import Reading
from redactory.detectors.model import load_pipeline
from redactory.detectors.policy import policies_of
from redactory.detectors.presidio_patterns import PatternTimeout, PresidioPatterns
from redactory.detectors.settings import DetectSettings
from redactory.detectors.spacy_ner import SpacyNer
from redactory.detectors.span import Span

if TYPE_CHECKING:
    from spacy.tokens import Doc

TOO_LONG, TIMEOUT, ENGINE_ERROR = "too_long", "pattern_timeout", "engine_error"


@dataclass(frozen=True, slots=True)
class Detection:
    """What the policies mark in one text, or the reason why nothing can be said about it."""

    strict: tuple[Span, ...] = ()
    conservative: tuple[Span, ...] = ()
    failure: str | None = None


class TextDetector(Protocol):
    """Anything that detects: the real engines, or spans that were recorded before."""

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]: ...


class Detector:
    """The engines and both policies of one configuration; loading takes seconds, so keep it.

    The detection of a text is a function of the text and the configuration: the same alone, in any
    batch and in any order.
    """

    def __init__(self, settings: DetectSettings) -> None:
        self._settings = settings
        nlp = load_pipeline(settings.model)
        self._nlp = nlp
        self._ner = SpacyNer(nlp)
        self._patterns = PresidioPatterns(nlp, settings.language, settings.recognizers, settings.custom)
        self.strict, self.conservative = policies_of(settings)

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        """One detection a text, in order, a batch at a time."""
        texts = iter(texts)
        while batch := list(itertools.islice(texts, self._settings.batch_size)):
            for text, reading in zip(batch, self.read(batch), strict=True):
                yield self._decide(text, reading)

    def read(self, batch: Sequence[str]) -> list[Reading]:
        """What the engines say of each text of one batch, before any policy."""
        fits = [text for text in batch if len(text) <= self._settings.max_chars]
        # the zone gives back what spaCy's string store learns from these texts: memory stays flat
        zone = getattr(self._nlp, "memory_zone", nullcontext)
        with zone():
            readings = iter(self._read_fitting(fits))
            return [
                next(readings) if len(text) <= self._settings.max_chars else Reading(failure=TOO_LONG)
                for text in batch
            ]

    def _read_fitting(self, texts: list[str]) -> list[Reading]:
        try:
            return [self._join(*entry) for entry in self._ner.read(texts)] if texts else []
        except Exception:
            # one bad text must not take its batch along; alone, it fails alone
            if len(texts) == 1:
                return [Reading(failure=ENGINE_ERROR)]
        return [reading for text in texts for reading in self._read_fitting([text])]

    def _join(
        self, doc: Doc, entities: tuple[Span, ...], plain: tuple[tuple[int, int, float], ...]
    ) -> Reading:
        try:
            return Reading((*entities, *self._patterns.read(doc)), plain)
        except PatternTimeout:
            return Reading(failure=TIMEOUT)

    def _decide(self, text: str, reading: Reading) -> Detection:
        if reading.failure:
            return Detection(failure=reading.failure)
        return Detection(
            tuple(sorted(set(self.strict.marks(text, reading)))),
            tuple(sorted(set(self.conservative.marks(text, reading)))),
        )
