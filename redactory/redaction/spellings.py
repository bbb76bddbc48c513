"""Decide which values of one document are the same value in different spellings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from typing import Any

from redactory.redaction.dates import DateShifter
from redactory.redaction.names import (
    PersonName,
    get_name_key,
    is_initial,
    is_short_form,
    is_turned,
    parse_name,
    remove_title,
)

_IN_WORDS = frozenset(
    (*("LOCATION", "ORGANIZATION", "NRP", "TITLE", "AGE", "DATE", "STREET_ADDRESS", "EMAIL_ADDRESS"), *("URL", "MISC"))
)
"""Kinds in which separators matter."""
_SEPARATORS = re.compile(r"[\s‐–./()-]+")
_SHORTEST = 6
"""Minimum letters and digits for ignoring separators: "1-23" and "12-3" are two rooms."""
_MOST_NAMES = 100
"""Maximum number of names with one word that may be one person."""
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
            number = parse(value, region, keep_raw_input=True)
        except NumberParseException:
            continue
        # 555-123-4567 is unassigned, but not a German number
        if is_valid_number(number) or (region == "US" and _AMERICAN.fullmatch(value)):
            return number
        if possible is None and is_possible_number_with_reason(number) == ValidationResult.IS_POSSIBLE:
            possible = number
    return possible


class Spellings:
    """Groups the values of one document, by kind, into spellings of the same value.

    Telephone numbers are equal in national and international form, days of a year in every form. Values with six or
    more letters and digits (cards, IBANs, identifiers) are equal with and without spaces, hyphens, dots, slashes and
    brackets. Persons: :meth:`find_full_name`. All other kinds ignore only case and white space.
    """

    def __init__(self, values: Iterable[tuple[str, str]] = (), language: str = "en") -> None:
        self._language = language
        self._names: dict[str, dict[PersonName, None]] = {}
        """Names by each of their words."""
        self._full_names: dict[PersonName, tuple[PersonName, bool]] = {}
        self.surnames: set[str] = set()
        """The surname of each name with several words, word by word."""
        self._countries: dict[str, dict[int, bool]] = {}
        """Of each national number, its countries; true for those that a value writes."""
        self._first: dict[str, tuple[str, str]] = {}
        values = list(dict.fromkeys(values))
        self._dates = DateShifter(0, [value for _, value in values], language)
        for kind, value in values:
            self._add_value(kind, value)
        for kind, value in sorted(values, key=lambda one: one[0] == "PERSON" and self._is_name_part(one[1])):
            self.get_first_spelling(kind, value)

    def get_first_spelling(self, kind: str, value: str) -> tuple[str, str]:
        """Return the kind and the document's first spelling of this value; of a person, of the full name without title.

        The title stays if the name has one word: "Mr. Smith" and "Mrs. Smith" may have the same document.
        """
        self._add_value(kind, value)
        key = self.get_canonical_key(kind, value)
        if kind == "PERSON" and len(parse_name(value, self._language).words) > 1:
            value = remove_title(value, self._language)
        return self._first.setdefault(key, (kind, value))

    def get_canonical_key(self, kind: str, value: str) -> str:
        """Return a key that is equal exactly for spellings of the same value."""
        if kind == "PERSON":
            name, is_ambiguous = self._resolve_name(parse_name(value, self._language))
            # "Dr. Smith" and "Smith" may be two of several persons
            return f"PERSON {name.title if is_ambiguous else ''} {get_name_key(name)}"
        if kind == "IP_ADDRESS":
            try:
                return f"IP_ADDRESS {ip_address(value.strip())}"
            except ValueError:
                return f"IP_ADDRESS {normalize_value(value)}"
        day = self._dates.read_day(value) if kind == "DATE" or self._dates.is_date(value) else None
        if day is not None:
            return f"DATE {day}"
        plain = _SEPARATORS.sub("", value.casefold())
        number = parse_phone(value, self._language) if kind == "PHONE_NUMBER" else None
        if number is not None:
            national = _format_national_number(number)
            whole = f"{number.country_code}{national}"
            whole = whole if _has_country_code(number) else self._add_country_code(national, [number.country_code])
            return f"{whole}x{number.extension}" if number.extension else whole
        if kind in _IN_WORDS or len(plain) < _SHORTEST or not any(map(str.isdigit, plain)):
            return f"{kind} {normalize_value(value)}"
        # a telephone number may be found as another kind, by its check digit
        return self._add_country_code(plain) if plain in self._countries else plain

    def find_full_name(self, value: str) -> PersonName:
        """Return the fullest name of the person in ``value``, or the name as it is.

        A name is another spelling of a fuller one (:func:`redactory.redaction.names.is_short_form`) only if no other
        name of the document could be meant: two persons in one are worse than one in two.
        """
        return self._resolve_name(parse_name(value, self._language))[0]

    def _add_value(self, kind: str, value: str) -> None:
        if kind == "PERSON":
            name = parse_name(value, self._language)
            if not name.is_list and name not in self._names.get(name.words[0], ()):
                self._full_names.clear()
                for word in name.words:
                    self._names.setdefault(word, {})[name] = None
                self.surnames |= set(name.words[name.surname_start :] if len(name.words) > 1 else ())
        elif kind == "PHONE_NUMBER" and (number := parse_phone(value, self._language)) is not None:
            countries = self._countries.setdefault(_format_national_number(number), {})
            countries[number.country_code] = _has_country_code(number) or countries.get(number.country_code, False)

    def _add_country_code(self, national: str, likely: Iterable[int] = ()) -> str:
        """Return a national number with the one country code that the document writes before it, else a likely one."""
        countries = self._countries.get(national, {})
        written = [code for code in countries if countries[code]]
        return f"? {national}" if len(written) > 1 else f"{(*written, *likely, *countries)[0]}{national}"

    def _resolve_name(self, name: PersonName) -> tuple[PersonName, bool]:
        """Return the fullest name of the same person, and whether several could be meant."""
        if name not in self._full_names:
            self._full_names[name] = name, False
            words = [word for word in name.words if not is_initial(word)]
            near = self._names.get(words[0], {}) if words else {one: None for of in self._names.values() for one in of}
            # many names with one word leave doubt, and cost time
            near = near if len(near) <= _MOST_NAMES else {}
            fuller = [one for one in near if is_short_form(name, one, self._language)]
            turned = [one for one in near if one < name and is_turned(name, one, self._language)]
            candidates = [
                one
                for one in (*fuller, *turned)
                if not any(is_short_form(one, other, self._language) for other in fuller)
            ]
            fullest = {get_name_key(one): one for one in (self._resolve_name(one)[0] for one in candidates)}
            full = next(iter(fullest.values()), name)
            is_ambiguous = len(fullest) > 1 or self._is_contested(name, full, near)
            self._full_names[name] = (name, True) if fullest and is_ambiguous else (full, False)
        return self._full_names[name]

    def _is_contested(self, name: PersonName, full: PersonName, near: Iterable[PersonName]) -> bool:
        """Return whether a title leaves doubt: "Mr. Smith" and "Mrs. Smith" are not both Robin Smith."""
        # the French "M. Smith" may be Mary
        initial = name._replace(words=("m", *name.words), gender="", title="")
        key = get_name_key(full)
        return bool(name.gender) and any(
            (one.gender not in ("", name.gender) and is_short_form(one, full, self._language))
            or (name.title == "m" and is_short_form(initial, one, self._language) and get_name_key(one) != key)
            for one in near
        )

    def _is_name_part(self, value: str) -> bool:
        name = parse_name(value, self._language)
        return self._resolve_name(name)[0] != name


def _has_country_code(number: Any) -> bool:
    from phonenumbers import CountryCodeSource

    return bool(number.country_code_source != CountryCodeSource.FROM_DEFAULT_COUNTRY)


def _format_national_number(number: Any) -> str:
    from phonenumbers import national_significant_number

    return national_significant_number(number)
