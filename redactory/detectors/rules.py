"""Rules of the conservative policy: plain functions of a text that point at what might be a secret."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence

from redactory.detectors.lean_imports import lean_imports
from redactory.detectors.settings import RuleName
from redactory.foundation.canonical import hash_of

Interval = tuple[int, int]

# anchored at a word's start, or a long text without spaces costs the square of its length
_DIGITS = re.compile(r"(?<!\S)\S*\d(?:\S*\w)?")
_SYMBOLS = re.compile(r"(?<!\S)\S*(?:@|://|www\.|#|\\|[\w]_[\w])\S*", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_](?:[\w'’-]*\w)?")
_CLITIC = re.compile(r"['’](?:s|d|ll|re|ve)$", re.IGNORECASE)
_SENTENCE_END = frozenset(".!?…:;\n")
_OPENING = frozenset("\"'“”‘’([{«*-–—> \t")
_ALWAYS_CAPITAL = frozenset({"I", "I'm", "I'd", "I've", "I'll", "I’m", "I’d", "I’ve", "I’ll", "OK"})


def digit(text: str, language: str = "en") -> Iterator[Interval]:
    """Every word that holds a digit."""
    return (match.span() for match in _DIGITS.finditer(text))


def symbol(text: str, language: str = "en") -> Iterator[Interval]:
    """Every word with a sign of e-mail addresses, links, handles, paths or identifiers."""
    return (match.span() for match in _SYMBOLS.finditer(text))


def capital(text: str, language: str = "en") -> Iterator[Interval]:
    """Every word with a capital that grammar does not ask for.

    A capital first letter is asked for at the start of the text and after the end of a sentence, and
    of the English pronoun; a capital further inside a word never is.
    """
    for match in _WORD.finditer(text):
        word = match.group()
        if word in _ALWAYS_CAPITAL or word.islower():
            continue
        # istitle() of a letter is also true of the few that are neither upper nor lower case ("ǅ")
        inner = any(letter.istitle() for letter in word[1:])
        if inner or (word[0].istitle() and not _starts_sentence(text, match.start())):
            yield match.span()


def name(text: str, language: str = "en") -> Iterator[Interval]:
    """Every capitalised word of the public list of given names, wherever it stands, "Anna's" included."""
    names = _given_names()
    return (match.span() for match in _WORD.finditer(text) if _CLITIC.sub("", match.group()) in names)


def word(text: str, language: str = "en") -> Iterator[Interval]:
    """Every word that the public list of ordinary words of ``language`` does not have."""
    from redactory.detectors.words import outside, words_of

    return outside(text, words_of(language))


RULES: dict[RuleName, Callable[[str, str], Iterator[Interval]]] = {
    "digit": digit,
    "symbol": symbol,
    "capital": capital,
    "name": name,
    "word": word,
}

SOFT_RULES: frozenset[RuleName] = frozenset({"capital", "name", "word"})
"""Rules whose hit is forgiven where the engines are sure that the words are plain."""


def rules_identity(rules: Sequence[RuleName], language: str) -> str | None:
    """What changes the rules' hits besides versions: the hash of the word list, where it is used."""
    return _words_hash(language) if "word" in rules else None


@functools.cache
def _words_hash(language: str) -> str:
    from redactory.detectors.words import words_of

    return hash_of(sorted(words_of(language)))


def _starts_sentence(text: str, start: int) -> bool:
    position = start
    while position and text[position - 1] in _OPENING:
        position -= 1
    return position == 0 or text[position - 1] in _SENTENCE_END


@functools.cache
def _given_names() -> frozenset[str]:
    """Given names of Faker's public English lists, less the words that open ordinary sentences."""
    from faker.providers.person.en_GB import Provider as British
    from faker.providers.person.en_US import Provider as American

    with lean_imports():
        from spacy.lang.en.stop_words import STOP_WORDS

    names = {name for provider in (American, British) for name in provider.first_names}
    return frozenset(n for n in names if n.lower() not in STOP_WORDS)
