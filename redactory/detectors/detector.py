"""Detection: texts in, what each policy marks in each of them out, a batch and a window at a time."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from redactory.detectors.code import reading_of_code
from redactory.detectors.engine import ENGINE_ERROR, MISALIGNED, TOO_LONG, Engine, Reading, Span, engines_of, joined
from redactory.detectors.hidden import seen
from redactory.detectors.policy import policies_of
from redactory.detectors.settings import DetectSettings, kind_of, kinds_of

WINDOW, OVERLAP = 4_000, 256
"""Most code points of one window of a text, and those that neighbouring windows share."""
TOGETHER = 2 * WINDOW
"""Most code points that an engine sees at once: a model needs 12 KB for each, whatever text it lies in."""
_SENTENCE_END = re.compile(r"(?:[.!?…][\"'”’)\]]*|\n)\s+")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Detection:
    """What the policies mark in one text, or the reason why nothing can be said about it.

    ``public`` are hits with a label that may be public, which neither policy marks.
    """

    strict: tuple[Span, ...] = ()
    conservative: tuple[Span, ...] = ()
    failure: str | None = None
    public: tuple[Span, ...] = ()


PROBE = (
    "My name is Mary Smith, and my address is mary.smith@example.com.",
    "Please call John Miller in Boston on (212) 555-0187.",
    "Pay with the card 4111 1111 1111 1111 of Anna Schmidt.",
)
"""Texts of which every policy that masks anything usual masks something."""


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
        self._windowed, self._whole = engines_of(settings)
        self.strict, self.conservative = policies_of(settings)
        self._public = kinds_of(settings.public_labels)

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        """One detection a text, in order, a batch at a time."""
        for batch in _batches(texts, self._settings.batch_size):
            for text, reading in zip(batch, self.read(batch), strict=True):
                yield self.decide(text, reading)

    def read(self, batch: Sequence[str]) -> list[Reading]:
        """What the engines say of each text of one batch, as it is and as it is seen, before any policy."""
        readings = self._read(batch)
        views = {row: view for row, text in enumerate(batch) if (view := seen(text)) is not None}
        for (row, view), reading in zip(views.items(), self._read([v.text for v in views.values()]), strict=True):
            readings[row] = joined([readings[row], reading.moved(view.origins.__getitem__)])
        return readings

    def _read(self, batch: Sequence[str]) -> list[Reading]:
        fitting = [text for text in batch if len(text) <= self._settings.max_chars]
        places = [list(windows(text, WINDOW, OVERLAP)) for text in fitting]
        pieces = [text[start:end] for text, own in zip(fitting, places, strict=True) for start, end in own]
        # one long text is many pieces: the engines see no more than a batch of them at once
        parts = _batches(pieces, self._settings.batch_size)
        readings = (reading for part in parts for reading in _read_all(self._windowed, part))
        wholes = _read_all(self._whole, fitting)
        found = (
            joined([*(next(readings).moved(start.__add__) for start, _ in own), whole])
            for own, whole in zip(places, wholes, strict=True)
        )
        return [next(found) if len(text) <= self._settings.max_chars else Reading(failure=TOO_LONG) for text in batch]

    def decide(self, text: str, reading: Reading) -> Detection:
        """What both policies make of a reading."""
        reading = self.weighed(text, reading)
        if reading.failure:
            return Detection(failure=reading.failure)
        marks = [set(policy.marks(text, reading)) for policy in (self.strict, self.conservative)]
        public = {span for span in reading.spans if kind_of(span.label) in self._public}.difference(*marks)
        strict, conservative, open_ = (tuple(sorted(spans)) for spans in (*marks, public))
        return Detection(strict, conservative, public=open_)

    def weighed(self, text: str, reading: Reading) -> Reading:
        """A reading as the policies take it: by the profile, and with what may be public opened."""
        if reading.failure:
            return reading
        if self._settings.profile == "code":
            patterns = self._settings.patterns
            custom = {recognizer.label for recognizer in patterns.custom} if patterns else ()
            reading = reading_of_code(text, reading, custom)
        return self.strict.opened(reading, self._public) if self._public else reading


def _batches(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    """``texts`` in order, at most ``size`` at once and, but for one alone, ``TOGETHER`` code points."""
    batch: list[str] = []
    chars = 0
    for text in texts:
        if batch and (len(batch) == size or chars + len(text) > TOGETHER):
            yield batch
            batch, chars = [], 0
        batch.append(text)
        chars += len(text)
    if batch:
        yield batch


def masks_nothing(settings: DetectSettings, load: Callable[[], TextDetector]) -> bool:
    """Whether the strict policy of ``settings`` masks nothing at all in the texts of ``PROBE``.

    The detector is loaded only where the settings leave that open.
    """
    usual = DetectSettings()
    if all(getattr(settings, key) == getattr(usual, key) for key in ("strict", "patterns", "lists", "public_labels")):
        return False
    return not any(detection.strict or detection.failure for detection in load().detect(PROBE))


def windows(text: str, chars: int, overlap: int) -> Iterator[tuple[int, int]]:
    """Places [start, end) in code points, at most ``chars`` long, that cover ``text``: memory stays bounded.

    Neighbours share at least ``overlap`` code points, so that whatever is no longer than that lies whole
    in one of them.  Cuts fall after a sentence where there is one, else at white space, else anywhere:
    a function of the text alone.  Needs 2 * ``overlap`` < ``chars``.
    """
    start = 0
    while len(text) - start > chars:
        end = _cut(text, start + chars // 2 + overlap, start + chars)
        yield start, end
        start = _cut(text, max(start + 1, end - 2 * overlap), end - overlap)
    yield start, len(text)


def _cut(text: str, least: int, most: int) -> int:
    """The last good place to cut in [least, most]."""
    for boundary in (_SENTENCE_END, _SPACE):
        found = [match.end() for match in boundary.finditer(text, least, most)]
        if found:
            return found[-1]
    return most


def _read_all(engines: Sequence[Engine], texts: Sequence[str]) -> Iterator[Reading]:
    """One reading a text, of every one of ``engines``."""
    columns = [_read(engine, texts) for engine in engines]
    return map(joined, zip(*columns, strict=True)) if columns else (Reading() for _ in texts)


def _read(engine: Engine, texts: Sequence[str]) -> list[Reading]:
    """One reading a text; a text that cannot be read, alone, is a failure of that text alone."""
    if not texts:
        return []
    try:
        readings = engine.read(texts)
        if len(readings) == len(texts):
            return [_checked(reading, text) for reading, text in zip(readings, texts, strict=True)]
    except Exception:
        # one bad text must not take its batch along; alone, it fails alone
        pass
    if len(texts) == 1:
        return [Reading(failure=ENGINE_ERROR)]
    return [reading for text in texts for reading in _read(engine, [text])]


def _checked(reading: Reading, text: str) -> Reading:
    """The reading, if its places lie in the text and its numbers are numbers; else a failure."""
    spans = [(span.start, span.end, span.score) for span in reading.spans]
    tokens = [(token.start, token.end, token.probability) for token in reading.plain]
    if not all(0 <= start < end <= len(text) for start, end, _ in spans + tokens):
        return Reading(failure=MISALIGNED)
    # a comparison with NaN is false whatever the bound, and would let the token through
    return reading if all(math.isfinite(x) for _, _, x in spans + tokens) else Reading(failure=ENGINE_ERROR)
