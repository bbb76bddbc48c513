"""Privacy loss distributions of mixtures of Gaussians, and what a binomial group of points costs.

Formal guarantees: every figure is an upper bound.  The loss is discretised by the pessimistic
connect-the-dots rule (Doroshenko et al. 2022), from curves of our own that are inverted for all losses at
once, and composed by dp_accounting (``docs/guarantees.md``, "Groups of points").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.bounds import Curve, revealed
from redactory.training.accounting.pairs import group_weights

FINEST_GRID = 2e-4
_HOPELESS_RATIO = 24.0
_REACH = 9.8  # deviations beyond which lies e^-50 of a Gaussian
Floats = NDArray[np.float64]
Distribution = Any
"""dp_accounting's PrivacyLossDistribution; the package has no types."""


@dataclass(frozen=True)
class Shifts:
    """The law of a step's shift in clips: ``weights[i]`` that it is ``sizes[i]`` >= 0, rising."""

    sizes: tuple[float, ...]
    weights: tuple[float, ...]


Branches = tuple[tuple[float, Shifts], ...]
"""Laws of a shift with the probability that each is played, the choice being told."""


@lru_cache(maxsize=64)
def group_shifts(sampling_rate: float, points: int) -> Shifts:
    """How many of ``points`` K are sampled, each with ``sampling_rate`` q: their shift in clips."""
    law = group_weights(sampling_rate, points)
    return Shifts(tuple(law), tuple(law.values()))


def group_curve(points: int, rate: float, deviation: float, steps: int, coarser: float = 1.0) -> Curve:
    """``points`` K Poisson(q)-sampled points (or users) there against not there, both orders.

    The pair of a step is N(0, s²) against Σ_j Bin(K, q)(j)·N(j, s²); ``deviation`` s is in units of the
    clip.  Where K/s is over 24 the bound by revealing replaces it: as sound, and nothing is lost that
    anybody would use.  A grid that is ``coarser`` by a factor is faster and gives a larger epsilon.
    """
    if points == 0 or steps == 0:
        return lambda delta: 0.0
    shifts = group_shifts(rate, points)
    if points / deviation > _HOPELESS_RATIO:
        law = dict(zip(shifts.sizes, shifts.weights, strict=True))
        return lambda delta: revealed(law, deviation, steps, delta, coarser)
    whole = (((1.0, shifts),), deviation, steps, coarser)
    return lambda delta: float(composed(*whole).get_epsilon_for_delta(delta))


@lru_cache(maxsize=64)
def composed(branches: Branches, deviation: float, steps: int, coarser: float = 1.0) -> Distribution:
    """``steps`` steps of :func:`mixture_step`, on a grid that is fine for this ratio of shift to noise."""
    ratio = max(shifts.sizes[-1] for _, shifts in branches) / deviation
    step = mixture_step(branches, deviation, coarser * FINEST_GRID * min(max(2.5 * ratio, 1.0), 50.0))
    return step if steps == 1 else step.self_compose(steps)


def mixture_step(branches: Branches, deviation: float, grid: float) -> Distribution:
    """One step of N(0, s²) against Σ weights[i]·N(sizes[i], s²), both orders, losses ``grid`` apart.

    A branch is played with its probability in both worlds and told, so the curves of the branches are
    averaged.
    """
    ends = [_ends(shifts, deviation) for _, shifts in branches]
    low = math.floor(min(end[0] for end in ends) / grid)
    high = math.ceil(max(end[1] for end in ends) / grid)
    losses = np.arange(low, high + 1, dtype=np.float64) * grid
    places = [_place(shifts, deviation, losses) for _, shifts in branches]

    def averaged(delta: Callable[[Shifts, float, Floats, Floats], Floats], epsilons: Floats) -> Floats:
        laws = zip(branches, places, strict=True)
        return np.asarray(sum(weight * delta(s, deviation, epsilons, x) for (weight, s), x in laws))

    there, gone = averaged(_there, losses), averaged(_gone, -losses)[::-1]
    return PrivacyLossDistribution(
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, low, high, _falling(there)),
        pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, -high, -low, _falling(gone)),
    )


def there_delta(shifts: Shifts, deviation: float, epsilons: Floats) -> Floats:
    """H_{e^ε} of the mixture against N(0, s²), for each of ``epsilons``."""
    return _there(shifts, deviation, epsilons, _place(shifts, deviation, epsilons))


def gone_delta(shifts: Shifts, deviation: float, epsilons: Floats) -> Floats:
    """H_{e^ε} of N(0, s²) against the mixture, for each of ``epsilons``."""
    return _gone(shifts, deviation, epsilons, _place(shifts, deviation, -epsilons))


def _there(shifts: Shifts, deviation: float, epsilons: Floats, x: Floats) -> Floats:
    """:func:`there_delta`, ``x`` being where the loss is ε."""
    mass = _mixed(shifts, [ndtr((size - x) / deviation) for size in shifts.sizes])
    return np.asarray(np.clip(mass - np.exp(epsilons + log_ndtr(-x / deviation)), 0.0, 1.0))


def _gone(shifts: Shifts, deviation: float, epsilons: Floats, x: Floats) -> Floats:
    """:func:`gone_delta`, ``x`` being where the loss is −ε."""
    logs = [log_ndtr((x - size) / deviation) for size in shifts.sizes]
    gone = ndtr(x / deviation) - _mixed(shifts, [np.exp(epsilons + log) for log in logs])
    return np.asarray(np.clip(gone, 0.0, 1.0))


def _falling(deltas: Floats) -> Floats:
    rising = np.maximum.accumulate(deltas[::-1])[::-1]  # rounding, upwards
    return np.minimum(rising, 1.0)


def _ends(shifts: Shifts, deviation: float) -> tuple[float, float]:
    """The loss log dQ/dP where all but e^-50 of either world ends."""
    far = np.array([-_REACH * deviation, shifts.sizes[-1] + _REACH * deviation])
    low, high = _loss(shifts, deviation, far)
    return float(low), float(high)


def _loss(shifts: Shifts, deviation: float, x: Floats) -> Floats:
    """log dQ/dP(x) = log Σ w·exp(cx/s² − c²/2s²), which rises with x."""
    sizes, weights = np.array(shifts.sizes), np.array(shifts.weights)
    terms = np.outer(x, sizes) / deviation**2 - sizes**2 / (2.0 * deviation**2)
    most = terms.max(axis=1)
    return np.asarray(most + np.log((np.exp(terms - most[:, None]) * weights).sum(axis=1)))


def _slope(shifts: Shifts, deviation: float, x: Floats, loss: Floats) -> Floats:
    sizes, weights = np.array(shifts.sizes), np.array(shifts.weights)
    terms = np.outer(x, sizes) / deviation**2 - sizes**2 / (2.0 * deviation**2) - loss[:, None]
    return np.asarray((np.exp(terms) * (weights * sizes)).sum(axis=1)) / deviation**2


def _place(shifts: Shifts, deviation: float, losses: Floats) -> Floats:
    """x with loss(x) = each of ``losses``; ∓∞ where that lies 20 deviations outside of every part.

    A table gives the start, a safeguarded Newton iteration the rest: the loss is rising and convex.
    """
    table = np.linspace(-20.0 * deviation, shifts.sizes[-1] + 20.0 * deviation, 4096)
    known = _loss(shifts, deviation, table)
    found = np.where(losses <= known[0], -np.inf, np.inf)
    inside = (losses > known[0]) & (losses < known[-1])
    found[inside] = _inverse(shifts, deviation, losses[inside], table, known)
    return found


def _inverse(shifts: Shifts, deviation: float, wanted: Floats, table: Floats, known: Floats) -> Floats:
    place = np.clip(np.searchsorted(known, wanted), 1, len(table) - 1)
    low, high = table[place - 1], table[place]
    x = np.interp(wanted, known, table)
    todo = np.arange(len(wanted))
    for _ in range(80):
        value = _loss(shifts, deviation, x[todo])
        off = value - wanted[todo]
        high[todo] = np.where(off > 0.0, x[todo], high[todo])
        low[todo] = np.where(off > 0.0, low[todo], x[todo])
        # a loss that is off by η moves a curve by about η², far below what it is rounded by
        far = np.abs(off) > 1e-12 * np.maximum(1.0, np.abs(value))
        todo, value, off = todo[far], value[far], off[far]
        if not len(todo):
            return x
        step = x[todo] - off / np.maximum(_slope(shifts, deviation, x[todo], value), 1e-300)
        within = (step > low[todo]) & (step < high[todo])
        x[todo] = np.where(within, step, (low[todo] + high[todo]) / 2.0)
    raise GuaranteeError("a privacy loss could not be inverted")


def _mixed(shifts: Shifts, parts: Sequence[Floats]) -> Floats:
    return np.asarray(np.sum([w * part for w, part in zip(shifts.weights, parts, strict=True)], axis=0))
