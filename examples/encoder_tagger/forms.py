"""Simulated rows in eight languages: forms with every label, sentences, harmless texts, words that are also names."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from faker import Faker

Span = tuple[int, int, str]
Row = tuple[str, list[Span]]
LANGUAGES = ("en", "de", "es", "fr", "it", "nl", "pt", "pl")
NAME_LOCALES = (
    "en_US", "de_DE", "es_ES", "fr_FR", "it_IT", "nl_NL", "pt_BR", "pl_PL", "cs_CZ", "sv_SE", "no_NO", "da_DK", "fi_FI",
    "hu_HU", "ro_RO", "hr_HR", "tr_TR", "en_IN", "vi_VN", "id_ID", "en_NG", "fr_DZ", "ga_IE", "et_EE", "lv_LV", "lt_LT",
    "sk_SK", "sl_SI", "sw", "yo_NG", "zu_ZA", "tw_GH", "az_AZ", "uz_UZ", "fil_PH", "en_PK", "ru_RU", "uk_UA", "el_GR",
)  # fmt: skip
"""Where the people of any language come from, half of the time."""
_FIELD = re.compile(r"\{(\w+)\}")
_IDENTIFIERS = (
    "#######", "??-####", "##/####", "??######", "########", "?#######?", "###-##-####-#", "?##-####", "######",
    "ORD-#####", "INV-2024-####", "#### #### ##", "?? ## ## ## ?",
)  # fmt: skip
_ACCOUNTS = ("########", "##########", "## ## ## ##", "####-######", "####### ###")
_DIGITS = (9, 12, 60, 99, 300, 999, 1_600, 4_000, 9_000)


@cache
def read_templates(language: str) -> dict[str, Any]:
    """The templates of a language."""
    path = Path(__file__).parent / "templates" / f"{language}.yaml"
    templates: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return templates


class Forms:
    """Draws rows; the same seed draws the same ones."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self._fakers: dict[str, Faker] = {}
        self._fields: dict[str, tuple[str, Callable[[str], str]]] = {
            "name": ("PERSON", self._person),
            "company": ("ORGANIZATION", lambda language: self._local(language).company()),
            "city": ("LOCATION", lambda language: self._local(language).city()),
            "country": ("LOCATION", lambda language: self._local(language).country()),
            "street": ("STREET_ADDRESS", lambda language: self._local(language).street_address()),
            "postcode": ("POSTAL_CODE", lambda language: self._local(language).postcode()),
            "phone": ("PHONE_NUMBER", lambda language: self._local(language).phone_number()),
            "email": ("EMAIL_ADDRESS", lambda language: self._local(language).email()),
            "iban": ("IBAN_CODE", lambda language: self._grouped(self._local(language).iban(), " ")),
            "card": ("CREDIT_CARD", lambda language: self._grouped(self._faker("en_US").credit_card_number(), " -")),
            "number": ("IDENTIFIER", lambda language: self._shape(_IDENTIFIERS)),
            "account": ("ACCOUNT", lambda language: self._shape(_ACCOUNTS)),
            "user": ("IDENTIFIER", lambda language: self._user()),
            "ip": ("IP_ADDRESS", lambda language: self._ip()),
            "url": ("URL", self._url),
            "date": ("DATE_TIME", self._date),
            "age": ("AGE", lambda language: str(self._draw.randint(18, 95))),
            "national": ("IDENTIFIER", self._national_number),
            "ssn": ("US_SSN", lambda language: self._shape(("###-##-####",))),
            "nrp": ("NRP", lambda language: self._draw.choice(read_templates(language)["groups"])),
        }

    def draw_forms(self, language: str, rows: int) -> Iterator[Row]:
        """Keys with values: lines, lists, JSON, or the values alone."""
        keys = list(read_templates(language)["keys"].items())
        for _ in range(rows):
            chosen = self._draw.sample(keys, self._draw.choice((1, 1, 2, 3, 4, 6)))
            between = self._draw.choice(("\n", "\n", "; ", ", ", " | ", "\n"))
            sign = self._draw.choice((": ", ": ", ":", " = ", " ", " - ", "\t"))
            style = self._draw.random()
            if style < 0.12:
                lines = [f'"{key.lower().replace(" ", "_")}": "{{{field}}}",' for key, field in chosen]
                yield self._fill("\n".join(lines), language)
            elif style < 0.26:
                gap = " | " if style < 0.2 else ","
                yield self._fill(gap.join(f"{{{field}}}" for _, field in chosen), language)
            else:
                yield self._fill(between.join(f"{key}{sign}{{{field}}}" for key, field in chosen), language)

    def draw_sentences(self, language: str, rows: int) -> Iterator[Row]:
        """One or two sentences of chat, mail, notes and letters."""
        sentences = read_templates(language)["sentences"]
        for _ in range(rows):
            chosen = self._draw.sample(sentences, self._draw.choice((1, 1, 2)))
            yield self._fill(self._draw.choice((" ", "\n")).join(chosen), language)

    def draw_harmless(self, language: str, rows: int) -> Iterator[Row]:
        """Measurements, months, product and UI text, code: nothing in it is sensitive."""
        for _ in range(rows):
            count = self._draw.choice((1, 1, 1, 1, 2, 3, 4))
            chosen = self._draw.sample(read_templates(language)["harmless"], count)
            gap = self._draw.choice((" ", "\n", ". ", ", ", " "))
            yield gap.join(self._fill_harmless(template, language) for template in chosen), []

    def draw_names_and_words(self, rows: int) -> Iterator[Row]:
        """English words that are names where they stand; the harmless texts have them as words."""
        templates = read_templates("en")
        for _ in range(rows):
            word, text = (
                self._draw.choice(templates["names_and_words"]),
                self._draw.choice(templates["places_of_names"]),
            )
            start = text.index("{w}")
            text = text.replace("{day}", self._draw.choice(templates["days"])).replace("{w}", word)
            chance = self._draw.random()
            if chance < 0.35:
                follow_up = self._fill_harmless(self._draw.choice(templates["harmless"]), "en")
                text += self._draw.choice((". ", "\n")) + follow_up
            elif chance < 0.55:
                text = text.lower()
            yield text, [(start, start + len(word), "PERSON")]

    def _faker(self, locale: str) -> Faker:
        if locale not in self._fakers:
            self._fakers[locale] = Faker(locale, use_weighting=False)
            self._fakers[locale].seed_instance(self._draw.getrandbits(64))
        return self._fakers[locale]

    def _local(self, language: str) -> Faker:
        return self._faker(self._draw.choice(read_templates(language)["locales"]))

    def _person(self, language: str) -> str:
        faker = self._local(language) if self._draw.random() < 0.45 else self._faker(self._draw.choice(NAME_LOCALES))
        first, last = faker.first_name(), faker.last_name()
        usual = (f"{first} {last}",) * 6
        rest = (first, first, last, last, f"{first[0]}. {last}", f"{last}, {first}")
        long = (f"{first} {faker.first_name()} {last}", f"{first} {last}-{faker.last_name()}")
        return self._draw.choice((*usual, *rest, *long))

    def _grouped(self, number: str, gaps: str) -> str:
        if self._draw.random() < 0.5:
            return number
        return self._draw.choice(gaps).join(number[place : place + 4] for place in range(0, len(number), 4))

    def _shape(self, shapes: Sequence[str]) -> str:
        made = {"#": "0123456789", "?": "ABCDEFGHJKLMNPRSTUVWXYZ"}
        return "".join(self._draw.choice(made.get(sign, sign)) for sign in self._draw.choice(shapes))

    def _user(self) -> str:
        name = self._faker(self._draw.choice(NAME_LOCALES[:12])).user_name()
        return self._draw.choice((name, f"{name}{self._draw.randrange(99)}", f"user_{self._shape(('####',))}"))

    def _ip(self) -> str:
        faker = self._faker("en_US")
        return str(faker.ipv4() if self._draw.random() < 0.75 else faker.ipv6())

    def _url(self, language: str) -> str:
        faker = self._local(language)
        choices = (faker.url(), faker.url() + self._user(), f"www.{faker.domain_name()}", f"@{self._user()}")
        return self._draw.choice(choices)

    def _national_number(self, language: str) -> str:
        return self._shape(("?? ## ## ## ?",)) if language == "en" else str(self._local(language).ssn())

    def _date(self, language: str) -> str:
        day, month = self._draw.randint(1, 28), self._draw.randint(1, 12)
        year = self._draw.choice((self._draw.randint(1930, 2010), self._draw.randint(2015, 2027)))
        name = read_templates(language)["months"][month - 1]
        in_digits = (
            f"{day:02}.{month:02}.{year}", f"{day}/{month}/{year}", f"{year}-{month:02}-{day:02}",
            f"{day:02}-{month:02}-{year}", f"{month:02}/{day:02}/{year % 100:02}",
        )  # fmt: skip
        in_words = {
            "en": (f"{day} {name} {year}", f"{name} {day}, {year}", f"{name} {day}", f"{day}th of {name}"),
            "de": (f"{day}. {name} {year}", f"{day}. {name}"),
            "es": (f"{day} de {name} de {year}", f"{day} de {name}"),
            "pt": (f"{day} de {name} de {year}", f"{day} de {name}"),
        }.get(language, (f"{day} {name} {year}", f"{day} {name}"))
        return self._draw.choice((*in_digits, *in_words, *in_words))

    def _fill(self, template: str, language: str) -> Row:
        text, spans, position = "", list[Span](), 0
        for field in _FIELD.finditer(template):
            text += template[position : field.start()]
            label, make = self._fields[field[1]]
            value = make(language).replace("\n", ", ")
            spans.append((len(text), len(text) + len(value), label))
            text, position = text + value, field.end()
        return text + template[position:], spans

    def _fill_harmless(self, template: str, language: str) -> str:
        draw, templates = self._draw, read_templates(language)
        values: dict[str, Callable[[], str]] = {
            "mon": lambda: draw.choice(templates["months"]),
            "day": lambda: draw.choice(templates["days"]),
            "n": lambda: str(draw.randint(1, draw.choice(_DIGITS))),
            "f": lambda: f"{draw.random() * draw.choice((1, 10, 100)):.{draw.choice((1, 2, 3))}f}",
            "v": lambda: ".".join(str(draw.randint(0, 20)) for _ in range(draw.choice((2, 2, 3)))),
            "t": lambda: f"{draw.randint(0, 23)}:{draw.choice((0, 15, 30, 45, draw.randint(0, 59))):02}",
            "h": lambda: f"{draw.getrandbits(draw.choice((16, 24, 32))):x}",
            "q": lambda: str(draw.randint(1, 4)),
            "y": lambda: str(draw.randint(1990, 2027)),
            "y2": lambda: str(draw.randint(10, 27)),
            "ep": lambda: str(draw.randint(1_500_000_000, 1_799_999_999)) + draw.choice(("", "000", "123")),
        }
        return _FIELD.sub(lambda field: values[field[1]]() if field[1] in values else field[0], template)
