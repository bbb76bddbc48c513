"""Numbers and addresses of countries, switched on by the language."""

from __future__ import annotations

import functools

import pytest
from faker import Faker

from redactory.detectors import Detector, DetectSettings
from redactory.detectors.recognizers import SCORES
from tests.detectors.national_numbers import NUMBERS, texts_of


@functools.cache
def detector(language: str) -> Detector:
    return Detector(
        DetectSettings.model_validate(
            {"language": language, "tagger": None, "conservative": {"rules": ["digit", "symbol"]}}
        )
    )


@pytest.mark.parametrize("name", NUMBERS)
def test_no_national_number_is_missed(name: str) -> None:
    language, texts = texts_of(name)
    missed = []
    for (text, start, end), found in zip(
        texts, detector(language).detect(text for text, _, _ in texts), strict=True
    ):
        covered = {place for span in found.strict for place in range(span.start, span.end)}
        if not {place for place in range(start, end) if text[place].isalnum()} <= covered:
            missed.append(text)
    assert not missed


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("de", "Das sind 12 345 678 904 Stück."),
        ("es", "Tengo 12 345 678 B de ahorros."),
        ("en", "Account of Z 0326032 N and 30 473 965 T."),
    ],
)
def test_other_digits_and_other_languages_are_left_to_the_other_forms(language: str, text: str) -> None:
    [found] = detector(language).detect([text])
    assert not any(span.score == SCORES["strong"] for span in found.strict)


@pytest.mark.parametrize("text", ["ＰＲＳ GCB 12M41 L627J", "BCCFRC15M25E852P ٣٣٣", "٨٠٥٩٠٩٩٦ P"])
def test_signs_of_other_scripts_fail_no_check(text: str) -> None:
    for language in ("es", "it"):
        [found] = detector(language).detect([text])
        assert found.failure is None


@pytest.mark.parametrize(
    ("language", "locale", "share"),
    [
        ("de", "de_DE", 0.98),
        ("es", "es_ES", 1),
        ("fr", "fr_FR", 1),
        ("it", "it_IT", 0.98),
        ("nl", "nl_NL", 1),
        ("pt", "pt_PT", 0.98),
    ],
)
def test_telephone_numbers_of_the_language_are_masked_and_mostly_known_for_such(
    language: str, locale: str, share: float
) -> None:
    faker = Faker(locale)
    faker.seed_instance(3)
    numbers = [faker.phone_number() for _ in range(500)]
    known = 0
    for number, found in zip(numbers, detector(language).detect(f"Tel. {n}." for n in numbers), strict=True):
        covered = {place for span in found.strict for place in range(span.start, span.end)}
        assert {5 + place for place, sign in enumerate(number) if sign.isdigit()} <= covered, number
        known += any(span.label == "PHONE_NUMBER" for span in found.strict)
    assert known >= share * len(numbers)


@pytest.mark.parametrize(
    ("language", "locale", "share"),
    [
        ("de", "de_DE", 0.97),
        ("es", "es_ES", 0.85),
        ("fr", "fr_FR", 0.8),
        ("it", "it_IT", 0.97),
        ("nl", "nl_NL", 0.97),
        ("pt", "pt_BR", 0.6),
    ],
)
def test_addresses_of_the_language_are_masked_whole(language: str, locale: str, share: float) -> None:
    faker = Faker(locale)
    faker.seed_instance(4)
    texts = [faker.address() for _ in range(200)]
    whole = 0
    for text, found in zip(texts, detector(language).detect(texts), strict=True):
        covered = {place for span in found.strict for place in range(span.start, span.end)}
        whole += {place for place, sign in enumerate(text) if sign.isalnum()} <= covered
    assert whole >= share * len(texts)


@pytest.mark.parametrize(
    ("language", "text", "label"),
    [
        ("de", "Steuernummer 93/815/08152", "DE_TAX_NUMBER"),
        ("de", "Amtsgericht, HRB 123", "DE_HANDELSREGISTER"),
        ("es", "mi pasaporte AAA123456", "ES_PASSPORT"),
        ("it", "la patente AB1234567C", "IT_DRIVER_LICENSE"),
    ],
)
def test_the_recognizers_of_a_country_come_with_its_language(language: str, text: str, label: str) -> None:
    [found] = detector(language).detect([text])
    assert label in {span.label for span in found.strict}
    [found] = detector("en").detect([text])
    assert label not in {span.label for span in found.strict}
