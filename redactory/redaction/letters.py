"""Replace letters and digits by random ones, with valid check digits."""

from __future__ import annotations

import random
import re
from operator import mul

from redactory.detectors.check_digits import luhn


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

_FIRST = {13: ("4",), 14: ("36",), 15: ("34", "37"), 16: ("4", "51", "52", "53", "54", "55"), 19: ("4",)}
"""First digits of a card by its length."""


def detect_checksum_kind(value: str) -> str | None:
    """Return the kind that check digits prove: a card (Luhn) or an IBAN (mod 97)."""
    value = value.strip()
    plain = re.sub("[ -]", "", value).upper()
    if _CARD.fullmatch(value):
        return "CREDIT_CARD" if luhn(plain) else None
    is_iban = _IBAN.fullmatch(plain) and _LENGTHS.get(plain[:2]) == len(plain) and _compute_iban_remainder(plain) == 1
    return "IBAN_CODE" if is_iban else None


def fix_check_digits(kind: str, value: str, draw: random.Random) -> str:
    """Correct the check digits of ``value``, for kinds that have some."""
    plain = "".join(filter(str.isalnum, value)).upper()
    if kind == "IBAN_CODE" and plain.isascii():
        check = iter(f"{98 - _compute_iban_remainder(f'{plain[:2]}00{plain[4:]}'):02d}")
        places = [place for place, letter in enumerate(value) if letter.isalnum()][2:4]
        return "".join(next(check) if place in places else letter for place, letter in enumerate(value))
    digits = "".join(filter(str.isdigit, value))
    if kind == "CREDIT_CARD" and len(digits) > 1:
        first = draw.choice(_FIRST.get(len(digits), ("6",)))
        body = f"{first}{digits[len(first) : -1]}"
        digits = next(whole for check in range(10) if luhn(whole := f"{body}{check}"))
    elif kind == "UK_NHS" and len(digits) == 10:
        # the sum weighted from 10 to 1 is a multiple of 11; some nine digits have no valid tenth
        ninths = [digits[8], str((int(digits[8]) + 1) % 10)]
        wholes = (f"{digits[:8]}{ninth}{tenth}" for ninth in ninths for tenth in range(10))
        digits = next(whole for whole in wholes if sum(map(mul, map(int, whole), range(10, 0, -1))) % 11 == 0)
    elif kind == "US_SSN" and len(digits) == 9:
        # an unassigned area, so the number is nobody's
        digits = f"9{digits[1:]}"
    rest = iter(digits)
    return "".join(next(rest) if letter.isdigit() else letter for letter in value)


def _compute_iban_remainder(iban: str) -> int:
    """Return the IBAN modulo 97, with its first four characters last and letters as numbers (ISO 7064)."""
    return int("".join(str(int(sign, 36)) for sign in iban[4:] + iban[:4])) % 97
