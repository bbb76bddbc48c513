"""Engines alone, by a name that a person types: to look at what others left, or to stand beside the policies.

``NAME`` or ``NAME:MODEL``: an engine of ours, one of another package by its entry point, or, beside the
policies, ``presidio``: Presidio as it comes, and not the engine that a file of the user's configures.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from redactory.detectors.detector import Detection, Detector
from redactory.detectors.engine import ENGINE_ERROR, Reading, Span, identities_of
from redactory.detectors.external import file_options, installed, quiet
from redactory.detectors.patterns import VERSIONED, stay_offline
from redactory.detectors.settings import DetectSettings, kind_of, kinds_of
from redactory.detectors.spacy_model import identify, lean_imports, model_folder, pipeline_of, versions
from redactory.foundation.errors import ConfigurationError

ENGINES = ("patterns", "tagger")
WITH_MODEL = {"spacy": "model", "stanza": "folder", "transformers": "folder"}
"""The engines that a model can be named for, and the setting that names it."""
NAMED = "spacy:PIPELINE, stanza:FOLDER, transformers:FOLDER, NAME:FOLDER of an installed package"
_OFF: dict[str, Any] = dict.fromkeys(ENGINES)
_TOGETHER = 64


def only(wanted: str, language: str) -> DetectSettings:
    """Settings in which the engine ``wanted`` is the only one, without a rule beside it; nothing is loaded.

    What stands behind the colon is the model; of an engine of another package, the first of the options that
    it says name files. Of spaCy's pipelines the installed one of the language is taken where none is named.
    ``ConfigurationError`` for a name that is not known, or without the model that it needs.
    """
    name, _, model = wanted.partition(":")
    own: dict[str, Any] = {name: {}}
    if name in WITH_MODEL:
        if not model and name != "spacy":
            raise ConfigurationError(f"{name} needs its model, as {name}:FOLDER")
        own[name] = {WITH_MODEL[name]: model or pipeline_of(language)}
    elif name in installed():
        option = next(iter(file_options(name)), None) if model else None
        if model and option is None:
            raise ConfigurationError(f"'{name}' does not take a file or folder")
        own = {"engines": {name: {option: model} if option else {}}}
    elif name not in ENGINES or model:
        if name == "gliner":
            raise ConfigurationError("no installed package offers it; examples/gliner does, in a separate environment")
        raise ConfigurationError(
            f"expected one of {', '.join(ENGINES)}, {NAMED} or, beside the policies, presidio; installed "
            f"packages offer: {', '.join(installed()) or 'none'}"
        )
    given = {**_OFF, "language": language, "conservative": {"rules": []}, **own}
    return DetectSettings.model_validate(given)


# Rivals: engines that are measured beside the policies.


class Rival(NamedTuple):
    """An engine as it was named, what it is, and what loads it: a function of texts to their readings.

    ``identity`` holds versions of packages and digests of models, as a policy's hash does.
    """

    name: str
    identity: dict[str, Any]
    load: Callable[[], Callable[[Sequence[str]], list[Reading]]]


def rivals(names: Iterable[str], language: str) -> list[Rival]:
    """The engines of ``names``, none of them loaded.

    ``ConfigurationError`` for one that is unknown, that cannot be had here, or that is given twice.
    """
    found: list[Rival] = []
    for name in names:
        try:
            one = _rival(name.strip(), language)
        except ConfigurationError as error:
            raise ConfigurationError(f"against: '{name}': {error}") from None
        kind = one.name.partition(":")[0]
        if any((kind, one.identity) == (o.name.partition(":")[0], o.identity) for o in found):
            raise ConfigurationError(f"against: '{name}' is given twice; remove one")
        found.append(one)
    return found


def _rival(wanted: str, language: str) -> Rival:
    name, _, model = wanted.partition(":")
    if name == "presidio":
        pipeline = model or pipeline_of(language)
        identity = {"pipeline": identify(pipeline), "versions": versions(*VERSIONED, "thinc", "numpy")}
        return Rival(wanted, identity, lambda: PresidioAsItComes(pipeline, language).read)
    settings = only(wanted, language)
    [identity] = identities_of(settings).values()
    return Rival(wanted, identity, lambda: Detector(settings).read)


class PresidioAsItComes:
    """Presidio's analyzer with its own defaults over one spaCy pipeline, in batches as Presidio makes them.

    Nothing of it is left out or made faster, and nothing is downloaded.
    """

    def __init__(self, pipeline: str, language: str) -> None:
        with quiet(), lean_imports():
            from presidio_analyzer import AnalyzerEngine, BatchAnalyzerEngine
            from presidio_analyzer.nlp_engine import SpacyNlpEngine

            stay_offline()
            models = [{"lang_code": language, "model_name": str(model_folder(pipeline))}]
            engine = AnalyzerEngine(nlp_engine=SpacyNlpEngine(models), supported_languages=[language])
        self._batches, self._language = BatchAnalyzerEngine(engine), language

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """One reading a text, with every result; a text on which Presidio raises has failed alone."""
        try:
            with quiet():
                found = list(self._batches.analyze_iterator(texts, self._language, batch_size=_TOGETHER))
        except Exception:
            if len(texts) == 1:
                return [Reading(failure=ENGINE_ERROR)]
            return [reading for text in texts for reading in self.read([text])]
        return [
            Reading(tuple(Span(h.start, h.end, h.entity_type, h.score, "presidio") for h in hits)) for hits in found
        ]


class Alone:
    """A detector that masks all that one engine finds, at any score, but for what has a public label."""

    def __init__(self, rival: Rival, public_labels: Iterable[str] = ()) -> None:
        self._read, self._public = rival.load(), kinds_of(public_labels)

    def detect(self, texts: Iterable[str]) -> Iterator[Detection]:
        """One detection a text, in order."""
        texts = iter(texts)
        while batch := list(itertools.islice(texts, _TOGETHER)):
            for reading in self._read(batch):
                marks = (span for span in reading.spans if kind_of(span.label) not in self._public)
                yield Detection(tuple(sorted(marks)), failure=reading.failure)
