"""The second accountant: a privacy loss distribution of our own, rounded both ways.

It shares no code with dp_accounting.  A step's loss L is cut into buckets of width h.  The bucket
[kh, (k+1)h] is one outcome with loss l = log(P(bucket)/Q(bucket)): merging outcomes is
post-processing, so what composes these bounds the truth from below.  l goes to kh and (k+1)h in
shares that keep its mean, and T steps are one FFT.  With S the sum of the T losses on the grid,

- *from below*: T merged losses differ from S by a martingale with steps in an interval of width h,
  so by more than h·√(T/2·log(1/η)) with probability at most η (Azuma and Hoeffding);
- *from above*: E(L | bucket) <= l + h²/8 (Hoeffding's lemma, as e^(−l) = E(e^(−L) | bucket)), and
  L − S has steps in an interval of width 2h: T·h²/8 + h·√(2T·log(1/η)).

Mass that wraps around the FFT's circle (Chernoff), tails that are cut and rounding are added to δ
(``docs/guarantees.md``, "Two accountants").
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray

from redactory.training.accounting.pairs import Branches, Floats, Pair

_WIDTH = 4e-3
_MOST_CELLS, _MOST_BUCKETS, _FEW_BUCKETS, _ROUGH_BUCKETS = 1 << 22, 1 << 20, 1 << 17, 1 << 14
_WIDER = 1.05
"""Buckets may be wider than a cell by this factor, for their edges are interpolated."""
_TAIL = 1e-18
_WRAPPED = 1e-15
_LARGEST_LOSS = 600.0
_UNDERFLOW = 1e-290
_UNHEARD = 1e-30
_LINE_POINTS = 1 << 18
_TILTS = np.geomspace(1e-2, 400.0, 60)


@dataclass(frozen=True)
class Bracket:
    """Between ``lower`` and ``upper`` lies the smallest epsilon of the pair; ``upper`` may be infinite."""

    lower: float
    upper: float

    def holds(self, figure: float | None, allowance: float) -> bool:
        """Whether ``figure``, rounded upwards by at most ``allowance``, can be right."""
        value = math.inf if figure is None else figure
        return self.lower - 1e-9 <= value <= self.upper + allowance or value == self.upper


Steps = tuple[tuple[Branches, int], ...]
"""What is composed: steps of one kind, and how many."""


@dataclass(frozen=True)
class Composed:
    """S, the sum of all losses on the grid: ``mass`` at ``losses`` >= 0, and what rounding may have cost."""

    losses: Floats
    share: Floats
    discount: Floats
    steps: int
    cell: float
    error: float

    def bracket(self, delta: float) -> Bracket:
        """The smallest epsilon at ``delta``, from both sides."""
        eta = min(1e-12, 1e-4 * delta)
        spread = self.cell * math.sqrt(self.steps / 2.0 * -math.log(eta))
        above = _WIDER * (self.steps * self.cell**2 / 8.0 + 2.0 * spread)
        lost = self.error + eta
        lower = max(0.0, min(self._epsilon(delta + lost), _LARGEST_LOSS) - spread)
        return Bracket(lower, self._epsilon(delta - lost) + above if delta > lost else math.inf)

    def _epsilon(self, delta: float) -> float:
        """The smallest epsilon of the grid's own law; ``inf`` beyond what is kept."""
        # delta(eps) = share - e^eps * discount between two grid points, both sums over the losses above eps
        curve = self.share - np.exp(self.losses) * self.discount
        if not bool((curve <= delta).any()):
            return math.inf
        place = int(np.argmax(curve <= delta))
        if place == 0:
            return 0.0
        rest, above = self.share[place - 1] - delta, self.discount[place - 1]
        if rest <= 0.0 or above <= 0.0:
            return float(self.losses[place])
        found = float(np.log(rest / above))
        return min(max(found, float(self.losses[place - 1])), float(self.losses[place]))


@lru_cache(maxsize=1024)
def bracket_of(steps: Steps, delta: float) -> Bracket:
    """Bounds of the smallest epsilon of ``steps`` at ``delta``."""
    return composed(steps).bracket(delta)


@lru_cache(maxsize=16)
def composed(steps: Steps) -> Composed:
    """The sum of the losses of ``steps``, every one at least once."""
    total = sum(count for _, count in steps)
    widest = max(pair.spread(_TAIL) for branches, _ in steps for _, pair in branches)
    # losses of hundreds mean that nothing is protected: not worth a fine grid
    buckets = _MOST_BUCKETS if widest < _LARGEST_LOSS / 2.0 else _FEW_BUCKETS
    cell = max(_WIDTH / math.sqrt(2.0 * total * 28.0), widest / buckets)
    rough = [_grid(branches, max(cell, widest / _ROUGH_BUCKETS)) for branches, _ in steps]
    low, high = _window(rough, [count for _, count in steps])
    cell = max(cell, (high - low) / (_MOST_CELLS - 2))
    cells = 1 << math.ceil(math.log2((high - low) / cell + 2))
    first = math.floor(low / cell)
    spectrum = np.ones(cells // 2 + 1, np.complex128)
    for branches, count in steps:
        spectrum *= _repeated(np.fft.rfft(_grid(branches, cell).folded(cells)), count)
    mass = np.roll(np.fft.irfft(spectrum, cells), -first)
    losses = (first + np.arange(cells)) * cell
    # a loss beyond the largest one counts as infinite
    least, most = np.searchsorted(losses, 0.0), np.searchsorted(losses, _LARGEST_LOSS, "right")
    beyond = float(mass[most:].sum())
    losses, mass = losses[least:most].copy(), mass[least:most]
    # sums over the losses strictly above each grid point
    share = np.append(np.cumsum(mass[::-1])[::-1][1:], 0.0) + beyond
    discount = np.append(np.cumsum((mass * np.exp(-losses))[::-1])[::-1][1:], 0.0)
    error = 2.0 * _WRAPPED + total * (4.0 * _TAIL + 4e-16) + 1e-13
    return Composed(np.asarray(losses, np.float64), share, discount, total, cell, error)


def _repeated(spectrum: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """``spectrum`` to the power of ``count``; what would vanish beside rounding is 0."""
    power = np.zeros_like(spectrum)
    heard = np.abs(spectrum) > _UNHEARD ** (1.0 / count)
    power[heard] = np.power(spectrum[heard], count)
    return power


@dataclass(frozen=True)
class _Grid:
    first: int
    mass: Floats
    cell: float

    def folded(self, cells: int) -> Floats:
        places = (self.first + np.arange(len(self.mass))) % cells
        return np.asarray(np.bincount(places, self.mass, minlength=cells), np.float64)

    def log_moment(self, tilt: float) -> float:
        exponents = tilt * self.cell * (self.first + np.arange(len(self.mass)))
        top = float(exponents.max())
        return top + math.log(float((self.mass * np.exp(exponents - top)).sum()))


def _grid(branches: Branches, cell: float) -> _Grid:
    parts = [(weight, *_split(pair, cell)) for weight, pair in branches]
    first = min(start for _, start, _ in parts)
    last = max(start + len(mass) for _, start, mass in parts)
    joined = np.zeros(last - first)
    for weight, start, mass in parts:
        joined[start - first : start - first + len(mass)] += weight * mass
    return _Grid(first, joined, cell)


def _split(pair: Pair, cell: float) -> tuple[int, Floats]:
    """One step's losses on the grid: the number of the first cell, and the mass of each."""
    line, loss = _line(pair)
    first = math.floor(loss[0] / cell)
    edges = np.concatenate([[-np.inf], _edges(pair, cell, line, loss), [np.inf]])
    p, q = pair.p.between(edges), pair.q.between(edges)
    there, lowest = p > 0.0, np.arange(first, first + len(p), dtype=np.float64)
    p, q, lowest = p[there], q[there], lowest[there]
    # Q's mass underflows where losses are beyond the largest one that matters: there the lower edge is taken
    known = q > _UNDERFLOW
    place = np.where(known, np.log(p / np.where(known, q, 1.0)) / cell, lowest)
    below = np.floor(place).astype(np.int64)
    upward = p * (place - below)
    first, size = int(below.min()), int(below.max() - below.min()) + 2
    mass = np.bincount(below - first, p - upward, minlength=size)
    mass += np.bincount(below - first + 1, upward, minlength=size)
    return first, np.asarray(mass, np.float64)


@lru_cache(maxsize=4)
def _line(pair: Pair) -> tuple[Floats, Floats]:
    """Places that are close together, and the loss of ``pair`` at each."""
    low, high = pair.reach(_TAIL)
    line = np.linspace(low, high, _LINE_POINTS)
    return line, np.asarray(np.maximum.accumulate(pair.loss(line)), np.float64)


def _edges(pair: Pair, cell: float, line: Floats, loss: Floats) -> Floats:
    """Where the loss passes a multiple of ``cell``, by interpolation between (``line``, ``loss``)."""
    first, last = math.floor(loss[0] / cell), math.ceil(loss[-1] / cell)
    return np.interp(np.arange(first + 1, last) * cell, loss, line)


def _window(grids: Sequence[_Grid], counts: Sequence[int]) -> tuple[float, float]:
    """Between which the sum of all losses lies but for ``_WRAPPED`` on each side (Chernoff)."""

    def bound(sign: float) -> float:
        @cache
        def at(place: int) -> float:
            tilt = float(_TILTS[place])
            moments = sum(c * g.log_moment(sign * tilt) for g, c in zip(grids, counts, strict=True))
            return (moments - math.log(_WRAPPED)) / tilt

        # moments are convex in the tilt and nothing at 0: the bound falls, and then rises
        low, high = 0, len(_TILTS) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if at(middle) <= at(middle + 1) else (middle + 1, high)
        return at(low)

    return -bound(-1.0), bound(1.0)
