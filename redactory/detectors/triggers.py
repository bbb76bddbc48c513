"""What a text must hold before a recognizer can hit anything in it.

A trigger is a necessary condition, cheap beside the expressions that it spares; where it does not fire,
there is no hit.  A recognizer without a trigger sees every text.
"""

from __future__ import annotations

from typing import NamedTuple

import regex

_WORD = regex.compile(r"[^\W\d_]+")
_ASCII_WORDS = {code: chr(code).lower() if chr(code).isalpha() else " " for code in range(128)}
_KINDS = (("9", regex.compile(r"\d")), ("A", regex.compile(r"\p{Lu}")), ("a", regex.compile(r"[^\W\d_]")))


class _Shapes(dict[int, str]):
    """9 for every decimal digit, A for every capital, a for every other letter; other characters stay."""

    def __missing__(self, code: int) -> str:
        own = chr(code)
        kind = self[code] = next((kind for kind, form in _KINDS if form.match(own)), own)
        return kind


_SHAPES = _Shapes()


def shape_of(text: str) -> str:
    """``text`` with one letter for each kind of character: "Flat 5b, no. 12" is "Aaaa 9a, aa. 99"."""
    return text.translate(_SHAPES)


def words_of(text: str) -> set[str]:
    """The runs of letters of ``text``, such that two that an expression holds equal in any case are equal."""
    if text.isascii():
        return set(text.translate(_ASCII_WORDS).split())
    # İ and i are one letter to expressions, but not when folded
    return set(_WORD.findall(text.replace("İ", "i").casefold()))


class Trigger(NamedTuple):
    """All of: so many digits; one of the words, or a word with one of the endings; one of the shapes; a form.

    ``words`` and ``endings`` are runs of letters as :func:`words_of` cuts them, ``shapes`` are parts of what
    :func:`shape_of` makes of the text.
    """

    digits: int = 0
    words: frozenset[str] = frozenset()
    endings: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    form: regex.Pattern[str] | None = None


def trigger(digits: int = 0, shapes: str = "", form: str | None = None, words: str = "") -> Trigger:
    """A trigger of digits, one of the shapes between bars (``9-9|9/9``), an expression, one of the words."""
    return Trigger(
        digits,
        frozenset(words.split()),
        shapes=tuple(shapes.split("|")) if shapes else (),
        form=None if form is None else regex.compile(form),
    )


ALWAYS = Trigger()


class Traits(NamedTuple):
    """What the triggers ask of one text.

    ``many`` is its number of digits, or ``MANY`` if it has more; bit i of ``groups`` tells that the i-th
    group of words occurs.
    """

    text: str
    shape: str
    many: int
    groups: int


ANY_SHAPE = ("",)
"""What every text holds."""


class Gate(NamedTuple):
    """A trigger whose words have become bit ``group``; it has at least one shape."""

    digits: int
    group: int
    shapes: tuple[str, ...]
    form: regex.Pattern[str] | None


OPEN = Gate(0, 0, ANY_SHAPE, None)
MANY = 16
"""Digits beyond which triggers make no difference."""


class Lexicon:
    """Finds in one pass which groups of words occur in a text."""

    def __init__(self) -> None:
        self._groups: dict[tuple[frozenset[str], tuple[str, ...], int], int] = {}
        self._words: dict[str, int] = {}
        self._endings: list[tuple[int, tuple[str, ...], int]] = []

    def gate(self, trigger: Trigger) -> Gate:
        """``trigger`` as a gate of the texts whose traits come from here."""
        return Gate(trigger.digits, self._group(trigger), trigger.shapes or ANY_SHAPE, trigger.form)

    def traits(self, text: str) -> Traits:
        """What the gates ask of ``text``."""
        shape = shape_of(text)
        groups = 0
        words = words_of(text)
        for word in words:
            if word in self._words:
                groups |= self._words[word]
        digits = shape.count("9")
        for fewest, endings, group in self._endings:
            if digits >= fewest and any(word.endswith(endings) for word in words):
                groups |= group
        return Traits(text, shape, min(digits, MANY), groups)

    def _group(self, trigger: Trigger) -> int:
        if not trigger.words and not trigger.endings:
            return 0
        key = trigger.words, trigger.endings, trigger.digits if trigger.endings else 0
        if key not in self._groups:
            group = self._groups[key] = 1 << len(self._groups)
            for word in trigger.words:
                self._words[word] = self._words.get(word, 0) | group
            if trigger.endings:
                self._endings.append((trigger.digits, trigger.endings, group))
        return self._groups[key]


# The expressions of Presidio ignore case, and then [A-Z] also matches a few letters beyond ASCII:
# letters are [^\W\d_] and \w here, which hold them all.  Letters of hexadecimal numbers have no such kin.
_HEX = "[0-9A-Fa-f]"

PREDEFINED: dict[str, Trigger] = {
    "CreditCardRecognizer": trigger(13, "9999", r"\d{4}[- ]?\d{3,4}[- ]?\d{3,4}[- ]?\d{3}"),
    # every address begins with 1, 3 or bc1
    "CryptoRecognizer": trigger(1, form=r"[13]\w{25}"),
    "DateRecognizer": trigger(1, "9-9|9/9|9.9|9-a|9-A|a-9|A-9"),
    "EmailRecognizer": trigger(0, "@"),
    "IbanRecognizer": trigger(2, "AA99", r"[A-Z]{2}[0-9]{2}[ -]?[A-Z0-9]{4}[ -]?[A-Z0-9]{4}"),
    "IpRecognizer": trigger(0, "::|9.9|9:|a:|A:", rf"\d\.\d{{1,3}}\.\d|::|:{_HEX}{{1,4}}:"),
    "MacAddressRecognizer": trigger(
        0, ":|-|.", rf"[:-]{_HEX}{{2}}[:-]{_HEX}{{2}}[:-]|\.{_HEX}{{4}}\.{_HEX}{{4}}"
    ),
    "MedicalLicenseRecognizer": trigger(7, "a9999999|A9999999"),
    "NhsRecognizer": trigger(10, "999", r"\d{3}[- ]?\d{3}[- ]?\d{4}"),
    # no country's numbers are shorter
    "PhoneRecognizer": trigger(4),
    "UrlRecognizer": trigger(0, ".aa|.aA|.Aa|.AA"),
    "UsBankRecognizer": trigger(8, "99999999"),
    "UsItinRecognizer": trigger(9, "999", r"9\d{2}[- ]?\d{2}[- ]?\d{4}"),
    # "]]12" is what a slip in one of its expressions matches
    "UsLicenseRecognizer": trigger(1, "a9|A9|9a|9A|]9|999999"),
    "UsPassportRecognizer": trigger(8, "99999999"),
    "UsSsnRecognizer": trigger(9, "9999", r"\d{3}[- .]?\d{2}[- .]?\d{4}"),
    # its version is a digit from 1 to 8
    "UuidRecognizer": trigger(1, "-", rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-"),
}
"""Triggers of Presidio's recognizers by class name; one that is not named here sees every text."""

WITHIN: dict[str, dict[str, Trigger]] = {
    "IpRecognizer": {
        "IPv4_mapped": trigger(4, "::"),
        "IPv4_embedded": trigger(4, ":"),
        "IPv4": trigger(4, "9.9"),
        "IPv6": trigger(0, ":"),
        "IPv6_unspecified": trigger(0, "::"),
    },
    "UsLicenseRecognizer": {
        "Driver License - Alphanumeric (weak)": trigger(1, "a9|A9|9a|9A|]9"),
        "Driver License - Digits (very weak)": trigger(6, "999999"),
    },
    "UsPassportRecognizer": {
        "Passport (very weak)": trigger(9, "999999999"),
        "Passport Next Generation (very weak)": trigger(8, "a99999999|A99999999"),
    },
    "UsSsnRecognizer": {
        "SSN1 (very weak)": trigger(9, "99999-9999"),
        "SSN2 (very weak)": trigger(9, "999-999999"),
        "SSN3 (very weak)": trigger(9, "999-99-9999"),
        "SSN4 (very weak)": trigger(9, "999999999"),
        "SSN5 (medium)": trigger(9, "99-|99 |99."),
    },
    "DateRecognizer": {
        "Datetime (yyyy-mm-ddThh:mm[:ss[.f]] with timezone)": trigger(12, ":99"),
        "mm/dd/yyyy or mm/dd/yy": trigger(4, "9/9"),
        "dd/mm/yyyy or dd/mm/yy": trigger(4, "9/9"),
        "yyyy/mm/dd": trigger(6, "9999/9"),
        "mm-dd-yyyy": trigger(6, "9-9999"),
        "dd-mm-yyyy": trigger(6, "9-9999"),
        "yyyy-mm-dd": trigger(6, "9999-9"),
        "dd.mm.yyyy or dd.mm.yy": trigger(4, "9.9"),
        "dd-MMM-yyyy or dd-MMM-yy": trigger(3, "9-a|9-A"),
        "MMM-yyyy or MMM-yy": trigger(2, "a-9|A-9"),
        "dd-MMM or dd-MMM": trigger(1, "9-a|9-A"),
        "mm/yyyy or m/yyyy": trigger(5, "9/9999"),
        "mm/yy or m/yy": trigger(3, "9/99"),
    },
    "UrlRecognizer": {
        "Standard Url": trigger(0, "://"),
        "Quoted URL": trigger(0, "://", r"(?i)[\"']https?://"),
        "Quoted Non-schema URL": trigger(0, "\"|'"),
    },
}
"""Triggers of single expressions by the recognizer's class name and their own."""


def triggers_of(recognizer: object) -> tuple[Trigger, dict[str, Trigger]]:
    """The triggers of one of Presidio's recognizers, as it comes, and of its single expressions."""
    name = type(recognizer).__name__
    return PREDEFINED.get(name, ALWAYS), WITHIN.get(name, {})
