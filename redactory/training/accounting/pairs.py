"""Dominating pairs on the line: what one noisy step looks like in its worst case, whatever the network.

A pair (P, Q) consists of two mixtures of Gaussians of one deviation.  Its privacy loss
L(x) = log dP/dQ(x) rises with x for every pair that is made here.  Proofs: ``docs/guarantees.md``,
"Substitution" and "Groups of points".
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtr

from redactory.foundation.errors import GuaranteeError
from redactory.training.mechanism import Mechanism, PoissonGaussian, Relation, TruncatedPoissonGaussian

_NEGLIGIBLE_MASS = 1e-30
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Mixture:
    """Σ weights[i] · N(means[i], deviation²)."""

    weights: tuple[float, ...]
    means: tuple[float, ...]
    deviation: float

    def below(self, x: Floats) -> Floats:
        """P(X <= x)."""
        parts = zip(self.weights, self.means, strict=True)
        return np.asarray(np.sum([w * ndtr((x - m) / self.deviation) for w, m in parts], axis=0))

    def above(self, x: Floats) -> Floats:
        """P(X > x), exact to the last place in the upper tail."""
        parts = zip(self.weights, self.means, strict=True)
        return np.asarray(np.sum([w * ndtr((m - x) / self.deviation) for w, m in parts], axis=0))

    def between(self, edges: Floats) -> Floats:
        """The mass between neighbouring ``edges`` [n + 1], ascending, as [n]; exact in both tails."""
        turn = int(np.searchsorted(edges, 0.0))
        left, right = np.diff(self.below(edges[: turn + 1])), -np.diff(self.above(edges[turn:]))
        return np.asarray(np.concatenate([left, right]))

    def rounding(self, edges: Floats) -> Floats:
        """By how much each mass of :meth:`between` may be rounded."""
        turn = int(np.searchsorted(edges, 0.0))
        tails = np.concatenate([self.below(edges[1 : turn + 1]), self.above(edges[turn:-1])])
        with np.errstate(divide="ignore", invalid="ignore"):
            # rounding a place moves a tail by its squared distance, at most -2·log(tail)
            found = 2.0**-53 * tails * (16.0 - 8.0 * np.log(tails))
        return np.asarray(np.where(tails > 0.0, found, 0.0))

    def log_density(self, x: Floats) -> Floats:
        """log of the density, up to the constant that all mixtures of one deviation share."""
        terms = [
            np.log(w) - (x - m) ** 2 / (2.0 * self.deviation**2)
            for w, m in zip(self.weights, self.means, strict=True)
        ]
        return np.asarray(np.logaddexp.reduce(terms, axis=0))

    @property
    def mirrored(self) -> Mixture:
        """The law of −X."""
        return Mixture(self.weights, tuple(-m for m in self.means), self.deviation)


@dataclass(frozen=True)
class Pair:
    """P against Q."""

    p: Mixture
    q: Mixture

    def loss(self, x: Floats) -> Floats:
        """L(x), rising."""
        return self.p.log_density(x) - self.q.log_density(x)

    def spread(self, tail: float) -> float:
        """How far apart the losses are, but for ``tail`` of P on each side."""
        low, high = self.loss(np.array(self.reach(tail)))
        return float(high - low)

    def reach(self, tail: float) -> tuple[float, float]:
        """x between which all of P but ``tail`` on each side lies."""
        far = float(stats.norm.isf(tail)) * self.p.deviation
        return min(self.p.means) - far, max(self.p.means) + far


Branches = tuple[tuple[float, Pair], ...]
"""Pairs with the probability that each is played, the choice being known to whoever looks."""


def substitution(sampling_rate: float, deviation: float) -> Pair:
    """(1−q)N(0, σ²) + qN(1, σ²) against (1−q)N(0, σ²) + qN(−1, σ²)."""
    p = _drop_nothing((1.0 - sampling_rate, sampling_rate), (0.0, 1.0), deviation)
    return Pair(p, p.mirrored)


def group_weights(sampling_rate: float, points: int) -> dict[float, float]:
    """Bin(``points`` K, ``sampling_rate`` q) by the number of points.

    What is too small to represent moves to a *larger* number, and what rounding lost to K: nothing is
    left out, and nothing renormalised away.
    """
    counts = np.arange(points + 1)
    weights = stats.binom.pmf(counts, points, sampling_rate)
    kept = counts[weights > _NEGLIGIBLE_MASS]
    first, last = int(kept[0]), int(kept[-1])
    law = {float(count): float(weights[count]) for count in kept}
    law[float(first)] += float(weights[:first].sum())
    if last < points:
        law[float(points)] = max(float(weights[last + 1 :].sum()), _NEGLIGIBLE_MASS)
    missing = 1.0 - math.fsum(law.values())
    if missing > 0.0:
        law[float(points)] = law.get(float(points), 0.0) + missing
    return law


def removal(sampling_rate: float, deviation: float, points: int = 1) -> tuple[Pair, Pair]:
    """``points`` K there against not there, and the other way round: Σ Bin(K, q)(j)·N(j, σ²), N(0, σ²)."""
    kept = group_weights(sampling_rate, points)
    there = _drop_nothing(tuple(kept.values()), tuple(kept), deviation)
    gone = Mixture((1.0,), (0.0,), deviation)
    return Pair(there, gone), Pair(gone, there.mirrored)


def directions(mechanism: Mechanism, relation: Relation) -> tuple[Branches, ...]:
    """The pairs that dominate one step of ``mechanism``, one entry for each direction that differs."""
    rate, sigma = mechanism.sampling_rate, mechanism.noise_multiplier
    match mechanism, relation:
        case PoissonGaussian(), Relation.SUBSTITUTION:
            return (((1.0, substitution(rate, sigma)),),)
        case PoissonGaussian(), Relation.ADD_OR_REMOVE:
            return tuple(((1.0, pair),) for pair in removal(rate, sigma))
        case TruncatedPoissonGaussian(), _:
            cut, within = mechanism.crowded
            alone = relation is Relation.ADD_OR_REMOVE
            pairs = removal(rate, sigma) if alone else (substitution(rate, sigma),)
            if cut <= 0.0:
                return tuple(((1.0, pair),) for pair in pairs)
            crowd = substitution(within, sigma / 2.0)
            return tuple(((1.0 - cut, pair), (cut, crowd)) for pair in pairs)
        case _:
            raise GuaranteeError("no dominating pair is proved for this mechanism under this relation")


def _drop_nothing(weights: tuple[float, ...], means: tuple[float, ...], deviation: float) -> Mixture:
    there = [(w, m) for w, m in zip(weights, means, strict=True) if w > 0.0]
    return Mixture(tuple(w for w, _ in there), tuple(m for _, m in there), deviation)
