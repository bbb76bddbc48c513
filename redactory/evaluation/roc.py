"""How well scores tell two groups apart, at every threshold: ROC, area, true positives at few false ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.bootstrap import RESAMPLES
from redactory.foundation.stream import RandomStream

Scores = NDArray[np.float64]

FALSE_POSITIVE_RATES = (0.001, 0.01)
_MOST_POINTS = 400
_BLOCK = 100


def separation(
    positives: Scores, negatives: Scores, confidence: float = 0.95, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Any]:
    """Figures of scores [n] of ``positives`` and [m] of ``negatives``, the larger the likelier positive.

    Returns {auc, tpr: {"0.001": F, "0.01": F}, roc: [[false, true], ...]}, F = {value, low, high}: percentile
    intervals over ``resamples`` draws of both groups with replacement.  With m negatives no rate of false
    positives between 0 and 1/m can be told from 0: the true positives at it are those over every negative.
    """
    found = [area(positives, negatives)]
    found += [true_positives(positives, negatives, rate) for rate in FALSE_POSITIVE_RATES]
    drawn = _again(positives, negatives, RandomStream.from_seed(seed), resamples)
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(drawn, [tail, 100.0 - tail], axis=0)
    figures = [
        {"value": float(v), "low": float(least), "high": float(most)}
        for v, least, most in zip(found, low, high, strict=True)
    ]
    return {
        "auc": figures[0],
        "tpr": {f"{rate:g}": one for rate, one in zip(FALSE_POSITIVE_RATES, figures[1:], strict=True)},
        "roc": roc(positives, negatives),
    }


def area(positives: Scores, negatives: Scores) -> float:
    """The probability that a positive scores over a negative, equal scores counting half."""
    ordered = np.sort(negatives)
    below = np.searchsorted(ordered, positives, "left") + np.searchsorted(ordered, positives, "right")
    return float(below.mean() / (2 * len(negatives)))


def true_positives(positives: Scores, negatives: Scores, rate: float) -> float:
    """The share of positives over a threshold that at most ``rate`` of the negatives pass."""
    allowed = int(rate * len(negatives))
    threshold = np.sort(negatives)[::-1][allowed] if allowed < len(negatives) else -np.inf
    return float((positives > threshold).mean())


def roc(positives: Scores, negatives: Scores) -> list[list[float]]:
    """[share of negatives, share of positives] at or over every threshold, rising from [0, 0] to [1, 1].

    Of many points, those are kept that a curve over the logarithm of the first share needs.
    """
    thresholds = np.unique(np.concatenate([positives, negatives]))[::-1]
    ups, downs = np.sort(positives), np.sort(negatives)
    true = 1.0 - np.searchsorted(ups, thresholds, "left") / len(ups)
    false = 1.0 - np.searchsorted(downs, thresholds, "left") / len(downs)
    kept = _corners(false, true)
    return [[0.0, 0.0], *([float(false[i]), float(true[i])] for i in kept)]


def _corners(false: Scores, true: Scores) -> Sequence[int]:
    last = np.flatnonzero(np.diff(false, append=2.0) > 0)  # the highest point of each vertical step
    if len(last) <= _MOST_POINTS:
        return [int(i) for i in last]
    wanted = np.geomspace(1.0, len(last), _MOST_POINTS).astype(np.int64) - 1
    return [int(last[i]) for i in np.unique(wanted)]


def _again(positives: Scores, negatives: Scores, stream: RandomStream, resamples: int) -> Scores:
    """The area and the true positives of each draw of both groups with replacement: [resamples, 3]."""
    values, places = np.unique(np.concatenate([positives, negatives]), return_inverse=True)
    groups = places[: len(positives)], places[len(positives) :]
    figures = np.empty((resamples, 1 + len(FALSE_POSITIVE_RATES)))
    for first in range(0, resamples, _BLOCK):
        size = min(_BLOCK, resamples - first)
        ups, downs = (
            _counts(stream.uniform(f"group {kind}", first, size * len(group)), group, size, len(values))
            for kind, group in enumerate(groups)
        )
        under = downs.cumsum(1)
        figures[first : first + size, 0] = (ups * (under - downs / 2)).sum(1) / (
            len(positives) * len(negatives)
        )
        over = len(positives) - ups.cumsum(1)
        for number, rate in enumerate(FALSE_POSITIVE_RATES, 1):
            # the lowest value that few enough negatives are over
            place = (len(negatives) - under <= int(rate * len(negatives))).argmax(1)
            figures[first : first + size, number] = over[np.arange(size), place] / len(positives)
    return figures


def _counts(drawn: Scores, group: NDArray[np.int64], size: int, values: int) -> NDArray[np.int64]:
    """How often each value was drawn, of as many draws from ``group`` as it has members: [size, values]."""
    chosen = group[(drawn * len(group)).astype(np.int64)] + np.repeat(np.arange(size) * values, len(group))
    return np.bincount(chosen, minlength=size * values).reshape(size, values)
