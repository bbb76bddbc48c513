"""Train a tagger: a convolutional token classifier on labelled texts.

CRT, appendix A.4, replaces the last layer of an NER model and thresholds its scores. Here a small model is trained
whole, and its scores are calibrated afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from redactory.detectors.settings import FitSettings
from redactory.detectors.spacy_model import hide_unused_packages, import_lean_spacy
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.progress import Progress, ignore_progress

if TYPE_CHECKING:
    from spacy.language import Language
    from spacy.tokens import Doc


OUTSIDE_LABEL = "O"
_TARGET_STEPS, _MIN_BATCH_WORDS = 750, 300
"""Few rows are trained in smaller batches, of at least this many words, to reach this many steps."""


class LabelledText(NamedTuple):
    """A text and its true spans (start, end, label), in code points, end exclusive."""

    text: str
    spans: tuple[tuple[int, int, str], ...]


def train_tagger(
    rows: Sequence[LabelledText], settings: FitSettings, progress: Progress = ignore_progress, start: Path | None = None
) -> Language:
    """Train a spaCy pipeline with one ``tagger`` whose tags are the labels of ``rows`` and "O".

    With ``start``, the folder of another tagger, training begins with its weights, in the last layer with those of
    shared labels; this helps with a few hundred rows. ``ConfigurationError`` if its architecture differs.
    """
    with hide_unused_packages():
        from thinc.api import Adam, fix_random_seed

    fix_random_seed(settings.seed)
    rng = random.Random(settings.seed)
    labels = [OUTSIDE_LABEL, *sorted({label for row in rows for _, _, label in row.spans})]
    nlp = _create_pipeline(settings, labels)
    if start is not None:
        _copy_weights(nlp, start)
    model: Any = nlp.get_pipe("tagger").model  # type: ignore[attr-defined]
    optimizer: Any = Adam(settings.learning_rate, L2=0.01, grad_clip=1.0, use_averages=True, L2_is_weight_decay=True)
    order = list(range(len(rows)))
    words = settings.epochs * sum(len(row.text) for row in rows) // 5
    batch_words = min(settings.batch_words, max(_MIN_BATCH_WORDS, words // _TARGET_STEPS))
    steps = max(1, words // batch_words)
    step = 0
    for epoch in range(settings.epochs):
        rng.shuffle(order)
        recased = (randomize_case(rows[i], settings, rng) for i in order)
        with nlp.memory_zone():
            for batch in _iter_batches(nlp, recased, batch_words):
                optimizer.learn_rate = settings.learning_rate * compute_rate_factor(step / steps)
                _run_train_step(model, optimizer, batch, labels, settings.dropout)
                step += 1
        progress("fit", epoch + 1, settings.epochs, "epochs")
    if optimizer.averages:
        with model.use_params(optimizer.averages):
            # leaving the context restores the last parameters: copy through bytes
            averaged = model.to_bytes()
        model.from_bytes(averaged)
    return nlp


def _create_pipeline(settings: FitSettings, labels: Sequence[str]) -> Language:
    from thinc.api import NumpyOps

    nlp: Language = import_lean_spacy().blank(settings.language)
    embed = {
        "@architectures": "spacy.MultiHashEmbed.v2",
        "width": settings.width,
        "attrs": ["NORM", "PREFIX", "SUFFIX", "SHAPE"],
        "rows": list(settings.table_rows),
        "include_static_vectors": False,
    }
    encode = {
        "@architectures": "spacy.MaxoutWindowEncoder.v2",
        "width": settings.width,
        "depth": settings.depth,
        "window_size": 1,
        "maxout_pieces": 3,
    }
    tok2vec = {"@architectures": "spacy.Tok2Vec.v2", "embed": embed, "encode": encode}
    model = {"@architectures": "spacy.Tagger.v2", "tok2vec": tok2vec, "normalize": True}
    pipe: Any = nlp.add_pipe("tagger", config={"model": model})
    for label in labels:
        pipe.add_label(label)
    nlp.initialize(lambda: [_make_example(nlp, labels)])
    # training may use a faster matrix product than inference, where rows must not depend on the batch
    for node in pipe.model.walk():
        if isinstance(node.ops, NumpyOps):
            node.ops = NumpyOps(use_blis=False)
    return nlp


def _copy_weights(nlp: Language, start: Path) -> None:
    source: Any = import_lean_spacy().load(start).get_pipe("tagger")
    target: Any = nlp.get_pipe("tagger")
    try:
        target.model.get_ref("tok2vec").from_bytes(source.model.get_ref("tok2vec").to_bytes())
    except ValueError:
        raise ConfigurationError(
            f"start: {start.name} has a different width, depth or table_rows than the tagger to be fitted; "
            "use those in its fit.json, or set start to null"
        ) from None
    places = [
        (number, source.labels.index(label)) for number, label in enumerate(target.labels) if label in source.labels
    ]
    old, new = (pipe.model.get_ref("softmax") for pipe in (source, target))
    for name in ("W", "b"):
        values = new.get_param(name).copy()
        for number, place in places:
            values[number] = old.get_param(name)[place]
        new.set_param(name, values)


def _make_example(nlp: Language, labels: Sequence[str]) -> Any:
    from spacy.tokens import Doc as SpacyDoc
    from spacy.training import Example

    words = [f"word{number}" for number in range(len(labels))]
    return Example(SpacyDoc(nlp.vocab, words), SpacyDoc(nlp.vocab, words, tags=list(labels)))


def compute_rate_factor(share: float) -> float:
    """Warm up over the first twentieth, then decay linearly to zero."""
    return min(1.0, share * 20) * max(0.0, 1.0 - share) + 1e-3


def randomize_case(row: LabelledText, settings: FitSettings, rng: random.Random) -> LabelledText:
    """Return ``row`` in lower case, in capitals or unchanged, at random; its spans keep their offsets."""
    chance = rng.random()
    if chance < settings.lower:
        text = row.text.lower()
    elif chance < settings.lower + settings.upper:
        text = row.text.upper()
    else:
        return row
    return LabelledText(text, row.spans) if len(text) == len(row.text) else row


def _iter_batches(nlp: Language, rows: Iterator[LabelledText], words: int) -> Iterator[list[tuple[Doc, list[str]]]]:
    batch: list[tuple[Doc, list[str]]] = []
    size = 0
    for row in rows:
        doc = nlp.make_doc(row.text)
        if not len(doc):
            continue
        batch.append((doc, tag_tokens(doc, row.spans)))
        size += len(doc)
        if size >= words:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def tag_tokens(doc: Doc, spans: Sequence[tuple[int, int, str]]) -> list[str]:
    """Return one tag per token: the label of an overlapping span, or "O"."""
    tags = [OUTSIDE_LABEL] * len(doc)
    for start, end, label in spans:
        for token in doc:
            if token.idx < end and token.idx + len(token) > start and not token.is_space:
                tags[token.i] = label
    return tags


def _run_train_step(
    model: Any, optimizer: Any, batch: list[tuple[Doc, list[str]]], labels: Sequence[str], dropout: float
) -> None:
    from thinc.api import set_dropout_rate

    set_dropout_rate(model, dropout)
    number = {label: i for i, label in enumerate(labels)}
    truth = [number[tag] for _, tags in batch for tag in tags]
    scores, backprop = model.begin_update([doc for doc, _ in batch])
    # gradient of the mean cross-entropy by the logits: probabilities minus one at the truth
    gradient = model.ops.flatten(scores)
    gradient[model.ops.xp.arange(len(truth)), model.ops.asarray(truth, dtype="int64")] -= 1.0
    backprop(model.ops.unflatten(gradient / len(truth), [len(doc) for doc, _ in batch]))
    model.finish_update(optimizer)


# Calibration: one temperature for the softmax, so that probabilities match frequencies.


BINS = 15
_TEMPERATURE_RANGE = 0.05, 20.0
UNKNOWN_LABEL = -1
"""A label that no training row has: ignored when fitting the temperature, but not a non-entity."""
ScoredTokens = tuple[NDArray[np.float64], NDArray[np.int64]]
"""Logits [tokens, labels], and each token's true column or ``UNKNOWN_LABEL``."""


@dataclass(frozen=True)
class Reliability:
    """P(non-entity) against the observed frequency of non-entity tokens, on held-out rows.

    ``bins`` holds (mean probability, non-entity share, tokens) of each non-empty bin; ``error_before`` and ``error``
    are the expected calibration errors before and after. Neither the weights nor the ``temperature`` saw the rows: on
    rows that it was fitted on, a bad temperature would look good.
    """

    temperature: float
    error_before: float
    error: float
    bins: tuple[tuple[float, float, int], ...]
    tokens: int


def calibrate_tagger(nlp: Language, rows: Sequence[LabelledText], held_out: Sequence[LabelledText]) -> Reliability:
    """Fit the temperature on ``rows`` (Guo et al. 2017), and store it in the pipeline.

    Reliability is measured on ``held_out``, which neither weights nor temperature saw.
    """
    pipe: Any = nlp.get_pipe("tagger")
    softmax = pipe.model.get_ref("softmax")
    softmax.attrs["softmax_normalize"] = False
    try:
        calibration, evaluation = _score_rows(nlp, pipe, rows), _score_rows(nlp, pipe, held_out)
    finally:
        softmax.attrs["softmax_normalize"] = True
    temperature, reliability = fit_temperature(calibration, evaluation, pipe.labels.index(OUTSIDE_LABEL))
    softmax.attrs["softmax_temperature"] = temperature
    return reliability


def fit_temperature(
    calibration: ScoredTokens, evaluation: ScoredTokens, outside_column: int
) -> tuple[float, Reliability]:
    """Fit the temperature on ``calibration``, and measure its effect on P(non-entity) in ``evaluation``.

    ``outside_column`` is the column of tokens outside every span. ``InputError`` if no token of ``calibration`` has a
    known label.
    """
    from scipy.special import softmax

    is_known = calibration[1] != UNKNOWN_LABEL
    if not is_known.any():
        raise InputError("the calibration rows have no token with a label that was trained on")
    temperature = _optimize_temperature(calibration[0][is_known], calibration[1][is_known])
    logits, truth = evaluation
    (before, _), (after, bins) = (
        _compute_reliability(softmax(logits / by, axis=1)[:, outside_column], truth == outside_column)
        for by in (1.0, temperature)
    )
    return temperature, Reliability(round(temperature, 4), before, after, bins, len(truth))


def _score_rows(nlp: Language, pipe: Any, rows: Sequence[LabelledText]) -> ScoredTokens:
    number = {label: i for i, label in enumerate(pipe.labels)}
    logits, truth = [], []
    full = [row for row in rows if row.text]
    for start in range(0, len(full), 64):
        batch = full[start : start + 64]
        # the zone clears the string store: no word of the rows is written to disk
        with nlp.memory_zone():
            docs = [(nlp.make_doc(row.text), row.spans) for row in batch]
            for scores, (doc, spans) in zip(pipe.model.predict([d for d, _ in docs]), docs, strict=True):
                positions = [i for i, token in enumerate(doc) if not token.is_space]
                tags = tag_tokens(doc, spans)
                logits.append(scores[positions].astype(np.float64))
                truth += [number.get(tags[i], UNKNOWN_LABEL) for i in positions]
    return np.concatenate(logits), np.array(truth)


def _optimize_temperature(logits: NDArray[np.float64], truth: NDArray[np.int64]) -> float:
    """Return the maximum-likelihood temperature; the likelihood has one peak over its logarithm.

    Each token counts as wrong with a weight of 1 / (tokens + 2), as in Platt scaling (Platt 1999): rows without an
    error would otherwise give a temperature of 0, and every probability would be 1.
    """
    # imported on first use: scipy takes a fifth of a second
    from scipy.optimize import minimize_scalar
    from scipy.special import log_softmax

    rows = np.arange(len(truth))
    wrong = 1 / (len(truth) + 2)
    others = max(1, logits.shape[1] - 1)

    def compute_loss(log_temperature: float) -> float:
        logs = log_softmax(logits / np.exp(log_temperature), axis=1)
        right = logs[rows, truth]
        return -float(np.mean((1 - wrong) * right + wrong * (logs.sum(axis=1) - right) / others))

    result = minimize_scalar(compute_loss, bounds=np.log(_TEMPERATURE_RANGE), method="bounded", options={"xatol": 1e-4})
    return float(np.exp(result.x))


def _compute_reliability(
    confidence: NDArray[np.float64], is_non_entity: NDArray[np.bool_]
) -> tuple[float, tuple[tuple[float, float, int], ...]]:
    bin_indices = np.minimum((confidence * BINS).astype(int), BINS - 1)
    bins = []
    error = 0.0
    for number in range(BINS):
        in_bin = bin_indices == number
        count = int(in_bin.sum())
        if count:
            mean, share = float(confidence[in_bin].mean()), float(is_non_entity[in_bin].mean())
            bins.append((round(mean, 4), round(share, 4), count))
            error += abs(mean - share) * count / len(confidence)
    return round(error, 6), tuple(bins)
