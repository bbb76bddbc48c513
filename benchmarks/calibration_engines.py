"""What ``benchmarks/calibration.py`` measures beside Redactory's engines: beams, and a span categorizer."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spacy.language import Language
from spacy.training import Example

from redactory.detectors.engine import EngineOutput, NonEntityScore
from redactory.detectors.settings import FitSettings, SpacySettings
from redactory.detectors.spacy_model import load_pipeline
from redactory.detectors.tagger.fitting import LabelledText, compute_rate_factor, randomize_case

SIZES = [1, 2, 3, 4, 5, 6]
SCORERS = {"spancat": "spacy.LinearLogistic.v1", "spancat_singlelabel": "Softmax.v2"}
Scores = NDArray[np.float32]


def as_they_are(scores: Scores) -> Scores:
    """What spaCy adds up along a parse: scores that no sum binds to one another."""
    return scores


def log_softmax(scores: Scores) -> Scores:
    """Logarithms of probabilities, whose sum along a parse is that of the parse."""
    shifted = scores - scores.max(axis=1, keepdims=True)
    logs: Scores = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logs


class BeamEngine:
    """P(plain) of a token: one less the share of the beam's parses, by their probability, that name it.

    ``beam_parse`` and ``scored_ents`` of spaCy, with a hook for the scores of the moves.
    """

    def __init__(self, settings: SpacySettings, width: int, weigh: Callable[[Scores], Scores]) -> None:
        self._nlp, self._width, self._weigh = load_pipeline(settings.model), width, weigh
        self._ner: Any = self._nlp.get_pipe("ner")
        self._before: list[Any] = [pipe for name, pipe in self._nlp.pipeline if name != "ner"]

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        """One reading a text, without spans."""
        readings = []
        with self._nlp.memory_zone():
            docs: Any = [self._nlp.make_doc(text) for text in texts]
            for pipe in self._before:
                docs = list(pipe.pipe(docs, batch_size=len(docs)))
            for doc, entities in zip(docs, self._ner.scored_ents(self._beams(docs)), strict=True):
                inside = np.zeros(len(doc))
                for (start, end, _), score in entities.items():
                    inside[start:end] += score
                plain = (NonEntityScore(t.idx, t.idx + len(t), 1 - inside[t.i], "beam") for t in doc if not t.is_space)
                readings.append(EngineOutput(non_entity_scores=tuple(plain)))
        return readings

    def _beams(self, docs: Any) -> list[Any]:
        from spacy.pipeline._parser_internals._beam_utils import BeamBatch  # type: ignore[import-not-found]

        moves = self._ner.moves
        beams = BeamBatch(moves, moves.init_batch(docs), None, self._width, density=0.0)
        step = self._ner.model.predict(docs)
        while not beams.is_done:
            states = beams.get_unfinished_states()
            if not states:
                break
            beams.advance(self._weigh(step.predict(states)))
        return list(beams)


class SpancatEngine:
    """P(plain) of a token: one less the summed scores of all spans over it, of which at most one is true."""

    def __init__(self, nlp: Language) -> None:
        self._nlp = nlp
        self._pipe: Any = nlp.get_pipe("spancat")

    def read(self, texts: Sequence[str]) -> list[EngineOutput]:
        """One reading a text, without spans."""
        readings = []
        with self._nlp.memory_zone():
            docs = [self._nlp.make_doc(text) for text in texts]
            spans, scores = self._pipe.predict(docs)
            # a softmax has the weight of "no span" in one more column
            score = scores[:, : len(self._pipe.labels)].sum(axis=1)
            bounds = np.cumsum(spans.lengths) - spans.lengths
            for doc, first, count in zip(docs, bounds, spans.lengths, strict=True):
                inside = np.zeros(len(doc))
                for (start, end), weight in zip(
                    *(a[first : first + count] for a in (spans.dataXd, score)), strict=True
                ):
                    inside[start:end] += weight
                tokens = ((t, max(0.0, 1 - float(inside[t.i]))) for t in doc if not t.is_space)
                readings.append(
                    EngineOutput(
                        non_entity_scores=tuple(NonEntityScore(t.idx, t.idx + len(t), p, "spancat") for t, p in tokens)
                    )
                )
        return readings


def train_spancat(factory: str, rows: Sequence[LabelledText], settings: FitSettings, tok2vec: Any) -> Language:
    """A pipeline with one span categorizer, with the tagger's embedding, steps, recasing and averaging.

    ``factory`` is one of :data:`SCORERS`.
    """
    import spacy
    from thinc.api import fix_random_seed

    fix_random_seed(settings.seed)
    nlp = spacy.blank(settings.language)
    model = {
        "@architectures": "spacy.SpanCategorizer.v1",
        "tok2vec": tok2vec,
        "reducer": {"@layers": "spacy.mean_max_reducer.v1", "hidden_size": 128},
        "scorer": {"@layers": SCORERS[factory]},
    }
    suggester = {"@misc": "spacy.ngram_suggester.v1", "sizes": SIZES}
    pipe: Any = nlp.add_pipe(factory, name="spancat", config={"model": model, "suggester": suggester})
    for label in sorted({label for row in rows for _, _, label in row.spans}):
        pipe.add_label(label)
    nlp.initialize(lambda: [_example(nlp, row) for row in rows[:100]])
    with _fast_products(pipe.model):
        optimizer = _optimizer(settings)
        steps = settings.epochs * max(1, sum(len(row.text) for row in rows) // (5 * settings.batch_words))
        for step, batch in enumerate(_batches(nlp, rows, settings)):
            optimizer.learn_rate = settings.learning_rate * compute_rate_factor(step / steps)
            pipe.update(batch, drop=settings.dropout, sgd=optimizer)
        with pipe.model.use_params(optimizer.averages):
            kept = pipe.model.to_bytes()
        pipe.model.from_bytes(kept)
    return nlp


@contextmanager
def _fast_products(model: Any) -> Iterator[None]:
    """The matrix product that the tagger is trained with; for reading, spaCy's own again."""
    from thinc.api import NumpyOps

    own = [(node, node.ops) for node in model.walk()]
    for node, _ in own:
        node.ops = NumpyOps(use_blis=False)
    yield
    for node, ops in own:
        node.ops = ops


def _optimizer(settings: FitSettings) -> Any:
    from thinc.api import Adam

    return Adam(settings.learning_rate, L2=0.01, grad_clip=1.0, use_averages=True, L2_is_weight_decay=True)


def _batches(nlp: Language, rows: Sequence[LabelledText], settings: FitSettings) -> Iterator[list[Example]]:
    draw = random.Random(settings.seed)
    order = list(range(len(rows)))
    for _ in range(settings.epochs):
        draw.shuffle(order)
        batch: list[Example] = []
        size = 0
        for number in order:
            batch.append(_example(nlp, randomize_case(rows[number], draw)))
            size += len(batch[-1].x)
            if size >= settings.batch_words:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch


def _example(nlp: Language, row: LabelledText) -> Example:
    predicted, reference = nlp.make_doc(row.text), nlp.make_doc(row.text)
    spans = [reference.char_span(s, e, label, alignment_mode="expand") for s, e, label in row.spans]
    reference.spans["sc"] = [span for span in spans if span is not None]
    return Example(predicted, reference)
