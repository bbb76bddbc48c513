"""Write labelled support tickets, made from templates that no shipped tagger was trained on.

Each row is {id, user_id, text, spans: [{start, end, label}]}, in code points. Text outside the spans is harmless:
versions, prices, counts, clock times, years, products, software. ``data/tickets.yaml`` holds the templates, and
sentences without any personal data.

    python benchmarks/tickets.py --rows 300 --seed 11 > tickets.jsonl
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import random
import re
import string
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

_ALPHANUMERIC = string.ascii_letters + string.digits
_FORMS = {
    "account": "CU-###### KD####### ######## AC/####-##",
    "order": "#######-## ORD-###### SO######## #@@##@ 1Z####@#########",
    "ticket": "INC####### SUP-#### CASE-##-##### #######",
    "plate": "@@@-#### @@##_@@@ @-@@_#### ####_@@@ @@-###-@@",
    "passport": "C########  @@####### #########@",
    "serial": "SN@@######## @#@@###### ####-@@@@-#### SN:####@@###",
    "handle": "@~_##__ ~.@ ~~## the~",
}
"""Forms of identifiers: # is a digit, @ a capital, _ a space."""
_LABELS = {
    **dict.fromkeys(("name", "name_lower", "first", "last", "other", "other_first", "other_last"), "PERSON"),
    "email": "EMAIL_ADDRESS",
    "phone": "PHONE_NUMBER",
    "street": "STREET_ADDRESS",
    "postcode": "POSTAL_CODE",
    "city": "LOCATION",
    "org": "ORGANIZATION",
    "birth": "DATE_TIME",
    "date": "DATE_TIME",
    "age": "AGE",
    **dict.fromkeys(("iban", "card", "account", "password"), "ACCOUNT"),
    **dict.fromkeys(("order", "ticket", "plate", "passport", "ssn", "handle", "serial"), "IDENTIFIER"),
    "ip": "IP_ADDRESS",
    "url": "URL",
    "key": "API_KEY",
}
"""Label of each sensitive slot; the values of other slots are harmless."""


@functools.cache
def _load_data() -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("data").joinpath("tickets.yaml").read_text("utf-8"))
    return data


def list_harmless_texts() -> list[tuple[str, str]]:
    """Return (language, text) of the sentences and lines without personal data."""
    return [(language, text) for language, block in _load_data()["harmless"].items() for text in block.splitlines()]


def generate_tickets(rows: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield ``rows`` labelled tickets; the same seed gives the same ones."""
    draw, data = random.Random(seed), _load_data()
    # every body and every whole ticket occurs equally often
    whole = [template for _ in range(rows) for template in draw.sample(data["whole"], len(data["whole"]))]
    bodies = [template for _ in range(rows) for template in draw.sample(data["bodies"], len(data["bodies"]))]
    for number in range(rows):
        if number % 4 == 0:
            template = whole.pop()
        else:
            middle = "\n\n".join(bodies.pop() for _ in range(draw.choice((1, 2, 2))))
            parts = [draw.choice(data[name]) for name in ("headers", "greetings", "closings", "signatures")]
            template = f"{parts[0]}{parts[1]}{middle}{parts[2]}{parts[3]}"
        text, spans = _fill_template(template, _draw_values(draw, data))
        yield {"id": f"ticket-{number:04}", "user_id": f"customer-{number:04}", "text": text, "spans": spans}


def _fill_template(template: str, values: dict[str, str]) -> tuple[str, list[dict[str, Any]]]:
    text, spans = "", list[dict[str, Any]]()
    for position, part in enumerate(re.split(r"\{([a-z_]+)\}", template)):
        value = values[part] if position % 2 else part
        if position % 2 and part in _LABELS:
            spans.append({"start": len(text), "end": len(text) + len(value), "label": _LABELS[part]})
        text += value
    return text, spans


def _draw_values(draw: random.Random, data: dict[str, Any]) -> dict[str, str]:
    """Draw one value of every slot, those of a person from one place."""
    given, family, street, postcode, city, phone = draw.choice(data["people"])
    first, last = draw.choice(given.split()), draw.choice(_split_family_names(family))
    others = draw.choice(data["people"])
    other_first, other_last = draw.choice(others[0].split()), draw.choice(_split_family_names(others[1]))
    user = _fold(draw.choice((f"{first}.{last}", f"{first[0]}{last}", f"{last}{draw.randint(1, 99)}")))
    values = {
        "first": first,
        "last": last,
        "name": f"{first} {last}",
        "name_lower": f"{first} {last}".lower(),
        "other": f"{other_first} {other_last}",
        "other_first": other_first,
        "other_last": other_last,
        "city": city,
        "email": f"{user}@{draw.choice(('mailbox.org', 'fastmail.com', 'web.de', 'orange.fr', 'halden-marine.no'))}",
        "url": f"{draw.choice(('https://www.', 'https://', ''))}{user.replace('.', '-')}.{draw.choice(('blog', 'me'))}",
        "org": draw.choice(data["firms"]),
        "product": draw.choice(data["products"]),
        "tool": draw.choice(data["tools"]),
        "version": draw.choice(("2.4.1", "11.0", "v3.2.0-rc1", "5.18", "2023.2", "1.0.12")),
        "price": draw.choice(("$49.99", "129 EUR", "£18", "1.299,00 €", "24.50 USD", "75 euros")),
        **{name: make(draw) for name, make in _VALUES.items()},
        **{
            name: _fill_form(form, draw)
            for name, form in (("street", street), ("postcode", postcode), ("phone", phone))
        },
    }
    for name, forms in _FORMS.items():
        values[name] = _fill_form(draw.choice(forms.split()), draw).replace("~", _fold(first)).replace("_", " ")
    values["handle"] = values["handle"].replace(" ", "_").lower()
    return values


def _split_family_names(names: str) -> list[str]:
    """Split at spaces, but keep particles with the name behind them."""
    return re.findall(r"(?:(?:van|der|de|Le|Ní)\s)*\S+", names)


def _fold(name: str) -> str:
    decomposed = unicodedata.normalize("NFKD", name.lower().replace("ß", "ss").replace("ø", "o").replace("ł", "l"))
    return re.sub(r"[^a-z0-9.]", "", decomposed.replace("ı", "i"))


def _fill_form(form: str, draw: random.Random) -> str:
    signs = {"#": string.digits, "@": "ABCDEFGHJKLMNPRSTVWXYZ"}
    # no leading zero, which few numbers have
    filled = "".join(draw.choice(signs[sign]) if sign in signs else sign for sign in form)
    return re.sub(r"(?<!\w)0(?=\d)", "4", filled) if form[0] == "#" else filled


def _draw_date(draw: random.Random, first_year: int, last_year: int) -> str:
    day = datetime.date(draw.randint(first_year, last_year), draw.randint(1, 12), draw.randint(1, 28))
    forms = ("%d/%m/%Y", "%Y-%m-%d", "%d.%m.%Y", "{day} %B %Y", "%B {day}, %Y", "{day} %B", "%b {day}")
    return day.strftime(draw.choice(forms[: 5 if last_year < 2020 else 7])).format(day=day.day)


def _draw_iban(draw: random.Random) -> str:
    country, form = draw.choice((("DE", "#" * 18), ("FR", "#" * 23), ("NL", "ABNA" + "#" * 10), ("ES", "#" * 20)))
    body = "".join(draw.choice(string.digits) if sign == "#" else sign for sign in form)
    number = "".join(str(int(sign, 36)) for sign in f"{body}{country}00")
    iban = f"{country}{98 - int(number) % 97:02}{body}"
    return " ".join(re.findall(".{1,4}", iban)) if draw.random() < 0.6 else iban


def _draw_card(draw: random.Random) -> str:
    digits = [draw.choice((4, 5)), *(draw.randrange(10) for _ in range(14))]
    total = sum(sum(divmod(digit * 2, 10)) if place % 2 == 0 else digit for place, digit in enumerate(digits))
    number = "".join(map(str, (*digits, -total % 10)))
    return draw.choice((" ", "-", "")).join(re.findall("....", number))


def _draw_key(draw: random.Random) -> str:
    prefix, size = draw.choice((("sk_live_", 24), ("ghp_", 36), ("", 40), ("pk-", 32)))
    return prefix + "".join(draw.choice(_ALPHANUMERIC) for _ in range(size))


_VALUES: dict[str, Callable[[random.Random], str]] = {
    "age": lambda draw: str(draw.randint(4, 91)),
    "birth": lambda draw: _draw_date(draw, 1938, 2011),
    "date": lambda draw: _draw_date(draw, 2023, 2026),
    "iban": _draw_iban,
    "card": _draw_card,
    "key": _draw_key,
    "ssn": lambda draw: f"{draw.randint(101, 665)}-{draw.randint(10, 99)}-{draw.randint(1001, 9999)}",
    "password": lambda draw: draw.choice(("Sunflower!{}", "k8#vQ{}zT", "monkey{}", "Tr0ub4dor_{}")).format(
        draw.randint(10, 99)
    ),
    "ip": lambda draw: draw.choice(
        (
            f"{draw.randint(80, 99)}.{draw.randint(1, 254)}.{draw.randint(1, 254)}.{draw.randint(1, 254)}",
            f"2a02:{draw.randint(4097, 65000):x}:85a3::{draw.randint(4097, 65000):x}",
        )
    ),
}


def main() -> None:
    """Write the rows as JSON lines to standard output."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=300)
    parser.add_argument("--seed", type=int, default=11)
    arguments = parser.parse_args()
    for row in generate_tickets(arguments.rows, arguments.seed):
        print(json.dumps(row, ensure_ascii=False))


if __name__ == "__main__":
    main()
