"""Search telephone numbers like Presidio, without parsing hopeless candidates.

``phonenumbers`` parses every run of digits, and every part of it, once per region. This module skips runs that cannot
contain a number of the region's plan; the matches are the same.
"""

from __future__ import annotations

import functools
import re
from typing import Any, NamedTuple

from redactory.detectors.settings import AUTO

_DIGIT = re.compile(r"\d")
# a plus sign allows any region; three letters may be read as digits ("1 int 345")
_AMBIGUOUS = re.compile(r"[+＋]|(?:[A-Za-z][^A-Za-z]*){3}")
_EXTENSION = re.compile(r"[#＃~～;]|[^\W\d_]")
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


def find_phone_numbers(text: str, regions: tuple[str, ...], leniency: int) -> set[tuple[int, int]]:
    """Find numbers valid in one of ``regions`` or in international form; may omit nested ranges."""
    from phonenumbers import Leniency

    places: set[tuple[int, int]] = set()
    for region in regions:
        plan = _load_plan(region) if leniency >= Leniency.VALID else _ANY_PLAN
        places.update((match.start, match.end) for match in _build_matcher_class()(text, region, leniency, plan))
    return places


def _extract_digits(candidate: str) -> str | None:
    if _AMBIGUOUS.search(candidate):
        return None
    digits = "".join(_DIGIT.findall(candidate))
    return digits if digits.isascii() else None


@functools.cache
def _build_matcher_class() -> Any:
    from phonenumbers import PhoneNumberMatcher

    class Search(PhoneNumberMatcher):
        def __init__(self, text: str, region: str, leniency: int, plan: _NumberPlan) -> None:
            super().__init__(text, region, leniency=leniency)
            self._plan = plan

        def _extract_match(self, candidate: str, offset: int) -> Any:
            if self._plan.rules_out_parts(_extract_digits(candidate)):
                return None
            return super()._extract_match(candidate, offset)

        def _parse_and_verify(self, candidate: str, offset: int) -> Any:
            return None if self._plan.rules_out(candidate) else super()._parse_and_verify(candidate, offset)

    return Search


class _NumberPlan(NamedTuple):
    """What numbers of a region look like, in digits only.

    ``national_number`` matches every valid national number, ``full_number`` also its possible prefixes;
    ``international_prefix`` precedes another country's number.
    """

    national_number: re.Pattern[str]
    full_number: re.Pattern[str]
    international_prefix: re.Pattern[str]

    def rules_out(self, candidate: str) -> bool:
        """Return whether ``candidate``, with or without an extension, cannot be a valid number."""
        digits = _extract_digits(candidate)
        if digits is None:
            return _is_invalid_international(candidate)
        if self.international_prefix.match(digits):
            return False
        if not _EXTENSION.search(candidate):
            return not self.full_number.fullmatch(digits)
        return not self.national_number.search(digits)

    def rules_out_parts(self, digits: str | None) -> bool:
        """Return whether no part of a candidate with these digits can be a valid number."""
        if digits is None:
            return False
        return not (self.international_prefix.search(digits) or self.national_number.search(digits))


@functools.lru_cache(maxsize=1024)
def _is_invalid_international(candidate: str) -> bool:
    """Return whether ``candidate`` starts with a plus sign and is invalid in its country; False if unsure."""
    from phonenumbers import COUNTRY_CODE_TO_REGION_CODE

    if candidate[:1] not in "+＋" or _EXTENSION.search(candidate) or _AMBIGUOUS.search(candidate, 1):
        return False
    digits = _extract_digits(candidate[1:])
    if not digits or digits[0] == "0":
        return False
    codes = (int(digits[:length]) for length in (1, 2, 3))
    code = next((code for code in codes if code in COUNTRY_CODE_TO_REGION_CODE), None)
    # an unknown code may be read without its plus sign; a non-geographic code has no plan
    if code is None or COUNTRY_CODE_TO_REGION_CODE[code][0] == "001":
        return False
    return not _load_plan(COUNTRY_CODE_TO_REGION_CODE[code][0]).full_number.fullmatch(digits)


_ANY_PLAN = _NumberPlan(re.compile(""), re.compile(r"\d*"), re.compile(""))


@functools.cache
def _load_plan(region: str) -> _NumberPlan:
    from phonenumbers import COUNTRY_CODE_TO_REGION_CODE, PhoneMetadata

    metadata: Any = PhoneMetadata.metadata_for_region(region, None)
    if metadata is None or re.search(r"(?<!\\)\d", metadata.national_prefix_transform_rule or ""):
        # an unknown region, or one whose numbers are expanded before validation
        return _ANY_PLAN
    kin = [PhoneMetadata.metadata_for_region(code, None) for code in COUNTRY_CODE_TO_REGION_CODE[metadata.country_code]]
    kinds = [getattr(region_metadata, name) for region_metadata in kin for name in _NUMBER_KINDS]
    patterns = {kind.national_number_pattern for kind in kinds if kind is not None}
    pattern = "|".join(sorted(f"(?:{national})" for national in patterns if national))
    return _NumberPlan(
        re.compile(pattern),
        re.compile(rf"(?:{_build_prefix_pattern(metadata)})(?:{pattern})"),
        re.compile(metadata.international_prefix or "(?!)"),
    )


def _build_prefix_pattern(metadata: Any) -> str:
    """Match what is removed before validation: the country code, then up to two national prefixes."""
    prefix = metadata.national_prefix_for_parsing or ""
    if metadata.national_prefix_transform_rule:
        return r"\d*"
    return rf"(?:{metadata.country_code}(?:{prefix})?)?(?:{prefix})?"
