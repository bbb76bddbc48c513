"""Decode spaCy's transition NER step by step, to keep the probabilities per token; also parts of speech.

``nlp.pipe`` discards the scores of transitions. Stepping through the states costs the same and keeps P(non-entity), the
softmax weight of the "outside" move, for every token.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from redactory.detectors.engine import Capability, EngineOutput, NonEntityScore, Span, find_public_spans, trim_range
from redactory.detectors.settings import KNOWN_LABELS, SpacySettings, get_kind
from redactory.detectors.spacy_model import (
    SPEECH_PIPES,
    enter_memory_zone,
    get_package_versions,
    identify_model,
    load_pipeline,
    read_model_meta,
)
from redactory.foundation.errors import ConfigurationError

if TYPE_CHECKING:
    from spacy.tokens import Doc

NAME = "spacy"


class SpacyEngine:
    """Entities of texts and P(non-entity) of each token, in one NLP pass.

    An entity is scored by the mean of 1 - P(non-entity) over its tokens, a word of a requested part of speech by 1.
    Scores do not depend on the batch. ``ConfigurationError`` for an unavailable pipeline, or one without requested
    parts of speech.
    """

    def __init__(self, settings: SpacySettings, language: str) -> None:
        self._parts_of_speech: frozenset[str] = frozenset(settings.parts_of_speech)
        self.nlp = load_pipeline(settings.model, bool(self._parts_of_speech))
        if self._parts_of_speech and not {"morphologizer", "attribute_ruler"} & {*self.nlp.pipe_names}:
            raise ConfigurationError(
                f"detect.spacy.parts_of_speech: the pipeline '{settings.model}' does not provide them"
            )
        self._public_columns: dict[str, list[int]] = {}
        pipes: dict[str, Any] = dict(self.nlp.pipeline)
        self._ner = pipes.pop("ner", None)
        self._pipes_before_ner = [pipe for name, pipe in pipes.items() if name not in SPEECH_PIPES]
        # after the entities, which are then the same with and without parts of speech
        self._pipes_after_ner = [pipe for name, pipe in pipes.items() if name in SPEECH_PIPES]
        if self._ner is not None and not hasattr(self._ner, "transition_states"):
            raise ConfigurationError("detect.spacy.model: its 'ner' pipe is not a transition-based recognizer")

    def treat_as_public(self, kinds: Collection[str]) -> None:
        """Count tokens of ``kinds`` as non-entity tokens."""
        self._parts_of_speech -= frozenset(kinds)
        for move in self._ner.move_names if self._ner is not None else ():
            label = move.partition("-")[2]
            if label and get_kind(label) in kinds:
                self._public_columns.setdefault(label, []).append(self._get_score_column(move))

    def _get_score_column(self, move: str) -> int:
        """Return the score column; unnamed moves come before named ones."""
        names = self._ner.move_names
        return int(names.index(move) + self._ner.moves.n_moves - len(names))

    @classmethod
    def collect_fingerprint(cls, settings: SpacySettings, language: str) -> dict[str, Any]:
        """Return the pipeline's name, version and sha256 of its files; also the requested parts of speech."""
        parts = {"parts_of_speech": sorted(settings.parts_of_speech)} if settings.parts_of_speech else {}
        return {
            **identify_model(settings.model),
            "versions": get_package_versions("spacy", "thinc", "blis", "numpy"),
            **parts,
        }

    @classmethod
    def list_capabilities(cls, settings: SpacySettings, language: str) -> list[Capability]:
        """Return the pipeline's labels and its declared language."""
        meta = read_model_meta(settings.model)
        labels = frozenset(meta.get("labels", {}).get("ner", ())) | {*settings.parts_of_speech}
        return [Capability(f"spaCy {settings.model}", labels, meta.get("lang"), labels - KNOWN_LABELS)]

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        """Return one output per text; hold all documents of the batch until it is done."""
        if not self.nlp.pipeline:
            return [EngineOutput() for _ in texts]
        with enter_memory_zone(self.nlp):
            docs = [self.nlp.make_doc(text) for text in texts]
            for pipe in self._pipes_before_ner:
                docs = list(pipe.pipe(docs, batch_size=len(docs)))
            probabilities = self._decode_entities(docs) if self._ner is not None else [None] * len(docs)
            for pipe in self._pipes_after_ner:
                docs = list(pipe.pipe(docs, batch_size=len(docs)))
            return [
                self._build_output(doc, token_probabilities)
                for doc, token_probabilities in zip(docs, probabilities, strict=True)
            ]

    def _build_output(self, doc: Doc, probabilities: list[list[float]] | None) -> EngineOutput:
        """Build the output of one document; ``probabilities`` are P(non-entity) and P(public label), by token.

        None for a pipeline without entities, which counts no token as a non-entity.
        """
        words = tuple(
            Span(token.idx, token.idx + len(token), token.pos_, 1.0, NAME)
            for token in doc
            if token.pos_ in self._parts_of_speech
        )
        if probabilities is None:
            return EngineOutput(words)
        non_entity = [min(sum(values), 1.0) for values in probabilities]
        tokens = [
            NonEntityScore(token.idx, token.idx + len(token), value, NAME)
            for token, value in zip(doc, non_entity, strict=True)
            if not token.is_space
        ]
        spans = [span for span in _iter_entity_spans(doc, non_entity) if span.label not in self._public_columns]
        if self._public_columns:
            labels = list(self._public_columns)
            values = [row for token, (_, *row) in zip(doc, probabilities, strict=True) if not token.is_space]
            spans += find_public_spans(
                (token, sum(row), labels[row.index(max(row))]) for token, row in zip(tokens, values, strict=True)
            )
        return EngineOutput((*spans, *words), tuple(tokens))

    def _decode_entities(self, docs: list[Doc]) -> list[list[list[float]]]:
        """Annotate ``docs`` with entities; return P(non-entity) and P(public label) of each token."""
        ner, moves = self._ner, self._ner.moves
        columns = [[self._get_score_column("O")], *self._public_columns.values()]
        step = ner.model.predict(docs)
        states = moves.init_batch(docs)
        results: list[list[list[float]]] = [[] for _ in docs]
        open_ = [i for i, state in enumerate(states) if not state.is_final()]
        while open_:
            batch = [states[i] for i in open_]
            scores = step.predict(batch)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            total = weights.sum(axis=1)
            probability = [weights[:, column].sum(axis=1) / total for column in columns]
            for i, values in zip(open_, np.stack(probability, axis=1).tolist(), strict=True):
                results[i].append(values)
            ner.transition_states(batch, scores)
            open_ = [i for i in open_ if not states[i].is_final()]
        ner.set_annotations(docs, states)
        return results


def _iter_entity_spans(doc: Doc, non_entity: list[float]) -> Iterator[Span]:
    text = doc.text
    for entity in doc.ents:
        score = 1.0 - sum(non_entity[entity.start : entity.end]) / len(entity)
        # an entity may begin or end in white space, which needs no mask
        start, end = trim_range(text, entity.start_char, entity.end_char)
        if start < end:
            yield Span(start, end, entity.label_, round(score, 6), NAME)
