"""The pairs of ``pairs``, stated again from their proofs: two accountants disagree about a slip in either statement."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from redactory.training.mechanisms.pairs import Branches, DominatingPair, Mixture

_NEGLIGIBLE_MASS = 1e-30


def rederive_exchange_pair(rate: float, deviation: float) -> DominatingPair:
    """State the exchange pair: with probability q a step contains the example, one clip to one side or the other."""
    there, gone = _make_mixture({0.0: 1.0 - rate, 1.0: rate}), _make_mixture({-1.0: rate, 0.0: 1.0 - rate})
    return DominatingPair(there, gone, deviation)


def rederive_removal_pair(rate: float, deviation: float, group_size: int = 1) -> DominatingPair:
    """State the removal pair: as many clips as K examples are sampled, against none."""
    return DominatingPair(_rederive_binomial_mixture(rate, group_size), _make_mixture({0.0: 1.0}), deviation)


def rederive_hidden_class_pairs(rate: float, deviation: float, classes: int) -> Branches:
    """State a sentence of class 0, hidden among messages of any class, against one of class 1.

    Class 0 is the right end of the line and class 1 the left one; all other classes reveal nothing.
    """
    drawn = [(1.0 - rate) / classes] * classes
    offset = 14.0 * deviation
    visible_probability = drawn[0] + rate + drawn[1]
    here = _make_mixture(
        {
            -offset: drawn[1] / visible_probability,
            offset: drawn[0] / visible_probability,
            offset + 1.0: rate / visible_probability,
        }
    )
    there = _make_mixture(
        {
            -offset - 1.0: rate / visible_probability,
            -offset: drawn[1] / visible_probability,
            offset: drawn[0] / visible_probability,
        }
    )
    others = DominatingPair(_make_mixture({0.0: 1.0}), _make_mixture({0.0: 1.0}), deviation)
    visible_branch = ((visible_probability, DominatingPair(here, there, deviation)),)
    return (*visible_branch, (math.fsum(drawn[2:]), others)) if drawn[2:] else visible_branch


@lru_cache(maxsize=64)
def _rederive_binomial_mixture(rate: float, group_size: int) -> Mixture:
    """Return how many of K examples are sampled: coins summed one by one, rare outcomes counted as all K."""
    weights = np.ones(1)
    for _ in range(group_size):
        weights = np.convolve(weights, (1.0 - rate, rate))
    is_rare = weights < _NEGLIGIBLE_MASS
    lost = float(weights[is_rare].sum())
    weights[is_rare] = 0.0
    weights[group_size] += max(lost, _NEGLIGIBLE_MASS) if is_rare.any() else 0.0
    return _make_mixture(dict(enumerate(weights.tolist())))


def _make_mixture(weights_by_mean: dict[float, float] | dict[int, float]) -> Mixture:
    there = {float(mean): weight for mean, weight in weights_by_mean.items() if weight > 0.0}
    return Mixture(tuple(there), tuple(there.values()))


def reverse_pair(pair: DominatingPair) -> DominatingPair:
    """Return Q against P on the mirrored line."""

    def mirror_mixture(law: Mixture) -> Mixture:
        return _make_mixture({-m: w for m, w in sorted(zip(law.means, law.weights, strict=True), reverse=True)})

    return DominatingPair(mirror_mixture(pair.q), mirror_mixture(pair.p), pair.deviation)
