"""Triggers: cheap necessary conditions on a text for a recognizer to match.

If the trigger does not fire, there is no match. A recognizer without a trigger sees every text.
"""

from __future__ import annotations

from typing import NamedTuple

import regex

_WORD = regex.compile(r"[^\W\d_]+")
_ASCII_WORDS = {code: chr(code).lower() if chr(code).isalpha() else " " for code in range(128)}
_KINDS = (("9", regex.compile(r"\d")), ("A", regex.compile(r"\p{Lu}")), ("a", regex.compile(r"[^\W\d_]")))


class _ShapeTable(dict[int, str]):
    """9 for every decimal digit, A for every capital, a for every other letter; other characters stay."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        kind = self[code] = next((kind for kind, form in _KINDS if form.match(character)), character)
        return kind


_SHAPE_TABLE = _ShapeTable()


def split_words(text: str) -> frozenset[str]:
    """Return the runs of letters of ``text``, folded so that case-insensitively equal runs are equal."""
    if text.isascii():
        return frozenset(text.translate(_ASCII_WORDS).split())
    # İ and i match in expressions, but fold differently
    return frozenset(_WORD.findall(text.replace("İ", "i").casefold()))


class TextTraits(NamedTuple):
    """What triggers need of one text: the text, its shape, its number of digits and its words."""

    text: str
    shape: str
    digits: int
    words: frozenset[str]


def compute_traits(text: str) -> TextTraits:
    """Compute once what triggers ask about ``text``."""
    shape = text.translate(_SHAPE_TABLE)
    return TextTraits(text, shape, shape.count("9"), split_words(text))


class Trigger(NamedTuple):
    """All of: a number of digits; one of the words or endings; one of the shapes; a form.

    ``words`` and ``endings`` are runs of letters as from :func:`split_words`; ``shapes`` are parts of the text with one
    letter for each kind of character: "Flat 5b, no. 12" is "Aaaa 9a, aa. 99".
    """

    digits: int = 0
    words: frozenset[str] = frozenset()
    endings: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    pattern: regex.Pattern[str] | None = None

    def fires(self, traits: TextTraits) -> bool:
        """Whether a text with these ``traits`` meets the trigger's conditions."""
        if traits.digits < self.digits:
            return False
        has_word = not self.words.isdisjoint(traits.words) or not (self.words or self.endings)
        if not has_word and not (self.endings and any(word.endswith(self.endings) for word in traits.words)):
            return False
        if self.shapes and not any(shape in traits.shape for shape in self.shapes):
            return False
        return self.pattern is None or self.pattern.search(traits.text) is not None


ALWAYS_FIRES = Trigger()
