"""Numbers and addresses of countries, switched on by the language."""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
import yaml
from faker import Faker

from redactory.detectors import Detector, DetectSettings, recognizers
from redactory.detectors.check_digits import make_rejector
from redactory.detectors.recognizers import (
    COUNTRY_RECOGNIZERS,
    SCORES,
    list_extra_regions,
    list_recognizer_names,
    load_builtin_recognizers,
)
from redactory.detectors.settings import PatternSettings
from tests.detectors.national_numbers import NUMBERS, numbers_of, texts_of


@functools.cache
def detector(language: str) -> Detector:
    return Detector(
        DetectSettings.model_validate(
            {"language": language, "tagger": None, "conservative": {"rules": ["digit", "symbol"]}}
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", NUMBERS)
def test_no_national_number_is_missed(name: str) -> None:
    language, texts = texts_of(name)
    missed = []
    for (text, start, end), found in zip(texts, detector(language).detect(text for text, _, _ in texts), strict=True):
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


# What each office says of its check digits, written down a second time as plain congruences.


def _sum(number: str, weights: Iterable[int]) -> int:
    return sum(int(sign, 36) * weight for sign, weight in zip(number, weights, strict=True))


def _doubled(digits: str, weights: Iterable[int]) -> int:
    return sum(int(one) for d, w in zip(digits, weights, strict=True) for one in str(int(d) * w))


def _place(letter: str) -> str:
    return f"{string.ascii_uppercase.index(letter) + 1:02}"


def _german_tax(n: str) -> bool:
    rest = 10
    for digit in n[:-1]:
        rest = (rest + int(digit)) % 10
        rest = (rest if rest else 10) * 2 % 11
    return (rest + int(n[-1])) % 10 == 1


def _luhn_holds(n: str) -> bool:
    """For a letter the number in base 36, of which twice less 9 counts."""
    total = 0
    for place, sign in enumerate(n[::-1]):
        value = int(sign, 36)
        total += value if place % 2 == 0 else 2 * value - 9 * (2 * value > 9)
    return total % 10 == 0


_ODD = [1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23]
_FISCAL_ODD = dict(zip(string.digits + string.ascii_uppercase, [*_ODD[:10], *_ODD], strict=True))
_FISCAL_EVEN = dict(zip(string.digits + string.ascii_uppercase, [*range(10), *range(26)], strict=True))


def _nine(n: str) -> bool:
    rest = _sum(n[:-1], range(len(n), 1, -1)) % 11
    return int(n[-1]) == (0 if rest in (0, 1) else 11 - rest)


ORACLES: dict[str, tuple[str, Callable[[str], bool]]] = {
    "Steuer-ID": ("steuer_id", _german_tax),
    "Rentenversicherungsnummer": (
        "rentenversicherung",
        lambda n: _doubled(n[:8] + _place(n[8]) + n[9:11], (2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1)) % 10 == int(n[11]),
    ),
    "Krankenversichertennummer": (
        "krankenversicherung",
        lambda n: _doubled(_place(n[0]) + n[1:9], (1, 2) * 5) % 10 == int(n[9]),
    ),
    "NIF": ("nif", lambda n: (int(n[:-1]) - "TRWAGMYFPDXBNJZSQVHLCKE".find(n[-1])) % 23 == 0 and n[-1] not in "IOUÑ"),
    "NIE": (
        "nif",
        lambda n: (
            (int(str("XYZ".find(n[0])) + n[1:-1]) - "TRWAGMYFPDXBNJZSQVHLCKE".find(n[-1])) % 23 == 0
            and n[-1] not in "IOU"
        ),
    ),
    "NUSS": (
        "nuss",
        lambda n: n[-2:] in (f"{int(n[:-2]) % 97:02}", f"{int(n[:2] + (n[3:-2] if n[2] == '0' else n[2:-2])) % 97:02}"),
    ),
    "NIR": ("nir", lambda n: (int(n[:13]) + int(n[13:])) % 97 == 0 and 1 <= int(n[13:]) <= 97),
    "NIR of Corsica": (
        "nir",
        lambda n: (
            (int(n[:13].replace("A", "0").replace("B", "0")) - {"A": 10**6, "B": 2 * 10**6}.get(n[6], 0) + int(n[13:]))
            % 97
            == 0
            and 1 <= int(n[13:]) <= 97
        ),
    ),
    "numéro fiscal": ("numero_fiscal", lambda n: (int(n[:10]) - int(n[10:])) % 511 == 0 and int(n[10:]) < 511),
    "codice fiscale": (
        "codice_fiscale",
        lambda n: (
            (sum(_FISCAL_ODD[s] for s in n[0:15:2]) + sum(_FISCAL_EVEN[s] for s in n[1:15:2])) % 26
            == string.ascii_uppercase.find(n[15])
        ),
    ),
    "partita IVA": ("luhn", _luhn_holds),
    "NIF of Portugal": ("nif_of_portugal", _nine),
    "NISS": ("niss", lambda n: (_sum(n[:-1], (29, 23, 19, 17, 13, 11, 7, 5, 3, 2)) + int(n[-1])) % 10 == 9),
    "cartão de cidadão": ("luhn", _luhn_holds),
    "CPF": ("cpf", lambda n: _nine(n[:-1]) and _nine(n)),
    "BSN": ("bsn", lambda n: _sum(n, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11 == 0),
}
"""The check of each kind of number, and whether its digits are right."""


@pytest.mark.parametrize("name", NUMBERS)
def test_each_check_digit_is_checked(name: str) -> None:
    """Every sign of a valid number in turn is each other sign of its kind: right is what the office says."""
    check, holds = ORACLES[name]
    refuses, accepted, tried = make_rejector(check), 0, 0
    for number in numbers_of(name, 12):
        assert holds(number), number
        assert not refuses(number), number
        for place, sign in enumerate(number):
            for other in string.digits if sign.isdigit() else string.ascii_uppercase:
                if other == sign or (name == "NIE" and place == 0 and other not in "XYZ"):
                    continue
                if name == "NIR of Corsica" and (place == 5 or not (other.isdigit() or other in "AB")):
                    # the form takes no letter but in 2A and 2B
                    continue
                mutated = number[:place] + other + number[place + 1 :]
                assert refuses(mutated) is not holds(mutated), (number, mutated)
                accepted, tried = accepted + holds(mutated), tried + 1
    assert tried > 900
    # of one wrong sign in ten, at most, a check says nothing
    assert accepted < tried / 8


def test_every_recognizer_of_national_numbers_has_its_check() -> None:
    content = yaml.safe_load((Path(recognizers.__file__).parent / "forms" / "countries.yaml").read_text("utf-8"))
    checks = {name: one.get("check") for name, one in content["recognizers"].items()}
    assert set(checks.values()) == {check for check, _ in ORACLES.values()}
    known = {one.name: one for one in load_builtin_recognizers()}
    numbers = {check: numbers_of(name, 1)[0] for name, (check, _) in ORACLES.items()}
    for name, check in checks.items():
        number = numbers[check]
        changed = number[:-1] + (
            "1" if number[-1] == "0" else "0" if number[-1].isdigit() else chr(65 + (ord(number[-1]) - 64) % 26)
        )
        assert not known[name].rejects(number), name
        assert known[name].rejects(changed), name


def test_auto_has_the_recognizers_of_every_country() -> None:
    languages = sorted(
        {*(code for one in load_builtin_recognizers() for code in one.languages), *COUNTRY_RECOGNIZERS, "en", "xx"}
    )
    assert {"de", "es", "fr", "it", "pt", "nl"} <= set(languages)
    patterns = PatternSettings()
    of_auto = {one.name for one in load_builtin_recognizers() if one.supports_language("auto")}
    assert of_auto == {one.name for one in load_builtin_recognizers()}
    for language in languages:
        assert {one.name for one in load_builtin_recognizers() if one.supports_language(language)} <= of_auto
        assert set(list_recognizer_names(patterns, language)) <= set(list_recognizer_names(patterns, "auto"))
        assert set(list_extra_regions(language)) <= set(list_extra_regions("auto"))
    for language, names in COUNTRY_RECOGNIZERS.items():
        assert set(names) <= set(list_recognizer_names(patterns, f"{language}-AT"))
    # a list of one's own is that list
    assert list_recognizer_names(PatternSettings(recognizers=("IbanRecognizer",)), "auto") == ("IbanRecognizer",)


@pytest.mark.parametrize("name", NUMBERS)
def test_auto_masks_the_national_numbers_of_every_country(name: str) -> None:
    _, texts = texts_of(name, 6)
    found = detector("auto").detect(text for text, _, _ in texts)
    for (text, start, end), one in zip(texts, found, strict=True):
        covered = {place for span in one.strict for place in range(span.start, span.end)}
        assert {place for place in range(start, end) if text[place].isalnum()} <= covered, text
        assert any(s.score == SCORES["strong"] and s.start <= start and end <= s.end for s in one.strict), text
