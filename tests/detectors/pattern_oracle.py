"""Presidio's own analyzer with the recognizers of a pattern engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redactory.detectors.engine import Reading
from redactory.detectors.patterns import PatternEngine, blank

Found = list[tuple[int, int, str, float]]


def analyzer_of(engine: PatternEngine, language: str = "en") -> Callable[[str], Found]:
    """What ``AnalyzerEngine.analyze`` finds, with lower-cased words for lemmas."""
    from presidio_analyzer import AnalyzerEngine, RecognizerRegistry
    from presidio_analyzer.nlp_engine import NlpArtifacts, SpacyNlpEngine

    nlp = blank(language)
    loaded: Any = SpacyNlpEngine(models=[{"lang_code": language, "model_name": "loaded"}])
    loaded.nlp = {language: nlp}
    registry = RecognizerRegistry(
        recognizers=[step.recognizer for step in engine.steps], supported_languages=[language]
    )
    analyzer = AnalyzerEngine(registry=registry, nlp_engine=loaded, supported_languages=[language])

    def found(text: str) -> Found:
        doc = nlp.make_doc(text)
        artifacts = NlpArtifacts(
            entities=[],
            tokens=doc,
            tokens_indices=[token.idx for token in doc],
            lemmas=[token.lower_ for token in doc],
            nlp_engine=loaded,
            language=language,
        )
        hits = analyzer.analyze(text, language, nlp_artifacts=artifacts)
        return sorted((h.start, h.end, h.entity_type, round(h.score, 6)) for h in hits)

    return found


def found_by(engine: PatternEngine, text: str) -> Found:
    """What the engine itself finds."""
    (reading,) = engine.read([text])
    assert reading == Reading(reading.spans)
    return [(s.start, s.end, s.label, s.score) for s in reading.spans]
