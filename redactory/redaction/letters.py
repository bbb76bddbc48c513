"""Letters and digits invented in the places of others, with check digits that are right."""

from __future__ import annotations

import random
import re


def cased(new: str, old: str) -> str:
    """``new`` in capitals or small letters throughout where ``old`` is."""
    if old.isupper() and len(old) > 1:
        return new.upper()
    return new.lower() if old.islower() else new


def scrambled(value: str, draw: random.Random) -> str:
    """Other digits and letters in the places of those of ``value``; the first digit stays no zero."""
    if (
        re.fullmatch(r"[0-9a-fA-F:.\-{}\s]+", value)
        and re.search("[a-fA-F]", value)
        and re.search(r"\d", value)
    ):
        # hexadecimal: a MAC address, a UUID, a digest
        digits = "0123456789ABCDEF" if re.search("[A-F]", value) else "0123456789abcdef"
        return "".join(draw.choice(digits) if letter.isalnum() else letter for letter in value)
    return letter_by_letter(value, draw)


def letter_by_letter(value: str, draw: random.Random) -> str:
    """A digit for each digit, a letter of the same script and case for each letter."""

    def other(letter: str) -> str:
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

    return "".join(map(other, value))


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
"""Signs of an IBAN by country, from the IBAN registry (ISO 13616)."""

_FIRST = {13: ("4",), 14: ("36",), 15: ("34", "37"), 16: ("4", "51", "52", "53", "54", "55"), 19: ("4",)}
"""First digits of a card by how many it has."""


def checked_kind(value: str) -> str | None:
    """The kind that its check digits prove ``value`` to be: a card (Luhn) or an IBAN (mod 97)."""
    value = value.strip()
    if _CARD.fullmatch(value):
        digits = [int(sign) for sign in reversed(value) if sign.isdigit()]
        doubled = sum(sum(divmod(2 * d, 10)) if n % 2 else d for n, d in enumerate(digits))
        return None if doubled % 10 else "CREDIT_CARD"
    plain = _compact(value)
    if not _IBAN.fullmatch(plain) or _LENGTHS.get(plain[:2]) != len(plain):
        return None
    return "IBAN_CODE" if int("".join(str(int(c, 36)) for c in plain[4:] + plain[:4])) % 97 == 1 else None


def with_check_digits(kind: str, value: str, draw: random.Random) -> str:
    """``value`` with its check digits made right, for kinds that have some."""
    places = [place for place, letter in enumerate(value) if letter.isdigit()]
    letters = list(value)
    digits = [int(value[place]) for place in places]
    if kind == "CREDIT_CARD" and len(digits) > 1:
        first = [int(digit) for digit in draw.choice(_FIRST.get(len(digits), ("6",)))]
        digits[: len(first)] = first
        doubled = sum(
            sum(divmod(2 * d, 10)) if n % 2 == 0 else d for n, d in enumerate(reversed(digits[:-1]))
        )
        digits[-1] = -doubled % 10
    elif kind == "UK_NHS" and len(digits) == 10:
        rest = -sum(d * (10 - n) for n, d in enumerate(digits[:9])) % 11
        while rest == 10:
            digits[8] = (digits[8] + 1) % 10
            rest = -sum(d * (10 - n) for n, d in enumerate(digits[:9])) % 11
        digits[9] = rest
    elif kind == "US_SSN" and len(digits) == 9:
        # an area that is none, so that it is nobody's
        digits[0] = 9
    for place, digit in zip(places, digits, strict=True):
        letters[place] = str(digit)
    new = "".join(letters)
    # a list or a column may call anything an account, also what has letters that no IBAN has
    return _iban(new) if kind == "IBAN_CODE" and _IBAN.fullmatch(_compact(new)) else new


def _compact(value: str) -> str:
    """An IBAN without its spaces and hyphens, in capitals."""
    return re.sub("[ -]", "", value).upper()


def _iban(value: str) -> str:
    plain = _compact(value)
    turned = "".join(str(int(letter, 36)) for letter in plain[4:] + plain[:2] + "00")
    check = iter(f"{98 - int(turned) % 97:02d}")
    seen = 0
    result = []
    for letter in value:
        seen += letter.isalnum()
        result.append(next(check) if letter.isalnum() and seen in (3, 4) else letter)
    return "".join(result)
