"""Find where a text may name a person: the full name, an e-mail address, the surname with an initial or without."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import Literal, NamedTuple, get_args

from redactory.foundation.errors import ConfigurationError
from redactory.redaction.spellings import split_name

MatchKind = Literal["full name", "e-mail address", "surname and initial", "surname"]
MATCH_KINDS: tuple[MatchKind, ...] = get_args(MatchKind)
"""From the clearest to the least clear match."""
CLEAR_KINDS = frozenset(MATCH_KINDS[:2])
"""Matches that name both the first name and the surname."""
_EMAIL = re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue"})


class NameMatch(NamedTuple):
    """Code points [start, end) of a text, and how they match the name."""

    start: int
    end: int
    kind: MatchKind


class NameSearch:
    """Finds a person's name in texts, whatever its case, accents, order ("Smith, Mary") and separators.

    A name of one word is searched as a surname. ``ConfigurationError`` if the name has no letter.
    """

    def __init__(self, name: str) -> None:
        self.words = split_name(unicodedata.normalize("NFC", name))
        if not any(map(str.isalpha, name)) or not self.words:
            raise ConfigurationError('--person: expected a name, like "Mary Smith"')
        first, *middle, last = map(_make_word_pattern, self.words if len(self.words) > 1 else self.words * 2)
        initial = re.escape(_fold(self.words[0])[0][0])
        others = "|".join([*middle, r"[^\W\d_]\.?"])
        between = rf"[\W_]{{0,3}}(?:(?:{others})[\W_]{{1,3}}){{0,2}}"
        dotted = r"(?:\.\s*|\s+)"
        patterns: dict[MatchKind, str] = {
            "full name": rf"{first}{between}{last}|{last}[\W_]{{0,3}}{first}",
            "surname and initial": rf"(?<!['’]){initial}{dotted}(?:[^\W\d_]{dotted}){{0,2}}{last}"
            rf"|{last}(?:,\s*{initial}(?![^\W_])\.?|\s+{initial}\.)",
            "surname": last,
        }
        self._last = re.compile(last)
        if len(self.words) == 1:
            patterns = {"surname": last}
        self._patterns = [(kind, re.compile(_bound(pattern, last))) for kind, pattern in patterns.items()]

    def find_matches(self, text: str) -> list[NameMatch]:
        """Return the matches in ``text``, in order; none overlaps a clearer one."""
        folded, places = _fold(text)
        if self._last.search(folded) is None:
            return []
        matches = list(self._find_addresses(folded))
        for kind, pattern in self._patterns:
            spans = [match.span() for match in pattern.finditer(folded)]
            clearer = list(matches)
            matches += [NameMatch(*s, kind) for s in spans if all(s[1] <= m.start or s[0] >= m.end for m in clearer)]
        return sorted(NameMatch(places[start], places[end - 1] + 1, kind) for start, end, kind in matches)

    def _find_addresses(self, folded: str) -> Iterator[NameMatch]:
        """Yield the e-mail addresses that contain the name: mary.smith@, smithm@, smith@."""
        first, initial = _fold(self.words[0])[0], _fold(self.words[0])[0][0]
        for match in _EMAIL.finditer(folded):
            local = re.sub(r"[\W\d_]", "", match[0].split("@")[0])
            surname = self._last.search(local)
            rest = "" if surname is None else local[: surname.start()] + local[surname.end() :]
            if surname is None:
                continue
            if first in rest:
                yield NameMatch(*match.span(), "e-mail address")
            elif rest == initial:
                yield NameMatch(*match.span(), "surname and initial")
            elif not rest:
                yield NameMatch(*match.span(), "surname")


def _fold(text: str) -> tuple[str, range | list[int]]:
    """Fold case, accents and invisible characters; return also the place of each folded character in ``text``."""
    if text.isascii():
        return text.lower(), range(len(text))
    characters, places = list[str](), list[int]()
    for place, character in enumerate(text):
        for folded in unicodedata.normalize("NFKD", character).casefold():
            if unicodedata.category(folded) not in ("Mn", "Cf"):
                characters.append(folded)
                places.append(place)
    return "".join(characters), places


def _make_word_pattern(word: str) -> str:
    spellings = dict.fromkeys(_fold(spelling)[0] for spelling in (word, word.translate(_UMLAUTS)))
    joined = "|".join(re.sub(r"\\-", r"[-‐\\s]?", re.sub("['’]", "['’]?", re.escape(s))) for s in spellings)
    return f"(?:{joined})"


def _bound(pattern: str, last: str) -> str:
    """Require whole words, unless the script writes words together or with prefixes."""
    has_case = re.search("[a-z\u00df-\u024f\u0370-\u052f]", last) is not None
    return rf"(?<![^\W_])(?:{pattern})(?![^\W_])" if has_case else pattern
