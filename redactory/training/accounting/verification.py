"""The proved bounds: a privacy loss distribution of our own, rounded both ways.

It shares no arithmetic with dp_accounting, and states its own pairs. A step's loss L is cut into buckets of width h.
The bucket [kh, (k+1)h] is one outcome with loss l = log(P(bucket)/Q(bucket)). Merging outcomes is post-processing, so
the composition of merged outcomes bounds the truth from below. l goes to kh and (k+1)h in shares that keep its mean,
and T steps are one FFT. With S the sum of the T losses on the grid,

- *from below*: T merged losses differ from S by a martingale with steps in an interval of width h, so by more than
  h·√(T/2·log(1/η)) with probability at most η (Azuma and Hoeffding);
- *from above*: E(L | bucket) <= l + h²/8 (Hoeffding's lemma, as e^(−l) = E(e^(−L) | bucket)), and L − S has steps in an
  interval of width 2h: T·h²/8 + h·√(2T·log(1/η)).

The FFT is of the law times e^(λs)/E(e^(λS)), with λ chosen for the requested delta, so its rounding is small relative
to delta. Mass that wraps around the FFT's circle (Chernoff), cut tails and rounding are added to δ
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

from redactory.training.mechanisms.pairs import (
    MAX_SHIFT_DEVIATIONS,
    Branches,
    Composition,
    DominatingPair,
    FloatArray,
    Mixture,
)
from redactory.training.mechanisms.rederived_pairs import reverse_pair

_MAX_CELLS, _MAX_BUCKETS, _COARSE_BUCKETS, _USUAL_BUCKETS, _SEARCH_BUCKETS = 1 << 23, 1 << 21, 1 << 17, 1 << 16, 1 << 15
_BUCKET_SLACK = 1.05
"""Buckets may be wider than a cell by this factor, because their edges are interpolated."""
MAX_RELATIVE_GAP, MAX_ABSOLUTE_GAP = 1e-2, 1e-4
"""How far above a lower bound an epsilon may be stated: a share of itself, or the last printed digit."""
_TARGET_RELATIVE_GAP, _TARGET_ABSOLUTE_GAP, _MAX_GAP_EPSILON, _MAX_TRIES = 0.006, 5e-5, 2.0, 3
"""Wanted distance of the bounds: a share of epsilon (of 2 above 2), or absolute; maximum tries."""
_MAX_TAIL_MASS = 1e-18
_WRAPPED_MASS = 1e-14
"""What share of the tilted law may wrap around the circle."""
_MISPLACED_CELLS = 5.0
"""Cells that a rounded edge moves mass by: its bucket and the next one, each split between two cells."""
_MAX_LOSS, _MIN_MASS = 600.0, 1e-290
_UNIT_ROUNDOFF = 2.0**-53
_LINE_POINTS = 1 << 18
_TILTS = np.geomspace(1e-3, 1e6, 180)


@dataclass(frozen=True)
class EpsilonBounds:
    """``lower`` and ``upper`` enclose the smallest epsilon of the pair; ``upper`` may be infinite."""

    lower: float
    upper: float

    def is_tight_for(self, epsilon: float) -> bool:
        """Whether ``epsilon``, by another accountant, is at most 1% above the lower bound, or 1e-4."""
        return math.isfinite(epsilon) and epsilon - self.lower <= max(MAX_RELATIVE_GAP * epsilon, MAX_ABSOLUTE_GAP)

    def is_too_small_for(self, epsilon: float) -> bool:
        """Whether an accurate ``epsilon`` is more than 1% above the upper bound, or 1e-4."""
        return epsilon > max((1.0 + MAX_RELATIVE_GAP) * self.upper, self.upper + MAX_ABSOLUTE_GAP)

    def refutes(self, epsilon: float) -> bool:
        """Whether ``epsilon`` must be wrong: below the proved lower bound."""
        return epsilon < self.lower - 1e-9


@lru_cache(maxsize=1024)
def bound_one_order_epsilon(
    composition: Composition, delta: float, smaller_delta: float | None = None, relative_gap: float = 0.0
) -> EpsilonBounds:
    """Bound the smallest epsilon of ``composition`` at ``delta``, for pairs in one order.

    The upper bound is computed at ``smaller_delta`` if given, so that one composition serves both. The bounds are
    about a share ``relative_gap`` of a large epsilon apart.
    """
    smaller_delta = delta if smaller_delta is None else smaller_delta
    total = sum(count for _, count in composition)
    tail, eta = min(_MAX_TAIL_MASS, 1e-5 * delta / total), 1e-4 * delta
    loss_width = max(_measure_loss_width(pair, tail) for branches, _ in composition for _, pair in branches)
    # losses of hundreds mean that nothing is protected: not worth a fine grid
    min_bucket = loss_width / (_MAX_BUCKETS if loss_width < _MAX_LOSS / 2.0 else _COARSE_BUCKETS)
    wander = math.sqrt(total / 2.0 * -math.log(eta))
    rough = _ComposedLoss.from_steps(composition, max(loss_width / _SEARCH_BUCKETS, 1e-12), tail, 1.0)
    estimate = max(rough.compute_chernoff_epsilon(rough.find_tilt(delta), delta), 0.0)
    bounds = EpsilonBounds(0.0, math.inf)
    for _ in range(_MAX_TRIES):
        apart = max(
            _TARGET_RELATIVE_GAP * min(max(estimate, _TARGET_ABSOLUTE_GAP / _TARGET_RELATIVE_GAP), _MAX_GAP_EPSILON),
            relative_gap * estimate,
        )
        cell = max(min(apart / (3.2 * wander), loss_width / _USUAL_BUCKETS), min_bucket, 1e-13)
        fine_sum = _ComposedLoss.from_steps(composition, cell, tail, 0.1 * cell * wander / total)
        min_cell = fine_sum.measure_tilted_width(delta, rough) / (_MAX_CELLS - 8)
        if min_cell > cell:
            cell = min_bucket = 1.01 * min_cell
            fine_sum = _ComposedLoss.from_steps(composition, cell, tail, 0.1 * cell * wander / total)
        bounds = fine_sum.bound_epsilon(delta, smaller_delta, wander, eta + 4.0 * total * tail, rough)
        if (
            cell <= min_bucket
            or math.isinf(bounds.upper)
            or bounds.upper - bounds.lower <= max(1.5 * _TARGET_RELATIVE_GAP * bounds.lower, 2.0 * _TARGET_ABSOLUTE_GAP)
        ):
            break
        estimate = min(estimate / 2.0, bounds.lower)
    return bounds


@dataclass(frozen=True)
class _ComposedLoss:
    """S, the sum of all losses on the grid: the law of each step, and the number of steps with it."""

    grids: tuple[_StepGrid, ...]
    counts: tuple[int, ...]
    cell: float

    @classmethod
    def from_steps(cls, composition: Composition, cell: float, tail: float, max_rounding: float) -> _ComposedLoss:
        """Build the sum; mass whose loss is rounded by more than ``max_rounding`` counts as wrong."""
        grids = tuple(_make_step_grid(branches, cell, tail, max_rounding) for branches, _ in composition)
        return cls(grids, tuple(count for _, count in composition), cell)

    def compute_log_moment(self, tilt: float) -> float:
        """Return log E e^(``tilt``·S)."""
        return math.fsum(n * grid.compute_log_moment(tilt) for grid, n in zip(self.grids, self.counts, strict=True))

    def compute_chernoff_epsilon(self, tilt: float, delta: float) -> float:
        """Return an epsilon whose delta is at most ``delta``: (1 − e^(ε−s))₊ <= e^(λ(s−ε))·_max_ratio(λ)."""
        return (self.compute_log_moment(tilt) + math.log(_compute_max_ratio(tilt) / delta)) / tilt

    def find_tilt(self, target_delta: float) -> float:
        """Find the tilt with the smallest Chernoff bound."""
        best = _argmin_unimodal(lambda place: self.compute_chernoff_epsilon(float(_TILTS[place]), target_delta))
        return float(_TILTS[best])

    def measure_tilted_width(self, delta: float, coarse_sum: _ComposedLoss) -> float:
        """Return over how many losses the tilted sum spreads."""
        tilt = coarse_sum.find_tilt(delta)
        moment = self.compute_log_moment(tilt)
        return sum(self._bound_tilted_sum_range(tilt, moment, sign, coarse_sum) for sign in (-1.0, 1.0))

    def bound_epsilon(
        self, delta: float, smaller_delta: float, deviation_bound: float, missing_mass: float, coarse_sum: _ComposedLoss
    ) -> EpsilonBounds:
        """Bound the smallest epsilon: below at ``delta``, above at ``smaller_delta``, both without ``missing_mass``."""
        total, tilt = sum(self.counts), coarse_sum.find_tilt(delta)
        moment, origin = self.compute_log_moment(tilt), self.compute_chernoff_epsilon(tilt, delta)
        low, high = (sign * self._bound_tilted_sum_range(tilt, moment, sign, coarse_sum) for sign in (-1.0, 1.0))
        cells = 1 << max(4, math.ceil(math.log2((high - low) / self.cell + 4)))
        if cells > _MAX_CELLS:
            return EpsilonBounds(0.0, math.inf)
        mass, max_cell_error, l2_error = self._convolve_steps(tilt, cells)
        first = math.floor(low / self.cell) - 1
        losses = (first + np.arange(cells)) * self.cell
        # everything relative to e^(moment − tilt·origin), which is delta or somewhat more
        first_relevant = int(np.searchsorted(losses, origin - min(300.0 / tilt, 690.0 / (1.0 + tilt), 600.0)))
        mass, losses = np.roll(mass, -(first % cells))[first_relevant:], losses[first_relevant:]
        weighted = mass * np.exp(-tilt * (losses - origin))
        tail_mass = np.append(np.cumsum(weighted[::-1])[::-1][1:], 0.0)
        discount = np.append(np.cumsum((weighted * np.exp(-(losses - origin)))[::-1])[::-1][1:], 0.0)
        curve = tail_mass - np.exp(np.minimum(losses - origin, 700.0)) * discount
        slips = sum(n * grid.rounding_error for grid, n in zip(self.grids, self.counts, strict=True))
        shares = np.asarray([grid.compute_error_shares(tilt) for grid in self.grids]).T @ np.asarray(self.counts)
        if float(shares.max()) > 700.0:  # e^share is no float: nothing is proved
            return EpsilonBounds(0.0, math.inf)
        unsure, moved = np.expm1(shares)
        rates = (min(rate * self.cell, 700.0) for rate in (tilt, 1.0 + tilt))
        tilt_sum, far = (1.0 / math.expm1(rate) for rate in rates)
        # what is wrong with the cells counts by e^(−λu)·(1 − e^(−u)): at most _compute_max_ratio, ``every`` together
        every = min(tilt_sum - far, cells)
        off = min(max_cell_error * every, l2_error * math.sqrt(_compute_max_ratio(tilt) * every))
        # and mass a few cells away by its slope, at most 1 without the tilt
        step = _MISPLACED_CELLS * self.cell
        shifted_loss = moved * step * math.exp(min(tilt * step, 700.0))
        off += (4.0 * _WRAPPED_MASS + unsure) * _compute_max_ratio(tilt) + shifted_loss
        error = off * np.exp(-tilt * (losses - origin)) + 4.0 * cells * _UNIT_ROUNDOFF * np.abs(tail_mass)
        scale = math.exp(min(tilt * origin - moment, 700.0))
        spread = self.cell * deviation_bound
        above = _BUCKET_SLACK * (total * self.cell**2 / 8.0 + 2.0 * spread) + self.cell + slips
        over = np.flatnonzero(curve - error > (delta + missing_mass) * scale)
        under = np.flatnonzero(curve + error <= (smaller_delta - missing_mass) * scale)
        lower = float(losses[over[-1]]) - spread - self.cell - slips if len(over) else 0.0
        upper = float(losses[under[0]]) + above if len(under) else math.inf
        return EpsilonBounds(max(0.0, min(lower, _MAX_LOSS)), max(0.0, upper))

    def _bound_tilted_sum_range(self, tilt: float, moment: float, sign: float, coarse_sum: _ComposedLoss) -> float:
        """Bound how far the tilted sum reaches to one side, except for a mass of ``_WRAPPED_MASS`` (Chernoff)."""

        def compute_range_bound(loss_sum: _ComposedLoss, start: float, added_tilt: float) -> float:
            change = loss_sum.compute_log_moment(tilt + sign * added_tilt) - start
            return (change - math.log(_WRAPPED_MASS)) / added_tilt

        begin = coarse_sum.compute_log_moment(tilt)
        best = _argmin_unimodal(lambda at: compute_range_bound(coarse_sum, begin, float(_TILTS[at])))
        return compute_range_bound(self, moment, float(_TILTS[best]))

    def _convolve_steps(self, tilt: float, cells: int) -> tuple[FloatArray, float, float]:
        """Return the tilted law of S on a circle, and its error: per cell, and in L2."""
        relative = 8.0 * _UNIT_ROUNDOFF * math.log2(cells)
        spectrum = np.ones(cells // 2 + 1, np.complex128)
        bounds = []
        for grid, count in zip(self.grids, self.counts, strict=True):
            law = grid.fold_tilted_distribution(tilt, cells)
            step = np.fft.rfft(law)
            error = relative * math.sqrt(cells * float((law * law).sum()))
            bounds.append((np.abs(step) + 2.0 * error, count, error))
            spectrum *= _raise_spectrum(step, count)
        most = l2_error = 0.0
        for index, (_, count, error) in enumerate(bounds):
            others = np.ones(cells // 2 + 1)
            for other, (size, repeats, _) in enumerate(bounds):
                others *= np.power(size, repeats - (other == index))
            most += count * error * math.sqrt(2.0 * float((others * others).sum()))
            l2_error += count * error * float(others.max())
        # a power is rounded by its angle, T times, and by the logarithm of its size
        size = np.abs(spectrum)
        logs = -np.log(np.maximum(size, 1e-300))
        power_error = (16.0 * (sum(self.counts) + len(bounds)) + 8.0 * logs) * _UNIT_ROUNDOFF * size
        most += 2.0 * float(power_error.sum())
        l2_error += math.sqrt(2.0 * float((power_error * power_error).sum()))
        law = np.fft.irfft(spectrum, cells)
        last = relative * math.sqrt(float((law * law).sum()))
        return law, most / cells + last, l2_error / math.sqrt(cells) + last


def _compute_max_ratio(tilt: float) -> float:
    """Return the largest e^(−tilt·u)·(1 − e^(−u)), at u = log(1 + 1/tilt)."""
    return math.exp(-tilt * math.log1p(1.0 / tilt)) / (1.0 + tilt)


def _argmin_unimodal(bound: Callable[[int], float]) -> int:
    """Find the tilt that minimises ``bound``, which falls and then rises."""
    low, high = 0, len(_TILTS) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if bound(middle) <= bound(middle + 1) else (middle + 1, high)
    return low


def _raise_spectrum(spectrum: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """Raise ``spectrum`` to the power of ``count``; what would underflow becomes 0."""
    power = np.zeros_like(spectrum)
    is_representable = np.abs(spectrum) > 1e-300 ** (1.0 / count)
    power[is_representable] = np.power(spectrum[is_representable], count)
    return power


@dataclass(frozen=True)
class _StepGrid:
    """One step: ``mass[i]`` at (``first_index`` + i)·``cell``; rounding may have misplaced ``misplaced_mass`` of it.

    ``rounding_error`` bounds how far the loss of the other mass may be off.
    """

    first_index: int
    mass: FloatArray
    misplaced_mass: FloatArray
    cell: float
    rounding_error: float

    def fold_tilted_distribution(self, tilt: float, cells: int) -> FloatArray:
        """Fold the tilted law onto a circle of ``cells``."""
        places = (self.first_index + np.arange(len(self.mass))) % cells
        tilted = self.mass * np.exp(self._compute_exponents(tilt) - self.compute_log_moment(tilt))
        return np.asarray(np.bincount(places, tilted, minlength=cells), np.float64)

    def compute_log_moment(self, tilt: float) -> float:
        """Return log E e^(``tilt``·l)."""
        with np.errstate(divide="ignore"):
            exponents = self._compute_exponents(tilt) + np.log(self.mass)
        top = float(exponents.max())
        return top + math.log(float(np.exp(exponents - top).sum()))

    def compute_error_shares(self, tilt: float) -> tuple[float, float]:
        """Return the share of the tilted law lost by rounding its exponents, and the share in another cell.

        A rounded edge moves mass to the neighbouring bucket.
        """
        exponents = self._compute_exponents(tilt)
        moved = float((self.misplaced_mass * np.exp(exponents - self.compute_log_moment(tilt))).sum())
        return 8.0 * _UNIT_ROUNDOFF * (4.0 + float(np.abs(exponents[[0, -1]]).max())), moved

    def _compute_exponents(self, tilt: float) -> FloatArray:
        return np.asarray(tilt * self.cell * (self.first_index + np.arange(len(self.mass))), np.float64)


@lru_cache(maxsize=8)
def _make_step_grid(branches: Branches, cell: float, tail: float, max_rounding: float) -> _StepGrid:
    parts = [(weight, *_discretize_losses(pair, cell, tail, max_rounding)) for weight, pair in branches]
    first = min(start for _, start, _, _, _ in parts)
    last = max(start + len(mass) for _, start, mass, _, _ in parts)
    total_mass, wrong = np.zeros(last - first), np.zeros(last - first)
    for weight, start, mass, off, _ in parts:
        total_mass[start - first : start - first + len(mass)] += weight * mass
        wrong[start - first : start - first + len(mass)] += weight * off
    return _StepGrid(first, total_mass, wrong, cell, max(part_rounding for *_, part_rounding in parts))


def _discretize_losses(
    pair: DominatingPair, cell: float, tail: float, max_rounding: float
) -> tuple[int, FloatArray, FloatArray, float]:
    """Put one step's losses on the grid: the number of the first cell, the mass of each, and the misplaced mass."""
    line, loss = _sample_losses(pair, tail)
    first = math.floor(loss[0] / cell)
    edges = np.concatenate([[-np.inf], _find_bucket_edges(cell, line, loss), [np.inf]])
    p, error_p = _compute_interval_masses(pair.p, pair.deviation, edges)
    q, error_q = _compute_interval_masses(pair.q, pair.deviation, edges)
    has_mass, lowest = p > 0.0, np.arange(first, first + len(p), dtype=np.float64)
    p, q, lowest, error_p, error_q = p[has_mass], q[has_mass], lowest[has_mass], error_p[has_mass], error_q[has_mass]
    # Q's mass underflows where losses are beyond the largest one that matters: there the lower edge is taken
    with np.errstate(divide="ignore", invalid="ignore"):
        rounding = error_p / p + error_q / q
        known = (q > _MIN_MASS) & (rounding < max_rounding)
    place = np.where(known, np.log(p / np.where(known, q, 1.0)) / cell, lowest)
    place = np.maximum(place, lowest[0])  # losses below the range have a mass of ``tail``
    below = np.floor(place).astype(np.int64)
    upward = p * (place - below)
    first, size = int(below.min()), int(below.max() - below.min()) + 2
    mass = np.bincount(below - first, p - upward, minlength=size)
    mass += np.bincount(below - first + 1, upward, minlength=size)
    misplaced = np.bincount(below - first + 1, np.where(known, error_p, p + error_p), minlength=size)
    max_slip = float(rounding[known].max(initial=0.0))
    return first, np.asarray(mass, np.float64), np.asarray(misplaced, np.float64), max_slip


@lru_cache(maxsize=4)
def _sample_losses(pair: DominatingPair, tail: float) -> tuple[FloatArray, FloatArray]:
    """Return closely spaced points of the line, and the loss of ``pair`` at each."""
    line = np.linspace(*_find_line_ends(pair, tail), _LINE_POINTS)
    return line, np.asarray(np.maximum.accumulate(_compute_loss(pair, line)), np.float64)


def _find_line_ends(pair: DominatingPair, tail: float) -> tuple[float, float]:
    """Return the ends of the range that contains all of P except ``tail`` on each side."""
    far = float(stats.norm.isf(tail)) * pair.deviation
    return min(pair.p.means) - far, max(pair.p.means) + far


def _measure_loss_width(pair: DominatingPair, tail: float) -> float:
    """Return the width of the losses, except for ``tail`` of P on each side."""
    low, high = _compute_loss(pair, np.array(_find_line_ends(pair, tail)))
    return float(high - low)


def _compute_loss(pair: DominatingPair, x: FloatArray) -> FloatArray:
    """Compute log dP/dQ, which rises."""

    def compute_log_density(mixture: Mixture) -> FloatArray:
        parts = zip(mixture.weights, mixture.means, strict=True)
        terms = [np.log(w) - (x - m) ** 2 / (2.0 * pair.deviation**2) for w, m in parts]
        return np.asarray(np.logaddexp.reduce(terms, axis=0))

    return compute_log_density(pair.p) - compute_log_density(pair.q)


def _compute_interval_masses(mixture: Mixture, deviation: float, edges: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the mass between neighbouring ``edges`` [n + 1], as [n], exact in both tails; and its rounding error."""
    turn = int(np.searchsorted(edges, 0.0))

    def compute_tail_mass(x: FloatArray, sign: float) -> FloatArray:
        parts = zip(mixture.weights, mixture.means, strict=True)
        return np.asarray(np.sum([w * ndtr(sign * (x - m) / deviation) for w, m in parts], axis=0))

    below, above = compute_tail_mass(edges[: turn + 1], 1.0), compute_tail_mass(edges[turn:], -1.0)
    tails = np.concatenate([below[1:], above[:-1]])
    with np.errstate(divide="ignore", invalid="ignore"):
        # rounding a place moves a tail by its squared distance, at most -2·log(tail)
        off = np.where(tails > 0.0, _UNIT_ROUNDOFF * tails * (16.0 - 8.0 * np.log(tails)), 0.0)
    return np.concatenate([np.diff(below), -np.diff(above)]), off


def _find_bucket_edges(cell: float, line: FloatArray, loss: FloatArray) -> FloatArray:
    """Find where the loss passes a multiple of ``cell``, by interpolation between (``line``, ``loss``)."""
    first, last = math.floor(loss[0] / cell), math.ceil(loss[-1] / cell)
    return np.interp(np.arange(first + 1, last) * cell, loss, line)


def bound_composed_epsilon(
    composition: Composition, delta: float, smaller_delta: float | None = None, relative_gap: float = 0.0
) -> EpsilonBounds:
    """Bound by :func:`bound_one_order_epsilon`, the worse of both orders; an empty composition has epsilon 0."""
    if not composition:
        return EpsilonBounds(0.0, 0.0)
    pairs = [pair for branches, _ in composition for _, pair in branches]
    if any(max(map(abs, pair.means)) > MAX_SHIFT_DEVIATIONS * pair.deviation for pair in pairs):
        return EpsilonBounds(0.0, math.inf)
    back: Composition = tuple(
        (tuple((w, reverse_pair(pair)) for w, pair in branches), count) for branches, count in composition
    )
    orders = {composition: 0, back: 0}
    ordered_bounds = [bound_one_order_epsilon(order, delta, smaller_delta, relative_gap) for order in orders]
    return EpsilonBounds(max(b.lower for b in ordered_bounds), max(b.upper for b in ordered_bounds))
