"""The main accountant's numbers: one step's privacy losses on a grid, and what many of them cost together.

A loss between two points of the grid goes to both, in shares that keep its mass in either world ("connect
the dots", Doroshenko et al. 2022): that only raises delta.  Steps are composed by one Fourier transform of
the *tilted* law p(s)·e^(λs)/M(λ), with λ where delta is asked for: what a transform rounds off is then small
beside delta, however small delta is.  All that is rounded, cut or wrapped is bounded and added
(``docs/guarantees.md``, "Two accountants").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy import fft, optimize, signal

Floats = NDArray[np.float64]
UNIT = 2.0**-53
"""The largest relative error of one rounded operation."""
_WRAPPED = 1e-10
_MOST_CELLS = 1 << 24
_ROUGH_CELLS = 1 << 13
_FEW_TILTS = 9
_TILTS = (math.log(1e-6), math.log(1e7))


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
        starts = np.arange(0, len(self.mass), -(-len(self.mass) // _ROUGH_CELLS))
        mass = np.add.reduceat(self.mass, starts)
        sums = np.add.reduceat(self.mass * self.losses, starts)
        return np.divide(sums, mass, out=np.zeros_like(sums), where=mass > 0.0), mass

    def tilted(self, tilt: float, cells: int) -> Floats:
        """p(s)·e^(``tilt``·s)/M, on a circle of ``cells``."""
        weights = self.mass * np.exp(tilt * self.losses - self.log_moment(tilt))
        places = (self.first + np.arange(len(weights))) % cells
        return np.asarray(np.bincount(places, weights, minlength=cells), np.float64)


Parts = Sequence[tuple[Law, int]]
"""Laws on one grid, and how many steps there are of each."""


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


def epsilon_of_laws(parts: Parts, delta: float) -> float:
    """The smallest epsilon of ``parts`` together at ``delta``, rounded upwards; ``inf`` for none."""
    left = delta - sum(count * law.infinite for law, count in parts)
    if left <= 0.0:
        return math.inf
    found = _Tilted.at(parts, left)
    return math.inf if found is None else found.epsilon(left)


def deltas_of_laws(parts: Parts, epsilons: Floats) -> Floats:
    """Upper bounds of delta of ``parts`` together at each of ``epsilons``: the least of a few tilts."""
    shifted = epsilons - sum(count * law.off for law, count in parts)
    best = np.ones_like(shifted)
    for epsilon in np.quantile(shifted, np.linspace(0.0, 1.0, _FEW_TILTS)):

        def bound(log_tilt: float, at: float = float(epsilon)) -> float:
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
    def at(cls, parts: Parts, delta: float) -> _Tilted | None:
        """Tilted to where ``delta`` is reached: there Chernoff's bound of epsilon is least."""

        def bound(log_tilt: float) -> float:
            tilt = math.exp(log_tilt)
            return (_rough_moment(parts, tilt) + _steepest(tilt) - math.log(delta)) / tilt

        return cls.of(parts, math.exp(_least(bound)))

    @classmethod
    def of(cls, parts: Parts, tilt: float) -> _Tilted | None:
        """The composition; None where it has too many cells."""
        grid, moment = parts[0][0].grid, _moment(parts, tilt)
        low = -_reach(parts, tilt, moment, -1.0)
        high = _reach(parts, tilt, moment, 1.0)
        first, last = math.floor(low / grid), math.ceil(high / grid)
        cells = 1 << max(4, math.ceil(math.log2(last - first + 2)))
        if cells > _MOST_CELLS:
            return None
        law, wrong = _composed([(law.tilted(tilt, cells), count) for law, count in parts])
        law = np.maximum(np.roll(law, -(first % cells)), 0.0)
        # d(k−1) = e^(−λh)·(d(k)·e^(−h) + (1 − e^(−h))·a), a all the mass from k on: nothing is subtracted
        fall, back = math.exp(-tilt * grid), math.exp(-grid)
        share = signal.lfilter([1.0], [1.0, -fall], law[::-1])
        deltas = signal.lfilter([-math.expm1(-grid) * fall], [1.0, -fall * back], share)[::-1]
        spread = 1.0 / math.expm1(min(tilt * grid, 700.0)) - 1.0 / math.expm1(min((tilt + 1.0) * grid, 700.0))
        errors = wrong * min(spread, cells) + 4.0 * _WRAPPED * math.exp(_steepest(tilt))
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


def _composed(laws: Sequence[tuple[Floats, int]]) -> tuple[Floats, float]:
    """The convolution of ``count`` times each law, and by how much one of its cells may be wrong.

    A transform's error is at most 8u·log2(n) of its L2 norm (Higham 2002, Theorem 24.2); that of a power,
    T·(|f| + 2‖e‖)^(T−1)·|e|, summed by Cauchy and Schwarz.
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
        wrong = sum(_full_norm(np.exp(reach - log), 2) * error for log, error in slopes)
    wrong += _full_norm(sizes, 1) * UNIT * (16.0 * total + 3000.0)
    result = fft.irfft(np.exp(exponents), cells)
    return result, wrong / cells + relative * float(np.linalg.norm(result))


def _full_norm(half: Floats, power: int) -> float:
    """The norm of a real law's whole spectrum, of which ``half`` is one half."""
    return float((2.0 * (half**power).sum()) ** (1.0 / power))


def _reach(parts: Parts, tilt: float, moment: float, sign: float) -> float:
    """How far the tilted sum reaches to one side, but for a mass of ``_WRAPPED`` (Chernoff)."""

    def bound(of: Callable[[Parts, float], float], start: float) -> Callable[[float], float]:
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


def _moment(parts: Parts, tilt: float) -> float:
    return math.fsum(count * law.log_moment(tilt) for law, count in parts)


def _rough_moment(parts: Parts, tilt: float) -> float:
    return math.fsum(count * _log_moment(*law.rough, tilt) for law, count in parts)


def _log_moment(losses: Floats, mass: Floats, tilt: float) -> float:
    with np.errstate(divide="ignore"):
        exponents = tilt * losses + np.log(mass)
    most = float(exponents.max(initial=-math.inf, where=mass > 0.0))
    return most + math.log(float(np.exp(exponents - most).sum()))
