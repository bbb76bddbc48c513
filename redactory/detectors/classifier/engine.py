"""Hugging Face token classification: entities and plain-confidence by the softmax of its labels."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

from redactory.detectors.classifier.model import Piece, TokenClassifier, kinds_in
from redactory.detectors.engine import ENGINE_ERROR, MISALIGNED, Finds, Plain, Reading
from redactory.detectors.settings import KNOWN_LABELS, TransformersSettings
from redactory.detectors.span import Span
from redactory.detectors.torch_reading import closed_reading, folder_identity
from redactory.foundation.errors import ConfigurationError

NAME = "transformers"
_ENTITY_BELOW = 0.5


class TransformersEngine:
    """Entities of a token classifier and P(plain) of each word.

    A word takes over its most suspicious piece: its P(plain), and its likeliest type of entity (labels
    without their B-, I-, L-, U-, S- and E-, their probabilities added up).  It is part of an entity where
    P(plain) is below one half, so whatever the best label alone would find is found too.  Neighbouring
    words of one type are one span, scored by the mean of 1 - P(plain).  Long texts are read in windows.
    """

    def __init__(self, settings: TransformersSettings, language: str) -> None:
        self._model = TokenClassifier(settings)
        # as long as a window, so that a limit of the model that it does not tell is met here
        for probe in ("Anna lives here", "a " * self._model.window):
            if self.read([probe])[0].failure:
                raise ConfigurationError("detect.transformers.folder: the model cannot read plain words")

    @classmethod
    def identity(cls, settings: TransformersSettings, language: str) -> dict[str, Any]:
        """Content of the folder and versions of what reads it."""
        readers = ("transformers", "tokenizers", "torch", "numpy")
        return folder_identity("detect.transformers.folder", settings.folder, "config.json", *readers)

    @classmethod
    def finds(cls, settings: TransformersSettings, language: str) -> list[Finds]:
        """The model's labels; for which language it was made, its folder does not say."""
        kinds = frozenset(kinds_in(settings))
        return [Finds(f"transformers {settings.folder}", kinds, None, kinds - KNOWN_LABELS)]

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """One reading a text, each a function of that text alone."""
        with closed_reading():
            return [self._read(text) for text in texts]

    def _read(self, text: str) -> Reading:
        if not text.strip():
            return Reading()
        try:
            pieces = self._model.pieces(text)
        except Exception:
            # whatever its message quotes, it ends here
            return Reading(failure=ENGINE_ERROR)
        if not covered(text, pieces):
            return Reading(failure=MISALIGNED)
        words = list(words_of(text, pieces))
        return Reading(tuple(_spans(words)), tuple(Plain(w.start, w.end, w.plain, NAME) for w in words))


def covered(text: str, pieces: Sequence[Piece]) -> bool:
    """Whether every character of ``text`` but white space lies in a piece.

    Some tokenizers drop characters, control characters say; the model has then not seen all of the text.
    ``pieces`` are in order of their places.
    """
    reached = 0
    for piece in pieces:
        if text[reached : piece.start].strip():
            return False
        reached = max(reached, piece.end)
    return not text[reached:].strip()


def words_of(text: str, pieces: Sequence[Piece]) -> Iterator[Piece]:
    """Pieces joined where they overlap or meet inside a word; each word keeps its least P(plain)."""
    word: Piece | None = None
    for piece in pieces:
        if word is None:
            word = piece
        elif piece.start < word.end or (piece.start == word.end and _inside_word(text, word.end)):
            worst = min(word, piece, key=lambda part: part.plain)
            word = Piece(word.start, max(word.end, piece.end), worst.plain, worst.kind)
        else:
            yield word
            word = piece
    if word is not None:
        yield word


def _inside_word(text: str, place: int) -> bool:
    """Whether letters, marks or numbers stand on both sides of ``place``."""
    return all(unicodedata.category(character)[0] in "LMN" for character in text[place - 1 : place + 1])


def _spans(words: Sequence[Piece]) -> Iterator[Span]:
    for kind, run in itertools.groupby(words, key=lambda w: w.kind if w.plain < _ENTITY_BELOW else None):
        if kind is not None:
            parts = list(run)
            score = 1.0 - sum(word.plain for word in parts) / len(parts)
            yield Span(parts[0].start, parts[-1].end, kind, round(score, 6), NAME)
