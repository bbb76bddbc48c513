"""Deny and allow lists, and a client's own list of sensitive entities (the "entities" of UeDP)."""

from __future__ import annotations

import functools
import itertools
import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ahocorasick

from redactory.detectors.engine import Finds, Reading
from redactory.detectors.listing.folding import fold
from redactory.detectors.listing.terms import terms_of
from redactory.detectors.settings import ListSettings
from redactory.detectors.span import Span
from redactory.foundation.canonical import hash_of
from redactory.foundation.versions import version_of

DETECTOR = "list"
# scripts that are written without spaces: a word of theirs ends anywhere
_SPACELESS = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff"
    "\U00020000-\U0003ffff]"
)


@dataclass(frozen=True, slots=True)
class Listed:
    """What the lists say of one folded term: its length, the labels that deny it, whether it is allowed."""

    length: int
    labels: tuple[str, ...]
    allowed: bool


class ListEngine:
    """Marks every whole-word occurrence of a denied term, overlapping ones too, with score 1.

    Terms match whatever their case, accents, white space, apostrophes and hyphens (``folding``).  An end of a
    term that is a letter or digit must be the end of a word; one that is a sign may stand anywhere.  A place
    of an allowed term is vouched for unless a denied term shares a code point with it.
    """

    def __init__(self, settings: ListSettings, language: str) -> None:
        listed = _listed(settings)
        self._automaton = ahocorasick.Automaton()
        for folded, entry in listed.items():
            self._automaton.add_word(folded, entry)
        if listed:
            self._automaton.make_automaton()

    @classmethod
    def identity(cls, settings: ListSettings, language: str) -> dict[str, Any]:
        """The sha256 of the folded terms with their labels, and the versions that folding depends on."""
        terms = sorted((folded, entry.labels, entry.allowed) for folded, entry in _listed(settings).items())
        return {
            "terms_sha256": hash_of(terms),
            "unicode": unicodedata.unidata_version,
            "pyahocorasick": version_of("pyahocorasick"),
        }

    @classmethod
    def finds(cls, settings: ListSettings, language: str) -> list[Finds]:
        """The labels of the terms that are denied: masked, whatever the policy says of a label."""
        labels = frozenset(label for entry in _listed(settings).values() for label in entry.labels)
        return [Finds("deny lists", labels, None, labels)]

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """One reading a text; no text fails."""
        return [self._read_one(text) for text in texts]

    def _read_one(self, text: str) -> Reading:
        denied: set[Span] = set()
        allowed: set[tuple[int, int]] = set()
        for start, end, listed in self._hits(text):
            denied.update(Span(start, end, label, 1.0, DETECTOR) for label in listed.labels)
            if listed.allowed:
                allowed.add((start, end))
        spans = tuple(sorted(denied))
        return Reading(spans=spans, allowed=tuple(_apart_from(spans, sorted(allowed))))

    def _hits(self, text: str) -> Iterator[tuple[int, int, Listed]]:
        if not len(self._automaton):
            return
        folded = fold(text)
        letters = folded.text
        for last, listed in self._automaton.iter(letters):
            end = last + 1
            start = end - listed.length
            if start and _within_word(letters[start - 1], letters[start]):
                continue
            if end < len(letters) and _within_word(letters[last], letters[end]):
                continue
            yield *folded.place(start, end), listed


def _listed(settings: ListSettings) -> dict[str, Listed]:
    labels: dict[str, set[str]] = {}
    for term in terms_of(settings.deny, "detect.lists.deny"):
        labels.setdefault(term.folded, set()).add(term.label)
    allowed = {term.folded for term in terms_of(settings.allow, "detect.lists.allow")}
    return {
        folded: Listed(len(folded), tuple(sorted(labels.get(folded, ()))), folded in allowed)
        for folded in labels.keys() | allowed
    }


def _apart_from(spans: Sequence[Span], places: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """The places that share no code point with any of the sorted ``spans``."""
    starts = [span.start for span in spans]
    reach = list(itertools.accumulate((span.end for span in spans), max))
    for start, end in places:
        before = bisect_left(starts, end)
        if not before or reach[before - 1] <= start:
            yield start, end


def _within_word(left: str, right: str) -> bool:
    """Whether two neighbouring letters belong to one word, so that no term may begin or end between."""
    return _is_mark(right) or (_of_word(left) and _of_word(right))


@functools.cache
def _of_word(letter: str) -> bool:
    return not _SPACELESS.match(letter) and (letter.isalnum() or _is_mark(letter))


@functools.cache
def _is_mark(letter: str) -> bool:
    return unicodedata.category(letter).startswith("M")
