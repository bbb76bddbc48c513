"""Find where a text may name a person: the full name, an e-mail address, the surname with an initial or without."""

from __future__ import annotations

import re
import unicodedata
from typing import Literal, NamedTuple, get_args

from redactory.detectors.lists import fold_term, fold_text
from redactory.foundation.errors import ConfigurationError
from redactory.redaction.names import remove_title, split_suffix

MatchKind = Literal["full name", "e-mail address", "surname and initial", "surname"]
MATCH_KINDS: tuple[MatchKind, ...] = get_args(MatchKind)
"""From the clearest to the least clear match."""
CLEAR_KINDS = frozenset(MATCH_KINDS[:2])
"""Matches that contain both the first name and the surname."""
_EMAIL = re.compile(r"[\w.+-]++(?:@[\w-]++(?:\.[\w-]++)+)?")
"""An address, or a run of its characters, so that none is tried twice."""
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue"})
_CASED = re.compile("[a-z\u00df-\u024f\u0370-\u052f]")
"""Letters of scripts that separate words; others join them, or add prefixes."""


_NAME_PART = re.compile(r"\w+(?:[-'’]\w+)*")


def split_name(value: str) -> tuple[str, ...]:
    """Return the parts of a person's name in lower case, in the order of "Mary Smith", without a title."""
    value = remove_title(value)
    last, comma, first = value.partition(",")
    # "Mary Smith, Jane Doe" is a list
    is_turned = comma and len(_NAME_PART.findall(last)) == 1 and "," not in first
    return tuple(_NAME_PART.findall((f"{first} {last}" if is_turned else value).casefold()))


class NameMatch(NamedTuple):
    """Code points [start, end) of a text, and how they match the name."""

    start: int
    end: int
    kind: MatchKind


class NameSearch:
    """Finds a person's name in texts, whatever its case, accents, order ("Smith, Mary") and separators.

    ``words`` are those of the name without titles and degrees; a single one is searched as a surname. A name with a
    generation ("Jr.") is clear only with it. ``ConfigurationError`` without any letter.
    """

    def __init__(self, name: str) -> None:
        bare_name, generations = split_suffix(unicodedata.normalize("NFC", name))
        self.words = tuple(word for word in split_name(bare_name) if fold_term(word))
        if not any(map(str.isalpha, "".join(self.words))):
            raise ConfigurationError('--person: expected a name, like "Mary Smith"')
        first, *middle, last = map(_make_word_pattern, self.words if len(self.words) > 1 else self.words * 2)
        initial, dot, others = re.escape(fold_text(self.words[0]).text[0]), r"(?:\.\s*|\s+)", r"[^\W\d_]\.?"
        between = rf"[\W_]{{0,3}}(?:(?:{'|'.join([*middle, others])})[\W_]{{1,3}}){{0,2}}"
        patterns: dict[MatchKind, str] = {"surname": last}
        if len(self.words) > 1:
            before = rf"(?<!['’]){initial}{dot}(?:[^\W\d_]{dot}){{0,2}}{last}"
            after = rf"{last}(?:,\s*{initial}(?![^\W_])\.?|\s+{initial}\.)"
            full = rf"{first}{between}{last}|{last}[\W_]{{0,3}}{first}"
            unclear = f"{before}|{after}"
            if generations:
                # "John Smith" may be the father of "John Smith Jr."
                full, unclear = rf"(?:{full})[\W_]{{1,3}}(?:{'|'.join(generations)})", f"{full}|{unclear}"
            patterns = {"full name": full, "surname and initial": unclear, **patterns}
        ends = ("(?<![^\\W_])", "(?![^\\W_])") if _CASED.search(last) else ("", "")
        self._patterns = {kind: re.compile(f"{ends[0]}(?:{p}){ends[1]}") for kind, p in patterns.items()}
        self._last, self._address = re.compile(last), re.compile(rf"{first}[^\W\d_]?{last}|{last}{first}")

    def find_matches(self, text: str) -> list[NameMatch]:
        """Return the matches in ``text``, in order; none overlaps a clearer one."""
        source = fold_text(text)
        folded = source.text
        if self._last.search(folded) is None:
            return []
        matches = list[NameMatch]()
        for match in _EMAIL.finditer(folded):
            local = re.sub(r"[\W\d_]", "", match[0].split("@")[0])
            if "@" in match[0] and self._last.search(local):
                is_clear = self._address.fullmatch(local) and len(self.words) > 1
                matches.append(NameMatch(*match.span(), "e-mail address" if is_clear else "surname"))
                folded = folded[: match.start()] + _blank_out(match) + folded[match.end() :]
        for kind, pattern in self._patterns.items():
            matches += [NameMatch(*match.span(), kind) for match in pattern.finditer(folded)]
            folded = pattern.sub(_blank_out, folded)
        return sorted(NameMatch(*source.get_source_range(start, end), kind) for start, end, kind in matches)


def _blank_out(match: re.Match[str]) -> str:
    return "\0" * len(match[0])


def _make_word_pattern(word: str) -> str:
    spellings = dict.fromkeys(fold_text(spelling).text for spelling in (word, word.translate(_UMLAUTS)))
    joined = "|".join(re.sub(r"\\-", r"[-‐\\s]?", re.sub("['’]", "['’]?", re.escape(s))) for s in spellings)
    return f"(?:{joined})"
