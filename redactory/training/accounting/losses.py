"""The main accountant: one step's privacy losses on a grid, and what many of them cost together.

The losses of a pair are inverted for all points of a grid at once; the masses between two of them are those
of the two worlds, exact in both tails.  A loss between two points of the grid goes to both, in shares that
keep its mass in either world ("connect the dots", Doroshenko et al. 2022): that only raises delta.  Steps are
composed by one Fourier transform of the *tilted* law p(s)·e^(λs)/M(λ), with λ where delta is asked for: what
a transform rounds off is then small beside delta, however small delta is.  All that is rounded, cut or
wrapped is bounded and added: every figure is an upper bound (``docs/guarantees.md``, "Two accountants").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy import fft, optimize, signal
from scipy.special import ndtr, ndtri

from redactory.training.accounting.bounds import Curve, gaussian_epsilon, revealed
from redactory.training.accounting.pairs import Branches, Floats, Mixture, Pair, Parts, group_law, removal

FINEST_GRID = 2e-4
_HOPELESS_RATIO = 24.0
_LEAST, _OF_DELTA = 1e-35, 1e-9
"""Mass that may be cut off at each end of one step: absolutely, and as a share of the delta of a step."""
_MOST_DEVIATIONS = 1e3
"""Of noise, in a step's shift: with less noise one step that holds the point loses over 10⁵."""
_OF_A_DEVIATION, _FINE_GRID = 0.05, 1e-4
_MOST_DOTS = 1 << 21
UNIT = 2.0**-53
"""The largest relative error of one rounded operation."""
_WRAPPED = 1e-14
"""What share of the tilted law may wrap around the circle."""
_MOST_CELLS = 1 << 24
_ROUGH_CELLS = 1 << 13
_FEW_TILTS = 9
_TILTS = (math.log(1e-6), math.log(1e7))


# What steps cost: curves from delta to epsilon.


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
        law = group_law(rate, points)
        return lambda delta: revealed(law, deviation, steps, delta, coarser)
    return branches_curve(((1.0, removal(rate, deviation, points)),), steps, coarser)


def branches_curve(branches: Branches, steps: int, coarser: float = 1.0) -> Curve:
    """``steps`` steps of ``branches``, both orders, on a grid that suits the ratio of shift to noise."""
    ratio = max(pair.p.means[-1] / pair.deviation for _, pair in branches)
    widest, parts = coarser * FINEST_GRID * min(max(2.5 * ratio, 1.0), 50.0), ((branches, steps),)
    return lambda delta: composed_epsilon(parts, widest, delta)


@lru_cache(maxsize=1024)
def composed_epsilon(parts: Parts, widest: float, delta: float) -> float:
    """Epsilon of all ``parts`` together at ``delta``, the worse order; ``inf`` where there is none.

    The grid is at most ``widest``.  ``inf`` also where noise is so small that the digits of a double do not
    tell its losses apart.
    """
    # a power of ten, so that nearby deltas share their laws
    pairs = [pair for branches, _ in parts for _, pair in branches]
    if any(max(map(abs, pair.means)) > _MOST_DEVIATIONS * pair.deviation for pair in pairs):
        return math.inf
    share = _OF_DELTA * delta / sum(count for _, count in parts)
    tail = max(10.0 ** math.floor(math.log10(max(share, _LEAST))), _LEAST)
    try:
        orders = _orders(parts, grid_of(parts, widest, tail), tail)
        return max(epsilon_of_laws(order, delta) for order in orders)
    except (_Unresolved, OverflowError):
        return math.inf


def composed_deltas(parts: Parts, grid: float, epsilons: Floats) -> Floats:
    """Delta of all ``parts`` together at each of ``epsilons``, the worse order, rounded upwards."""
    try:
        found = [deltas_of_laws(order, epsilons) for order in _orders(parts, grid)]
    except (_Unresolved, OverflowError):
        return np.ones_like(epsilons)
    return np.asarray(np.max(found, axis=0))


def _orders(parts: Parts, grid: float, tail: float = _LEAST) -> list[Laws]:
    steps = [(step_laws(branches, grid, tail), count) for branches, count in parts]
    orders = range(max(len(laws) for laws, _ in steps))
    return [[(laws[order % len(laws)], count) for laws, count in steps] for order in orders]


def grid_of(parts: Parts, widest: float, tail: float = _LEAST) -> float:
    """At most ``widest``, and fine beside what one step's losses vary by; no more dots than memory holds."""
    total = sum(count for _, count in parts)
    variances = [sum(share * _variance(pair) for share, pair in branches) for branches, _ in parts]
    deviation = math.sqrt(math.fsum(v * n for v, (_, n) in zip(variances, parts, strict=True)) / total)
    # what a step's dots add to its variance is about grid²/6
    fine = _OF_A_DEVIATION * deviation * max(1.0, math.sqrt(widest / _FINE_GRID) / 2.0)
    ranges = [high - low for branches, _ in parts for low, high in (_ends(pair, tail) for _, pair in branches)]
    parts_of_a_law = max(len(pair.p.means) for branches, _ in parts for _, pair in branches)
    return max(min(widest, fine), max(ranges) * max(2, parts_of_a_law) / _MOST_DOTS, 1e-12)


class _Unresolved(ArithmeticError):
    """No place of a loss was found to a double's last digits."""


# One pair: its loss along the line, and where that ends.


def loss_of(pair: Pair, x: Floats) -> Floats:
    """log of the ratio of the two densities."""
    return _log_mixed(pair.p, pair.deviation, x) - _log_mixed(pair.q, pair.deviation, x)


def _ends(pair: Pair, tail: float) -> tuple[float, float]:
    """The losses where all of either world but about ``tail`` at each end lies between."""
    means, weights = np.array(pair.means), np.array((*pair.p.weights, *pair.q.weights))
    far = -pair.deviation * ndtri(np.minimum(tail / weights, 0.5))
    low, high = loss_of(pair, np.array([(means - far).min(), (means + far).max()]))
    return float(low), float(high)


def _variance(pair: Pair) -> float:
    """About that of the loss, in the world whose is smaller."""
    s = pair.deviation
    x = np.linspace(min(pair.means) - 8.0 * s, max(pair.means) + 8.0 * s, 4001)
    loss, found = loss_of(pair, x), []
    for mixture in (pair.p, pair.q):
        mass = np.exp(_log_mixed(mixture, s, x) - x**2 / (2.0 * s**2))
        mean = float((mass * loss).sum() / mass.sum())
        found.append(float((mass * (loss - mean) ** 2).sum() / mass.sum()))
    return min(found)


# One step on a grid.


@dataclass(frozen=True)
class Masses:
    """Of neighbouring intervals: their ``mass``, and an upper bound of its rounding ``error``."""

    mass: Floats
    error: Floats

    @classmethod
    def none(cls, intervals: int) -> Masses:
        """No mass in so many ``intervals``."""
        return cls(np.zeros(intervals), np.zeros(intervals))

    def __add__(self, other: Masses) -> Masses:
        return Masses(self.mass + other.mass, self.error + other.error)

    @property
    def reversed(self) -> Masses:
        """In the opposite order."""
        return Masses(self.mass[::-1], self.error[::-1])


@dataclass(frozen=True, eq=False)
class Law:
    """One step's losses: ``mass[i]`` at (``first`` + i)·``grid``, ``infinite`` at ∞.

    ``off`` is how far a loss may truly lie above its place.
    """

    first: int
    mass: Floats
    infinite: float
    grid: float
    off: float

    @property
    def losses(self) -> Floats:
        """Where the masses are."""
        return np.asarray((self.first + np.arange(len(self.mass))) * self.grid, np.float64)

    def log_moment(self, tilt: float) -> float:
        """log E e^(``tilt``·L)."""
        return _log_moment(self.losses, self.mass, tilt)

    @cached_property
    def rough(self) -> tuple[Floats, Floats]:
        """A law of few values that is much like it: to look where the real one is to be computed."""
        cells = len(self.mass)
        starts = np.arange(0, cells, -(-cells // _ROUGH_CELLS))
        # the largest losses alone decide where the tilt is large
        starts = np.union1d(starts, np.arange(max(0, cells - _ROUGH_CELLS), cells))
        mass = np.add.reduceat(self.mass, starts)
        sums = np.add.reduceat(self.mass * self.losses, starts)
        return np.divide(sums, mass, out=np.zeros_like(sums), where=mass > 0.0), mass

    def tilted(self, tilt: float, cells: int) -> Floats:
        """p(s)·e^(``tilt``·s)/M, on a circle of ``cells``."""
        weights = self.mass * np.exp(tilt * self.losses - self.log_moment(tilt))
        places = (self.first + np.arange(len(weights))) % cells
        return np.asarray(np.bincount(places, weights, minlength=cells), np.float64)


Laws = Sequence[tuple[Law, int]]
"""Laws on one grid, and how many steps there are of each."""


@lru_cache(maxsize=16)
def step_laws(branches: Branches, grid: float, tail: float) -> tuple[Law, ...]:
    """One step's laws on ``grid``: of the loss in one order, and in the other where that is another law.

    What lies beyond their ends, about ``tail`` of a world's mass at each, goes to the loss above it.

    A branch is played with its probability in both worlds and told, so the masses are averaged.
    """
    ends = [_ends(pair, tail) for _, pair in branches]
    low = math.floor(min(end[0] for end in ends) / grid)
    high = max(math.ceil(max(end[1] for end in ends) / grid), low + 1)
    losses = np.arange(low, high + 1, dtype=np.float64) * grid
    off = 4e-12 * (1.0 + float(np.abs(losses[[0, -1]]).max()))
    there, gone = Masses.none(len(losses) + 1), Masses.none(len(losses) + 1)
    for share, pair in branches:
        edges = np.concatenate([[-np.inf], _places(pair, losses), [np.inf]])
        there += _between(pair.p, pair.deviation, edges, share)
        gone += _between(pair.q, pair.deviation, edges, share)
    forth = connected(low, grid, there, gone, off)
    if all(pair == pair.reversed for _, pair in branches):
        return (forth,)
    return forth, connected(-high, grid, gone.reversed, there.reversed, off)


def _between(mixture: Mixture, deviation: float, edges: Floats, share: float) -> Masses:
    """``share`` of the mass between neighbouring ``edges``, and what its rounding may be."""
    below, above = np.zeros(len(edges)), np.zeros(len(edges))
    for size, weight in zip(mixture.means, mixture.weights, strict=True):
        below += weight * ndtr((edges - size) / deviation)
        above += weight * ndtr((size - edges) / deviation)
    lower = below[1:] <= 0.5
    mass = np.where(lower, np.diff(below), -np.diff(above))
    tail = np.where(lower, below[1:], above[:-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        # a place that is rounded moves a tail by its squared distance, -2·log(tail)
        error = UNIT * np.where(tail > 0.0, tail * (16.0 - 8.0 * np.log(tail)), 0.0)
    return Masses(share * np.maximum(mass, 0.0), share * error)


def _places(pair: Pair, losses: Floats) -> Floats:
    """Where the loss is each of ``losses``; ∓∞ where that lies 20 deviations outside of every part.

    Of an exchange it is s²·(asinh(α·sinh(ε/2)) + ε/2) with α = e^(1/2s²)·(1−q)/q (dp_accounting's formula);
    else a table gives the start, and a safeguarded Newton iteration the rest.
    """
    s, p = pair.deviation, pair.p
    exchanged = pair.q == p.mirrored
    if exchanged and p.means == (1.0,):
        return losses * s**2 / 2.0
    if exchanged and p.means == (0.0, 1.0):
        log_alpha = 0.5 / s**2 + math.log(p.weights[0]) - math.log(p.weights[1])
        half = np.abs(losses) / 2.0
        with np.errstate(divide="ignore"):
            scaled = log_alpha + half + np.log(-np.expm1(-2.0 * half)) - math.log(2.0)
        # asinh(e^scaled)
        large = np.logaddexp(0.5 * np.logaddexp(0.0, 2.0 * scaled), scaled)
        asinh = np.where(scaled < 0.0, np.arcsinh(np.exp(np.minimum(scaled, 0.0))), large)
        return np.asarray(s**2 * (np.sign(losses) * asinh + losses / 2.0))
    table = np.linspace(min(pair.means) - 20.0 * s, max(pair.means) + 20.0 * s, 4096)
    known = loss_of(pair, table)
    found = np.where(losses <= known[0], -np.inf, np.inf)
    inside = (losses > known[0]) & (losses < known[-1])
    found[inside] = _inverse(pair, losses[inside], table, known)
    return found


def _inverse(pair: Pair, wanted: Floats, table: Floats, known: Floats) -> Floats:
    place = np.clip(np.searchsorted(known, wanted), 1, len(table) - 1)
    low, high = table[place - 1], table[place]
    x = np.interp(wanted, known, table)
    todo = np.arange(len(wanted))
    for _ in range(80):
        value = loss_of(pair, x[todo])
        off = value - wanted[todo]
        high[todo] = np.where(off > 0.0, x[todo], high[todo])
        low[todo] = np.where(off > 0.0, low[todo], x[todo])
        far = np.abs(off) > 1e-12 * np.maximum(1.0, np.abs(value))
        todo, value, off = todo[far], value[far], off[far]
        if not len(todo):
            return x
        with np.errstate(over="ignore"):
            step = x[todo] - off / np.maximum(_slope(pair, x[todo]), 1e-300)
        within = (step > low[todo]) & (step < high[todo])
        x[todo] = np.where(within, step, (low[todo] + high[todo]) / 2.0)
    raise _Unresolved


def _terms(mixture: Mixture, deviation: float, x: Floats) -> Floats:
    """log of each part's density against that of N(0, s²), cx/s² − c²/2s² + log w, as [x, part]."""
    c, w = np.array(mixture.means), np.array(mixture.weights)
    return np.asarray(np.outer(x, c) / deviation**2 - c**2 / (2.0 * deviation**2) + np.log(w))


def _log_mixed(mixture: Mixture, deviation: float, x: Floats) -> Floats:
    terms = _terms(mixture, deviation, x)
    most = terms.max(axis=1)
    return np.asarray(most + np.log(np.exp(terms - most[:, None]).sum(axis=1)))


def _slope(pair: Pair, x: Floats) -> Floats:
    """The derivative of the loss."""

    def mean(mixture: Mixture) -> Floats:
        terms = _terms(mixture, pair.deviation, x)
        weights = np.exp(terms - terms.max(axis=1)[:, None])
        return np.asarray((weights @ np.array(mixture.means)) / weights.sum(axis=1))

    return (mean(pair.p) - mean(pair.q)) / pair.deviation**2


def connected(first: int, grid: float, upper: Masses, lower: Masses, off: float) -> Law:
    """The law of log dP/dQ from the masses of P = ``upper`` and Q = ``lower`` in the buckets between dots.

    Bucket 0 lies below dot ``first``, the last one above the last dot: its mass counts as infinite loss.
    """
    p, q = upper.mass[1:-1], lower.mass[1:-1]
    left = (first + np.arange(len(p))) * grid
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # Q(bucket)·e^left/P(bucket) lies between e^-grid and 1
        ratio = np.exp(left + np.log(q) - np.log(p))
        rounded = upper.error[1:-1] / p + lower.error[1:-1] / q + 8.0 * UNIT * (1.0 + np.abs(left))
        share = (1.0 - ratio + rounded) / -math.expm1(-grid)
    share = np.where(np.isfinite(share), np.clip(share, 0.0, 1.0), 1.0)
    safe = upper.mass + upper.error
    inner = safe[1:-1]
    mass = np.zeros(len(p) + 1)
    mass[:-1] += inner * (1.0 - share)
    mass[1:] += inner * share
    mass[0] += safe[0]
    kept = np.flatnonzero(mass)
    begin, end = (int(kept[0]), int(kept[-1]) + 1) if len(kept) else (0, 1)
    return Law(first + begin, mass[begin:end], float(safe[-1]), grid, off)


# Steps composed.


def epsilon_of_laws(parts: Laws, delta: float) -> float:
    """The smallest epsilon of ``parts`` together at ``delta``, rounded upwards; ``inf`` for none."""
    left = delta - sum(count * law.infinite for law, count in parts)
    if left <= 0.0:
        return math.inf
    found = _Tilted.at(parts, left)
    return math.inf if found is None else found.epsilon(left)


def deltas_of_laws(parts: Laws, epsilons: Floats) -> Floats:
    """Upper bounds of delta of ``parts`` together at each of ``epsilons``: the least of a few tilts."""
    shifted = epsilons - sum(count * law.off for law, count in parts)
    best, grid = np.ones_like(shifted), parts[0][0].grid
    for epsilon in np.quantile(shifted, np.linspace(0.0, 1.0, _FEW_TILTS)):
        # at the dot before it, whose delta is taken
        def bound(log_tilt: float, at: float = math.floor(epsilon / grid) * grid) -> float:
            tilt = math.exp(log_tilt)
            return _rough_moment(parts, tilt) - tilt * at + _steepest(tilt)

        found = _Tilted.of(parts, math.exp(_least(bound)))
        if found is not None:
            best = np.minimum(best, found.delta(shifted))
    return np.minimum(1.0, best + sum(count * law.infinite for law, count in parts))


@dataclass(frozen=True)
class _Tilted:
    """``deltas[i]``·e^(``log_moment`` − ``tilt``·loss) is delta at the loss (``first`` + i)·``grid``."""

    deltas: Floats
    first: int
    grid: float
    tilt: float
    log_moment: float
    off: float

    @classmethod
    def at(cls, parts: Laws, delta: float) -> _Tilted | None:
        """Tilted to where ``delta`` is reached: there Chernoff's bound of epsilon is least."""

        def bound(log_tilt: float) -> float:
            tilt = math.exp(log_tilt)
            return (_rough_moment(parts, tilt) + _steepest(tilt) - math.log(delta)) / tilt

        return cls.of(parts, math.exp(_least(bound)))

    @classmethod
    def of(cls, parts: Laws, tilt: float) -> _Tilted | None:
        """The composition; None where it has too many cells."""
        grid, moment = parts[0][0].grid, _moment(parts, tilt)
        low = -_reach(parts, tilt, moment, -1.0)
        high = _reach(parts, tilt, moment, 1.0)
        first, last = math.floor(low / grid), math.ceil(high / grid)
        cells = 1 << max(4, math.ceil(math.log2(last - first + 2)))
        if cells > _MOST_CELLS:
            return None
        law, most_wrong, all_wrong = _composed([(law.tilted(tilt, cells), count) for law, count in parts])
        law = np.maximum(np.roll(law, -(first % cells)), 0.0)
        # d(k−1) = e^(−λh)·(d(k)·e^(−h) + (1 − e^(−h))·a), a all the mass from k on: nothing is subtracted
        fall, back = math.exp(-tilt * grid), math.exp(-grid)
        share = signal.lfilter([1.0], [1.0, -fall], law[::-1])
        deltas = signal.lfilter([-math.expm1(-grid) * fall], [1.0, -fall * back], share)[::-1]
        spread = 1.0 / math.expm1(min(tilt * grid, 700.0)) - 1.0 / math.expm1(min((tilt + 1.0) * grid, 700.0))
        # an error's cells count by a share of at most e^_steepest, ``spread`` together
        spread, largest = min(spread, cells), math.exp(_steepest(tilt))
        errors = min(most_wrong * spread, all_wrong * math.sqrt(largest * spread)) + 4.0 * _WRAPPED * largest
        deltas = deltas * (1.0 + 16.0 * UNIT * (1.0 + 1.0 / (tilt * grid))) + errors
        off = sum(count * one.off for one, count in parts)
        exponents = sum(n * (4.0 + tilt * float(np.abs(one.losses[[0, -1]]).max())) for one, n in parts)
        rounding = 8.0 * UNIT * (abs(moment) + exponents)
        return cls(deltas, first - 1, grid, tilt, moment + rounding, off)

    def epsilon(self, delta: float) -> float:
        """The smallest epsilon >= 0 with at most ``delta``."""
        places = self.first + np.arange(len(self.deltas))
        logs = self.log_moment - self.tilt * self.grid * places + np.log(self.deltas)
        under = np.flatnonzero(logs <= math.log(delta))
        if not len(under):
            return math.inf
        place = int(under[0])
        loss = float(places[place]) * self.grid
        if place:
            # between two dots delta is linear in e^epsilon
            before, after = (math.expm1(min(logs[at] - math.log(delta), 700.0)) for at in (place - 1, place))
            loss += math.log1p(before / (before - after) * math.expm1(self.grid)) - self.grid
        return max(0.0, loss + self.off)

    def delta(self, epsilons: Floats) -> Floats:
        """At each of ``epsilons``: that of the dot before it; before the first one, by convexity in e^ε."""
        places = np.floor(epsilons / self.grid).astype(np.int64) - self.first
        known = np.clip(places, 0, len(self.deltas) - 1)
        logs = self.log_moment - self.tilt * self.grid * (self.first + known) + np.log(self.deltas[known])
        found = np.exp(np.minimum(logs, 0.0))
        first = np.exp(np.minimum(epsilons - self.grid * self.first, 0.0))
        return np.asarray(np.where(places < 0, 1.0 - (1.0 - found) * first, found), np.float64)


def _composed(laws: Sequence[tuple[Floats, int]]) -> tuple[Floats, float, float]:
    """The convolution of ``count`` times each law, and by how much it may be wrong: one cell, and in L2.

    A transform's error is at most 8u·log2(n) of its L2 norm (Higham 2002, Theorem 24.2); that of a power,
    T·(|f| + 2‖e‖)^(T−1)·|e|, summed by Cauchy and Schwarz; that of a rounded exponent x + iy, |x|·u and T·u.
    """
    cells = len(laws[0][0])
    relative = 8.0 * UNIT * math.log2(cells)
    exponents = np.zeros(cells // 2 + 1, np.complex128)
    slopes: list[tuple[Floats, float]] = []
    total = sum(count for _, count in laws)
    with np.errstate(divide="ignore", invalid="ignore"):
        for law, count in laws:
            spectrum = fft.rfft(law)
            error = relative * math.sqrt(cells) * float(np.linalg.norm(law))
            sizes = np.abs(spectrum)
            exponents += count * np.log(np.maximum(sizes, 1e-300)) + 1j * (count * np.angle(spectrum))
            slopes.append((np.log(sizes + 2.0 * error), count * error))
        sizes = np.exp(exponents.real)
        reach = sum(count * log for (log, _), (_, count) in zip(slopes, laws, strict=True))
        others = [(np.exp(reach - log), error) for log, error in slopes]
    rounded = sizes * UNIT * (16.0 * total + 16.0 - 8.0 * exponents.real)
    most = sum(_full_norm(other, 2) * error for other, error in others) + _full_norm(rounded, 1)
    every = sum(float(other.max()) * error for other, error in others) + _full_norm(rounded, 2)
    result = fft.irfft(np.exp(exponents), cells)
    last = relative * float(np.linalg.norm(result))
    return result, most / cells + last, every / math.sqrt(cells) + last


def _full_norm(half: Floats, power: int) -> float:
    """The norm of a real law's whole spectrum, of which ``half`` is one half."""
    return float((2.0 * (half**power).sum()) ** (1.0 / power))


def _reach(parts: Laws, tilt: float, moment: float, sign: float) -> float:
    """How far the tilted sum reaches to one side, but for a mass of ``_WRAPPED`` (Chernoff)."""

    def bound(of: Callable[[Laws, float], float], start: float) -> Callable[[float], float]:
        def at(log_more: float) -> float:
            more = math.exp(log_more)
            return (of(parts, tilt + sign * more) - start - math.log(_WRAPPED)) / more

        return at

    place = _least(bound(_rough_moment, _rough_moment(parts, tilt)))
    return bound(_moment, moment)(place) + parts[0][0].grid


def _least(bound: Callable[[float], float]) -> float:
    """Where ``bound``, which falls and then rises, is about least: the logarithm of a tilt."""
    return float(optimize.minimize_scalar(bound, bounds=_TILTS, method="bounded", options={"xatol": 1e-3}).x)


def _steepest(tilt: float) -> float:
    """log of the largest e^(−λu)·(1 − e^(−u)): what of a moment can count as delta."""
    return tilt * math.log(tilt) - (1.0 + tilt) * math.log1p(tilt)


def _moment(parts: Laws, tilt: float) -> float:
    return math.fsum(count * law.log_moment(tilt) for law, count in parts)


def _rough_moment(parts: Laws, tilt: float) -> float:
    return math.fsum(count * _log_moment(*law.rough, tilt) for law, count in parts)


def _log_moment(losses: Floats, mass: Floats, tilt: float) -> float:
    with np.errstate(divide="ignore"):
        exponents = tilt * losses + np.log(mass)
    most = float(exponents.max(initial=-math.inf, where=mass > 0.0))
    return most + math.log(float(np.exp(exponents - most).sum()))
