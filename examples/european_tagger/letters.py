"""Short texts with addresses, dates and numbers, which the corpora of a language hardly have."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from faker import Faker
from sources import Mark, Row

LOCALES = {
    "de": ("de_DE", "de_AT", "de_CH"),
    "es": ("es_ES", "es_MX", "es_AR"),
    "fr": ("fr_FR", "fr_CH", "fr_BE"),
    "it": ("it_IT",),
    "nl": ("nl_NL", "nl_BE"),
    "pt": ("pt_BR", "pt_PT"),
}
ABROAD = ("en_US", "pl_PL", "tr_TR", "sv_SE", "ro_RO", "hr_HR", "vi_VN", "cs_CZ", "en_IN")
"""Where some of the people and places of any text are from."""
_FIELD = re.compile(r"\{(\w+)\}")
_NUMBERS = ("#######", "??-####", "##/####")
_KINDS: dict[str, tuple[str, Callable[[Faker], str]]] = {
    "name": ("PERSON", lambda fake: fake.name()),
    "first": ("PERSON", lambda fake: fake.first_name()),
    "last": ("PERSON", lambda fake: fake.last_name()),
    "city": ("LOCATION", lambda fake: fake.city()),
    "company": ("ORGANIZATION", lambda fake: fake.company()),
    "street": ("STREET_ADDRESS", lambda fake: fake.street_address().replace("\n", ", ")),
    "postcode": ("POSTAL_CODE", lambda fake: fake.postcode()),
    "phone": ("PHONE_NUMBER", lambda fake: fake.phone_number()),
    "email": ("EMAIL_ADDRESS", lambda fake: fake.email()),
    "number": ("IDENTIFIER", lambda fake: fake.bothify(fake.random_element(("#######", "??-####", "##/####")))),
    "date": ("DATE_TIME", lambda fake: fake.date(fake.random_element(("%d.%m.%Y", "%d/%m/%Y", "%d-%m-%Y")))),
    "age": ("AGE", lambda fake: str(fake.random_int(18, 95))),
}


@cache
def _fake(locale: str) -> Faker:
    return Faker(locale, use_weighting=False)


def name_of(label: str, language: str, draw: random.Random, words: int = 2) -> str:
    """A person, place or body of ``language``, or one in four times of another; a person by ``words``."""
    fake = _fake(draw.choice(LOCALES[language] if draw.random() < 0.75 else ABROAD))
    fake.seed_instance(draw.getrandbits(64))
    if label == "PERSON":
        short = fake.first_name if draw.random() < 0.4 else fake.last_name
        return f"{fake.first_name()} {fake.last_name()}" if words > 1 else short()
    return fake.city() if label == "LOCATION" else fake.company()


def letters(language: str, rows: int, seed: int) -> Iterator[Row]:
    """``rows`` texts of one to four lines of ``templates/LANGUAGE.txt``, their fields drawn."""
    draw = random.Random(f"{language} {seed}")
    file = Path(__file__).parent / "templates" / f"{language}.txt"
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line]
    for _ in range(rows):
        yield _filled(" ".join(draw.sample(lines, draw.choice((1, 1, 1, 2, 3)))), language, draw)


def _filled(template: str, language: str, draw: random.Random) -> Row:
    text, spans, position = "", list[Mark](), 0
    for field in _FIELD.finditer(template):
        text += template[position : field.start()]
        label, make = _KINDS[field[1]]
        fake = _fake(draw.choice(LOCALES[language]))
        fake.seed_instance(draw.getrandbits(64))
        value = make(fake)
        spans.append((len(text), len(text) + len(value), label))
        text, position = text + value, field.end()
    return text + template[position:], spans
