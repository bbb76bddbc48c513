"""Decide which values of one document are the same value in different spellings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

_IN_WORDS = frozenset(
    (*("LOCATION", "ORGANIZATION", "NRP", "TITLE", "AGE", "DATE", "STREET_ADDRESS", "EMAIL_ADDRESS"), *("URL", "MISC"))
)
"""Kinds in which separators matter."""
_SEPARATORS = re.compile(r"[\s‐–./()-]+")
_SHORTEST = 6
"""Minimum letters and digits for ignoring separators: "1-23" and "12-3" are two rooms."""
_NAME_PART = re.compile(r"\w+(?:[-'’]\w+)*")
OTHER_TITLES = {
    "mr": ("Dr", "Prof"),
    "mrs": ("Ms", "Dr", "Prof"),
    "ms": ("Mrs", "Dr", "Prof"),
    "miss": ("Ms", "Mrs"),
    "mx": ("Dr", "Prof"),
    "dr": ("Prof",),
    "prof": ("Dr",),
    "sir": ("Mr", "Dr"),
    "madam": ("Mrs", "Ms"),
    **dict.fromkeys(("herr", "frau", "señor", "señora", "mme"), ("Dr", "Prof")),
}
"""Titles that may replace another one of the same gender."""
_REGIONS = ("US", "GB", "DE", "FR", "ES", "IT", "NL", "PT", "IN", "IL", "CA", "BR")
"""Regions for telephone numbers without country, after the country of the language."""
_AMERICAN = re.compile(r"\s*\(?\d{3}\)?[ .-]\s?\d{3}[ .-]\d{4}\s*")


def normalize_value(value: str) -> str:
    """Drop case and white space of ``value``, which do not distinguish values."""
    return " ".join(value.casefold().split())


@lru_cache(maxsize=10_000)
def parse_phone(value: str, language: str = "en") -> Any | None:
    """Parse ``value`` with ``phonenumbers``: valid if possible, else of a possible length, else None."""
    from phonenumbers import (
        SUPPORTED_REGIONS,
        NumberParseException,
        ValidationResult,
        is_possible_number_with_reason,
        is_valid_number,
        parse,
    )

    possible = None
    home = [code for code in (language.partition("-")[0].upper(),) if code in SUPPORTED_REGIONS]
    for region in (*home, *_REGIONS):
        try:
            number = parse(value, region)
        except NumberParseException:
            continue
        # 555-123-4567 is unassigned, but not a German number
        if is_valid_number(number) or (region == "US" and _AMERICAN.fullmatch(value)):
            return number
        if possible is None and is_possible_number_with_reason(number) == ValidationResult.IS_POSSIBLE:
            possible = number
    return possible


def split_name(value: str) -> tuple[str, ...]:
    """Return the folded parts of a person's name in the order of "Mary Smith", without titles."""
    last, comma, first = value.partition(",")
    # "Mary Smith, Jane Doe" is a list
    turned = f"{first} {last}" if comma and len(_NAME_PART.findall(last)) == 1 and "," not in first else value
    parts = tuple(_NAME_PART.findall(turned.casefold()))
    return tuple(part for part in parts if part not in OTHER_TITLES) or parts


class Spellings:
    """Groups the values of one document, by kind, into spellings of the same value.

    Telephone numbers are equal in national and international form. Values with six or more letters and digits (cards,
    IBANs, identifiers) are equal with and without spaces, hyphens, dots, slashes and brackets. Persons are equal in
    either name order ("SMITH, Mary"), with or without title, and as part of a name if exactly one longest name of the
    document contains it. All other kinds ignore only case and white space.
    """

    def __init__(self, values: Iterable[tuple[str, str]] = (), language: str = "en") -> None:
        self._language = language
        self._names: dict[str, set[tuple[str, ...]]] = {}
        """Names by each of their parts."""
        self._wholes: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.surnames: set[str] = set()
        """The last part of each name with several parts."""
        self._phones: dict[str, str] = {}
        self._first: dict[str, tuple[str, str]] = {}
        values = list(dict.fromkeys(values))
        for kind, value in values:
            self._add_value(kind, value)
        for kind, value in sorted(values, key=lambda one: one[0] == "PERSON" and self._is_name_part(one[1])):
            self.get_first_spelling(kind, value)

    def get_first_spelling(self, kind: str, value: str) -> tuple[str, str]:
        """Return the kind and the document's first spelling of this value; for a person, of the full name."""
        self._add_value(kind, value)
        return self._first.setdefault(self.get_canonical_key(kind, value), (kind, value))

    def get_canonical_key(self, kind: str, value: str) -> str:
        """Return a key that is equal exactly for spellings of the same value."""
        if kind == "PERSON":
            return f"PERSON {' '.join(self._find_full_name(split_name(value)))}"
        if kind == "IP_ADDRESS":
            try:
                return f"IP_ADDRESS {ip_address(value.strip())}"
            except ValueError:
                return f"IP_ADDRESS {normalize_value(value)}"
        plain = _SEPARATORS.sub("", value.casefold())
        number = parse_phone(value, self._language) if kind == "PHONE_NUMBER" else None
        if number is not None:
            national = _format_national_number(number)
            whole = self._phones.get(national, f"{number.country_code}{national}")
            return f"{whole}x{number.extension}" if number.extension else whole
        if kind in _IN_WORDS or len(plain) < _SHORTEST or not any(map(str.isdigit, plain)):
            return f"{kind} {normalize_value(value)}"
        # a telephone number may be found as another kind, by its check digit
        return self._phones.get(plain, plain)

    def _add_value(self, kind: str, value: str) -> None:
        if kind == "PERSON":
            name = split_name(value)
            if name and name not in self._names.get(name[0], ()):
                self._wholes.clear()
                for part in name:
                    self._names.setdefault(part, set()).add(name)
                self.surnames |= set(name[-1:] if len(name) > 1 else ())
        elif kind == "PHONE_NUMBER" and (number := parse_phone(value, self._language)) is not None:
            national = _format_national_number(number)
            whole = f"{number.country_code}{national}"
            is_international = value.lstrip().startswith(("+", "00"))
            self._phones[national] = whole if is_international else self._phones.get(national, whole)

    def _find_full_name(self, parts: tuple[str, ...]) -> tuple[str, ...]:
        """Return the one longest name of the document with all these parts, or the parts themselves."""
        if parts and parts not in self._wholes:
            longer = set.intersection(*(self._names.get(part, set()) for part in parts))
            longest = max(longer, key=lambda name: (len(name), name), default=parts)
            self._wholes[parts] = longest if all(set(name) <= set(longest) for name in longer) else parts
        return self._wholes.get(parts, parts)

    def _is_name_part(self, value: str) -> bool:
        return self._find_full_name(split_name(value)) != split_name(value)


def _format_national_number(number: Any) -> str:
    from phonenumbers import national_significant_number

    return national_significant_number(number)
