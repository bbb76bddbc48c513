"""Select single engines by name, to compare them with the policies or to inspect what the policies left.

A name is ``NAME`` or ``NAME:MODEL``: a built-in engine, an engine of another package by its entry point, or (only for
comparison) ``presidio``, which is Presidio with its defaults, not the engine that the user's file configures.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from redactory.detectors.detector import Detection, Detector, read_each
from redactory.detectors.engine import EngineOutput, Span
from redactory.detectors.engine_registry import identify_engines
from redactory.detectors.external import list_installed_engines, load_engine_class, suppress_output
from redactory.detectors.patterns import VERSIONED_PACKAGES
from redactory.detectors.recognizers import keep_offline
from redactory.detectors.settings import DetectSettings, get_kind, get_kinds
from redactory.detectors.spacy_model import (
    find_model_folder,
    find_pipeline,
    get_package_versions,
    hide_unused_packages,
    identify_model,
)
from redactory.foundation.errors import ConfigurationError

ENGINES_WITHOUT_MODEL = ("patterns", "tagger")
MODEL_SETTINGS = {"spacy": "model", "stanza": "folder", "transformers": "folder"}
"""For each engine that takes a model name, the setting that holds it."""
MODEL_SYNTAX = "spacy:PIPELINE, stanza:FOLDER, transformers:FOLDER, NAME:FOLDER of an installed package"
_DISABLED_ENGINES: dict[str, Any] = dict.fromkeys(ENGINES_WITHOUT_MODEL)
_BATCH_SIZE = 64


def build_engine_settings(engine_spec: str, language: str) -> DetectSettings:
    """Build settings with one engine and no rules; load nothing.

    The part after the colon is the model. For an engine of another package it sets the first option that the engine
    declares as a file. Without a model, spaCy uses the installed pipeline of the language. ``ConfigurationError`` for
    an unknown name, or a missing model.
    """
    name, _, model = engine_spec.partition(":")
    sections: dict[str, Any] = {name: {}}
    if name in MODEL_SETTINGS:
        if not model and name != "spacy":
            raise ConfigurationError(f"{name} needs its model, as {name}:FOLDER")
        sections[name] = {MODEL_SETTINGS[name]: model or find_pipeline(language)}
    elif name in list_installed_engines():
        option = next(iter(getattr(load_engine_class(name), "files", ())), None) if model else None
        if model and option is None:
            raise ConfigurationError(f"'{name}' does not take a file or folder")
        sections = {"engines": {name: {option: model} if option else {}}}
    elif name not in ENGINES_WITHOUT_MODEL or model:
        if name in ("gliner", "gliner2"):
            raise ConfigurationError(f"no installed package offers it; examples/{name} does; its README says how")
        raise ConfigurationError(
            f"expected one of {', '.join(ENGINES_WITHOUT_MODEL)}, {MODEL_SYNTAX} or, beside the policies, presidio; "
            f"installed packages offer: {', '.join(list_installed_engines()) or 'none'}"
        )
    values = {**_DISABLED_ENGINES, "language": language, "conservative": {"rules": []}, **sections}
    return DetectSettings.model_validate(values)


class ReferenceEngine(NamedTuple):
    """An engine to compare with the policies: its name, its identity, and a function that loads it.

    ``identity`` holds package versions and model digests, as in a policy's hash.
    """

    name: str
    identity: dict[str, Any]
    load: Callable[[], Callable[[Sequence[str]], list[EngineOutput]]]


def resolve_reference_engines(names: Iterable[str], language: str) -> list[ReferenceEngine]:
    """Resolve ``names`` without loading; ``ConfigurationError`` for unknown, unavailable or repeated ones."""
    engines: list[ReferenceEngine] = []
    for name in names:
        try:
            engine = _resolve_reference_engine(name.strip(), language)
        except ConfigurationError as error:
            raise ConfigurationError(f"against: '{name}': {error}") from None
        kind = engine.name.partition(":")[0]
        if any((kind, engine.identity) == (other.name.partition(":")[0], other.identity) for other in engines):
            raise ConfigurationError(f"against: '{name}' is given twice; remove one")
        engines.append(engine)
    return engines


def _resolve_reference_engine(engine_spec: str, language: str) -> ReferenceEngine:
    name, _, model = engine_spec.partition(":")
    if name == "presidio":
        pipeline = model or find_pipeline(language)
        identity = {
            "pipeline": identify_model(pipeline),
            "versions": get_package_versions(*VERSIONED_PACKAGES, "thinc", "numpy"),
        }
        return ReferenceEngine(engine_spec, identity, lambda: StockPresidio(pipeline, language).read)
    settings = build_engine_settings(engine_spec, language)
    [identity] = identify_engines(settings).values()
    return ReferenceEngine(engine_spec, identity, lambda: Detector(settings).run_engines)


class StockPresidio:
    """Presidio's analyzer with its own defaults and batching over one spaCy pipeline; nothing is downloaded."""

    def __init__(self, pipeline: str, language: str) -> None:
        with suppress_output(), hide_unused_packages():
            from presidio_analyzer import AnalyzerEngine, BatchAnalyzerEngine
            from presidio_analyzer.nlp_engine import SpacyNlpEngine

            models = [{"lang_code": language, "model_name": str(find_model_folder(pipeline))}]
            engine = AnalyzerEngine(nlp_engine=SpacyNlpEngine(models), supported_languages=[language])
            for recognizer in engine.registry.recognizers:
                keep_offline(recognizer)
        self._batch_analyzer, self._language = BatchAnalyzerEngine(engine), language

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        """Return one output per text, with every result."""
        with suppress_output():
            results = list(self._batch_analyzer.analyze_iterator(texts, self._language, batch_size=_BATCH_SIZE))
        return [
            EngineOutput(tuple(Span(h.start, h.end, h.entity_type, h.score, "presidio") for h in hits))
            for hits in results
        ]


class ReferenceDetector:
    """Detector that masks everything one engine finds, at any score, except public labels."""

    def __init__(self, engine: ReferenceEngine, public_labels: Iterable[str] = ()) -> None:
        self._read, self._public_kinds = engine.load(), get_kinds(public_labels)

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        """Yield one detection per text, in order."""
        texts = iter(texts)
        while batch := list(itertools.islice(texts, _BATCH_SIZE)):
            for output in read_each(self._read, batch):
                marks = (span for span in output.spans if get_kind(span.label) not in self._public_kinds)
                yield Detection(tuple(sorted(marks)), failure=output.failure)
