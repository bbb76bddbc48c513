"""Recognizers in Presidio's own YAML: Presidio's registry and analyzer find what our engine finds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import presidio_analyzer
import pytest
import yaml
from presidio_analyzer import AnalyzerEngine
from presidio_analyzer.nlp_engine import NlpArtifacts, SpacyNlpEngine
from presidio_analyzer.recognizer_registry import RecognizerRegistry, RecognizerRegistryProvider

from redactory.detectors.patterns import PatternEngine, load_tokenizer
from redactory.detectors.recognizers import keep_offline
from redactory.detectors.settings import PatternSettings

Found = set[tuple[int, int, str, float]]
CONF = Path(presidio_analyzer.__file__).parent / "conf"
OWN = r"""
supported_languages: [en, de]
global_regex_flags: 26
recognizers:
  - name: Tickets
    type: custom
    supported_entity: TICKET
    supported_languages:
      - {language: en, context: [ticket, case]}
      - {language: de, context: [vorgang]}
    patterns:
      - {name: ticket (strong), regex: '\bT-\d{6}\b', score: 0.6}
      - {name: ticket (weak), regex: '\b\d{6}\b', score: 0.05}
  - name: Projects
    supported_language: en
    supported_entity: PROJECT
    deny_list: [bluebird, Sand Piper]
    deny_list_score: 0.7
  - name: Sums
    supported_entity: MONEY
    score_thresholds: {default: 0.4}
    patterns:
      - {name: sum, regex: '\d+ euros?', score: 0.3}
      - {name: sum of a bill, regex: 'bill of \d+ euros?', score: 0.5}
  - {name: Never, enabled: false, supported_entity: NEVER, deny_list: [never]}
  - {name: Cards, class_name: CreditCardRecognizer, type: predefined, supported_languages: [en]}
"""
TEXTS = (
    "ticket T-123456 was closed, and 654321 is another ticket",
    "654321 is a number, t-123456 in small letters",
    "bluebird and Sand Piper, never sandpiper",
    "a bill of 30 euros, or 20 euros",
    "4111 1111 1111 1111 and 4111 1111 1111 1112",
    "my SSN is 078-05-1120, mail jane.doe@example.com, call +1 212 555 0143",
    "IBAN DE89 3704 0044 0532 0130 00, from 10.0.0.7, https://example.org/a?b=c",
    "bitcoin 16Yeky6GMjeNkAiNcBY7ZhrLoMSgg1BoyZ, passport 912803456, licence H12234567",
    "on 12 May 1987 she wrote to us; bank account 945456787654",
    "Mr. Smith and Dr. Jones were there",
    "Nothing is in here.",
    "",
)


def _registry(file: Path) -> RecognizerRegistry:
    """By Presidio's provider; a file that says nothing of languages by its other way, which needs none."""
    if "supported_languages" in yaml.safe_load(file.read_text(encoding="utf-8")):
        return RecognizerRegistryProvider(conf_file=file).create_recognizer_registry()
    registry = RecognizerRegistry(supported_languages=["en"])
    registry.add_recognizers_from_yaml(file)
    return registry


def theirs(file: Path) -> Callable[[str], Found]:
    """What Presidio's analyzer finds with the recognizers of a file; lower-cased words are the lemmas."""
    registry = _registry(file)
    for recognizer in registry.recognizers:
        keep_offline(recognizer)
    engine: Any = SpacyNlpEngine(models=[{"lang_code": "en", "model_name": "loaded"}])
    engine.nlp = {language: load_tokenizer(language) for language in registry.supported_languages}
    analyzer = AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=registry.supported_languages)

    def found(text: str) -> Found:
        doc = engine.nlp["en"].make_doc(text)
        lemmas, places = [token.lower_ for token in doc], [token.idx for token in doc]
        artifacts = NlpArtifacts([], doc, places, lemmas, engine, "en")
        hits = analyzer.analyze(text, "en", nlp_artifacts=artifacts)
        return {(h.start, h.end, h.entity_type, round(h.score, 6)) for h in hits}

    return found


def ours(file: Path) -> Callable[[str], Found]:
    """What our engine finds with the recognizers of a file, and with none beside them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("redactory.detectors.patterns.load_builtin_recognizers", tuple)
        engine = PatternEngine(PatternSettings(recognizers=(), files=(str(file),)), "en")

    def found(text: str) -> Found:
        (reading,) = engine.read([text])
        assert reading.failure is None
        return {(s.start, s.end, s.label, s.score) for s in reading.spans}

    return found


def test_a_file_of_ones_own_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(OWN, encoding="utf-8")
    here, there = ours(file), theirs(file)
    found = [here(text) for text in TEXTS]
    assert found == [there(text) for text in TEXTS]
    assert {label for hits in found for _, _, label, _ in hits} == {*("TICKET", "PROJECT", "MONEY", "CREDIT_CARD")}
    # the word of the context made the weak one stronger, and the threshold took the plain sum away
    assert (32, 38, "TICKET", 0.4) in found[0]
    assert (0, 6, "TICKET", 0.05) in found[1]
    assert [start for start, _, label, _ in found[3] if label == "MONEY"] == [2]


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("default_recognizers.yaml", {"CREDIT_CARD", "EMAIL_ADDRESS", "US_SSN", "IBAN_CODE", "CRYPTO"}),
        ("example_recognizers.yaml", {"TITLE"}),
    ],
)
def test_presidios_own_files_are_taken_as_they_are(name: str, labels: set[str]) -> None:
    here, there = ours(CONF / name), theirs(CONF / name)
    found = [here(text) for text in TEXTS]
    assert found == [there(text) for text in TEXTS]
    assert {label for hits in found for _, _, label, _ in hits} >= labels
    # a recognizer that Presidio's file has switched off
    assert "US_NPI" not in {label for _, _, label, _ in here("NPI 1234567893")}


def test_a_recognizer_that_is_switched_on_is_one_more(tmp_path: Path) -> None:
    """Presidio's default file with one of its recognizers enabled, as its users change it."""
    document = yaml.safe_load((CONF / "default_recognizers.yaml").read_text(encoding="utf-8"))
    (entry,) = [own for own in document["recognizers"] if own["name"] == "UsNpiRecognizer"]
    assert entry["enabled"] is False
    entry["enabled"] = True
    file = tmp_path / "changed.yaml"
    file.write_text(yaml.safe_dump({**document, "recognizers": [entry]}), encoding="utf-8")
    found = ours(file)("NPI 1234567893")
    assert found == theirs(file)("NPI 1234567893")
    assert {label for _, _, label, _ in found} == {"US_NPI"}
