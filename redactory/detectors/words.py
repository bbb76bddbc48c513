"""The public list of ordinary words of a language, and the words of a text that are not on it.

The list is fixed and public: it was made from dictionaries, never from a corpus that is processed
(``docs/guarantees.md``, side channels 1 and 2).
"""

from __future__ import annotations

import functools
import gzip
import re
import unicodedata
from collections.abc import Iterator, Set
from importlib.resources import files

from redactory.foundation.errors import ConfigurationError

_FOLDER = files("redactory.detectors") / "words"
_SUFFIX = ".txt.gz"
_SIGNS = str.maketrans("’‘ʼ＇‐‑", "''''--", "\u00ad\u200b\u200c\u200d\u2060\ufeff")
# letters, digits, accents typed after their letter, and signs that do not show: those end no word
_RUN = "(?:[^\\W_]+|[\u0300-\u036f\u00ad\u200b-\u200d\u2060\ufeff]+)+"
_LETTERS = f"{_RUN}(?:['’‘ʼ＇]{_RUN})*"
_WORD = re.compile(f"['’‘ʼ＇]?(?P<word>{_LETTERS})")
_COMPOUND = re.compile(f"['’‘ʼ＇]?{_LETTERS}(?:[-‐‑]{_LETTERS})*")
_ENDING = re.compile("(?:'(?:s|d|m|ll|re|ve|em)|n't)$")
_MOST_ENDINGS = 2  # "shouldn't've"
# what tokenisers leave of "can't" and "won't"
_HALF = re.compile("(?:ca|wo|sha|ai)(?= n['’]t)", re.IGNORECASE)


def words_if_any(language: str) -> frozenset[str]:
    """:func:`words_of`; empty where there is no list."""
    listed = (_FOLDER / f"{language}{_SUFFIX}").is_file()
    return words_of(language) if listed else frozenset()


@functools.cache
def words_of(language: str) -> frozenset[str]:
    """The ordinary words of ``language``, case-folded; ``ConfigurationError`` where there is no list."""
    known = sorted(
        file.name.removesuffix(_SUFFIX) for file in _FOLDER.iterdir() if file.name.endswith(_SUFFIX)
    )
    if language not in known:
        raise ConfigurationError(
            f"detect.conservative.rules: there is no word list for language '{language}', only for "
            f"{', '.join(known)}; take 'word' out of the rules"
        )
    return frozenset(gzip.decompress((_FOLDER / f"{language}{_SUFFIX}").read_bytes()).decode("utf-8").split())


def outside(text: str, words: Set[str]) -> Iterator[tuple[int, int]]:
    """The places [start, end) of the words of ``text`` that are not among ``words``, in order.

    A word is a run of letters and digits with a letter in it; inner apostrophes belong to it.  It is on the
    list when it is there case-folded, with or without endings such as 's, 'll and n't.  A compound with
    hyphens is on the list when it is there as a whole, else each part is a word of its own.
    """
    for compound in _COMPOUND.finditer(text):
        if _is_listed(compound.group(), words) or _HALF.match(text, compound.start()):
            continue
        start, end = compound.span()
        for match in _WORD.finditer(text, start, end):
            if not _is_listed(match.group(), words):
                yield match.start("word"), match.end()


def _is_listed(written: str, words: Set[str]) -> bool:
    word = written.casefold()
    if not word.isascii():
        word = unicodedata.normalize("NFC", word.translate(_SIGNS))
    if not any(map(str.isalpha, word)):
        return True
    for _ in range(_MOST_ENDINGS + 1):
        if word in words or word.removeprefix("'") in words or not word:
            return True
        word = _ENDING.sub("", word)
    return False
