"""Rules of the conservative policy: plain functions of a text that point at what might be a secret."""

from __future__ import annotations

import functools
import gzip
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence, Set
from importlib.resources import files

from redactory.detectors.settings import AUTO, RuleName
from redactory.detectors.spacy_model import hide_packages
from redactory.foundation.canonical import json_sha256
from redactory.foundation.errors import ConfigurationError

Interval = tuple[int, int]

# anchored at a word's start, or a long text without spaces costs the square of its length
_DIGITS = re.compile(r"(?<!\S)\S*\d(?:\S*\w)?")
_SYMBOLS = re.compile(r"(?<!\S)\S*(?:@|://|www\.|#|\\|[\w]_[\w])\S*", re.IGNORECASE)
_WORD = re.compile(r"[^\W\d_](?:[\w'’-]*\w)?")
_LOWERCASE = re.compile(r"[a-z]+(?:['’-][a-z]+)*")
# "2", "(1,000", "2.5", "$5", "1990s", "3rd"; no longer run of digits, which may be an identifier's
_NUMBER = re.compile(
    r"[(\[]*[$£€]?(?:[0-9]{1,3}(?:,[0-9]{3})*(?:\.[0-9]{1,2})?|(?:1[89]|20)[0-9]{2})(?:st|nd|rd|th|s|k|m|bn)?"
)
_HASHTAG = re.compile(r"#[A-Za-z]*[.,!?:;]*")
_NUMBER_BEFORE, _NUMBER_AFTER = re.compile(r"\d\S{0,30}\s+\Z"), re.compile(r"\S{0,30}\s+\S{0,30}\d")
_NUMBER_CONTEXT = 64
SURE_CAPITALS, SURE_NUMBER, SURE_SMALL = 0.98, 0.99, 0.999
"""From where on a word in such letters, and a number or hashtag, are plain, where ``confident_threshold``
asks for more.

On labelled text that no tagger was trained on, hardly a secret in these forms was held as plain as this.
"""
_CLITIC = re.compile(r"['’](?:s|d|ll|re|ve)$", re.IGNORECASE)
_SENTENCE_END = frozenset(".!?…:;\n")
_OPENING = frozenset("\"'“”‘’([{«*-–—> \t")
_ALWAYS_CAPITAL = frozenset({"I", "I'm", "I'd", "I've", "I'll", "I’m", "I’d", "I’ve", "I’ll", "OK"})


def find_digits(text: str, language: str = "en") -> Iterator[Interval]:
    """Every word that holds a digit."""
    return (match.span() for match in _DIGITS.finditer(text))


def find_symbols(text: str, language: str = "en") -> Iterator[Interval]:
    """Every word with a sign of e-mail addresses, links, handles, paths or identifiers."""
    return (match.span() for match in _SYMBOLS.finditer(text))


def find_capitals(text: str, language: str = "en") -> Iterator[Interval]:
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


def find_names(text: str, language: str = "en") -> Iterator[Interval]:
    """Every capitalised word of the public list of given names, wherever it stands, "Anna's" included."""
    names = _load_given_names()
    return (match.span() for match in _WORD.finditer(text) if _CLITIC.sub("", match.group()) in names)


def find_uncommon_words(text: str, language: str = "en") -> Iterator[Interval]:
    """Every word that the public list of ordinary words of ``language`` does not have."""

    return unlisted_words(text, load_common_words(language))


RULES: dict[RuleName, Callable[[str, str], Iterator[Interval]]] = {
    "digit": find_digits,
    "symbol": find_symbols,
    "capital": find_capitals,
    "name": find_names,
    "word": find_uncommon_words,
}

SOFT_RULES: frozenset[RuleName] = frozenset({"capital", "name", "word"})
"""Rules whose hit is forgiven where the engines are sure that the words are plain."""


def get_forgiveness_threshold(
    text: str, start: int, end: int, default: float, confident: float, words: Set[str]
) -> float:
    """How plain the engines must hold a hit for it to be forgiven: ``usual``, if its form is no everyday one.

    Everyday are a word in small letters, and one of ``words`` in capitals throughout, as in "GREAT".
    A number beside another one may be a part of something longer, as in "555 12 34".
    """
    token = text[start:end]
    if _LOWERCASE.fullmatch(token):
        return min(confident, SURE_SMALL)
    if token.isupper() and _is_listed(token, words):
        return min(confident, SURE_CAPITALS)
    if _HASHTAG.fullmatch(token) or (
        _NUMBER.fullmatch(text, start, end)
        and not _NUMBER_BEFORE.search(text[max(0, start - _NUMBER_CONTEXT) : start])
        and not _NUMBER_AFTER.match(text, end)
    ):
        return min(confident, SURE_NUMBER)
    return default


def is_common_word(text: str, start: int, end: int, words: Set[str]) -> bool:
    """Whether a token is one of ``words`` as it is written in a dictionary, in small letters."""
    return bool(_LOWERCASE.fullmatch(text, start, end)) and _is_listed(text[start:end], words)


_CAPITAL_NOUNS = frozenset({"de", "lb"})
"""Languages in which a capital inside a sentence tells no name from a noun."""


def select_active_rules(rules: Sequence[RuleName], language: str) -> tuple[RuleName, ...]:
    """Those of ``rules`` that say something of text in ``language``; the lists are of English words."""
    if load_optional_words(language):
        return tuple(rules)
    inactive = SOFT_RULES if language in _CAPITAL_NOUNS else SOFT_RULES - {"capital"}
    return tuple(rule for rule in rules if rule not in inactive)


@functools.cache
def hash_common_words(language: str) -> str | None:
    """What changes the rules' hits besides versions: the hash of the word list, None without one."""
    return json_sha256(sorted(load_common_words(language))) if load_optional_words(language) else None


def _starts_sentence(text: str, start: int) -> bool:
    position = start
    while position and text[position - 1] in _OPENING:
        position -= 1
    return position == 0 or text[position - 1] in _SENTENCE_END


@functools.cache
def _load_given_names() -> frozenset[str]:
    """Given names of Faker's public English lists, less the words that open ordinary sentences."""
    from faker.providers.person.en_GB import Provider as British
    from faker.providers.person.en_US import Provider as American

    with hide_packages():
        from spacy.lang.en.stop_words import STOP_WORDS

    names = {name for provider in (American, British) for name in provider.first_names}
    return frozenset(n for n in names if n.lower() not in STOP_WORDS)


# The public list of ordinary words of a language, and the words of a text that are not on it.


_FOLDER = files("redactory.detectors") / "words"
_SUFFIX = ".txt.gz"
_SIGN_TABLE = str.maketrans("’‘ʼ＇‐‑", "''''--", "\u00ad\u200b\u200c\u200d\u2060\ufeff")
# letters, digits, accents typed after their letter, and characters that do not show: those end no word
_RUN = "(?:[^\\W_]+|[\u0300-\u036f\u00ad\u200b-\u200d\u2060\ufeff]+)+"
_LETTERS = f"{_RUN}(?:['’‘ʼ＇]{_RUN})*"
_WORD_IN_COMPOUND = re.compile(f"['’‘ʼ＇]?(?P<word>{_LETTERS})")
_COMPOUND = re.compile(f"['’‘ʼ＇]?{_LETTERS}(?:[-‐‑]{_LETTERS})*")
_ENDING = re.compile("(?:'(?:s|d|m|ll|re|ve|em)|n't)$")
_MAX_ENDINGS = 2  # "shouldn't've"
# what tokenisers leave of "can't" and "won't"
_SPLIT_NEGATION = re.compile("(?:ca|wo|sha|ai)(?= n['’]t)", re.IGNORECASE)


def load_optional_words(language: str) -> frozenset[str]:
    """:func:`load_common_words`; empty where there is no list, and of ``auto`` the English one."""
    language = "en" if language == AUTO else language
    has_list = (_FOLDER / f"{language}{_SUFFIX}").is_file()
    return load_common_words(language) if has_list else frozenset()


@functools.cache
def load_common_words(language: str) -> frozenset[str]:
    """The ordinary words of ``language``, case-folded; ``ConfigurationError`` where there is no list."""
    languages = sorted(file.name.removesuffix(_SUFFIX) for file in _FOLDER.iterdir() if file.name.endswith(_SUFFIX))
    if language not in languages:
        raise ConfigurationError(
            f"detect.conservative.rules: there is no word list for language '{language}', only for "
            f"{', '.join(languages)}; remove 'word' from the rules"
        )
    return frozenset(gzip.decompress((_FOLDER / f"{language}{_SUFFIX}").read_bytes()).decode("utf-8").split())


def unlisted_words(text: str, words: Set[str]) -> Iterator[tuple[int, int]]:
    """The places [start, end) of the words of ``text`` that are not among ``words``, in order.

    A word is a run of letters and digits with a letter in it; inner apostrophes belong to it.  It is on the
    list when it is there case-folded, with or without endings such as 's, 'll and n't.  A compound with
    hyphens is on the list when it is there as a whole, else each part is a word of its own.
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
