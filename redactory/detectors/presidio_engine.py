"""Run Presidio's own analyzer from the user's configuration file, one text at a time.

The file gives recognizers, spaCy pipelines, thresholds and context words. ``patterns`` runs Presidio's pattern
recognizers faster. Refused: everything that would contact another machine, download a model, or read a model that the
policy hash cannot identify.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from redactory.detectors.engine import ENGINE_ERROR, TIMEOUT, Capability, EngineOutput, Span
from redactory.detectors.external import add_public_scores, suppress_output
from redactory.detectors.patterns import VERSIONED_PACKAGES, detect_timeouts
from redactory.detectors.recognizers import keep_offline
from redactory.detectors.settings import KNOWN_LABELS, PresidioSettings
from redactory.detectors.spacy_model import (
    enter_memory_zone,
    find_model_folder,
    get_package_versions,
    hide_unused_packages,
    identify_model,
    read_model_meta,
    speed_up_suffix_search,
)
from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, did_you_mean, shorten_name

if TYPE_CHECKING:
    from presidio_analyzer import AnalyzerEngine

NAME = "presidio"
_KEY = "detect.presidio.configuration"
_SPACY_NLP_ENGINES = ("spacy", "slim", "no_op")
"""Presidio's NLP engines that load only spaCy pipelines."""


class PresidioEngine:
    """Finds what Presidio's analyzer finds, in each of the languages, with its scores.

    It gives no P(non-entity), so every span at any score makes an example private. Spans below the file's own
    thresholds do not count.
    """

    def __init__(self, settings: PresidioSettings, language: str) -> None:
        self._analyzer: Any = _create_analyzer(settings)
        self._languages = _resolve_languages(settings, language)
        self._labels = frozenset().union(
            *(capability.labels for capability in self.list_capabilities(settings, language))
        )
        self._public_kinds: frozenset[str] = frozenset()

    @classmethod
    def collect_fingerprint(cls, settings: PresidioSettings, language: str) -> dict[str, Any]:
        """Digests of the file and of the pipelines it names, and versions of the packages that read them."""
        models = _load_configuration(settings)["nlp_configuration"]["models"]
        return {
            "configuration": file_sha256(Path(settings.configuration)),
            "models": {
                str(model["lang_code"]): identify_model(model["model_name"]) for model in models if model["model_name"]
            },
            "versions": get_package_versions(*VERSIONED_PACKAGES, "thinc", "blis", "numpy"),
        }

    @classmethod
    def list_capabilities(cls, settings: PresidioSettings, language: str) -> list[Capability]:
        """Return the labels of each recognizer; for a spaCy pipeline's recognizer, the pipeline's labels."""
        sha256 = file_sha256(Path(settings.configuration)) if Path(settings.configuration).is_file() else ""
        return list(_load_capabilities(settings, _resolve_languages(settings, language), sha256))

    def treat_as_public(self, kinds: Collection[str]) -> None:
        """Trust the score of spans of these kinds, so that they can be public."""
        self._public_kinds = frozenset(kinds)

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        """Return one output per text, each a function of that text alone."""
        with suppress_output(), enter_memory_zone(*filter(None, self._analyzer.nlp_engine.nlp.values())):
            return [self._read_text(text) for text in texts]

    def _read_text(self, text: str) -> EngineOutput:
        if not text.strip():
            return EngineOutput()
        try:
            with detect_timeouts():
                results = [result for code in self._languages for result in self._analyzer.analyze(text, code)]
        except TimeoutError:
            return EngineOutput(failure=TIMEOUT)
        except Exception:
            # the message may quote text: drop it
            return EngineOutput(failure=ENGINE_ERROR)
        if not all(result.entity_type in self._labels and 0 <= result.score <= 1 for result in results):
            return EngineOutput(failure=ENGINE_ERROR)
        spans = {Span(result.start, result.end, result.entity_type, round(result.score, 6), NAME) for result in results}
        return add_public_scores(EngineOutput(tuple(sorted(spans))), self._public_kinds)


@functools.lru_cache(maxsize=4)
def _load_capabilities(settings: PresidioSettings, languages: tuple[str, ...], sha256: str) -> tuple[Capability, ...]:
    """Load the analyzer and list what it finds, once per process and file digest."""
    analyzer: Any = _create_analyzer(settings)
    capabilities = []
    for recognizer in analyzer.registry.recognizers:
        labels, language = frozenset(recognizer.supported_entities), recognizer.supported_language
        if language not in languages:
            continue
        if isinstance(recognizer, _import_recognizer_classes()[-1]):
            labels &= _list_pipeline_entities(analyzer.nlp_engine, language)
            capabilities.append(Capability(recognizer.name, labels, language, labels - KNOWN_LABELS, "names"))
        else:
            capabilities.append(Capability(recognizer.name, labels, None, labels - KNOWN_LABELS, "forms"))
    return tuple(capabilities)


def _list_pipeline_entities(engine: Any, language: str) -> set[str]:
    """List Presidio's names for the entities of its spaCy pipeline, without ignored ones."""
    rules = getattr(engine, "ner_model_configuration", None)
    folder = next((model["model_name"] for model in engine.models if model["lang_code"] == language), None)
    if rules is None or folder is None:
        return set()
    ignored = set(rules.labels_to_ignore)
    labels = set(read_model_meta(folder).get("labels", {}).get("ner", ())) - ignored
    return {rules.model_to_presidio_entity_mapping.get(label, label) for label in labels} - ignored


def _resolve_languages(settings: PresidioSettings, language: str) -> tuple[str, ...]:
    requested = settings.languages or (language,)
    supported = _load_configuration(settings).get("supported_languages", ["en"])
    if missing := [code for code in requested if code not in supported]:
        raise ConfigurationError(
            f"detect.presidio.languages: '{missing[0]}' is not among the supported_languages of "
            f"{settings.configuration}: {', '.join(supported)}"
        )
    return requested


def _load_configuration(settings: PresidioSettings) -> dict[str, Any]:
    """Read the file and replace each spaCy pipeline by its local folder; load no model."""
    file = Path(settings.configuration)
    try:
        document = yaml.safe_load(file.read_text(encoding="utf-8"))
        nlp = document["nlp_configuration"]
        name, models = nlp["nlp_engine_name"], copy.deepcopy(nlp["models"])
        named = [str(entry["model_name"]) for entry in models]
    except OSError as error:
        raise ConfigurationError(f"{_KEY}: {file} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, yaml.YAMLError):
        raise ConfigurationError(
            f"{_KEY}: {file} is not a YAML file for Presidio's analyzer with nlp_configuration "
            "(nlp_engine_name, models with lang_code and model_name), without which a model is downloaded"
        ) from None
    if name not in _SPACY_NLP_ENGINES:
        raise ConfigurationError(
            f"{_KEY}: {file}: the NLP engine '{shorten_name(name)}' is not one of "
            f"{', '.join(_SPACY_NLP_ENGINES)}; stanza "
            "and transformers are separate engines, detect.stanza and detect.transformers"
        )
    for entry, model in zip(models, named, strict=True):
        entry["model_name"] = str(find_model_folder(model)) if name != "no_op" else ""
    _reject_model_recognizers(file, (document.get("recognizer_registry") or {}).get("recognizers") or ())
    return {**document, "nlp_configuration": {**nlp, "models": models}}


def _reject_model_recognizers(file: Path, entries: Iterable[Any]) -> None:
    """Raise ``ConfigurationError`` for recognizers that need a model other than a spaCy pipeline; create none."""
    with hide_unused_packages():
        import presidio_analyzer.predefined_recognizers as predefined

    for number, entry in enumerate(entries, 1):
        definition = entry if isinstance(entry, dict) else {"name": entry, "type": "predefined"}
        name = str(definition.get("class_name") or definition.get("name"))
        kind = getattr(predefined, name, None)
        location = f"{_KEY}: {file}, recognizer {number}: "
        if definition.get("enabled") is False:
            continue
        if kind is None and definition.get("type") == "predefined":
            hint = did_you_mean(name, dir(predefined))
            raise ConfigurationError(f"{location}the installed Presidio has no '{shorten_name(name)}'{hint}")
        if isinstance(kind, type) and not issubclass(kind, _import_recognizer_classes()):
            raise ConfigurationError(
                f"{location}'{name}' calls another machine, or reads a model that the policy's hash does not "
                "cover; models are separate engines"
            )


def _import_recognizer_classes() -> tuple[type[Any], ...]:
    """Return the classes of pattern recognizers, then that of spaCy pipelines."""
    from presidio_analyzer import PatternRecognizer
    from presidio_analyzer.predefined_recognizers import PhoneRecognizer, SpacyRecognizer

    return PatternRecognizer, PhoneRecognizer, SpacyRecognizer


def _create_analyzer(settings: PresidioSettings) -> AnalyzerEngine:
    """Create Presidio's analyzer; download nothing, silence its logs."""
    configuration = _load_configuration(settings)
    try:
        with suppress_output(), hide_unused_packages():
            from presidio_analyzer.analyzer_engine_provider import AnalyzerEngineProvider

            provider = AnalyzerEngineProvider(analyzer_engine_conf_file=settings.configuration)
            provider.configuration = configuration
            analyzer = provider.create_engine()
            engine: Any = analyzer.nlp_engine
            for nlp in filter(None, engine.nlp.values()):
                speed_up_suffix_search(nlp)
    except Exception as error:
        raise ConfigurationError(
            f"{_KEY}: Presidio cannot load {settings.configuration} as an analyzer ({type(error).__name__})"
        ) from None
    for recognizer in analyzer.registry.recognizers:
        if not isinstance(recognizer, _import_recognizer_classes()) or not type(recognizer).__module__.startswith(
            "presidio_analyzer."
        ):
            raise ConfigurationError(
                f"{_KEY}: {settings.configuration}: '{type(recognizer).__name__}' is not a Presidio recognizer"
            )
        keep_offline(recognizer)
    return analyzer
