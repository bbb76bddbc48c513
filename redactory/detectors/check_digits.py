"""Check digits of national numbers: test whether an office can have issued a number.

Numbers may contain separators. By the arithmetic, one of 11, 23 or 97 random numbers passes too. A number with a typing
error fails here; other patterns may still find it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable

_NIF_LETTERS = "TRWAGMYFPDXBNJZSQVHLCKE"
_ODD_VALUES = (1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23)
"""Values of A to Z and 0 to 9 at odd positions of a codice fiscale (D.M. of 23 December 1976)."""


def _normalize_number(value: str) -> str:
    """Keep letters and digits in capitals; map digits of other scripts, which patterns also match, to ASCII."""
    normalized = re.sub(r"[\W_]", "", unicodedata.normalize("NFKC", value)).upper()
    return "".join(str(int(sign)) if sign.isdecimal() else sign for sign in normalized)


def _sum_digits(products: Iterable[int]) -> int:
    return sum(product // 10 + product % 10 for product in products)


def _steuer_id(number: str) -> bool:
    """ISO 7064 MOD 11,10 (§ 139b AO)."""
    rest = 10
    for digit in map(int, number[:-1]):
        rest = ((digit + rest) % 10 or 10) * 2 % 11
    return (11 - rest) % 10 == int(number[-1])


def _rentenversicherung(number: str) -> bool:
    """§ 2 VKVV: the letter counts as two digits."""
    digits = f"{number[:8]}{ord(number[8]) - 64:02}{number[9:11]}"
    weights = (2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1)
    return _sum_digits(int(d) * w for d, w in zip(digits, weights, strict=True)) % 10 == int(number[-1])


def _krankenversicherung(number: str) -> bool:
    """§ 290 SGB V: Luhn's sum from the left, the letter as two digits."""
    digits = f"{ord(number[0]) - 64:02}{number[1:9]}"
    return _sum_digits(int(d) * (1 + place % 2) for place, d in enumerate(digits)) % 10 == int(number[-1])


def _nif(number: str) -> bool:
    """DNI and NIE (Real Decreto 1553/2005): modulo 23; X, Y and Z count as 0, 1 and 2."""
    digits = number[:-1].translate(str.maketrans("XYZ", "012"))
    return _NIF_LETTERS[int(digits) % 23] == number[-1]


def _nuss(number: str) -> bool:
    """Modulo 97 of province and serial number; the sum sometimes omits the serial number's leading zero."""
    bodies = {int(number[:-2]), int(number[:2] + number[2:-2].removeprefix("0"))}
    return int(number[-2:]) in {body % 97 for body in bodies}


def _nir(number: str) -> bool:
    """INSEE: 97 minus the remainder modulo 97; 2A and 2B count as 19 and 18."""
    body = number[:13].replace("2A", "19").replace("2B", "18")
    return 97 - int(body) % 97 == int(number[13:])


def _numero_fiscal(number: str) -> bool:
    """The last three digits are the first ten modulo 511."""
    return int(number[:10]) % 511 == int(number[10:])


def _codice_fiscale(number: str) -> bool:
    values = [int(sign) if sign.isdigit() else ord(sign) - ord("A") for sign in number]
    return (sum(_ODD_VALUES[value] for value in values[:-1:2]) + sum(values[1::2]) - values[-1]) % 26 == values[-1]


def luhn(number: str) -> bool:
    """Check ISO 7812; a letter counts as its value in base 36."""
    values = (int(sign, 36) * (1 + place % 2) for place, sign in enumerate(reversed(number)))
    return sum(value - 9 if value > 9 and place % 2 else value for place, value in enumerate(values)) % 10 == 0


def _sum_weighted_digits(number: str) -> int:
    return sum(int(digit) * weight for weight, digit in enumerate(reversed(number[:-1]), 2))


def _nif_of_portugal(number: str) -> bool:
    """Modulo 11; a remainder of 0 or 1 gives the digit 0."""
    rest = _sum_weighted_digits(number) % 11
    return (0 if rest < 2 else 11 - rest) == int(number[-1])


def _niss(number: str) -> bool:
    primes = (29, 23, 19, 17, 13, 11, 7, 5, 3, 2)
    return 9 - sum(int(d) * p for d, p in zip(number, primes, strict=False)) % 10 == int(number[-1])


def _cpf(number: str) -> bool:
    """Brazil: two check digits, each modulo 11."""
    return _nif_of_portugal(number[:-1]) and _nif_of_portugal(number)


def _bsn(number: str) -> bool:
    """The Dutch elfproef: the last digit is subtracted."""
    return (_sum_weighted_digits(number) - int(number[-1])) % 11 == 0


_CHECKS: dict[str, Callable[[str], bool]] = {
    check.__name__.strip("_"): check
    for check in (
        *(_steuer_id, _rentenversicherung, _krankenversicherung, _nif, _nuss, _nir, _numero_fiscal),
        *(_codice_fiscale, luhn, _nif_of_portugal, _niss, _cpf, _bsn),
    )
}


def make_rejector(check: str) -> Callable[[str], bool]:
    """Return a predicate that is true for matches that fail the check named ``check``."""
    is_valid = _CHECKS[check]
    return lambda value: not is_valid(_normalize_number(value))
