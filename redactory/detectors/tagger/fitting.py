"""Fit the tagger to labelled texts: a new head on the pretrained encoder, which stays as it is.

CRT, appendix A.4, replaces the last layer of an NER model and thresholds its scores. So does this; the scores are
calibrated afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from redactory.detectors.settings import FitSettings
from redactory.detectors.spacy_model import enter_memory_zone
from redactory.detectors.tagger.head import FACTORY, OUTSIDE_LABEL, Head, import_tagger_spacy, load_head
from redactory.encoder import load_encoder
from redactory.foundation.errors import InputError
from redactory.foundation.progress import Progress, ignore_progress

if TYPE_CHECKING:
    from spacy.language import Language

LOWER_CASE_SHARE, UPPER_CASE_SHARE = 0.15, 0.05
"""Shares of the texts presented in lower case and in capitals."""
_BATCH_PIECES = 128
_NEW_LABEL_BIAS = -4.0
"""The first logit of a label that the initial head does not have."""


class LabelledText(NamedTuple):
    """A text and its true spans (start, end, label), in code points, end exclusive."""

    text: str
    spans: tuple[tuple[int, int, str], ...]


def train_tagger(
    rows: Sequence[LabelledText], settings: FitSettings, progress: Progress = ignore_progress, start: Path | None = None
) -> Language:
    """Fit a head with the labels of ``rows`` and "O", and return a pipeline with the component.

    With ``start``, the folder of another tagger, fitting begins with its head, for the labels that both have, and stays
    near it: a few hundred rows suffice.
    """
    labels = (OUTSIDE_LABEL, *sorted({label for row in rows for _, _, label in row.spans}))
    rng = random.Random(settings.seed)
    vectors, truth = encode_pieces([randomize_case(row, rng) for row in rows], labels)
    nlp: Language = import_tagger_spacy().blank("xx")
    component: Any = nlp.add_pipe(FACTORY)
    component.head = _minimize_loss(vectors, truth, _make_initial_head(labels, start), settings, progress)
    return nlp


def encode_pieces(rows: Sequence[LabelledText], labels: Sequence[str]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the vectors of all pieces [n, width], and the column of each one's label, or ``UNKNOWN_LABEL``."""
    encoder, columns = load_encoder(), {label: number for number, label in enumerate(labels)}
    vectors, truth = [], []
    for row in rows:
        encoded = encoder.encode(row.text)
        vectors.append(encoded.vectors)
        truth.append(_label_ranges(encoded.ranges, row.spans, columns))
    return np.concatenate(vectors), np.concatenate(truth)


def _label_ranges(
    ranges: NDArray[np.int64], spans: Sequence[tuple[int, int, str]], columns: Mapping[str, int]
) -> NDArray[np.int64]:
    truth = np.zeros(len(ranges), np.int64)
    for start, end, label in spans:
        truth[(ranges[:, 0] < end) & (ranges[:, 1] > start)] = columns.get(label, UNKNOWN_LABEL)
    return truth


def _make_initial_head(labels: tuple[str, ...], start: Path | None) -> Head:
    weights = np.zeros((len(labels), load_encoder().width), np.float32)
    bias = np.full(len(labels), _NEW_LABEL_BIAS, np.float32)
    if start is None:
        return Head(labels, weights, np.zeros(len(labels), np.float32))
    source = load_head(start)
    for number, label in enumerate(labels):
        if label in source.labels:
            column = source.labels.index(label)
            weights[number], bias[number] = source.weights[column], source.bias[column]
    return Head(labels, weights, bias)


def _minimize_loss(
    vectors: NDArray[np.float32], truth: NDArray[np.int64], initial: Head, settings: FitSettings, progress: Progress
) -> Head:
    """Minimise the mean cross-entropy with Adam (Kingma and Ba 2015); ``weight_decay`` pulls toward ``initial``."""
    order = np.random.default_rng(settings.seed)
    head = Head(initial.labels, initial.weights.copy(), initial.bias.copy())
    moments = [(np.zeros_like(values), np.zeros_like(values)) for values in head[1:]]
    batches = max(1, -(-len(truth) // _BATCH_PIECES))
    step, steps = 0, settings.epochs * batches
    for epoch in range(settings.epochs):
        for batch in np.array_split(order.permutation(len(truth)), batches):
            step += 1
            residual = head.compute_probabilities(vectors[batch])
            residual[np.arange(len(batch)), truth[batch]] -= 1
            residual /= len(batch)
            gradients = (residual.T @ vectors[batch], residual.sum(axis=0))
            rate = settings.learning_rate * compute_rate_factor(step / steps)
            for values, first, gradient, (mean, square) in zip(head[1:], initial[1:], gradients, moments, strict=True):
                mean += 0.1 * (gradient - mean)
                square += 0.001 * (gradient**2 - square)
                change = mean / (1 - 0.9**step) / (np.sqrt(square / (1 - 0.999**step)) + 1e-8)
                values -= rate * (change + settings.weight_decay * (values - first))
        progress("fit", epoch + 1, settings.epochs, "epochs")
    return head


def compute_rate_factor(share: float) -> float:
    """Warm up over the first twentieth, then decay linearly to zero."""
    return min(1.0, share * 20) * max(0.0, 1.0 - share) + 1e-3


def randomize_case(row: LabelledText, rng: random.Random) -> LabelledText:
    """Return ``row`` in lower case, in capitals or unchanged, at random; its spans keep their offsets."""
    chance = rng.random()
    if chance < LOWER_CASE_SHARE:
        text = row.text.lower()
    elif chance < LOWER_CASE_SHARE + UPPER_CASE_SHARE:
        text = row.text.upper()
    else:
        return row
    return LabelledText(text, row.spans) if len(text) == len(row.text) else row


# Calibration: one temperature for the softmax, so that probabilities match frequencies.


BINS = 15
_TEMPERATURE_RANGE = 0.05, 20.0
_LEAST_PROBABILITY = 1e-30
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
    """Fit the temperature on ``rows`` (Guo et al. 2017), and divide the head's logits by it.

    Reliability is measured on ``held_out``, which neither weights nor temperature saw.
    """
    component: Any = nlp.get_pipe(FACTORY)
    head: Head = component.head
    calibration, evaluation = _score_tokens(nlp, rows), _score_tokens(nlp, held_out)
    temperature, reliability = fit_temperature(calibration, evaluation, head.labels.index(OUTSIDE_LABEL))
    component.head = Head(head.labels, head.weights / np.float32(temperature), head.bias / np.float32(temperature))
    return reliability


def _score_tokens(nlp: Language, rows: Sequence[LabelledText]) -> ScoredTokens:
    """Score the tokens that the engine scores; those that the encoder cannot read have no confidence to calibrate."""
    component: Any = nlp.get_pipe(FACTORY)
    columns = {label: number for number, label in enumerate(component.head.labels)}
    logits, truth = [], []
    with enter_memory_zone(nlp):
        docs = [nlp.make_doc(row.text) for row in rows]
        for row, doc, scores in zip(rows, docs, component.predict(docs), strict=True):
            ranges = np.array([(token.idx, token.idx + len(token)) for token in doc], np.int64).reshape(-1, 2)
            is_read = np.array([not token.is_space for token in doc], bool) & (scores[:, 0] > 0)
            logits.append(np.log(np.maximum(scores[is_read], _LEAST_PROBABILITY)).astype(np.float64))
            truth.append(_label_ranges(ranges[is_read], row.spans, columns))
    return np.concatenate(logits), np.concatenate(truth)


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
    bins, error = [], 0.0
    for number in np.unique(bin_indices):
        in_bin = bin_indices == number
        count = int(in_bin.sum())
        mean, share = float(confidence[in_bin].mean()), float(is_non_entity[in_bin].mean())
        bins.append((round(mean, 4), round(share, 4), count))
        error += abs(mean - share) * count / len(confidence)
    return round(error, 6), tuple(bins)
