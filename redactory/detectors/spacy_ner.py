"""spaCy's transition NER, decoded in our own loop for its per-token probabilities.

``nlp.pipe`` throws the scores of each transition away; stepping through the states ourselves costs the
same and keeps P(plain), the softmax weight of the "outside" move, for every token.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from redactory.detectors.engine import Finds, Plain, Reading, Span
from redactory.detectors.settings import KNOWN_LABELS, SpacySettings
from redactory.detectors.spacy_model import identify, load_pipeline, meta_of, versions
from redactory.foundation.errors import ConfigurationError

if TYPE_CHECKING:
    from spacy.tokens import Doc

NAME = "spacy"


class SpacyEngine:
    """Entities and plain-confidence of texts, one NLP pass each.

    An entity is scored by the mean of 1 - P(plain) over its tokens.  The scores of a text do not depend
    on its batch.
    """

    def __init__(self, settings: SpacySettings, language: str) -> None:
        self.nlp = load_pipeline(settings.model)
        self._before: list[Any] = []
        self._ner: Any = None
        for name, pipe in self.nlp.pipeline:
            if name == "ner":
                self._ner = pipe
            else:
                self._before.append(pipe)
        if self._ner is not None and not hasattr(self._ner, "transition_states"):
            raise ConfigurationError(
                "detect.spacy.model: its 'ner' pipe is not a transition-based recognizer"
            )

    @classmethod
    def identity(cls, settings: SpacySettings, language: str) -> dict[str, Any]:
        """The pipeline's name, version and the sha256 over its files."""
        return {**identify(settings.model), "versions": versions("spacy", "thinc", "blis", "numpy")}

    @classmethod
    def finds(cls, settings: SpacySettings, language: str) -> list[Finds]:
        """The pipeline's labels, and the language that it says it is for."""
        meta = meta_of(settings.model)
        labels = frozenset(meta.get("labels", {}).get("ner", ()))
        return [Finds(f"spaCy {settings.model}", labels, meta.get("lang"), labels - KNOWN_LABELS)]

    def read(self, texts: Sequence[str]) -> list[Reading]:
        """One reading a text; all documents of the batch are held until it is done."""
        if self._ner is None:
            return [Reading() for _ in texts]
        # the zone gives back what the string store learns from these texts: memory stays flat
        zone = getattr(self.nlp, "memory_zone", nullcontext)
        with zone():
            docs = [self.nlp.make_doc(text) for text in texts]
            for pipe in self._before:
                docs = list(pipe.pipe(docs, batch_size=len(docs)))
            scored = zip(docs, self._decode(docs), strict=True)
            return [Reading(tuple(_spans(d, outside)), tuple(_plain(d, outside))) for d, outside in scored]

    def _decode(self, docs: list[Doc]) -> list[list[float]]:
        """Annotate ``docs`` with their entities; P(plain) of each token of each."""
        ner, moves = self._ner, self._ner.moves
        # moves without a name stand before the named ones in the scores
        outside_move = ner.move_names.index("O") + moves.n_moves - len(ner.move_names)
        step = ner.model.predict(docs)
        states = moves.init_batch(docs)
        outside: list[list[float]] = [[] for _ in docs]
        open_ = [i for i, state in enumerate(states) if not state.is_final()]
        while open_:
            batch = [states[i] for i in open_]
            scores = step.predict(batch)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            probability = weights[:, outside_move] / weights.sum(axis=1)
            for i, value in zip(open_, probability.tolist(), strict=True):
                outside[i].append(value)
            ner.transition_states(batch, scores)
            open_ = [i for i in open_ if not states[i].is_final()]
        ner.set_annotations(docs, states)
        return outside


def _spans(doc: Doc, outside: list[float]) -> Iterator[Span]:
    for entity in doc.ents:
        score = 1.0 - sum(outside[entity.start : entity.end]) / len(entity)
        # an entity may begin or end in white space; a mask over it says nothing
        text = entity.text
        start = entity.start_char + len(text) - len(text.lstrip())
        end = entity.end_char - (len(text) - len(text.rstrip()))
        if start < end:
            yield Span(start, end, entity.label_, round(score, 6), NAME)


def _plain(doc: Doc, outside: list[float]) -> Iterator[Plain]:
    for token, value in zip(doc, outside, strict=True):
        if not token.is_space:
            yield Plain(token.idx, token.idx + len(token), value, NAME)
