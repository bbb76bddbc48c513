"""A threshold on scores, chosen on one half of the sentences and scored on the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.roc import separation
from redactory.foundation.intervals import lower_bound, upper_bound
from redactory.foundation.stream import RandomStream

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class Halves:
    """Which sentences choose the threshold and which are scored; of 2n, the first n are members."""

    chosen: NDArray[np.int64]
    scored: NDArray[np.int64]
    count: int

    @classmethod
    def of(cls, count: int, seed: int) -> Halves:
        """A fair cut of the members, and another of the others."""
        stream = RandomStream.from_seed(seed)
        parts = [stream.permutation("halves", kind, count) + kind * count for kind in range(2)]
        cut = count // 2
        chosen, scored = (
            np.concatenate(both) for both in zip(*((p[:cut], p[cut:]) for p in parts), strict=True)
        )
        return cls(np.sort(chosen), np.sort(scored), count)

    def split(self, scores: Scores, places: NDArray[np.int64]) -> tuple[Scores, Scores]:
        """The scores at ``places`` of members and of others."""
        return scores[places[places < self.count]], scores[places[places >= self.count]]


def attack(scores: Scores, halves: Halves, confidence: float, seed: int) -> dict[str, Any]:
    """The figures of one attack; the larger a score, the likelier a member."""
    threshold = best_threshold(*halves.split(scores, halves.chosen))
    accuracy = scored_accuracy(*halves.split(scores, halves.scored), threshold, confidence)
    return {**accuracy, **separation(scores[: halves.count], scores[halves.count :], confidence, seed)}


def best_threshold(members: Scores, others: Scores) -> float:
    """The threshold over which most are members and under which most are not; of equal ones the middle."""
    every = np.unique(np.concatenate([members, others]))
    cuts = np.concatenate([[-np.inf], (every[1:] + every[:-1]) / 2.0, [np.inf]])
    over = 1.0 - np.searchsorted(np.sort(members), cuts) / len(members)
    under = np.searchsorted(np.sort(others), cuts) / len(others)
    right = over + under
    best = np.flatnonzero(right >= right.max() - 1e-12)
    return float(cuts[best[len(best) // 2]])


def scored_accuracy(members: Scores, others: Scores, threshold: float, confidence: float) -> dict[str, Any]:
    """{accuracy, scored}: the share that ``threshold`` tells right, with its Clopper-Pearson interval."""
    right = int((members > threshold).sum() + (others <= threshold).sum())
    scored, side = len(members) + len(others), 1.0 - (1.0 - confidence) / 2.0
    low, high = lower_bound(right, scored, side), upper_bound(right, scored, side)
    return {"accuracy": {"value": right / scored, "low": low, "high": high}, "scored": scored}
