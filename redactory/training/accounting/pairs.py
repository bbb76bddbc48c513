"""What was spent, and the pair of worlds that dominates one step of it, whatever the network.

A pair (P, Q) consists of two mixtures of Gaussians of one deviation; its privacy loss log dP/dQ rises along
the line for every pair that is made here.  The second accountant states its pairs anew (``second``).
Proofs: ``docs/guarantees.md``, "Substitution", "Groups of points" and "Correlated noise".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from redactory.foundation.errors import GuaranteeError
from redactory.training.mechanism import BandedGaussian, HiddenClassGaussian, Mechanism, PoissonGaussian, Relation

_NEGLIGIBLE_MASS = 1e-30
_SIDES_APART = 14.0
"""Deviations from 0 at which either of two classes stands on the line: 1e-44 of one lies with the other."""
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Spending:
    """``steps`` adaptive steps of ``mechanism``, of which one exchanged point exchanges ``rows`` rows.

    ``rows`` is 1 but where a rule of deduplication says otherwise (``docs/guarantees.md``, "Deduplication"),
    or where a unit has so many points.
    """

    mechanism: Mechanism
    steps: int
    rows: int = 1

    def event(self) -> dict[str, Any]:
        """The event tree: dp_accounting's classes and fields, as JSON."""
        return {"class": "SelfComposedDpEvent", "event": self.mechanism.event(), "count": self.steps}


Spendings = tuple[Spending, ...]


def in_clips(spent: Spendings) -> Spendings:
    """What accountants look at: lengths in units of the clip, whatever the mean is over, and some steps."""
    return tuple(
        replace(one, mechanism=replace(one.mechanism, clip_norm=1.0, normaliser=1.0, noise="float"))
        for one in spent
        if one.steps
    )


def threshold_loss(spent: Spendings) -> float:
    """The chance that a threshold of what was ``spent`` fails one unit (``training/counted.py``)."""
    return math.fsum(one.steps * getattr(one.mechanism, "lost", 0.0) for one in spent)


def event_tree(spent: Spendings) -> dict[str, Any]:
    """One event for all that was spent; ``NoOpDpEvent`` for nothing."""
    events = [one.event() for one in spent if one.steps]
    if not events:
        return {"class": "NoOpDpEvent"}
    return events[0] if len(events) == 1 else {"class": "ComposedDpEvent", "events": events}


@dataclass(frozen=True)
class Mixture:
    """The law of a step's shift in clips: ``weights[i]`` that it is ``means[i]``, rising."""

    means: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def mirrored(self) -> Mixture:
        """The law of the opposite shift."""
        return Mixture(tuple(-mean for mean in self.means[::-1]), self.weights[::-1])


@dataclass(frozen=True)
class Pair:
    """P against Q: a step's shifts in either world, with noise of ``deviation`` clips."""

    p: Mixture
    q: Mixture
    deviation: float

    @property
    def means(self) -> tuple[float, ...]:
        """Those of both worlds."""
        return (*self.p.means, *self.q.means)

    @property
    def reversed(self) -> Pair:
        """Q against P, mirrored so that the loss rises."""
        return Pair(self.q.mirrored, self.p.mirrored, self.deviation)


Branches = tuple[tuple[float, Pair], ...]
"""Pairs with the probability that each is played, the choice being known to whoever looks."""
Parts = tuple[tuple[Branches, int], ...]
"""What is composed: steps of one kind, and how many."""
NOTHING = Mixture((0.0,), (1.0,))


def mixture_of(law: Mapping[float, float]) -> Mixture:
    """Of shifts and their probabilities."""
    there = {float(mean): weight for mean, weight in sorted(law.items()) if weight > 0.0}
    return Mixture(tuple(there), tuple(there.values()))


def exchange(rate: float, deviation: float) -> Pair:
    """One Poisson(q)-sampled point exchanged: (1−q)N(0, σ²) + qN(1, σ²) against the same with −1."""
    p = Mixture((0.0, 1.0), (1.0 - rate, rate)) if rate < 1.0 else Mixture((1.0,), (1.0,))
    return Pair(p, p.mirrored, deviation)


def removal(rate: float, deviation: float, points: int = 1) -> Pair:
    """``points`` K Poisson(q)-sampled points there against not there: Σ Bin(K, q)(j)·N(j, σ²), N(0, σ²)."""
    return Pair(group_law(rate, points), NOTHING, deviation)


def hidden_class(rate: float, deviation: float, classes: int) -> Branches:
    """A vector and its class, one of ``classes`` K, sent at rate q or hidden, exchanged for others.

    Whether a message carries one of the two classes has one law in both worlds; where it does not, both are
    equal.  The two classes are the two sides of one line.
    """
    idle, side = (1.0 - rate) / classes, _SIDES_APART * deviation
    either = rate + 2.0 * idle
    law = Mixture((-side, side, side + 1.0), (idle / either, idle / either, rate / either))
    told = (either, Pair(law, law.mirrored, deviation))
    return (told,) if classes == 2 else (told, ((classes - 2) * idle, Pair(NOTHING, NOTHING, deviation)))


@lru_cache(maxsize=64)
def group_law(rate: float, points: int) -> Mixture:
    """Bin(``points`` K, ``rate`` q): how many of K points are sampled.

    What is too small to represent moves to a *larger* number, and what rounding lost to K: nothing is
    left out, and nothing renormalised away.
    """
    counts = np.arange(points + 1)
    weights = stats.binom.pmf(counts, points, rate)
    kept = counts[weights > _NEGLIGIBLE_MASS]
    first, last = int(kept[0]), int(kept[-1])
    law = {float(count): float(weights[count]) for count in kept}
    law[float(first)] += float(weights[:first].sum())
    if last < points:
        law[float(points)] = max(float(weights[last + 1 :].sum()), _NEGLIGIBLE_MASS)
    missing = 1.0 - math.fsum(law.values())
    if missing > 0.0:
        law[float(points)] = law.get(float(points), 0.0) + missing
    return mixture_of(law)


def branches_of(mechanism: Mechanism, relation: Relation) -> Branches:
    """The pairs that dominate one step of ``mechanism`` under ``relation``, for one point.

    With correlated noise a "step" is a block of rows, one draw from a point's group.
    """
    rate, sigma = mechanism.sampling_rate, mechanism.noise_multiplier
    if isinstance(mechanism, BandedGaussian):
        rate = mechanism.group_rate
    point = exchange(rate, sigma) if relation is Relation.SUBSTITUTION else removal(rate, sigma)
    match mechanism:
        case PoissonGaussian() | BandedGaussian():
            return ((1.0, point),)
        case HiddenClassGaussian() if relation is Relation.SUBSTITUTION:
            return hidden_class(rate, sigma, mechanism.classes)
        case _:
            raise GuaranteeError("no dominating pair is proved for this mechanism")


def parts_of(spent: Spendings, relation: Relation) -> Parts:
    """The pairs that dominate each training's step, with how many compose: one row of each."""
    return tuple((branches_of(one.mechanism, relation), draws_of(one)) for one in spent)


def draws_of(one: Spending) -> int:
    """In how many of its steps a point can be drawn: ⌈T/b⌉ where it belongs to one of b groups."""
    own = one.mechanism
    return math.ceil(one.steps / own.matrix.bands) if isinstance(own, BandedGaussian) else one.steps


def nulled_parts(spent: Spendings, points: int) -> Parts:
    """``points`` points there or not, each standing in ``rows`` rows of what was trained on."""
    found = []
    for one in spent:
        own = one.mechanism
        if not isinstance(own, PoissonGaussian):
            raise GuaranteeError("groups can only be accounted under Poisson sampling")
        pair = removal(own.sampling_rate, own.noise_multiplier, points * one.rows)
        found.append((((1.0, pair),), one.steps))
    return tuple(found)
