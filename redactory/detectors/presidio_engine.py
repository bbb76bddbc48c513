"""Presidio's own analyzer, configured by a file of its own: its recognizers, NLP engine and context words.

For those who have one.  ``patterns`` runs Presidio's pattern recognizers faster; this one runs the analyzer
as it is, one text at a time, with the spaCy pipelines and the thresholds that its file names.  What would ask
another machine, download a model, or read one that the policy's hash could not name, is refused.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from redactory.detectors.engine import ENGINE_ERROR, TIMEOUT, Finds, Reading, Span
from redactory.detectors.external import quiet, with_doubts
from redactory.detectors.patterns import VERSIONED, listen, stay_offline, timeouts
from redactory.detectors.settings import KNOWN_LABELS, PresidioSettings
from redactory.detectors.spacy_model import (
    identify,
    lean_imports,
    memory_zone,
    meta_of,
    model_folder,
    versions,
    with_quick_suffixes,
)
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, did_you_mean, shorten

if TYPE_CHECKING:
    from presidio_analyzer import AnalyzerEngine

NAME = "presidio"
_KEY = "detect.presidio.configuration"
_NLP = ("spacy", "slim", "no_op")
"""Its NLP engines that load nothing but spaCy pipelines."""


class PresidioEngine:
    """What Presidio's analyzer finds in each text, in each of the languages, with its scores.

    It does not say how surely a word is plain, so all that it finds at any score makes a point private; a
    score under the thresholds of its own file is no hit.
    """

    def __init__(self, settings: PresidioSettings, language: str) -> None:
        self._analyzer: Any = _analyzer(settings)
        self._languages = _languages(settings, language)
        self._labels = frozenset().union(*(found.labels for found in self.finds(settings, language)))
        self._public: frozenset[str] = frozenset()

    @classmethod
    def identity(cls, settings: PresidioSettings, language: str) -> dict[str, Any]:
        """Content of the file, the pipelines that it names, and versions of what reads."""
        models = _configuration(settings)["nlp_configuration"]["models"]
        return {
            "configuration": file_sha256(Path(settings.configuration)),
            "models": {str(one["lang_code"]): identify(one["model_name"]) for one in models if one["model_name"]},
            "versions": versions(*VERSIONED, "thinc", "blis", "numpy"),
        }

    @classmethod
    def finds(cls, settings: PresidioSettings, language: str) -> list[Finds]:
        """The labels of each recognizer; of that of a spaCy pipeline, those that the pipeline has."""
        sha256 = file_sha256(Path(settings.configuration)) if Path(settings.configuration).is_file() else ""
        return list(_finds(settings, _languages(settings, language), sha256))

    def fold(self, kinds: Collection[str]) -> None:
        """From now on what it finds of these kinds is as surely nothing else as its score says."""
        self._public = frozenset(kinds)

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """One reading a text, each a function of that text alone."""
        with quiet(), memory_zone(*filter(None, self._analyzer.nlp_engine.nlp.values())):
            return [self._read(text) for text in texts]

    def _read(self, text: str) -> Reading:
        if not text.strip():
            return Reading()
        timeouts.seen = False
        try:
            hits = [hit for code in self._languages for hit in self._analyzer.analyze(text, code)]
        except Exception:
            # whatever its message quotes, it ends here
            return Reading(failure=ENGINE_ERROR)
        if timeouts.seen:
            return Reading(failure=TIMEOUT)
        if not all(hit.entity_type in self._labels and 0 <= hit.score <= 1 for hit in hits):
            return Reading(failure=ENGINE_ERROR)
        spans = {Span(hit.start, hit.end, hit.entity_type, round(hit.score, 6), NAME) for hit in hits}
        return with_doubts(Reading(tuple(sorted(spans))), self._public)


@functools.lru_cache(maxsize=4)
def _finds(settings: PresidioSettings, languages: tuple[str, ...], sha256: str) -> tuple[Finds, ...]:
    """What the analyzer finds, which is loaded for it, once a process and content of its file."""
    analyzer: Any = _analyzer(settings)
    found = []
    for one in analyzer.registry.recognizers:
        labels, language = frozenset(one.supported_entities), one.supported_language
        if language not in languages:
            continue
        if isinstance(one, _kinds()[-1]):
            labels &= _entities(analyzer.nlp_engine, language)
            found.append(Finds(one.name, labels, language, labels - KNOWN_LABELS, "names"))
        else:
            found.append(Finds(one.name, labels, None, labels - KNOWN_LABELS, "forms"))
    return tuple(found)


def _entities(engine: Any, language: str) -> set[str]:
    """Presidio's names for what its spaCy pipeline of a language finds, without what it is told to ignore."""
    rules = getattr(engine, "ner_model_configuration", None)
    folder = next((one["model_name"] for one in engine.models if one["lang_code"] == language), None)
    if rules is None or folder is None:
        return set()
    ignored = set(rules.labels_to_ignore)
    labels = set(meta_of(folder).get("labels", {}).get("ner", ())) - ignored
    return {rules.model_to_presidio_entity_mapping.get(label, label) for label in labels} - ignored


def _languages(settings: PresidioSettings, language: str) -> tuple[str, ...]:
    asked = settings.languages or (language,)
    offered = _configuration(settings).get("supported_languages", ["en"])
    if missing := [code for code in asked if code not in offered]:
        raise ConfigurationError(
            f"detect.presidio.languages: '{missing[0]}' is not among the supported_languages of "
            f"{settings.configuration}: {', '.join(offered)}"
        )
    return asked


def _configuration(settings: PresidioSettings) -> dict[str, Any]:
    """The file, in which each spaCy pipeline is a folder of this machine; nothing is loaded."""
    file = Path(settings.configuration)
    try:
        given = yaml.safe_load(file.read_text(encoding="utf-8"))
        nlp = given["nlp_configuration"]
        name, models = nlp["nlp_engine_name"], copy.deepcopy(nlp["models"])
        named = [str(one["model_name"]) for one in models]
    except OSError as error:
        raise ConfigurationError(f"{_KEY}: {file} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, yaml.YAMLError):
        raise ConfigurationError(
            f"{_KEY}: {file} is not a YAML file for Presidio's analyzer with nlp_configuration "
            "(nlp_engine_name, models with lang_code and model_name), without which a model is downloaded"
        ) from None
    if name not in _NLP:
        raise ConfigurationError(
            f"{_KEY}: {file}: the NLP engine '{shorten(name)}' is not one of {', '.join(_NLP)}; stanza and "
            "transformers are separate engines, detect.stanza and detect.transformers"
        )
    for one, model in zip(models, named, strict=True):
        one["model_name"] = str(model_folder(model)) if name != "no_op" else ""
    _refuse_models(file, (given.get("recognizer_registry") or {}).get("recognizers") or ())
    return {**given, "nlp_configuration": {**nlp, "models": models}}


def _refuse_models(file: Path, entries: Iterable[Any]) -> None:
    """``ConfigurationError`` for a recognizer that is no pattern and no spaCy pipeline's; none is made."""
    with lean_imports():
        import presidio_analyzer.predefined_recognizers as predefined

    for number, entry in enumerate(entries, 1):
        given = entry if isinstance(entry, dict) else {"name": entry, "type": "predefined"}
        name = str(given.get("class_name") or given.get("name"))
        kind = getattr(predefined, name, None)
        where = f"{_KEY}: {file}, recognizer {number}: "
        if given.get("enabled") is False:
            continue
        if kind is None and given.get("type") == "predefined":
            meant = did_you_mean(name, dir(predefined))
            raise ConfigurationError(f"{where}the installed Presidio has no '{shorten(name)}'{meant}")
        if isinstance(kind, type) and not issubclass(kind, _kinds()):
            raise ConfigurationError(
                f"{where}'{name}' calls another machine, or reads a model that the policy's hash does not "
                "cover; models are separate engines"
            )


def _kinds() -> tuple[type[Any], ...]:
    """Recognizers that find by themselves, and that of a spaCy pipeline, which is the last."""
    from presidio_analyzer import PatternRecognizer
    from presidio_analyzer.predefined_recognizers import PhoneRecognizer, SpacyRecognizer

    return PatternRecognizer, PhoneRecognizer, SpacyRecognizer


def _analyzer(settings: PresidioSettings) -> AnalyzerEngine:
    """Presidio's analyzer; nothing is downloaded, and its logs are silenced."""
    configuration = _configuration(settings)
    try:
        with quiet(), lean_imports():
            from presidio_analyzer.analyzer_engine_provider import AnalyzerEngineProvider

            listen()
            stay_offline()
            provider = AnalyzerEngineProvider(analyzer_engine_conf_file=settings.configuration)
            provider.configuration = configuration
            analyzer = provider.create_engine()
            engine: Any = analyzer.nlp_engine
            for nlp in filter(None, engine.nlp.values()):
                with_quick_suffixes(nlp)
    except Exception as error:
        raise ConfigurationError(
            f"{_KEY}: Presidio cannot load {settings.configuration} as an analyzer ({type(error).__name__})"
        ) from None
    for one in analyzer.registry.recognizers:
        if not isinstance(one, _kinds()) or not type(one).__module__.startswith("presidio_analyzer."):
            raise ConfigurationError(
                f"{_KEY}: {settings.configuration}: '{type(one).__name__}' is not a Presidio recognizer"
            )
    return analyzer
