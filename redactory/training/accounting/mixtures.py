"""Laws of one step's loss: mixtures of Gaussians against each other, and binomial groups of points.

Formal guarantees: every figure is an upper bound.  The losses of Poisson sampling are inverted for all points
of a grid at once; the masses between two of them are those of the two worlds, exact in both tails
(``docs/guarantees.md``, "Two accountants" and "Groups of points").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import ndtr

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.bounds import Curve, gaussian_epsilon, revealed
from redactory.training.accounting.distributions import (
    UNIT,
    Floats,
    Law,
    Masses,
    connected,
    deltas_of_laws,
    epsilon_of_laws,
)
from redactory.training.accounting.pairs import group_weights

FINEST_GRID = 2e-4
_HOPELESS_RATIO = 24.0
_REACH = 12.5  # deviations beyond which lies 4e-36 of a Gaussian
_OF_A_DEVIATION, _FINE_GRID = 0.05, 1e-4
_MOST_DOTS = 1 << 21


@dataclass(frozen=True)
class Shifts:
    """The law of a step's shift in clips: ``weights[i]`` that it is ``sizes[i]``, rising."""

    sizes: tuple[float, ...]
    weights: tuple[float, ...]

    @property
    def mirrored(self) -> Shifts:
        """The law of the opposite shift."""
        return Shifts(tuple(-size for size in self.sizes[::-1]), self.weights[::-1])


@dataclass(frozen=True)
class Worlds:
    """``there`` and ``gone``: a step's shifts in either world, with noise of ``deviation`` clips.

    The loss log d``there``/d``gone`` rises along the line.
    """

    there: Shifts
    gone: Shifts
    deviation: float

    def loss(self, x: Floats) -> Floats:
        """log of the ratio of the two densities."""
        return _log_mixed(self.there, self.deviation, x) - _log_mixed(self.gone, self.deviation, x)

    @property
    def ends(self) -> tuple[float, float]:
        """The losses where all but 4e-36 of either world ends."""
        sizes = (*self.there.sizes, *self.gone.sizes)
        far = _REACH * self.deviation
        low, high = self.loss(np.array([min(sizes) - far, max(sizes) + far]))
        return float(low), float(high)

    @property
    def variance(self) -> float:
        """About that of the loss, in the world whose is smaller."""
        sizes = (*self.there.sizes, *self.gone.sizes)
        x = np.linspace(min(sizes) - 8.0 * self.deviation, max(sizes) + 8.0 * self.deviation, 4001)
        loss, found = self.loss(x), []
        for shifts in (self.there, self.gone):
            mass = np.exp(_log_mixed(shifts, self.deviation, x) - x**2 / (2.0 * self.deviation**2))
            mean = float((mass * loss).sum() / mass.sum())
            found.append(float((mass * (loss - mean) ** 2).sum() / mass.sum()))
        return min(found)


Branches = tuple[tuple[float, Worlds], ...]
"""Pairs of worlds with the probability that each is played, the choice being told."""
NOTHING = Shifts((0.0,), (1.0,))


def exchange(rate: float, deviation: float) -> Worlds:
    """One Poisson(q)-sampled point exchanged for another."""
    shifts = Shifts((0.0, 1.0), (1.0 - rate, rate)) if rate < 1.0 else Shifts((1.0,), (1.0,))
    return Worlds(shifts, shifts.mirrored, deviation)


def removal(rate: float, deviation: float, points: int = 1) -> Worlds:
    """``points`` K Poisson(q)-sampled points there against not there."""
    return Worlds(group_shifts(rate, points), NOTHING, deviation)


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
    if rate == 1.0:
        return lambda delta: gaussian_epsilon(points * math.sqrt(steps) / deviation, delta)
    if points / deviation > _HOPELESS_RATIO:
        shifts = group_shifts(rate, points)
        law = dict(zip(shifts.sizes, shifts.weights, strict=True))
        return lambda delta: revealed(law, deviation, steps, delta, coarser)
    return branches_curve(((1.0, removal(rate, deviation, points)),), steps, coarser)


def branches_curve(branches: Branches, steps: int, coarser: float = 1.0) -> Curve:
    """``steps`` steps of ``branches``, both orders, on a grid that suits the ratio of shift to noise."""
    ratio = max(worlds.there.sizes[-1] / worlds.deviation for _, worlds in branches)
    grid = grid_of([(branches, steps)], coarser * FINEST_GRID * min(max(2.5 * ratio, 1.0), 50.0))
    return lambda delta: composed_epsilon(((branches, steps),), grid, delta)


@lru_cache(maxsize=1024)
def composed_epsilon(parts: tuple[tuple[Branches, int], ...], grid: float, delta: float) -> float:
    """Epsilon of all ``parts`` together at ``delta``, the worse order; ``inf`` where there is none."""
    return max(epsilon_of_laws(order, delta) for order in _orders(parts, grid))


def composed_deltas(parts: tuple[tuple[Branches, int], ...], grid: float, epsilons: Floats) -> Floats:
    """Delta of all ``parts`` together at each of ``epsilons``, the worse order, rounded upwards."""
    found = [deltas_of_laws(order, epsilons) for order in _orders(parts, grid)]
    return np.asarray(np.max(found, axis=0))


def _orders(parts: tuple[tuple[Branches, int], ...], grid: float) -> list[list[tuple[Law, int]]]:
    steps = [(step_laws(branches, grid), count) for branches, count in parts]
    orders = range(max(len(laws) for laws, _ in steps))
    return [[(laws[order % len(laws)], count) for laws, count in steps] for order in orders]


def grid_of(parts: Sequence[tuple[Branches, int]], widest: float) -> float:
    """At most ``widest``, and fine beside what one step's losses vary by; no more dots than memory holds."""
    total = sum(count for _, count in parts)
    variances = [sum(share * worlds.variance for share, worlds in branches) for branches, _ in parts]
    deviation = math.sqrt(math.fsum(v * n for v, (_, n) in zip(variances, parts, strict=True)) / total)
    # what a step's dots add to its variance is about grid²/6
    fine = _OF_A_DEVIATION * deviation * max(1.0, math.sqrt(widest / _FINE_GRID) / 2.0)
    ranges = [high - low for branches, _ in parts for low, high in (w.ends for _, w in branches)]
    parts_of_a_law = max(len(w.there.sizes) for branches, _ in parts for _, w in branches)
    return max(min(widest, fine), max(ranges) * max(2, parts_of_a_law) / _MOST_DOTS, 1e-12)


@lru_cache(maxsize=16)
def step_laws(branches: Branches, grid: float) -> tuple[Law, ...]:
    """One step's laws on ``grid``: of the loss in one order, and in the other where that is another law.

    A branch is played with its probability in both worlds and told, so the masses are averaged.
    """
    ends = [worlds.ends for _, worlds in branches]
    low = math.floor(min(end[0] for end in ends) / grid)
    high = max(math.ceil(max(end[1] for end in ends) / grid), low + 1)
    losses = np.arange(low, high + 1, dtype=np.float64) * grid
    off = 4e-12 * (1.0 + float(np.abs(losses[[0, -1]]).max()))
    there, gone = Masses.none(len(losses) + 1), Masses.none(len(losses) + 1)
    for share, worlds in branches:
        edges = np.concatenate([[-np.inf], _places(worlds, losses), [np.inf]])
        there += _between(worlds.there, worlds.deviation, edges, share)
        gone += _between(worlds.gone, worlds.deviation, edges, share)
    forth = connected(low, grid, there, gone, off)
    if all(worlds.gone == worlds.there.mirrored for _, worlds in branches):
        return (forth,)
    return forth, connected(-high, grid, gone.reversed, there.reversed, off)


def _between(shifts: Shifts, deviation: float, edges: Floats, share: float) -> Masses:
    """``share`` of the mass between neighbouring ``edges``, and what its rounding may be."""
    below, above = np.zeros(len(edges)), np.zeros(len(edges))
    for size, weight in zip(shifts.sizes, shifts.weights, strict=True):
        below += weight * ndtr((edges - size) / deviation)
        above += weight * ndtr((size - edges) / deviation)
    lower = below[1:] <= 0.5
    mass = np.where(lower, np.diff(below), -np.diff(above))
    tail = np.where(lower, below[1:], above[:-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        # a place that is rounded moves a tail by its squared distance, -2·log(tail)
        error = UNIT * np.where(tail > 0.0, tail * (16.0 - 8.0 * np.log(tail)), 0.0)
    return Masses(share * np.maximum(mass, 0.0), share * error)


def _places(worlds: Worlds, losses: Floats) -> Floats:
    """Where the loss is each of ``losses``; ∓∞ where that lies 20 deviations outside of every part.

    Of an exchange it is s²·(asinh(α·sinh(ε/2)) + ε/2) with α = e^(1/2s²)·(1−q)/q (dp_accounting's formula);
    else a table gives the start, and a safeguarded Newton iteration the rest.
    """
    s, shifts = worlds.deviation, worlds.there
    if worlds.gone == shifts.mirrored and shifts.sizes == (1.0,):
        return losses * s**2 / 2.0
    if worlds.gone == shifts.mirrored and shifts.sizes == (0.0, 1.0):
        log_alpha = 0.5 / s**2 + math.log(shifts.weights[0]) - math.log(shifts.weights[1])
        half = np.abs(losses) / 2.0
        with np.errstate(divide="ignore"):
            scaled = log_alpha + half + np.log(-np.expm1(-2.0 * half)) - math.log(2.0)
        asinh = np.where(scaled < 0.0, np.arcsinh(np.exp(np.minimum(scaled, 0.0))), _log_asinh(scaled))
        return np.asarray(s**2 * (np.sign(losses) * asinh + losses / 2.0))
    sizes = (*shifts.sizes, *worlds.gone.sizes)
    table = np.linspace(min(sizes) - 20.0 * s, max(sizes) + 20.0 * s, 4096)
    known = worlds.loss(table)
    found = np.where(losses <= known[0], -np.inf, np.inf)
    inside = (losses > known[0]) & (losses < known[-1])
    found[inside] = _inverse(worlds, losses[inside], table, known)
    return found


def _log_asinh(log: Floats) -> Floats:
    """asinh(e^``log``)."""
    return np.asarray(np.logaddexp(0.5 * np.logaddexp(0.0, 2.0 * log), log))


def _inverse(worlds: Worlds, wanted: Floats, table: Floats, known: Floats) -> Floats:
    place = np.clip(np.searchsorted(known, wanted), 1, len(table) - 1)
    low, high = table[place - 1], table[place]
    x = np.interp(wanted, known, table)
    todo = np.arange(len(wanted))
    for _ in range(80):
        value = worlds.loss(x[todo])
        off = value - wanted[todo]
        high[todo] = np.where(off > 0.0, x[todo], high[todo])
        low[todo] = np.where(off > 0.0, low[todo], x[todo])
        far = np.abs(off) > 1e-12 * np.maximum(1.0, np.abs(value))
        todo, value, off = todo[far], value[far], off[far]
        if not len(todo):
            return x
        step = x[todo] - off / np.maximum(_slope(worlds, x[todo]), 1e-300)
        within = (step > low[todo]) & (step < high[todo])
        x[todo] = np.where(within, step, (low[todo] + high[todo]) / 2.0)
    raise GuaranteeError("a privacy loss could not be inverted")


def _terms(shifts: Shifts, deviation: float, x: Floats) -> Floats:
    """log of each part's density against that of N(0, s²), cx/s² − c²/2s² + log w, as [x, part]."""
    sizes = np.array(shifts.sizes)
    return np.asarray(
        np.outer(x, sizes) / deviation**2 - sizes**2 / (2.0 * deviation**2) + np.log(np.array(shifts.weights))
    )


def _log_mixed(shifts: Shifts, deviation: float, x: Floats) -> Floats:
    terms = _terms(shifts, deviation, x)
    most = terms.max(axis=1)
    return np.asarray(most + np.log(np.exp(terms - most[:, None]).sum(axis=1)))


def _slope(worlds: Worlds, x: Floats) -> Floats:
    """The derivative of the loss."""

    def mean(shifts: Shifts) -> Floats:
        terms = _terms(shifts, worlds.deviation, x)
        weights = np.exp(terms - terms.max(axis=1)[:, None])
        return np.asarray((weights @ np.array(shifts.sizes)) / weights.sum(axis=1))

    return (mean(worlds.there) - mean(worlds.gone)) / worlds.deviation**2
