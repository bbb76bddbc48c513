"""Search telephone numbers like Presidio, only in lines that can hold a number of the region.

``phonenumbers`` parses every run of digits, and every part of it, once per region.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from redactory.detectors.settings import AUTO

_LINE_WITH_DIGIT = re.compile(r"[^\n]*\d[^\n]*")
_DIGIT_GROUP = re.compile(r"\d+")
# a plus sign allows any region; three letters may be read as digits ("1 int 345")
_ANY_NUMBER = re.compile(r"[+＋]|(?i:ext|xtn|int|anexo)\W*\d")
_MAX_DIGITS = 20
"""More digits than a number with its prefixes has, and the longest run that ``phonenumbers`` reads as one."""
_NUMBER_KINDS = (
    *("fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost"),
    *("personal_number", "voip", "pager", "uan", "voicemail"),
)
_REGIONS_BY_LANGUAGE = {
    "de": ("AT", "CH"),
    "es": ("ES", "MX", "AR", "CO", "CL", "PE"),
    "fr": ("BE", "CH", "LU"),
    "it": ("IT", "CH"),
    "pt": ("PT",),
    "nl": ("NL", "BE"),
}


def list_extra_regions(language: str) -> tuple[str, ...]:
    """List the regions that a language adds to the default ones; ``auto`` adds all."""
    if language == AUTO:
        return tuple(dict.fromkeys(region for regions in _REGIONS_BY_LANGUAGE.values() for region in regions))
    return _REGIONS_BY_LANGUAGE.get(language.partition("-")[0], ())


def find_phone_numbers(text: str, regions: Sequence[str], leniency: int) -> set[tuple[int, int]]:
    """Find numbers valid in one of ``regions`` or in international form, as ``PhoneNumberMatcher`` does."""
    from phonenumbers import Leniency, PhoneNumberMatcher, country_code_for_region

    # regions with a common country code, such as the US and Canada, have common numbers
    distinct = {country_code_for_region(region): region for region in regions}.values()
    places: set[tuple[int, int]] = set()
    for line in _LINE_WITH_DIGIT.finditer(text):
        numbers = _list_numbers(line.group()) if leniency >= Leniency.VALID else None
        for region in distinct:
            if numbers is None or any(map(_compile_region_pattern(region).match, numbers)):
                matches = PhoneNumberMatcher(line.group(), region, leniency=leniency)
                places.update((line.start() + match.start, line.start() + match.end) for match in matches)
    return places


def _list_numbers(line: str) -> list[str] | None:
    """List the digits of neighbouring groups; None if the line may hold a number of any region."""
    groups = _DIGIT_GROUP.findall(line)
    if _ANY_NUMBER.search(line) or not all(group.isascii() and len(group) < _MAX_DIGITS for group in groups):
        return None
    numbers = []
    for first in range(len(groups)):
        digits = ""
        for group in groups[first:]:
            digits += group
            if len(digits) > _MAX_DIGITS:
                break
            numbers.append(digits)
    return numbers


@functools.cache
def _compile_region_pattern(region: str) -> re.Pattern[str]:
    """Compile an expression for the digits of the region's numbers, and of those behind its international prefix."""
    from phonenumbers import COUNTRY_CODE_TO_REGION_CODE, PhoneMetadata

    metadata: Any = PhoneMetadata.metadata_for_region(region, None)
    transform_rule = metadata.national_prefix_transform_rule or "" if metadata else ""
    if metadata is None or re.search(r"(?<!\\)\d", transform_rule):
        # an unknown region, or one whose numbers are expanded before validation
        return re.compile("")
    kin = [PhoneMetadata.metadata_for_region(code, None) for code in COUNTRY_CODE_TO_REGION_CODE[metadata.country_code]]
    kinds = [getattr(region_metadata, name) for region_metadata in kin for name in _NUMBER_KINDS]
    national = "|".join(sorted({kind.national_number_pattern for kind in kinds if kind} - {None}))
    prefix = metadata.national_prefix_for_parsing or ""
    # what is removed before validation: the country code, then up to two national prefixes
    prefixes = r"\d*" if transform_rule else rf"(?:{metadata.country_code}(?:{prefix})?)?(?:{prefix})?"
    return re.compile(rf"{prefixes}(?:{national})\Z|(?:{metadata.international_prefix or '(?!)'})")
