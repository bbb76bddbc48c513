"""One form for the many ways a term is written, with every place of the source kept.

Folded away: case, accents, width and other compatibility forms, the kind of apostrophe and hyphen, runs of
white space (line breaks and no-break spaces too), and signs that do not show, such as zero-width spaces.
"""

from __future__ import annotations

import re
import unicodedata
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

_APOSTROPHES = "'`´\u1ffd‘’‛′ʹʻʼʽˈ＇"
_STROKES = {"ø": "o", "ł": "l", "đ": "d", "ð": "d", "ħ": "h", "ŧ": "t", "ı": "i", "æ": "ae", "œ": "oe"}
_PLAIN = {
    **dict.fromkeys(_APOSTROPHES, "'"),
    **dict.fromkeys("“”„‟″", '"'),
    **dict.fromkeys("−⁃", "-"),
    **_STROKES,
}
# marks that Unicode says not to show: they have no combining class to tell them by
_UNSHOWN = re.compile("[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u3164\ufe00-\ufe0f\U000e0100-\U000e01ef]")
# the places where folding may do more than take lower case; white space runs lie whole in one match
_UNEVEN = re.compile("[^!-~]{2,}|[^ -_a-~]")


@dataclass(frozen=True, slots=True)
class Folded:
    """A folded text; ``origins[i]`` is the code point of the source that its i-th one stems from.

    ``origins`` has one more entry, the length of the source.
    """

    text: str
    origins: Sequence[int]

    def place(self, start: int, end: int) -> tuple[int, int]:
        """The code points [start, end) of the source behind a non-empty piece of the folded text.

        A source letter that the piece holds in part ("s" of "ß") is covered whole; so are the marks and
        unshown signs that follow the last one, which fold to nothing.
        """
        last = self.origins[end - 1]
        while self.origins[end] == last:
            end += 1
        return self.origins[start], self.origins[end]


def fold(text: str) -> Folded:
    """``text`` folded letter by letter: what a letter becomes depends on no other one."""
    if _UNEVEN.search(text) is None:
        return Folded(text.lower(), range(len(text) + 1))
    pieces: list[str] = []
    origins = array("q")
    at = 0
    for stretch in _UNEVEN.finditer(text):
        start, end = stretch.span()
        pieces.append(text[at:start].lower())
        origins.extend(range(at, start))
        _fold_stretch(text, start, end, pieces, origins)
        at = end
    pieces.append(text[at:].lower())
    origins.extend(range(at, len(text) + 1))
    return Folded("".join(pieces), origins)


def fold_term(term: str) -> str:
    """What a term is in a folded text; empty where nothing of it would show."""
    return fold(term).text.strip(" ")


def _fold_stretch(text: str, start: int, end: int, pieces: list[str], origins: array[int]) -> None:
    parts = [_FOLDS[letter] for letter in text[start:end]]
    folded = "".join(parts)
    if len(folded) == len(parts) and "" not in parts and "  " not in folded:
        # one for one, as in most alphabets: no need to go letter by letter
        pieces.append(folded)
        origins.extend(range(start, end))
        return
    spaced = False
    for place, part in enumerate(parts, start):
        for letter in part:
            if letter != " " or not spaced:
                pieces.append(letter)
                origins.append(place)
            spaced = letter == " "


class _Folds(dict[str, str]):
    """What each code point folds to, found out when it is first met."""

    def __missing__(self, letter: str) -> str:
        parts = letter
        if letter not in _PLAIN:
            # what a compatibility form stands for may be a capital, and what that folds to may have accents
            parts = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", letter).casefold())
        return self.setdefault(letter, "".join(map(_fold_part, parts)))


def _fold_part(part: str) -> str:
    if part in _PLAIN:
        return _PLAIN[part]
    if part.isspace():
        return " "
    kind = unicodedata.category(part)
    if kind == "Pd":
        return "-"
    return "" if kind in ("Cc", "Cf", "Me") or _is_accent(part) or _UNSHOWN.match(part) else part


def _is_accent(part: str) -> bool:
    """Whether a mark can be left out: not so vowel signs of Indic scripts, voicing marks and viramas."""
    combining = unicodedata.combining(part)
    return combining == 1 or 10 <= combining <= 35 or combining >= 200


_FOLDS = _Folds()
