"""Context words as Presidio's enhancer weighs them, on a tokenizer alone.

The enhancer compares a recognizer's context words with the lemmas before a hit; without a lemmatizer
they would silently never match, so lower-cased words stand for lemmas.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from redactory.detectors.lean_imports import lean_imports, lean_spacy

if TYPE_CHECKING:
    from spacy.language import Language

SEAM = "\0"
"""Parts neighbouring words; no term of context reaches across it."""
MOST_STRINGS = 200_000
"""Distinct strings that a tokenizer may learn before a fresh one takes its place: memory stays flat."""


class ContextWords:
    """The rules of the enhancer and a tokenizer of one language."""

    def __init__(self, language: str) -> None:
        with lean_imports():
            from presidio_analyzer.context_aware_enhancers import LemmaContextAwareEnhancer

        self._language = language
        self._nlp = blank(language)
        self.rules: Any = LemmaContextAwareEnhancer()

    def of(self, text: str) -> Surroundings:
        """What stands around the places of ``text``."""
        if len(self._nlp.vocab.strings) > MOST_STRINGS:
            self._nlp = blank(self._language)
        return Surroundings(text, self._nlp, self.rules)


class Surroundings:
    """The words of one text, cut when they are first asked for."""

    def __init__(self, text: str, nlp: Language, rules: Any) -> None:
        self._text = text
        self._lowered = text.lower()
        self._nlp = nlp
        self._rules = rules
        self._around: dict[int, str] = {}

    def raised(self, score: float, start: int, context: Sequence[str]) -> float:
        """The score of a hit at ``start``, higher if a keyword around it holds one of ``context``.

        ``context`` is in small letters.
        """
        rules = self._rules
        if score >= rules.MAX_SCORE:
            return score
        # other scripts may have letters whose small form depends on the word's end
        if not any(term in self._lowered or not term.isascii() for term in context):
            return score
        around = self.around(start)
        if not any(term in around for term in context):
            return score
        raised = max(score + rules.context_similarity_factor, rules.min_score_with_context_similarity)
        return float(min(raised, rules.MAX_SCORE))

    def around(self, start: int) -> str:
        """The keywords that count as context of a hit at code point ``start``, joined by ``SEAM``.

        The word at ``start`` and some keywords to the left of it, then likewise to the right, where the
        word at ``start`` counts again or, if it is no keyword, the next that is one.
        """
        if start not in self._around:
            ends, words = self._cut
            index = min(bisect_right(ends, start), len(words) - 1)
            left = (words[i] for i in range(index, -1, -1) if self._is_keyword(words[i]))
            right = (words[i] for i in range(index, len(words)) if self._is_keyword(words[i]))
            self._around[start] = SEAM.join(
                (
                    *itertools.islice(left, self._rules.context_prefix_count + 1),
                    *itertools.islice(right, self._rules.context_suffix_count + 1),
                )
            )
        return self._around[start]

    @cached_property
    def _cut(self) -> tuple[list[int], list[str]]:
        text = self._text
        places = self._nlp.make_doc(text).to_array(["IDX", "LENGTH"]).tolist()
        ends = [start + length for start, length in places]
        return ends, [text[start : start + length].lower() for start, length in places]

    def _is_keyword(self, word: str) -> bool:
        if self._parts is not None:
            return word in self._parts
        return self._carries_meaning(word)

    def _carries_meaning(self, word: str) -> bool:
        lexeme = self._nlp.vocab[word]
        return not (lexeme.is_stop or lexeme.is_punct or word == "be")

    @cached_property
    def _parts(self) -> frozenset[str] | None:
        """All keywords, where a colon in one of the words makes its parts keywords too."""
        _, words = self._cut
        if not any(":" in word for word in words):
            return None
        kept = (word for word in words if self._carries_meaning(word))
        return frozenset(part for word in kept for part in word.split(":"))


def blank(language: str) -> Language:
    """A tokenizer of ``language``; the one for any language where spaCy has none that works here."""
    spacy: Any = lean_spacy()
    try:
        nlp: Language = spacy.blank(language)
    except ImportError:
        nlp = spacy.blank("xx")
    return nlp
