"""Invent valid values of the same kind and format: random letters and digits, correct check digits, no real address."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from functools import cache
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import groupby
from operator import eq, mul
from typing import Any

import regex

from redactory.detectors.check_digits import luhn
from redactory.detectors.recognizers import load_builtin_recognizers

_MAC = re.compile(r"[0-9A-F]{2}([:-])(?:[0-9A-F]{2}\1){4}[0-9A-F]{2}|[0-9A-F]{4}(?:\.[0-9A-F]{4}){2}", re.I)
_IP = re.compile(r"(\[?)(\d+(?:\.\d+){3}|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*)(?:%\w+)?(\]?)(/\d{1,3})?(:\d{1,5})?")
_PRIVATE = ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")
_IP_CLASSES = {
    **dict.fromkeys(_PRIVATE, _PRIVATE), "fc00::/7": ("fd00::/8",), "fe80::/10": ("fe80::/64",),
    "0.0.0.0/0": ("198.18.0.0/15", "192.0.2.0/24", "203.0.113.0/24", "100.64.0.0/10"), "::/0": ("2001:db8::/32",),
}  # fmt: skip
"""Networks without owner by network to replace: private ones, else those for benchmarks, documentation, carrier NAT."""
_NUMBER = (
    r"[-+]?\d{1,3}(?:\.\d+)?(?:\s?[°º](?:\s?\d{1,2}(?:\.\d+)?\s?['’′]"
    r"(?:\s?\d{1,2}(?:\.\d+)?\s?(?:[\"”″]|'')?)?)?)?"
)
_AXIS = rf"(?:[NSEWO]\s?{_NUMBER}|{_NUMBER}(?:\s?[NSEWO])?)"
_COORDINATES = re.compile(rf"({_AXIS})(?:(\s*[,;/\s]\s*)({_AXIS}))?", re.IGNORECASE)
_IS_PLACE = re.compile(r"[°º]|\d\.\d{3,}.*\d\.\d{3,}", re.DOTALL)
_ATTEMPTS = 200
_CARD = re.compile(r"[0-9](?:[ -]?[0-9]){12,18}")
_IBAN = re.compile(r"[A-Z]{2}[0-9]{2}[A-Z0-9]{11,30}")
_LENGTHS = {
    "NO": 15, "BE": 16, **dict.fromkeys(["DK", "FI", "FO", "GL", "NL"], 18),
    **dict.fromkeys(["MK", "SI"], 19), **dict.fromkeys(["AT", "BA", "EE", "KZ", "LT", "LU", "XK"], 20),
    **dict.fromkeys(["CH", "HR", "LI", "LV"], 21),
    **dict.fromkeys(["BG", "BH", "CR", "DE", "GB", "GE", "IE", "ME", "RS", "VA"], 22),
    **dict.fromkeys(["AE", "GI", "IL", "IQ", "TL"], 23),
    **dict.fromkeys(["AD", "CZ", "ES", "MD", "PK", "RO", "SA", "SE", "SK", "TN", "VG"], 24),
    **dict.fromkeys(["LY", "PT", "ST"], 25),
    **dict.fromkeys(["IS", "TR"], 26), **dict.fromkeys(["FR", "GR", "IT", "MC", "MR", "SM"], 27),
    **dict.fromkeys(["AL", "AZ", "BY", "CY", "DO", "GT", "HU", "LB", "PL", "SV"], 28),
    **dict.fromkeys(["BR", "EG", "PS", "QA", "UA"], 29), **dict.fromkeys(["JO", "KW", "MU"], 30),
    **dict.fromkeys(["MT", "SC"], 31), "LC": 32,
}  # fmt: skip
"""Length of an IBAN by country, from the IBAN registry (ISO 13616)."""
_NETWORKS = {"60": "65", "64": "65", "22": "55", "27": "55", "30": "36", "35": "356"}
"""First digits of cards of the same network, by the first two if those are not its own."""
_BIRTHS = (
    re.compile(r"[A-Z]{6}\d\d[A-EHLMPRST](?:[04][1-9]|[1256]\d)(?<![26]9)[A-Z]\d{3}[A-Z]"),
    re.compile(r"[12]\d\d(?:0[1-9]|1[0-2])\d.\d{8}"),
    re.compile(r"\d\d(?:0[1-9]|1\d|2[0-8])(?:0[1-9]|1[0-2])\d\d[A-Z]\d{3}"),
)
"""Codice fiscale, French NIR and German pension number whose birthday exists in every month and year."""


def match_case(new: str, old: str) -> str:
    """Put ``new`` in upper or lower case if ``old`` is entirely."""
    if old.isupper() and len(old) > 1:
        return new.upper()
    return new.lower() if old.islower() else new


def scramble_value(value: str, draw: random.Random) -> str:
    """Replace the digits and letters of ``value``; the first digit does not become zero."""
    if re.fullmatch(r"[0-9a-fA-F:.\-{}\s]+", value) and re.search("[a-fA-F]", value) and re.search(r"\d", value):
        # hexadecimal: a MAC address, UUID or digest
        digits = "0123456789ABCDEF" if re.search("[A-F]", value) else "0123456789abcdef"
        return "".join(draw.choice(digits) if letter.isalnum() else letter for letter in value)
    return replace_letters(value, draw)


def replace_letters(value: str, draw: random.Random) -> str:
    """Replace each digit by a digit, each letter by one of the same script and case."""

    def replace_letter(letter: str) -> str:
        if letter.isdigit():
            return draw.choice("123456789" if letter != "0" else "0123456789")
        if letter.isalpha() and letter.isascii():
            new = draw.choice("ABCDEFGHJKLMNPQRSTUVWXYZ")
            return new if letter.isupper() else new.lower()
        if letter.isalpha():
            # scripts lie in blocks of 32 code points
            block = [chr((ord(letter) & ~31) + place) for place in range(32)]
            alike = [new for new in block if new.isalpha() and new.islower() == letter.islower()]
            return draw.choice([new for new in alike if new != letter] or [letter])
        return letter

    return "".join(map(replace_letter, value))


def detect_kind(value: str) -> str | None:
    """Return the kind that the format or check digits of ``value`` prove, whatever its label.

    Check digits: Luhn of a card, modulo 97 of an IBAN.
    """
    value = value.strip()
    if _MAC.fullmatch(value):
        return "MAC_ADDRESS"
    if _parse_address(value) is not None:
        return "IP_ADDRESS"
    if _COORDINATES.fullmatch(value) and _IS_PLACE.search(value):
        return "COORDINATES"
    plain = re.sub("[ -]", "", value).upper()
    if _CARD.fullmatch(value):
        return "CREDIT_CARD" if luhn(plain) else None
    is_iban = _IBAN.fullmatch(plain) and _LENGTHS.get(plain[:2]) == len(plain) and _compute_iban_remainder(plain) == 1
    return "IBAN_CODE" if is_iban else None


def has_common_part(old: str, new: str) -> bool:
    """Return whether both have four equal letters or digits in a row at the same positions."""
    pairs = zip(*(filter(str.isalnum, one.casefold()) for one in (old, new)), strict=False)
    return any(equal and len([*run]) >= 4 for equal, run in groupby(pairs, lambda pair: pair[0] == pair[1]))


def _parse_address(value: str) -> IPv4Address | IPv6Address | None:
    match = _IP.fullmatch(value)
    if match is None or bool(match[1]) != bool(match[3]):
        return None
    try:
        return ip_address(match[2])
    except ValueError:
        return None


def _invent_ip(value: str, draw: random.Random) -> str | None:
    """Invent an address of the same version and prefix length, with another port; a private one if it was private."""
    old, match = _parse_address(value.strip()), _IP.fullmatch(value.strip())
    if old is None or match is None:
        return None
    opened, _, closed, prefix, port = match.groups(default="")
    classes = next(new for of, new in _IP_CLASSES.items() if old in ip_network(of))
    while True:
        network = ip_network(draw.choice(classes))
        new = network[draw.randrange(1, network.num_addresses - 1)]
        is_other = old.version == 6 or not any(map(eq, str(old).split("."), str(new).split(".")))
        if is_other:
            break
    if prefix:
        try:
            size = ip_network(f"{old}{prefix}").prefixlen
            if old.version == 4 and size < 16:
                new = IPv4Address((15 << 28) + draw.getrandbits(28))  # reserved too, and large enough
            new = ip_network(f"{new}{prefix}", strict=False).network_address
        except ValueError:
            pass  # a host address with a prefix length
    return f"{opened}{new}{closed}{prefix}" + (f":{draw.randrange(1024, 65536)}" if port else "")


def _invent_mac(value: str, draw: random.Random) -> str:
    """Invent a locally administered address, which belongs to no vendor."""
    digits = iter([draw.choice("0123456789abcdef"), draw.choice("26ae")])
    new = re.sub(r"[0-9A-Fa-f]", lambda _: next(digits, "") or draw.choice("0123456789abcdef"), value)
    return new.upper() if value.upper() == value else new


def _invent_coordinates(value: str, draw: random.Random) -> str | None:
    """Invent another place on the globe, with the precision of ``value``."""
    match = _COORDINATES.fullmatch(value.strip())
    if match is None:
        return None
    one, between, two = match.groups(default="")
    is_turned = bool(re.search("[EWO]", one, re.IGNORECASE))
    return (
        _invent_coordinate(one, 180 if is_turned else 90, draw)
        + between
        + _invent_coordinate(two, 90 if is_turned else 180, draw)
    )


def _invent_coordinate(value: str, limit: int, draw: random.Random) -> str:
    limits = iter([limit, 60, 60])

    def replace_number(match: re.Match[str]) -> str:
        if match[0].startswith("."):
            return "." + "".join(draw.choice("0123456789") for _ in match[0][1:])
        return str(draw.randrange(next(limits, 60))).zfill(len(match[0]) if match[0].startswith("0") else 1)

    new = re.sub(r"\.\d+|\d+", replace_number, value)
    signs = {**dict.fromkeys("NSns", "NS"), **dict.fromkeys("EWOewo", "EW")}
    return re.sub("[NSEWOnsewo]", lambda sign: match_case(draw.choice(signs[sign[0]]), sign[0]), new)


def _invent_email(value: str, draw: random.Random) -> str:
    local = re.split(r"\s*[@\[({<]|\s", value.strip())[0] or "mail"
    plain = re.sub(r"\.{2,}", ".", re.sub(r"[^A-Za-z0-9._+-]", "", scramble_value(local, draw))).strip(".")
    return f"{plain or 'mail'}@{draw.choice(_list_example_hosts(value))}"


def _list_example_hosts(value: str) -> list[str]:
    names = ("example.com", "example.net", "example.org")
    return [name for name in names if name not in value.casefold()] or ["example.invalid"]


def _invent_url(value: str, draw: random.Random) -> str:
    scheme, rest = (re.match(r"(?:[A-Za-z][A-Za-z0-9+.-]{1,9}://)?", value) or [""])[0], value
    rest = rest[len(scheme) :]
    path = re.sub(r"[^\x21-\x7e]|[%<>\"\\^`{|}\[\]]", "", rest[re.match(r"[^/?#]*", rest).end() :])  # type: ignore[union-attr]
    name, host = scramble_value("abcdefg", draw), draw.choice(_list_example_hosts(value))
    return f"{scheme}{name}.{host}{scramble_value(path, draw)}"


def invent_phone(value: str, old: Any | None, draw: random.Random) -> str | None:
    """Invent a valid number of the country of ``old``, the parsed ``value``, in the same format."""
    from phonenumbers import NumberParseException, is_valid_number, national_significant_number, parse
    from phonenumbers import region_code_for_country_code as region_of
    from phonenumbers import region_code_for_number as exact_region_of

    places = [place for place, letter in enumerate(value) if letter.isdigit()]
    if old is None:
        # local numbers cannot be validated
        return scramble_value(value, draw) if len(places) < 8 else None
    national, extension = national_significant_number(old), old.extension or ""
    head = "".join(value[place] for place in places).removesuffix(national + extension)
    if len(head) + len(national + extension) != len(places):
        return None
    region = exact_region_of(old)
    for attempt in range(_ATTEMPTS):
        # +1 has 25 regions: the area codes of small ones are rarely drawn, and some leave no other number
        kept = (0, 2, 3, 0)[attempt * 4 // _ATTEMPTS]
        is_region_needed = region is not None and attempt < _ATTEMPTS * 3 // 4
        new = national[:kept] + "".join(draw.choice("0123456789") for _ in national[kept:])
        letters = list(value)
        other = "".join(draw.choice("0123456789") for _ in extension)
        for place, digit in zip(places, head + new + other, strict=True):
            letters[place] = digit
        try:
            read = parse("".join(letters), region_of(old.country_code))
        except NumberParseException:
            continue
        is_same_country = read.country_code == old.country_code and national_significant_number(read) == new
        is_same_country = is_same_country and (not is_region_needed or exact_region_of(read) == region)
        if is_same_country and is_valid_number(read) and not has_common_part(national, new):
            return "".join(letters)
    return None


def _invent_card(value: str, draw: random.Random) -> str | None:
    """Invent a card of the same network and length."""
    old = "".join(filter(str.isdigit, value))
    if len(old) < 4:
        return None
    first = _NETWORKS.get(old[:2], old[: 1 if old[0] == "4" else 2])
    body = f"{first}{replace_letters(old[len(first) : -1], draw)}"
    new = next(whole for check in range(10) if luhn(whole := f"{body}{check}"))
    return None if has_common_part(old, new) else _replace_digits(replace_letters(value, draw), new)


def _invent_ssn(value: str, draw: random.Random, groups: range = range(1, 50)) -> str | None:
    """Invent a number with an area that is never assigned, and a group that no ITIN has."""
    new = f"9{draw.randrange(100):02d}{draw.choice(groups):02d}{draw.randrange(1, 10_000):04d}"
    return _replace_digits(value, new) if sum(map(str.isdigit, value)) == 9 else scramble_value(value, draw)


def _invent_nhs_number(value: str, draw: random.Random) -> str | None:
    """Invent ten digits whose sum weighted from 10 to 1 is a multiple of 11."""
    body = replace_letters("1" * 9, draw)
    check = -sum(map(mul, map(int, body), range(10, 1, -1))) % 11
    if sum(map(str.isdigit, value)) != 10:
        return scramble_value(value, draw)
    return _replace_digits(value, f"{body}{check}") if check < 10 else None


def _invent_iban(value: str, draw: random.Random) -> str | None:
    """Invent an account of the same country and length."""
    new = value[:2] + replace_letters(value[2:], draw)
    plain = _get_signs(new)
    if plain.isascii():
        check = iter(f"{98 - _compute_iban_remainder(f'{plain[:2]}00{plain[4:]}'):02d}")
        places = [place for place, letter in enumerate(new) if letter.isalnum()][2:4]
        new = "".join(next(check) if place in places else letter for place, letter in enumerate(new))
    return None if has_common_part(value, new) else new


def invent_identifier(value: str, language: str, draw: random.Random) -> str | None:
    """Invent a number of the same form, with valid check digits and date of birth if ``value`` is a national number."""
    forms = sorted(_load_national_forms(), key=lambda form: language.partition("-")[0] not in form[2])
    form = next((form for form in forms if form[0].fullmatch(value) and not form[1](value)), None)
    dated = next((birth for birth in _BIRTHS if form and birth.fullmatch(_get_signs(value))), None)
    # the check digits are among the last three signs
    tail = [place for place, letter in enumerate(value) if letter.isalnum()][-3:][:1]
    for _ in range(_ATTEMPTS):
        new = scramble_value(value, draw)
        if form is None:
            return None if has_common_part(value, new) else new
        if form[0].fullmatch(new) and (dated is None or dated.fullmatch(_get_signs(new))):
            tails = (replace_letters(new[tail[0] :], draw) for _ in range(_ATTEMPTS * 5))
            ends = (new[: tail[0]] + one for one in tails)
            new = next((one for one in ends if form[0].fullmatch(one) and not form[1](one)), value)
            return None if has_common_part(value, new) else new
    return None


def _get_signs(value: str) -> str:
    return "".join(filter(str.isalnum, value)).upper()


@cache
def _load_national_forms() -> list[tuple[Any, Callable[[str], bool], tuple[str, ...]]]:
    """Load the forms of national numbers, the check that refuses a number, and the languages of their country."""
    return [
        (regex.compile(form.expression), recognizer.rejects, recognizer.languages)
        for recognizer in load_builtin_recognizers()
        if recognizer.languages and recognizer.label == "IDENTIFIER"
        for form in recognizer.forms.values()
    ]


def _replace_digits(value: str, digits: str) -> str:
    rest = iter(digits)
    return "".join(next(rest) if letter.isdigit() else letter for letter in value)


def _compute_iban_remainder(iban: str) -> int:
    """Return the IBAN modulo 97, with its first four characters last and letters as numbers (ISO 7064)."""
    return int("".join(str(int(sign, 36)) for sign in iban[4:] + iban[:4])) % 97


STRUCTURED: dict[str, Callable[[str, random.Random], str | None]] = {
    "COORDINATES": _invent_coordinates,
    "CREDIT_CARD": _invent_card,
    "EMAIL_ADDRESS": _invent_email,
    "IBAN_CODE": _invent_iban,
    "IP_ADDRESS": _invent_ip,
    "MAC_ADDRESS": _invent_mac,
    "UK_NHS": _invent_nhs_number,
    "URL": _invent_url,
    "US_ITIN": lambda value, draw: _invent_ssn(value, draw, range(70, 89)),
    "US_SSN": _invent_ssn,
}
"""Functions by kind; None for a value without the format of its kind."""
