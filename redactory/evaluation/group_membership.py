"""Group membership inference (CRT, appendix A.5): twenty sentences together, by the sum of perplexities."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.roc import area
from redactory.evaluation.threshold import Halves, best_threshold
from redactory.foundation.stream import RandomStream

Scores = NDArray[np.float64]

_RESAMPLES = 200


def group_attack(
    perplexities: Scores, halves: Halves, groups: int, size: int, confidence: float, seed: int
) -> dict[str, Any]:
    """Tell ``groups`` groups of ``size`` members from as many of others, in each half of the sentences.

    A group is drawn, with replacement, from the sentences of one half, so that none is in a group that
    chooses the threshold and in one that is scored.  Groups share sentences and are not independent: the
    intervals are percentiles over draws of the sentences themselves, and of groups from each draw.

    Returns {accuracy, auc, scored, groups, group_size, sentences}: of the half that is scored.
    """
    draws = _Draws(RandomStream.from_seed(seed), groups, size)
    threshold = best_threshold(*(-draws.sums("chosen", s) for s in halves.split(perplexities, halves.chosen)))
    pools = halves.split(perplexities, halves.scored)

    def measured(purpose: str, number: int, drawn: tuple[Scores, Scores]) -> tuple[float, float]:
        members, others = (-draws.sums(f"{purpose} {kind}", p, number) for kind, p in enumerate(drawn))
        right = (members > threshold).mean() + (others <= threshold).mean()
        return float(right / 2.0), area(members, others)

    found = measured("scored", 0, pools)
    again = np.array(
        [
            measured("again", number, (draws.again(0, number, pools[0]), draws.again(1, number, pools[1])))
            for number in range(_RESAMPLES)
        ]
    )
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(again, [tail, 100.0 - tail], axis=0)
    accuracy, auc = (
        {"value": value, "low": float(least), "high": float(most)}
        for value, least, most in zip(found, low, high, strict=True)
    )
    return {
        "accuracy": accuracy,
        "auc": auc,
        "scored": 2 * groups,
        "groups": groups,
        "group_size": size,
        "sentences": sum(map(len, pools)),
    }


class _Draws:
    def __init__(self, stream: RandomStream, groups: int, size: int) -> None:
        self._stream, self._shape = stream, (groups, size)

    def sums(self, purpose: str, pool: Scores, number: int = 0) -> Scores:
        """Of each group, the sum over sentences drawn from ``pool``."""
        groups, size = self._shape
        drawn = self._stream.uniform(f"groups, {purpose} {len(pool)}", number, groups * size)
        return np.asarray(pool[(drawn * len(pool)).astype(np.int64)].reshape(groups, size).sum(1))

    def again(self, kind: int, number: int, pool: Scores) -> Scores:
        """As many sentences as ``pool`` has, drawn from it with replacement."""
        drawn = self._stream.uniform(f"sentences {kind}", number, len(pool))
        return np.asarray(pool[(drawn * len(pool)).astype(np.int64)])
