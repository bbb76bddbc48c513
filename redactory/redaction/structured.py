"""Invent valid values of the same kind and format that share no part with the original."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from itertools import groupby
from typing import Any

from redactory.redaction.letters import detect_checksum_kind, match_case, scramble_value

_MAC = re.compile(r"[0-9A-F]{2}([:-])(?:[0-9A-F]{2}\1){4}[0-9A-F]{2}|[0-9A-F]{4}(?:\.[0-9A-F]{4}){2}", re.I)
_IP = re.compile(r"(\[?)(\d+(?:\.\d+){3}|[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*)(?:%\w+)?(\]?)(/\d{1,3})?(:\d{1,5})?")
_RESERVED = ("198.18.0.0/15", "192.0.2.0/24", "203.0.113.0/24", "100.64.0.0/10")
"""IPv4 networks without owner: for benchmarks, documentation and carrier NAT."""
_DOCUMENTATION = int(IPv6Address("2001:db8::"))
_NUMBER = (
    r"[-+]?\d{1,3}(?:\.\d+)?(?:\s?[°º](?:\s?\d{1,2}(?:\.\d+)?\s?['’′]"
    r"(?:\s?\d{1,2}(?:\.\d+)?\s?(?:[\"”″]|'')?)?)?)?"
)
_AXIS = rf"(?:[NSEWO]\s?{_NUMBER}|{_NUMBER}(?:\s?[NSEWO])?)"
_COORDINATES = re.compile(rf"({_AXIS})(?:(\s*[,;/\s]\s*)({_AXIS}))?", re.IGNORECASE)
_IS_PLACE = re.compile(r"[°º]|\d\.\d{3,}.*\d\.\d{3,}", re.DOTALL)
_ATTEMPTS = 200


def detect_kind(value: str) -> str | None:
    """Return the kind that the format or check digits of ``value`` prove, whatever its label."""
    value = value.strip()
    if _MAC.fullmatch(value):
        return "MAC_ADDRESS"
    if _parse_address(value) is not None:
        return "IP_ADDRESS"
    if _COORDINATES.fullmatch(value) and _IS_PLACE.search(value):
        return "COORDINATES"
    return detect_checksum_kind(value)


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
    """Invent an address of the same version and prefix length, with another port."""
    old, match = _parse_address(value.strip()), _IP.fullmatch(value.strip())
    if old is None or match is None:
        return None
    opened, _, closed, prefix, port = match.groups(default="")
    new: IPv4Address | IPv6Address = IPv6Address(_DOCUMENTATION + draw.getrandbits(96))
    while old.version == 4:
        network = ip_network(draw.choice(_RESERVED))
        new = network[draw.randrange(network.num_addresses)]
        if not any(a == b for a, b in zip(str(old).split("."), str(new).split("."), strict=True)):
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

    places = [place for place, letter in enumerate(value) if letter.isdigit()]
    if old is None:
        # local numbers cannot be validated
        return scramble_value(value, draw) if len(places) < 8 else None
    national, extension = national_significant_number(old), old.extension or ""
    head = "".join(value[place] for place in places).removesuffix(national + extension)
    if len(head) + len(national + extension) != len(places):
        return None
    for _ in range(_ATTEMPTS):
        new = "".join(draw.choice("0123456789") for _ in national)
        letters = list(value)
        other = "".join(draw.choice("0123456789") for _ in extension)
        for place, digit in zip(places, head + new + other, strict=True):
            letters[place] = digit
        try:
            read = parse("".join(letters), region_of(old.country_code))
        except NumberParseException:
            continue
        is_same_country = read.country_code == old.country_code and national_significant_number(read) == new
        if is_same_country and is_valid_number(read) and not has_common_part(national, new):
            return "".join(letters)
    return None


STRUCTURED: dict[str, Callable[[str, random.Random], str | None]] = {
    "COORDINATES": _invent_coordinates,
    "EMAIL_ADDRESS": _invent_email,
    "IP_ADDRESS": _invent_ip,
    "MAC_ADDRESS": _invent_mac,
    "URL": _invent_url,
}
"""Functions by kind; None for a value without the format of its kind. Cards and IBANs: ``letters.py``."""
