"""The second accountant: a privacy loss distribution of our own, rounded both ways.

It shares no arithmetic with the main one, and states the pairs anew.  A step's loss L is cut into buckets
of width h.  The bucket [kh, (k+1)h] is one outcome with loss l = log(P(bucket)/Q(bucket)): merging
outcomes is post-processing, so what composes these bounds the truth from below.  l goes to kh and (k+1)h
in shares that keep its mean, and T steps are one FFT.  With S the sum of the T losses on the grid,

- *from below*: T merged losses differ from S by a martingale with steps in an interval of width h,
  so by more than h·√(T/2·log(1/η)) with probability at most η (Azuma and Hoeffding);
- *from above*: E(L | bucket) <= l + h²/8 (Hoeffding's lemma, as e^(−l) = E(e^(−L) | bucket)), and
  L − S has steps in an interval of width 2h: T·h²/8 + h·√(2T·log(1/η)).

The FFT is of the law times e^(λs)/E(e^(λS)), λ where delta is asked for: its rounding is small beside delta.
Mass that wraps around the FFT's circle (Chernoff), tails that are cut and rounding are added to δ
(``docs/guarantees.md``, "Two accountants").
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.special import ndtr

from redactory.foundation.bounds import format_lower, format_upper
from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting.bounds import LARGEST_EPSILON, SMALLEST_REST
from redactory.training.accounting.figures import best_split, epsilon_of
from redactory.training.accounting.pairs import (
    Branches,
    Floats,
    Mixture,
    Pair,
    Parts,
    Spending,
    Spendings,
    in_clips,
    threshold_loss,
)
from redactory.training.mechanism import BandedGaussian, HiddenClassGaussian, Mechanism, PoissonGaussian, Relation

_MOST_CELLS, _MOST_BUCKETS, _FEW_BUCKETS, _ROUGH_BUCKETS = 1 << 23, 1 << 21, 1 << 17, 1 << 15
_WIDER = 1.05
"""Buckets may be wider than a cell by this factor, for their edges are interpolated."""
WIDEST, LAST_PLACE = 1e-2, 1e-4
"""How far above a lower bound a figure may be stated: a share of itself, or the last place printed."""
_WIDTH, _FLOOR, _FAR, _TRIES = 0.006, 5e-5, 2.0, 3
"""How far the bounds are to lie apart: a share of epsilon (of 2 above 2), or absolutely; how many tries."""
_TAIL = 1e-18
_WRAPPED = 1e-14
"""What share of the tilted law may wrap around the circle."""
_ASTRAY = 5.0
"""Cells that a rounded edge moves mass by: its bucket and the next one, each split between two cells."""
_LARGEST_LOSS = 600.0
_UNDERFLOW = 1e-290
_ROUNDING = 2.0**-53
_RARE = 1e-30
_LINE_POINTS = 1 << 18
_TILTS = np.geomspace(1e-3, 1e6, 180)


@dataclass(frozen=True)
class Bracket:
    """Between ``lower`` and ``upper`` lies the smallest epsilon of the pair; ``upper`` may be infinite."""

    lower: float
    upper: float

    def narrow(self, figure: float) -> bool:
        """Whether ``figure``, an upper bound too, is proved to lie at most 1% above the truth, or 1e-4."""
        return math.isfinite(self.upper) and figure - self.lower <= max(WIDEST * figure, LAST_PLACE)

    def refutes(self, figure: float) -> bool:
        """Whether ``figure`` cannot be right: below what is proved, or far above a narrow upper bound."""
        return figure < self.lower - 1e-9 or (self.narrow(self.upper) and not self.narrow(figure))


@lru_cache(maxsize=1024)
def bracket_of(steps: Parts, delta: float, lesser: float | None = None, loose: float = 0.0) -> Bracket:
    """Bounds of the smallest epsilon of ``steps``, every one at least once, at ``delta``.

    The upper bound is at ``lesser``, a delta that is a little smaller, where that is given: one composition
    serves both.  They lie as far apart as a share ``loose`` of a large epsilon.
    """
    lesser = delta if lesser is None else lesser
    total = sum(count for _, count in steps)
    tail, eta = min(_TAIL, 1e-5 * delta / total), 1e-4 * delta
    widest = max(_width(pair, tail) for branches, _ in steps for _, pair in branches)
    # losses of hundreds mean that nothing is protected: not worth a fine grid
    finest = widest / (_MOST_BUCKETS if widest < _LARGEST_LOSS / 2.0 else _FEW_BUCKETS)
    wander = math.sqrt(total / 2.0 * -math.log(eta))
    rough = _Sum.of(steps, max(widest / _ROUGH_BUCKETS, 1e-12), tail, 1.0)
    about = max(rough.chernoff(rough.tilt_for(delta), delta), 0.0)
    found = Bracket(0.0, math.inf)
    for _ in range(_TRIES):
        apart = max(_WIDTH * min(max(about, _FLOOR / _WIDTH), _FAR), loose * about)
        cell = max(apart / (3.2 * wander), finest, 1e-13)
        fine = _Sum.of(steps, cell, tail, 0.1 * cell * wander / total)
        most = fine.width(delta, rough) / (_MOST_CELLS - 8)
        if most > cell:
            cell = finest = 1.01 * most
            fine = _Sum.of(steps, cell, tail, 0.1 * cell * wander / total)
        found = fine.bracket(delta, lesser, wander, eta + 4.0 * total * tail, rough)
        if (
            cell <= finest
            or math.isinf(found.upper)
            or found.upper - found.lower <= max(1.5 * _WIDTH * found.lower, 2.0 * _FLOOR)
        ):
            break
        about = min(about / 2.0, found.lower)
    return found


@dataclass(frozen=True)
class _Sum:
    """S, the sum of all losses on the grid: the law of each step, and how often it is there."""

    grids: tuple[_Grid, ...]
    counts: tuple[int, ...]
    cell: float

    @classmethod
    def of(cls, steps: Parts, cell: float, tail: float, slip: float) -> _Sum:
        """``slip`` is by how much a loss may be rounded: where it is by more, its mass counts as wrong."""
        grids = tuple(_grid(branches, cell, tail, slip) for branches, _ in steps)
        return cls(grids, tuple(count for _, count in steps), cell)

    def log_moment(self, tilt: float) -> float:
        """log E e^(``tilt``·S)."""
        return math.fsum(n * grid.log_moment(tilt) for grid, n in zip(self.grids, self.counts, strict=True))

    def chernoff(self, tilt: float, delta: float) -> float:
        """Delta is at most ``delta`` there: (1 − e^(ε−s))₊ <= e^(λ(s−ε))·_most(λ)."""
        return (self.log_moment(tilt) + math.log(_most(tilt) / delta)) / tilt

    def tilt_for(self, delta: float) -> float:
        """Where Chernoff's bound is least."""
        return float(_TILTS[_lowest(lambda place: self.chernoff(float(_TILTS[place]), delta))])

    def width(self, delta: float, rough: _Sum) -> float:
        """How many losses the tilted sum spreads over."""
        tilt = rough.tilt_for(delta)
        return sum(self._reach(tilt, self.log_moment(tilt), sign, rough) for sign in (-1.0, 1.0))

    def bracket(self, delta: float, lesser: float, wander: float, lost: float, rough: _Sum) -> Bracket:
        """The smallest epsilon: from below at ``delta``, from above at ``lesser``; both lack ``lost``."""
        total, tilt = sum(self.counts), rough.tilt_for(delta)
        moment, origin = self.log_moment(tilt), self.chernoff(tilt, delta)
        low, high = (sign * self._reach(tilt, moment, sign, rough) for sign in (-1.0, 1.0))
        cells = 1 << max(4, math.ceil(math.log2((high - low) / self.cell + 4)))
        if cells > _MOST_CELLS:
            return Bracket(0.0, math.inf)
        mass, most_wrong, all_wrong = self._composed(tilt, cells)
        first = math.floor(low / self.cell) - 1
        losses = (first + np.arange(cells)) * self.cell
        # everything relative to e^(moment − tilt·origin), which is delta or somewhat more
        heard = int(np.searchsorted(losses, origin - min(300.0 / tilt, 600.0)))
        mass, losses = np.roll(mass, -(first % cells))[heard:], losses[heard:]
        weighted = mass * np.exp(-tilt * (losses - origin))
        share = np.append(np.cumsum(weighted[::-1])[::-1][1:], 0.0)
        discount = np.append(np.cumsum((weighted * np.exp(-(losses - origin)))[::-1])[::-1][1:], 0.0)
        curve = share - np.exp(np.minimum(losses - origin, 700.0)) * discount
        slips = sum(n * grid.slip for grid, n in zip(self.grids, self.counts, strict=True))
        unsure, moved = (
            math.expm1(sum(n * part for part, n in zip(parts, self.counts, strict=True)))
            for parts in zip(*(grid.unsure(tilt) for grid in self.grids), strict=True)
        )
        rates = (min(rate * self.cell, 700.0) for rate in (tilt, 1.0 + tilt))
        near, far = (1.0 / math.expm1(rate) for rate in rates)
        # what is wrong with the cells counts by e^(−λu)·(1 − e^(−u)): at most _most, ``every`` together
        every = min(near - far, cells)
        off = min(most_wrong * every, all_wrong * math.sqrt(_most(tilt) * every))
        # and what lies a few cells away by its slope, at most 1 without the tilt
        step = _ASTRAY * self.cell
        off += (4.0 * _WRAPPED + unsure) * _most(tilt) + moved * step * math.exp(min(tilt * step, 700.0))
        error = off * np.exp(-tilt * (losses - origin)) + 4.0 * cells * _ROUNDING * np.abs(share)
        scale = math.exp(min(tilt * origin - moment, 700.0))
        spread = self.cell * wander
        above = _WIDER * (total * self.cell**2 / 8.0 + 2.0 * spread) + self.cell + slips
        over = np.flatnonzero(curve - error > (delta + lost) * scale)
        under = np.flatnonzero(curve + error <= (lesser - lost) * scale)
        lower = float(losses[over[-1]]) - spread - self.cell - slips if len(over) else 0.0
        upper = float(losses[under[0]]) + above if len(under) else math.inf
        return Bracket(max(0.0, min(lower, _LARGEST_LOSS)), max(0.0, upper))

    def _reach(self, tilt: float, moment: float, sign: float, rough: _Sum) -> float:
        """How far the tilted sum reaches to one side, but for a mass of ``_WRAPPED`` (Chernoff)."""

        def bound(of: _Sum, start: float, more: float) -> float:
            return (of.log_moment(tilt + sign * more) - start - math.log(_WRAPPED)) / more

        begin = rough.log_moment(tilt)
        return bound(self, moment, float(_TILTS[_lowest(lambda at: bound(rough, begin, float(_TILTS[at])))]))

    def _composed(self, tilt: float, cells: int) -> tuple[Floats, float, float]:
        """The tilted law of S on a circle, and by how much it may be wrong: a cell of it, and in L2."""
        relative = 8.0 * _ROUNDING * math.log2(cells)
        spectrum = np.ones(cells // 2 + 1, np.complex128)
        bounds = []
        for grid, count in zip(self.grids, self.counts, strict=True):
            law = grid.folded(tilt, cells)
            step = np.fft.rfft(law)
            error = relative * math.sqrt(cells * float((law * law).sum()))
            bounds.append((np.abs(step) + 2.0 * error, count, error))
            spectrum *= _repeated(step, count)
        most = every = 0.0
        for place, (_, count, error) in enumerate(bounds):
            others = np.ones(cells // 2 + 1)
            for other, (size, times, _) in enumerate(bounds):
                others *= np.power(size, times - (other == place))
            most += count * error * math.sqrt(2.0 * float((others * others).sum()))
            every += count * error * float(others.max())
        # a power is rounded by its angle, T times, and by the logarithm of its size
        size = np.abs(spectrum)
        logs = -np.log(np.maximum(size, 1e-300))
        rounded = (16.0 * (sum(self.counts) + len(bounds)) + 8.0 * logs) * _ROUNDING * size
        most += 2.0 * float(rounded.sum())
        every += math.sqrt(2.0 * float((rounded * rounded).sum()))
        law = np.fft.irfft(spectrum, cells)
        last = relative * math.sqrt(float((law * law).sum()))
        return law, most / cells + last, every / math.sqrt(cells) + last


def _most(tilt: float) -> float:
    """The largest e^(−tilt·u)·(1 − e^(−u)), at u = log(1 + 1/tilt)."""
    return math.exp(-tilt * math.log1p(1.0 / tilt)) / (1.0 + tilt)


def _lowest(bound: Callable[[int], float]) -> int:
    """The place of the tilt at which ``bound``, which falls and then rises, is least."""
    low, high = 0, len(_TILTS) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) <= bound(middle + 1) else (middle + 1, high)
    return low


def _repeated(spectrum: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """``spectrum`` to the power of ``count``; what would underflow is 0."""
    power = np.zeros_like(spectrum)
    heard = np.abs(spectrum) > 1e-300 ** (1.0 / count)
    power[heard] = np.power(spectrum[heard], count)
    return power


@dataclass(frozen=True)
class _Grid:
    """One step: ``mass[i]`` at (``first`` + i)·``cell``; ``wrong``, what of it rounding may have misplaced.

    ``slip`` is how far a loss may be off by rounding, where it is not counted as wrong.
    """

    first: int
    mass: Floats
    wrong: Floats
    cell: float
    slip: float

    def folded(self, tilt: float, cells: int) -> Floats:
        """The tilted law on a circle of ``cells``."""
        places = (self.first + np.arange(len(self.mass))) % cells
        tilted = self.mass * np.exp(self._exponents(tilt) - self.log_moment(tilt))
        return np.asarray(np.bincount(places, tilted, minlength=cells), np.float64)

    def log_moment(self, tilt: float) -> float:
        """log E e^(``tilt``·l)."""
        with np.errstate(divide="ignore"):
            exponents = self._exponents(tilt) + np.log(self.mass)
        top = float(exponents.max())
        return top + math.log(float(np.exp(exponents - top).sum()))

    def unsure(self, tilt: float) -> tuple[float, float]:
        """What share of the tilted law is rounded away with its exponents, and what lies in another cell.

        A rounded edge moves mass to the neighbouring bucket.
        """
        exponents = self._exponents(tilt)
        moved = float((self.wrong * np.exp(exponents - self.log_moment(tilt))).sum())
        return 8.0 * _ROUNDING * (4.0 + float(np.abs(exponents[[0, -1]]).max())), moved

    def _exponents(self, tilt: float) -> Floats:
        return np.asarray(tilt * self.cell * (self.first + np.arange(len(self.mass))), np.float64)


@lru_cache(maxsize=8)
def _grid(branches: Branches, cell: float, tail: float, slip: float) -> _Grid:
    parts = [(weight, *_split(pair, cell, tail, slip)) for weight, pair in branches]
    first = min(start for _, start, _, _, _ in parts)
    last = max(start + len(mass) for _, start, mass, _, _ in parts)
    joined, wrong = np.zeros(last - first), np.zeros(last - first)
    for weight, start, mass, off, _ in parts:
        joined[start - first : start - first + len(mass)] += weight * mass
        wrong[start - first : start - first + len(mass)] += weight * off
    return _Grid(first, joined, wrong, cell, max(own for *_, own in parts))


def _split(pair: Pair, cell: float, tail: float, most: float) -> tuple[int, Floats, Floats, float]:
    """One step's losses on the grid: the number of the first cell, the mass of each, and what is wrong."""
    line, loss = _line(pair, tail)
    first = math.floor(loss[0] / cell)
    edges = np.concatenate([[-np.inf], _edges(pair, cell, line, loss), [np.inf]])
    (p, off_p), (q, off_q) = (_between(mixture, pair.deviation, edges) for mixture in (pair.p, pair.q))
    there, lowest = p > 0.0, np.arange(first, first + len(p), dtype=np.float64)
    p, q, lowest, off_p, off_q = p[there], q[there], lowest[there], off_p[there], off_q[there]
    # Q's mass underflows where losses are beyond the largest one that matters: there the lower edge is taken
    with np.errstate(divide="ignore", invalid="ignore"):
        slip = off_p / p + off_q / q
        known = (q > _UNDERFLOW) & (slip < most)
    place = np.where(known, np.log(p / np.where(known, q, 1.0)) / cell, lowest)
    below = np.floor(place).astype(np.int64)
    upward = p * (place - below)
    first, size = int(below.min()), int(below.max() - below.min()) + 2
    mass = np.bincount(below - first, p - upward, minlength=size)
    mass += np.bincount(below - first + 1, upward, minlength=size)
    wrong = np.bincount(below - first + 1, np.where(known, off_p, p + off_p), minlength=size)
    slips = float(slip[known].max(initial=0.0))
    return first, np.asarray(mass, np.float64), np.asarray(wrong, np.float64), slips


@lru_cache(maxsize=4)
def _line(pair: Pair, tail: float) -> tuple[Floats, Floats]:
    """Places that are close together, and the loss of ``pair`` at each."""
    line = np.linspace(*_ends(pair, tail), _LINE_POINTS)
    return line, np.asarray(np.maximum.accumulate(_loss(pair, line)), np.float64)


def _ends(pair: Pair, tail: float) -> tuple[float, float]:
    """x between which all of P but ``tail`` on each side lies."""
    far = float(stats.norm.isf(tail)) * pair.deviation
    return min(pair.p.means) - far, max(pair.p.means) + far


def _width(pair: Pair, tail: float) -> float:
    """How far apart the losses are, but for ``tail`` of P on each side."""
    low, high = _loss(pair, np.array(_ends(pair, tail)))
    return float(high - low)


def _loss(pair: Pair, x: Floats) -> Floats:
    """log dP/dQ, rising."""

    def log_density(mixture: Mixture) -> Floats:
        parts = zip(mixture.weights, mixture.means, strict=True)
        terms = [np.log(w) - (x - m) ** 2 / (2.0 * pair.deviation**2) for w, m in parts]
        return np.asarray(np.logaddexp.reduce(terms, axis=0))

    return log_density(pair.p) - log_density(pair.q)


def _between(mixture: Mixture, deviation: float, edges: Floats) -> tuple[Floats, Floats]:
    """The mass between neighbouring ``edges`` [n + 1], as [n], exact in both tails; and its rounding."""
    turn = int(np.searchsorted(edges, 0.0))

    def beyond(x: Floats, sign: float) -> Floats:
        parts = zip(mixture.weights, mixture.means, strict=True)
        return np.asarray(np.sum([w * ndtr(sign * (x - m) / deviation) for w, m in parts], axis=0))

    below, above = beyond(edges[: turn + 1], 1.0), beyond(edges[turn:], -1.0)
    tails = np.concatenate([below[1:], above[:-1]])
    with np.errstate(divide="ignore", invalid="ignore"):
        # rounding a place moves a tail by its squared distance, at most -2·log(tail)
        off = np.where(tails > 0.0, _ROUNDING * tails * (16.0 - 8.0 * np.log(tails)), 0.0)
    return np.concatenate([np.diff(below), -np.diff(above)]), off


def _edges(pair: Pair, cell: float, line: Floats, loss: Floats) -> Floats:
    """Where the loss passes a multiple of ``cell``, by interpolation between (``line``, ``loss``)."""
    first, last = math.floor(loss[0] / cell), math.ceil(loss[-1] / cell)
    return np.interp(np.arange(first + 1, last) * cell, loss, line)


# The pairs, stated again from the proofs: a slip in those of the main accountant is a disagreement.


def exchanged(rate: float, deviation: float) -> Pair:
    """With probability q a step holds the point, one clip to the one side or to the other."""
    there, gone = _mixture({0.0: 1.0 - rate, 1.0: rate}), _mixture({-1.0: rate, 0.0: 1.0 - rate})
    return Pair(there, gone, deviation)


def absent(rate: float, deviation: float, points: int = 1) -> Pair:
    """As many clips as K points are sampled, against none."""
    return Pair(_sampled(rate, points), _mixture({0.0: 1.0}), deviation)


def unseen(rate: float, deviation: float, classes: int) -> Branches:
    """A sentence of class 0, hidden among messages of any class, against one of class 1.

    Class 0 is the right end of the line and class 1 the left one; of all others nothing tells.
    """
    drawn = [(1.0 - rate) / classes] * classes
    far = 14.0 * deviation
    seen = drawn[0] + rate + drawn[1]
    here = _mixture({-far: drawn[1] / seen, far: drawn[0] / seen, far + 1.0: rate / seen})
    there = _mixture({-far - 1.0: rate / seen, -far: drawn[1] / seen, far: drawn[0] / seen})
    others = Pair(_mixture({0.0: 1.0}), _mixture({0.0: 1.0}), deviation)
    own = ((seen, Pair(here, there, deviation)),)
    return (*own, (math.fsum(drawn[2:]), others)) if drawn[2:] else own


@lru_cache(maxsize=64)
def _sampled(rate: float, points: int) -> Mixture:
    """How many of K points are sampled: coins summed one by one, what is rare counted as all K."""
    law = np.ones(1)
    for _ in range(points):
        law = np.convolve(law, (1.0 - rate, rate))
    rare = law < _RARE
    lost = float(law[rare].sum())
    law[rare] = 0.0
    law[points] += max(lost, _RARE) if rare.any() else 0.0
    return _mixture(dict(enumerate(law.tolist())))


def _mixture(law: dict[float, float] | dict[int, float]) -> Mixture:
    there = {float(mean): weight for mean, weight in law.items() if weight > 0.0}
    return Mixture(tuple(there), tuple(there.values()))


def _step(mechanism: Mechanism, relation: Relation) -> Branches:
    """One step; of noise in b bands, the b rows that one draw of a point reaches, b times as likely."""
    pair = exchanged if relation is Relation.SUBSTITUTION else absent
    if isinstance(mechanism, BandedGaussian):
        often = len(mechanism.matrix.coefficients) * mechanism.sampling_rate
        return ((1.0, pair(often, mechanism.noise_multiplier)),)
    if isinstance(mechanism, HiddenClassGaussian) and relation is Relation.SUBSTITUTION:
        return unseen(mechanism.sampling_rate, mechanism.noise_multiplier, mechanism.classes)
    if not isinstance(mechanism, PoissonGaussian):
        raise GuaranteeError("no dominating pair is proved for this mechanism")
    return ((1.0, pair(mechanism.sampling_rate, mechanism.noise_multiplier)),)


def _other_order(pair: Pair) -> Pair:
    """Q against P on the mirrored line."""

    def turned(law: Mixture) -> Mixture:
        return _mixture({-m: w for m, w in sorted(zip(law.means, law.weights, strict=True), reverse=True)})

    return Pair(turned(pair.q), turned(pair.p), pair.deviation)


# Of what was spent, and beside the main accountant: a disagreement is an error, never a choice.


NOT_FINITE = "no finite epsilon at this delta: the noise is too small for this many steps"
_LOOSE = 2e-3
"""How far the bounds of a group's epsilon may lie apart, as a share of it: a figure is stated to 1%."""
NOT_CONFIRMED = (
    "no epsilon is confirmed by both accountants: the noise is too small, or delta is too small for this many steps"
)


def bracket(spent: Spendings, delta: float, relation: Relation) -> Bracket:
    """Bounds of the epsilon of ``spent`` at ``delta``, of one point under ``relation``."""
    spent = in_clips(spent)
    if any(one.rows > 1 for one in spent):
        return group_bracket(spent, delta, 1)
    return bracket_of_parts(parts_of(spent, relation), delta)


def parts_of(spent: Spendings, relation: Relation) -> Parts:
    """The pairs of each training's step, with the number of its steps, as this accountant states them.

    In b bands every b-th step draws from a point's group, the first one at the latest in step b.
    """

    def count(one: Spending) -> int:
        own = one.mechanism
        return len(range(0, one.steps, own.matrix.bands)) if isinstance(own, BandedGaussian) else one.steps

    return tuple((_step(one.mechanism, relation), count(one)) for one in in_clips(spent))


def removal_bracket(
    spent: Spendings, delta: float, points: int, lesser: float | None = None, loose: float = 0.0
) -> Bracket:
    """Bounds of the epsilon of ``points`` points there or not (:func:`bracket_of`)."""
    parts = []
    for one in in_clips(spent):
        if not isinstance(one.mechanism, PoissonGaussian):
            raise GuaranteeError("groups can only be accounted under Poisson sampling")
        pair = absent(one.mechanism.sampling_rate, one.mechanism.noise_multiplier, points * one.rows)
        parts.append((((1.0, pair),), one.steps))
    return bracket_of_parts(tuple(parts), delta, lesser, loose)


def bracket_of_parts(parts: Parts, delta: float, lesser: float | None = None, loose: float = 0.0) -> Bracket:
    """:func:`bracket_of`, the worse of both orders; nothing costs nothing."""
    if not parts:
        return Bracket(0.0, 0.0)
    back: Parts = tuple((tuple((w, _other_order(pair)) for w, pair in own), count) for own, count in parts)
    found = [bracket_of(way, delta, lesser, loose) for way in {parts: 0, back: 0}]
    return Bracket(max(b.lower for b in found), max(b.upper for b in found))


def group_bracket(spent: Spendings, delta: float, points: int) -> Bracket:
    """Bounds of the chain bound that ``group_epsilon_of`` states, a chain of bounds at the same split."""
    share = best_split(spent, delta, points)
    first = removal_bracket(spent, share * delta, points, loose=_LOOSE)
    rest, lesser = ((1.0 - share) * delta * math.exp(-min(a, 700.0)) for a in (first.lower, first.upper))
    if rest <= SMALLEST_REST:
        return Bracket(math.inf, math.inf)
    second = removal_bracket(spent, rest, points, lesser, _LOOSE)
    ends = first.lower + second.lower, first.upper + second.upper
    return Bracket(*(end if end < LARGEST_EPSILON else math.inf for end in ends))


@dataclass(frozen=True)
class Stated:
    """What may be printed: ``value``, or None with its ``reason``; ``second`` are the other one's bounds."""

    value: float | None
    second: Bracket | None
    reason: str | None = None


def stated(
    main: Callable[[float], float | None], other: Callable[[float], Bracket], delta: float, what: str, loss: float = 0.0
) -> Stated:
    """The figure of ``main`` at ``delta`` where ``other`` proves it to 1% (or 1e-4), else the larger bound.

    Both accountants bound epsilon from above, so the larger of two finite bounds is confirmed by both; where
    one is not finite there is no figure.

    ``loss`` is the chance of an event off which both hold: (ε, δ) becomes (ε − ln(1 − loss), δ + loss).
    ``GuaranteeError`` naming ``what`` where the two accountants contradict each other.
    """
    delta, beside = delta - loss, -math.log1p(-loss)
    value = main(delta) if delta > 0.0 else None
    if value is None or value >= LARGEST_EPSILON:
        return Stated(None, None, NOT_FINITE)
    value, second = value + beside, other(delta)
    second = Bracket(second.lower + beside, second.upper + beside)
    if second.refutes(value):
        raise GuaranteeError(
            f"the two accountants disagree about {what}: {value} is not between "
            f"{format_lower(second.lower, 6)} and {format_upper(second.upper, 6)}; no epsilon is stated"
        )
    if math.isinf(second.upper):
        return Stated(None, second, NOT_CONFIRMED)
    return Stated(value if second.narrow(value) else max(value, second.upper), second)


def one_exchanged(spent: Spendings, delta: float, relation: Relation, what: str) -> Stated:
    """Epsilon of one point under ``relation``, computed twice."""
    return stated(
        lambda at: epsilon_of(spent, at, relation),
        lambda at: bracket(spent, at, relation),
        delta,
        what,
        threshold_loss(spent),
    )
