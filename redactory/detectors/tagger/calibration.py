"""Calibration: one temperature for the softmax, so that a confidence is a frequency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.detectors.tagger.fitting import PLAIN, LabelledText, tags_of
from redactory.foundation.errors import InputError

if TYPE_CHECKING:
    from spacy.language import Language

BINS = 15
_LEAST, _MOST = 0.05, 20.0
UNKNOWN = -1
"""A label that no training row has: the temperature cannot be fitted on it, but it is not plain."""


@dataclass(frozen=True)
class Reliability:
    """P(plain) against how often a token of that confidence is plain, on rows never trained on.

    ``bins`` holds (mean confidence, share that is plain, tokens) of each of the bins that hold a token;
    ``error`` is the expected calibration error, before and after.
    """

    temperature: float
    error_before: float
    error: float
    bins: tuple[tuple[float, float, int], ...]
    tokens: int


def calibrate(nlp: Language, rows: Sequence[LabelledText]) -> Reliability:
    """Set the temperature that makes ``rows`` most likely (Guo et al. 2017), in the pipeline itself."""
    pipe: Any = nlp.get_pipe("tagger")
    softmax = pipe.model.get_ref("softmax")
    softmax.attrs["softmax_normalize"] = False
    try:
        logits, truth = _scored(nlp, pipe, rows)
    finally:
        softmax.attrs["softmax_normalize"] = True
    temperature, reliability = temperature_of(logits, truth, pipe.labels.index(PLAIN))
    softmax.attrs["softmax_temperature"] = temperature
    return reliability


def temperature_of(
    logits: NDArray[np.float64], truth: NDArray[np.int64], plain: int
) -> tuple[float, Reliability]:
    """The temperature that makes ``truth`` most likely, and what it does to the confidence in ``plain``.

    ``logits`` is (tokens, labels); ``truth`` holds each token's column, or ``UNKNOWN``; ``plain`` is the
    column of the tokens outside every span.  ``InputError`` where no token has a known label.
    """
    known = truth != UNKNOWN
    if not known.any():
        raise InputError("the rows kept for calibration have no token with a label that was trained on")
    temperature = _most_likely(logits[known], truth[known])
    is_plain = truth == plain
    before, _ = _reliability(np.exp(_log_softmax(logits, 1.0)[:, plain]), is_plain)
    after, bins = _reliability(np.exp(_log_softmax(logits, temperature)[:, plain]), is_plain)
    return temperature, Reliability(round(temperature, 4), before, after, bins, len(truth))


def _scored(
    nlp: Language, pipe: Any, rows: Sequence[LabelledText]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    number = {label: i for i, label in enumerate(pipe.labels)}
    logits, truth = [], []
    full = [row for row in rows if row.text]
    for start in range(0, len(full), 64):
        batch = full[start : start + 64]
        # the zone gives back what the string store learns: no word of the rows is written to disk
        with nlp.memory_zone():
            docs = [(nlp.make_doc(row.text), row.spans) for row in batch]
            for scores, (doc, spans) in zip(pipe.model.predict([d for d, _ in docs]), docs, strict=True):
                kept = [i for i, token in enumerate(doc) if not token.is_space]
                tags = tags_of(doc, spans)
                logits.append(scores[kept].astype(np.float64))
                truth += [number.get(tags[i], UNKNOWN) for i in kept]
    return np.concatenate(logits), np.array(truth)


def _most_likely(logits: NDArray[np.float64], truth: NDArray[np.int64]) -> float:
    """Golden-section search over log temperature; the likelihood has one peak.

    Each token counts as wrong with a weight of 1 / (tokens + 2), as in Platt scaling (Platt 1999): rows
    without an error would otherwise ask for a temperature of 0, and every confidence would be 1.
    """
    rows = np.arange(len(truth))
    wrong = 1 / (len(truth) + 2)
    others = max(1, logits.shape[1] - 1)

    def loss(log_temperature: float) -> float:
        logs = _log_softmax(logits, float(np.exp(log_temperature)))
        right = logs[rows, truth]
        return -float(np.mean((1 - wrong) * right + wrong * (logs.sum(axis=1) - right) / others))

    low, high = np.log(_LEAST), np.log(_MOST)
    ratio = (np.sqrt(5) - 1) / 2
    while high - low > 1e-4:
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if loss(left) < loss(right):
            high = right
        else:
            low = left
    return float(np.exp((low + high) / 2))


def _log_softmax(logits: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    scaled = logits / temperature
    scaled -= scaled.max(axis=1, keepdims=True)
    logs: NDArray[np.float64] = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
    return logs


def _reliability(
    confidence: NDArray[np.float64], is_plain: NDArray[np.bool_]
) -> tuple[float, tuple[tuple[float, float, int], ...]]:
    which = np.minimum((confidence * BINS).astype(int), BINS - 1)
    bins = []
    error = 0.0
    for number in range(BINS):
        inside = which == number
        count = int(inside.sum())
        if count:
            mean, share = float(confidence[inside].mean()), float(is_plain[inside].mean())
            bins.append((round(mean, 4), round(share, 4), count))
            error += abs(mean - share) * count / len(confidence)
    return round(error, 6), tuple(bins)
