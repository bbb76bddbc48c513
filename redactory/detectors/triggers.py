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
ANY_SHAPE = ("",)
"""What every text holds."""
MANY = 16
"""Digits beyond which triggers make no difference."""


class _Shapes(dict[int, str]):
    """9 for every decimal digit, A for every capital, a for every other letter; other characters stay."""

    def __missing__(self, code: int) -> str:
        own = chr(code)
        kind = self[code] = next((kind for kind, form in _KINDS if form.match(own)), own)
        return kind


_SHAPES = _Shapes()


def words_of(text: str) -> set[str]:
    """The runs of letters of ``text``, such that two that an expression holds equal in any case are equal."""
    if text.isascii():
        return set(text.translate(_ASCII_WORDS).split())
    # İ and i are one letter to expressions, but not when folded
    return set(_WORD.findall(text.replace("İ", "i").casefold()))


class Trigger(NamedTuple):
    """All of: so many digits; one of the words, or a word with one of the endings; one of the shapes; a form.

    ``words`` and ``endings`` are runs of letters as :func:`words_of` cuts them; ``shapes`` are parts of the
    text with one letter for each kind of character: "Flat 5b, no. 12" is "Aaaa 9a, aa. 99".
    """

    digits: int = 0
    words: frozenset[str] = frozenset()
    endings: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    form: regex.Pattern[str] | None = None


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


class Gate(NamedTuple):
    """A trigger whose words have become bit ``group``; it has at least one shape."""

    digits: int = 0
    group: int = 0
    shapes: tuple[str, ...] = ANY_SHAPE
    form: regex.Pattern[str] | None = None


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
        shape = text.translate(_SHAPES)
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
