"""Valid national numbers, made by Faker or here, as people write them, in sentences of their language."""

from __future__ import annotations

import random
from collections.abc import Callable

from faker import Faker

SENTENCES = {
    "de": ("Meine Nummer lautet {}, danke.", "{} steht auf dem Brief.", "Bitte prüfen Sie das ({}).", "Es ist {}."),
    "es": ("Mi número es {}, gracias.", "{} figura en la carta.", "Compruébelo, por favor ({}).", "Es el {}."),
    "fr": ("Mon numéro est {}, merci.", "{} figure sur la lettre.", "Merci de vérifier ({}).", "C'est le {}."),
    "it": ("Il mio numero è {}, grazie.", "{} sta nella lettera.", "Si prega di verificare ({}).", "È {}."),
    "pt": ("O meu número é {}, obrigada.", "{} está na carta.", "Verifique, por favor ({}).", "É o {}."),
    "nl": ("Mijn nummer is {}, dank u.", "{} staat op de brief.", "Kunt u dit nagaan ({})?", "Het is {}."),
}
_Chance = random.Random


def _digits(chance: _Chance, count: int) -> str:
    return "".join(chance.choices("0123456789", k=count))


def _steuer_id(chance: _Chance) -> str:
    """Ten digits of which one stands twice or three times, then ISO 7064 MOD 11,10."""
    kinds = chance.sample("0123456789", 9 if chance.random() < 0.5 else 8)
    body = [*kinds, *[chance.choice(kinds)] * (10 - len(kinds))]
    while body[0] == "0" or body[0] == body[1] == body[2]:
        chance.shuffle(body)
    rest = 10
    for digit in map(int, body):
        rest = ((digit + rest) % 10 or 10) * 2 % 11
    return "".join(body) + str((11 - rest) % 10)


def _insurance_number(chance: _Chance) -> str:
    """A letter and eight digits, then Luhn's digit with the letter as its two-digit place."""
    letter, body = chance.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ"), _digits(chance, 8)
    placed = f"{ord(letter) - 64:02}{body}"
    products = [int(digit) * (1 + place % 2) for place, digit in enumerate(placed)]
    return letter + body + str(sum(product // 10 + product % 10 for product in products) % 10)


def _of_corsica(chance: _Chance) -> str:
    """Born in department 2A or 2B, which count as 19 and 18."""
    before, after = f"{chance.choice('12')}{_digits(chance, 2)}0{chance.randint(1, 9)}", _digits(chance, 6)
    department = chance.choice("AB")
    key = 97 - int(f"{before}{19 if department == 'A' else 18}{after}") % 97
    return f"{before}2{department}{after}{key:02}"


def _numero_fiscal(chance: _Chance) -> str:
    body = chance.choice("0123") + _digits(chance, 9)
    return f"{body}{int(body) % 511:03}"


def _partita_iva(chance: _Chance) -> str:
    body = _digits(chance, 10)
    doubled = [int(digit) * (1 + place % 2) for place, digit in enumerate(body)]
    return body + str(-sum(one - 9 if one > 9 else one for one in doubled) % 10)


def _modulo_11(chance: _Chance) -> str:
    body = chance.choice("1235689") + _digits(chance, 7)
    rest = 11 - sum(int(digit) * (9 - place) for place, digit in enumerate(body)) % 11
    return body + str(0 if rest > 9 else rest)


def _social_security_of_portugal(chance: _Chance) -> str:
    body = chance.choice("12") + _digits(chance, 9)
    primes = (29, 23, 19, 17, 13, 11, 7, 5, 3, 2)
    return body + str(9 - sum(int(d) * prime for d, prime in zip(body, primes, strict=True)) % 10)


def _citizen_card(chance: _Chance) -> str:
    body = f"{_digits(chance, 9)}{''.join(chance.choices('ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789', k=2))}"
    values = [int(sign, 36) * (2 - place % 2) for place, sign in enumerate(body)]
    return body + str(-sum(one - 9 if one > 9 and not place % 2 else one for place, one in enumerate(values)) % 10)


def _grouped(number: str, sizes: tuple[int, ...], sign: str = " ") -> str:
    parts, start = [], 0
    for size in sizes:
        parts.append(number[start : start + size])
        start += size
    return sign.join((*parts, number[start:])) if number[start:] else sign.join(parts)


_Make = Callable[[_Chance, Faker], str]
_SETS: dict[str, tuple[str, str, _Make, tuple[str, ...]]] = {
    # language, locale, how one is made, how it is grouped: sizes in base 16, then the sign between them
    "Steuer-ID": ("de", "de_DE", lambda c, f: _steuer_id(c), ("2333 ", "2333-")),
    "Rentenversicherungsnummer": ("de", "de_DE", lambda c, f: f.rvnr(), ("2613 ", "26121 ", "813 ")),
    "Krankenversichertennummer": ("de", "de_DE", lambda c, f: _insurance_number(c), ("1333 ", "433 ")),
    "NIF": ("es", "es_ES", lambda c, f: f.nif(), ("81-", "81 ", "2331.", "2331 ")),
    "NIE": ("es", "es_ES", lambda c, f: f.nie(), ("171-", "171 ", "81-", "81 ")),
    "NUSS": ("es", "es_ES", lambda c, f: f.nuss(), ("282 ", "282/")),
    "NIR": ("fr", "fr_FR", lambda c, f: f.ssn(), ("1222332 ", "d2 ", "d2-")),
    "NIR of Corsica": ("fr", "fr_FR", lambda c, f: _of_corsica(c), ("1222332 ", "d2 ")),
    "numéro fiscal": ("fr", "fr_FR", lambda c, f: _numero_fiscal(c), ("22333 ", "13333 ")),
    "codice fiscale": ("it", "it_IT", lambda c, f: f.ssn(), ("3355 ", "3321241 ")),
    "partita IVA": ("it", "it_IT", lambda c, f: _partita_iva(c), ("2333 ", "3431 ")),
    "NIF of Portugal": ("pt", "pt_PT", lambda c, f: _modulo_11(c), ("333 ", "333.")),
    "NISS": ("pt", "pt_PT", lambda c, f: _social_security_of_portugal(c), ("3332 ", "2333 ")),
    "cartão de cidadão": ("pt", "pt_PT", lambda c, f: _citizen_card(c), ("813 ", "93 ")),
    "CPF": ("pt", "pt_BR", lambda c, f: f.cpf(), ()),
    "BSN": ("nl", "nl_NL", lambda c, f: f.ssn(), ("423.", "333 ", "333.", "423 ")),
}
NUMBERS = tuple(_SETS)


def texts_of(name: str, count: int = 500) -> tuple[str, list[tuple[str, int, int]]]:
    """The language, and ``count`` texts in it with the place [start, end) of a valid number in each."""
    language, locale, make, groups = _SETS[name]
    chance, faker = random.Random(name), Faker(locale)
    faker.seed_instance(7)
    texts = []
    for _ in range(count):
        number, sentence = make(chance, faker), chance.choice(SENTENCES[language])
        form = chance.choice(("", *groups))
        written = _grouped(number, tuple(int(size, 16) for size in form[:-1]), form[-1]) if form else number
        start = sentence.index("{")
        texts.append((sentence.format(written), start, start + len(written)))
    return language, texts


def numbers_of(name: str, count: int) -> list[str]:
    """So many valid numbers, without signs between them."""
    _, locale, make, _ = _SETS[name]
    chance, faker = random.Random(name), Faker(locale)
    faker.seed_instance(7)
    return ["".join(sign for sign in make(chance, faker) if sign.isalnum()) for _ in range(count)]
