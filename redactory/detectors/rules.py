"""Rules of the conservative policy: functions of a text that find possible sensitive spans."""

from __future__ import annotations

import functools
import gzip
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence, Set
from importlib.resources import files

from redactory.detectors.settings import AUTO, RuleName
from redactory.detectors.spacy_model import hide_unused_packages
from redactory.foundation.canonical import json_sha256
from redactory.foundation.errors import ConfigurationError

Interval = tuple[int, int]

# anchored at a word's start, or a long text without spaces takes quadratic time
_DIGITS = re.compile(r"(?<!\S)\S*\d(?:\S*\w)?")
_SYMBOLS = re.compile(r"(?<!\S)\S*(?:@|://|www\.|#|\\|[\w]_[\w])\S*", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_](?:[\w'’-]*\w)?")
_CLITIC = re.compile(r"['’](?:s|d|ll|re|ve)$", re.IGNORECASE)
_SENTENCE_END = frozenset(".!?…:;\n")
_OPENING = frozenset("\"'“”‘’([{«*-–—> \t")
_ALWAYS_CAPITAL = frozenset({"I", "I'm", "I'd", "I've", "I'll", "I’m", "I’d", "I’ve", "I’ll", "OK"})


def find_digits(text: str, language: str = "en") -> Iterator[Interval]:
    """Find each word that contains a digit."""
    return (match.span() for match in _DIGITS.finditer(text))


def find_symbols(text: str, language: str = "en") -> Iterator[Interval]:
    """Find every word with a character of e-mail addresses, links, handles, paths or identifiers."""
    return (match.span() for match in _SYMBOLS.finditer(text))


def find_capitals(text: str, language: str = "en") -> Iterator[Interval]:
    """Find every word with a capital that grammar does not require.

    Grammar requires a capital first letter at the start of the text, after the end of a sentence, and in the English
    pronoun "I"; never a capital inside a word.
    """
    for match in _WORD.finditer(text):
        word = match.group()
        if word in _ALWAYS_CAPITAL or word.islower():
            continue
        # istitle() also covers the few letters that are neither upper nor lower case ("ǅ")
        inner = any(letter.istitle() for letter in word[1:])
        if inner or (word[0].istitle() and not _starts_sentence(text, match.start())):
            yield match.span()


def find_names(text: str, language: str = "en") -> Iterator[Interval]:
    """Find every capitalised word on the public list of given names, "Anna's" included."""
    names = _load_given_names()
    return (match.span() for match in _WORD.finditer(text) if _CLITIC.sub("", match.group()) in names)


def find_uncommon_words(text: str, language: str = "en") -> Iterator[Interval]:
    """Find every word that is not on the public list of common words of ``language``; without a list, every word."""
    return iter_unlisted_words(text, load_optional_words(language))


RULES: dict[RuleName, Callable[[str, str], Iterator[Interval]]] = {
    "digit": find_digits,
    "symbol": find_symbols,
    "capital": find_capitals,
    "name": find_names,
    "word": find_uncommon_words,
}


def choose_rules(rules: Sequence[RuleName] | None, language: str, has_tagger: bool) -> tuple[RuleName, ...]:
    """Return the configured ``rules``; by default none with the built-in tagger, which tells names from other words.

    Without it every rule; for a language without a list of common words only ``digit`` and ``symbol``.
    """
    if rules is not None:
        return tuple(rules)
    if has_tagger:
        return ()
    return tuple(RULES) if load_optional_words(language) else ("digit", "symbol")


@functools.cache
def hash_common_words(language: str) -> str | None:
    """The hash of the word list, which is part of the policy hash; None without a list."""
    return json_sha256(sorted(load_common_words(language))) if load_optional_words(language) else None


def _starts_sentence(text: str, start: int) -> bool:
    position = start
    while position and text[position - 1] in _OPENING:
        position -= 1
    return position == 0 or text[position - 1] in _SENTENCE_END


@functools.cache
def _load_given_names() -> frozenset[str]:
    """Load given names from Faker's public English lists, without words that open ordinary sentences."""
    from faker.providers.person.en_GB import Provider as British
    from faker.providers.person.en_US import Provider as American

    with hide_unused_packages():
        from spacy.lang.en.stop_words import STOP_WORDS

    names = {name for provider in (American, British) for name in provider.first_names}
    return frozenset(n for n in names if n.lower() not in STOP_WORDS)


# The public list of common words of a language, and the words of a text that are not on it.


_FOLDER = files("redactory.detectors") / "words"
_SUFFIX = ".txt.gz"
_SIGN_TABLE = str.maketrans("’‘ʼ＇‐‑", "''''--", "\u00ad\u200b\u200c\u200d\u2060\ufeff")
# letters, digits, combining accents and invisible characters do not end a word
_RUN = "(?:[^\\W_]+|[\u0300-\u036f\u00ad\u200b-\u200d\u2060\ufeff]+)+"
_LETTERS = f"{_RUN}(?:['’‘ʼ＇]{_RUN})*"
_WORD_IN_COMPOUND = re.compile(f"['’‘ʼ＇]?(?P<word>{_LETTERS})")
_COMPOUND = re.compile(f"['’‘ʼ＇]?{_LETTERS}(?:[-‐‑]{_LETTERS})*")
_ENDING = re.compile("(?:'(?:s|d|m|ll|re|ve|em)|n't)$")
_MAX_ENDINGS = 2  # "shouldn't've"
# what tokenizers leave of "can't" and "won't"
_SPLIT_NEGATION = re.compile("(?:ca|wo|sha|ai)(?= n['’]t)", re.IGNORECASE)


def load_optional_words(language: str) -> frozenset[str]:
    """Return :func:`load_common_words`, empty without a list; ``auto`` uses the English one."""
    language = "en" if language == AUTO else language
    has_list = (_FOLDER / f"{language}{_SUFFIX}").is_file()
    return load_common_words(language) if has_list else frozenset()


@functools.cache
def load_common_words(language: str) -> frozenset[str]:
    """Load the case-folded common words of ``language``; ``ConfigurationError`` if there is no list."""
    languages = sorted(file.name.removesuffix(_SUFFIX) for file in _FOLDER.iterdir() if file.name.endswith(_SUFFIX))
    if language not in languages:
        raise ConfigurationError(
            f"detect.conservative.rules: there is no word list for language '{language}', only for "
            f"{', '.join(languages)}; remove 'word' from the rules"
        )
    return frozenset(gzip.decompress((_FOLDER / f"{language}{_SUFFIX}").read_bytes()).decode("utf-8").split())


def iter_unlisted_words(text: str, words: Set[str]) -> Iterator[tuple[int, int]]:
    """Yield the ranges [start, end) of words of ``text`` that are not in ``words``, in order.

    A word is a run of letters and digits with at least one letter; inner apostrophes belong to it. Matching is
    case-folded, with or without endings such as 's, 'll and n't. A hyphenated compound may be listed as a whole;
    otherwise each part counts by itself.
    """
    for compound in _COMPOUND.finditer(text):
        if _is_listed(compound.group(), words) or _SPLIT_NEGATION.match(text, compound.start()):
            continue
        start, end = compound.span()
        for match in _WORD_IN_COMPOUND.finditer(text, start, end):
            if not _is_listed(match.group(), words):
                yield match.start("word"), match.end()


def _is_listed(token: str, words: Set[str]) -> bool:
    word = token.casefold()
    if not word.isascii():
        word = unicodedata.normalize("NFC", word.translate(_SIGN_TABLE))
    if not any(map(str.isalpha, word)):
        return True
    for _ in range(_MAX_ENDINGS + 1):
        if word in words or word.removeprefix("'") in words or not word:
            return True
        word = _ENDING.sub("", word)
    return False
