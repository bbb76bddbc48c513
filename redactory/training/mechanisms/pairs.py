"""The pair of worlds that dominates one step, for every network: two mixtures of Gaussians with one deviation.

The privacy loss log dP/dQ of every pair made here rises along the line. ``rederived_pairs`` states them again.
Proofs: ``docs/guarantees.md``, "Substitution", "Groups of points" and "Classes hidden too".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

_NEGLIGIBLE_MASS = 1e-30
_CLASS_DISTANCE = 14.0
"""Deviations from 0 at which either of two classes stands on the line: 1e-44 of one lies with the other."""
FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Mixture:
    """The law of a step's shift in clips: ``weights[i]`` is the probability of ``means[i]``, ascending."""

    means: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def mirrored(self) -> Mixture:
        """Return the law of the opposite shift."""
        return Mixture(tuple(-mean for mean in self.means[::-1]), self.weights[::-1])


@dataclass(frozen=True)
class DominatingPair:
    """P against Q: a step's shifts in either world, with noise of ``deviation`` clips."""

    p: Mixture
    q: Mixture
    deviation: float

    @property
    def means(self) -> tuple[float, ...]:
        """Return the means of both worlds."""
        return (*self.p.means, *self.q.means)

    @property
    def reversed(self) -> DominatingPair:
        """Return Q against P, mirrored so that the loss rises."""
        return DominatingPair(self.q.mirrored, self.p.mirrored, self.deviation)


Branches = tuple[tuple[float, DominatingPair], ...]
"""Pairs with the probability that each is played, the choice being known to whoever looks."""
Statements = tuple[Branches, Branches]
"""The pairs of one step, and the same pairs stated again."""
Composition = tuple[tuple[Branches, int], ...]
"""What is composed: steps of one kind, and how many."""
MAX_SHIFT_DEVIATIONS = 1e3
"""Of noise, in a step's shift: with less noise one step that has the example loses over 10⁵."""
NO_SHIFT = Mixture((0.0,), (1.0,))


def make_mixture(weights_by_mean: Mapping[float, float]) -> Mixture:
    """Make a mixture of shifts and their probabilities."""
    there = {float(mean): weight for mean, weight in sorted(weights_by_mean.items()) if weight > 0.0}
    return Mixture(tuple(there), tuple(there.values()))


def make_exchange_pair(rate: float, deviation: float) -> DominatingPair:
    """Pair for one Poisson(q)-sampled example exchanged: (1−q)N(0, σ²) + qN(1, σ²) against the same with −1."""
    p = Mixture((0.0, 1.0), (1.0 - rate, rate)) if rate < 1.0 else Mixture((1.0,), (1.0,))
    return DominatingPair(p, p.mirrored, deviation)


def make_removal_pair(rate: float, deviation: float, group_size: int = 1) -> DominatingPair:
    """Pair for ``group_size`` K Poisson(q)-sampled examples there or not: Σ Bin(K, q)(j)·N(j, σ²), N(0, σ²)."""
    return DominatingPair(make_binomial_mixture(rate, group_size), NO_SHIFT, deviation)


def make_hidden_class_pairs(rate: float, deviation: float, classes: int) -> Branches:
    """Pairs for a vector and its class, one of ``classes`` K, sent at rate q or hidden, exchanged for others.

    Whether a message carries one of the two classes has one law in both worlds; if it does not, both are equal. The
    two classes are the two ends of one line.
    """
    idle, offset = (1.0 - rate) / classes, _CLASS_DISTANCE * deviation
    either = rate + 2.0 * idle
    mixture = Mixture((-offset, offset, offset + 1.0), (idle / either, idle / either, rate / either))
    visible_branch = (either, DominatingPair(mixture, mixture.mirrored, deviation))
    return (
        (visible_branch,)
        if classes == 2
        else (visible_branch, ((classes - 2) * idle, DominatingPair(NO_SHIFT, NO_SHIFT, deviation)))
    )


@lru_cache(maxsize=64)
def make_binomial_mixture(rate: float, group_size: int) -> Mixture:
    """Make Bin(``group_size`` K, ``rate`` q): how many of K examples are sampled.

    A probability too small to represent moves to a *larger* number, and rounding loss moves to K: nothing is left
    out or renormalised away.
    """
    counts = np.arange(group_size + 1)
    weights = stats.binom.pmf(counts, group_size, rate)
    kept_counts = counts[weights > _NEGLIGIBLE_MASS]
    first, last = int(kept_counts[0]), int(kept_counts[-1])
    law = {float(count): float(weights[count]) for count in kept_counts}
    law[float(first)] += float(weights[:first].sum())
    if last < group_size:
        law[float(group_size)] = max(float(weights[last + 1 :].sum()), _NEGLIGIBLE_MASS)
    missing = 1.0 - math.fsum(law.values())
    if missing > 0.0:
        law[float(group_size)] = law.get(float(group_size), 0.0) + missing
    return make_mixture(law)
