"""Known values: what was found once in a document, or is said in a column, wherever it stands in it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from redactory.detectors.rules import words_if_any
from redactory.detectors.settings import kind_of
from redactory.redaction.replacements import Found
from redactory.redaction.values import tells

_NOT_TELLING = frozenset({"DATE", "AGE", "TITLE", "NRP", "TIME", "MONEY", "CARDINAL", "ORDINAL", "PERCENT"})
_SHORTEST = 3
_NAME_PART = re.compile(r"[^\W\d_][\w'’-]+")


def with_known(
    texts: Sequence[str], found: Sequence[Sequence[Found]], declared: Mapping[str, str], language: str = "en"
) -> list[list[Found]]:
    """``found``, and every other place in ``texts`` where one of those values stands as a word of its own.

    A value counts that can point at somebody by itself (:func:`redactory.redaction.values.tells`); of a
    person's name each part does that is no ordinary word.  ``declared`` are values with their labels.
    """
    words = words_if_any(language)
    known = [*declared.items()]
    for text, own in zip(texts, found, strict=True):
        known += [(text[start:end], label) for start, end, label, _ in own]
    values = {value: label for given, of in known for value, label in _parts(given.strip(), of, words)}
    if not values:
        return [list(own) for own in found]
    return [
        [*own, *(Found(start, end, values[value]) for value in values for start, end in _words(text, value))]
        for text, own in zip(texts, found, strict=True)
    ]


def _words(text: str, value: str) -> Iterator[tuple[int, int]]:
    """Where ``value`` stands in ``text`` with no letter or digit on either side."""
    start = text.find(value)
    while start >= 0:
        end = start + len(value)
        before, behind = text[start - 1 : start], text[end : end + 1]
        if not ((before.isalnum() and value[0].isalnum()) or (behind.isalnum() and value[-1].isalnum())):
            yield start, end
        start = text.find(value, end)


def _parts(value: str, label: str, words: frozenset[str]) -> Iterator[tuple[str, str]]:
    kind = kind_of(label)
    if kind in _NOT_TELLING:
        return
    if len(value) >= _SHORTEST and tells(value, words):
        yield value, label
    for part in _NAME_PART.findall(value) if kind == "PERSON" else ():
        if len(part) >= _SHORTEST and part[0].isupper() and tells(part, words):
            yield part, label
