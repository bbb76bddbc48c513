"""The main accountant: one step's privacy losses on a grid, and what many steps cost together.

The losses of a pair are inverted for all points of a grid at once; the masses between two points are those of
the two worlds, exact in both tails. A loss between two grid points goes to both, in shares that keep its mass
in either world ("connect the dots", Doroshenko et al. 2022): that only raises delta. Steps are composed by one
Fourier transform of the *tilted* law p(s)·e^(λs)/M(λ), with λ chosen for the requested delta. So the rounding
of the transform is small relative to delta, however small delta is. Everything that is rounded, cut or wrapped
is bounded and added: every epsilon is an upper bound (``docs/guarantees.md``, "Two accountants").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from scipy import fft, optimize, signal
from scipy.special import ndtr, ndtri

from redactory.training.accounting.bounds import PrivacyCurve, compute_gaussian_epsilon, compute_revealed_shift_epsilon
from redactory.training.accounting.dominating_pairs import (
    Branches,
    Composition,
    DominatingPair,
    FloatArray,
    Mixture,
    make_binomial_mixture,
    make_removal_pair,
)

FINEST_GRID = 2e-4
_MAX_SHIFT_RATIO = 24.0
_MIN_TAIL, _TAIL_SHARE_OF_DELTA = 1e-35, 1e-9
"""Mass that may be cut off at each end of one step: absolutely, and as a share of the delta of a step."""
_MAX_SHIFT_DEVIATIONS = 1e3
"""Of noise, in a step's shift: with less noise one step that holds the point loses over 10⁵."""
_GRID_SHARE_OF_DEVIATION, _FINE_GRID = 0.05, 1e-4
_MAX_GRID_POINTS = 1 << 21
UNIT_ROUNDOFF = 2.0**-53
"""The largest relative error of one rounded operation."""
_WRAPPED_MASS = 1e-14
"""What share of the tilted law may wrap around the circle."""
_MAX_CELLS = 1 << 24
_COARSE_CELLS = 1 << 13
_TILT_COUNT = 9
_LOG_TILT_RANGE = (math.log(1e-6), math.log(1e7))


# What steps cost: curves from delta to epsilon.


def make_group_epsilon_curve(
    group_size: int, sampling_rate: float, deviation: float, steps: int, coarsening: float = 1.0
) -> PrivacyCurve:
    """Make the curve of ``group_size`` K Poisson(q)-sampled examples (or users) there against not there, both orders.

    The pair of a step is N(0, s²) against Σ_j Bin(K, q)(j)·N(j, s²); ``deviation`` s is in units of the clip. If
    K/s is above 24 the bound by revealing replaces it: equally sound, and no usable epsilon is lost. A grid that is
    ``coarsening`` times coarser is faster and gives a larger epsilon.
    """
    if group_size == 0 or steps == 0:
        return lambda delta: 0.0
    if sampling_rate == 1.0:
        return lambda delta: compute_gaussian_epsilon(group_size * math.sqrt(steps) / deviation, delta)
    if group_size / deviation > _MAX_SHIFT_RATIO:
        law = make_binomial_mixture(sampling_rate, group_size)
        return lambda delta: compute_revealed_shift_epsilon(law, deviation, steps, delta, coarsening)
    pair = make_removal_pair(sampling_rate, deviation, group_size)
    return make_branch_epsilon_curve(((1.0, pair),), steps, coarsening)


def make_branch_epsilon_curve(branches: Branches, steps: int, coarsening: float = 1.0) -> PrivacyCurve:
    """Make the curve of ``steps`` steps of ``branches``, both orders, on a grid for the ratio of shift to noise."""
    ratio = max(pair.p.means[-1] / pair.deviation for _, pair in branches)
    max_grid, parts = coarsening * FINEST_GRID * min(max(2.5 * ratio, 1.0), 50.0), ((branches, steps),)
    return lambda delta: compose_epsilon(parts, max_grid, delta)


@lru_cache(maxsize=1024)
def compose_epsilon(composition: Composition, max_grid: float, delta: float) -> float:
    """Compute epsilon of all of ``composition`` together at ``delta``, the worse order; ``inf`` if there is none.

    The grid is at most ``max_grid``. ``inf`` also if noise is so small that double precision cannot separate its
    losses.
    """
    # a power of ten, so that nearby deltas share their laws
    pairs = [pair for branches, _ in composition for _, pair in branches]
    if any(max(map(abs, pair.means)) > _MAX_SHIFT_DEVIATIONS * pair.deviation for pair in pairs):
        return math.inf
    share = _TAIL_SHARE_OF_DELTA * delta / sum(count for _, count in composition)
    tail = max(10.0 ** math.floor(math.log10(max(share, _MIN_TAIL))), _MIN_TAIL)
    try:
        orders = _make_both_order_distributions(composition, choose_grid_spacing(composition, max_grid, tail), tail)
        return max(compute_composed_epsilon(order, delta) for order in orders)
    except (_LossInversionError, OverflowError):
        return math.inf


def compose_deltas(composition: Composition, grid: float, epsilons: FloatArray) -> FloatArray:
    """Compute delta of all of ``composition`` together at each of ``epsilons``, the worse order, rounded up."""
    try:
        deltas = [
            compute_composed_deltas(order, epsilons) for order in _make_both_order_distributions(composition, grid)
        ]
    except (_LossInversionError, OverflowError):
        return np.ones_like(epsilons)
    return np.asarray(np.max(deltas, axis=0))


def _make_both_order_distributions(
    composition: Composition, grid: float, tail: float = _MIN_TAIL
) -> list[LossDistributions]:
    steps = [(make_step_distributions(branches, grid, tail), count) for branches, count in composition]
    orders = range(max(len(laws) for laws, _ in steps))
    return [[(laws[order % len(laws)], count) for laws, count in steps] for order in orders]


def choose_grid_spacing(composition: Composition, max_grid: float, tail: float = _MIN_TAIL) -> float:
    """Choose a grid of at most ``max_grid``, fine relative to one step's losses, with dots that fit in memory."""
    total = sum(count for _, count in composition)
    variances = [sum(share * _estimate_loss_variance(pair) for share, pair in branches) for branches, _ in composition]
    deviation = math.sqrt(math.fsum(v * n for v, (_, n) in zip(variances, composition, strict=True)) / total)
    # what a step's dots add to its variance is about grid²/6
    fine = _GRID_SHARE_OF_DEVIATION * deviation * max(1.0, math.sqrt(max_grid / _FINE_GRID) / 2.0)
    ranges = [
        high - low
        for branches, _ in composition
        for low, high in (_find_loss_range(pair, tail) for _, pair in branches)
    ]
    max_components = max(len(pair.p.means) for branches, _ in composition for _, pair in branches)
    return max(min(max_grid, fine), max(ranges) * max(2, max_components) / _MAX_GRID_POINTS, 1e-12)


class _LossInversionError(ArithmeticError):
    """A loss could not be inverted to a double's last digits."""


# One pair: its loss along the line, and where that ends.


def compute_privacy_loss(pair: DominatingPair, x: FloatArray) -> FloatArray:
    """Compute the log of the ratio of the two densities."""
    return _compute_log_density(pair.p, pair.deviation, x) - _compute_log_density(pair.q, pair.deviation, x)


def _find_loss_range(pair: DominatingPair, tail: float) -> tuple[float, float]:
    """Return the range of losses that contains all of either world except about ``tail`` at each end."""
    means, weights = np.array(pair.means), np.array((*pair.p.weights, *pair.q.weights))
    far = -pair.deviation * ndtri(np.minimum(tail / weights, 0.5))
    low, high = compute_privacy_loss(pair, np.array([(means - far).min(), (means + far).max()]))
    return float(low), float(high)


def _estimate_loss_variance(pair: DominatingPair) -> float:
    """Estimate the variance of the loss, in the world with the smaller one."""
    s = pair.deviation
    x = np.linspace(min(pair.means) - 8.0 * s, max(pair.means) + 8.0 * s, 4001)
    loss, variances = compute_privacy_loss(pair, x), []
    for mixture in (pair.p, pair.q):
        density = np.exp(_compute_log_density(mixture, s, x) - x**2 / (2.0 * s**2))
        mean = float((density * loss).sum() / density.sum())
        variances.append(float((density * (loss - mean) ** 2).sum() / density.sum()))
    return min(variances)


# One step on a grid.


@dataclass(frozen=True)
class IntervalMasses:
    """The ``mass`` of neighbouring intervals, and an upper bound of its rounding ``error``."""

    mass: FloatArray
    error: FloatArray

    @classmethod
    def zeros(cls, count: int) -> IntervalMasses:
        """Return ``count`` intervals without mass."""
        return cls(np.zeros(count), np.zeros(count))

    def __add__(self, other: IntervalMasses) -> IntervalMasses:
        return IntervalMasses(self.mass + other.mass, self.error + other.error)

    @property
    def reversed(self) -> IntervalMasses:
        """Return the same in the opposite order."""
        return IntervalMasses(self.mass[::-1], self.error[::-1])


@dataclass(frozen=True, eq=False)
class LossDistribution:
    """One step's losses: ``mass[i]`` at (``first_index`` + i)·``grid``, ``infinite_mass`` at ∞.

    ``loss_error`` bounds how far a loss may really be above its place.
    """

    first_index: int
    mass: FloatArray
    infinite_mass: float
    grid: float
    loss_error: float

    @property
    def losses(self) -> FloatArray:
        """Return the losses at which the masses are."""
        return np.asarray((self.first_index + np.arange(len(self.mass))) * self.grid, np.float64)

    def compute_log_moment(self, tilt: float) -> float:
        """Return log E e^(``tilt``·L)."""
        return _compute_log_moment(self.losses, self.mass, tilt)

    @cached_property
    def coarse_approximation(self) -> tuple[FloatArray, FloatArray]:
        """Return a similar law of few values, to find the range for the exact computation."""
        cells = len(self.mass)
        starts = np.arange(0, cells, -(-cells // _COARSE_CELLS))
        # the largest losses alone decide where the tilt is large
        starts = np.union1d(starts, np.arange(max(0, cells - _COARSE_CELLS), cells))
        mass = np.add.reduceat(self.mass, starts)
        sums = np.add.reduceat(self.mass * self.losses, starts)
        return np.divide(sums, mass, out=np.zeros_like(sums), where=mass > 0.0), mass

    def fold_tilted_distribution(self, tilt: float, cells: int) -> FloatArray:
        """Return p(s)·e^(``tilt``·s)/M, on a circle of ``cells``."""
        weights = self.mass * np.exp(tilt * self.losses - self.compute_log_moment(tilt))
        places = (self.first_index + np.arange(len(weights))) % cells
        return np.asarray(np.bincount(places, weights, minlength=cells), np.float64)


LossDistributions = Sequence[tuple[LossDistribution, int]]
"""Laws on one grid, and how many steps there are of each."""


@lru_cache(maxsize=16)
def make_step_distributions(branches: Branches, grid: float, tail: float) -> tuple[LossDistribution, ...]:
    """Make one step's laws on ``grid``: of the loss in one order, and in the other if that differs.

    The mass beyond their ends, about ``tail`` of a world at each, goes to the loss above it. A branch has the same
    probability in both worlds and is revealed, so the masses are averaged.
    """
    ends = [_find_loss_range(pair, tail) for _, pair in branches]
    low = math.floor(min(end[0] for end in ends) / grid)
    high = max(math.ceil(max(end[1] for end in ends) / grid), low + 1)
    losses = np.arange(low, high + 1, dtype=np.float64) * grid
    off = 4e-12 * (1.0 + float(np.abs(losses[[0, -1]]).max()))
    there, gone = IntervalMasses.zeros(len(losses) + 1), IntervalMasses.zeros(len(losses) + 1)
    for share, pair in branches:
        edges = np.concatenate([[-np.inf], _invert_losses(pair, losses), [np.inf]])
        there += _compute_interval_masses(pair.p, pair.deviation, edges, share)
        gone += _compute_interval_masses(pair.q, pair.deviation, edges, share)
    forward = make_connect_dots_distribution(low, grid, there, gone, off)
    if all(pair == pair.reversed for _, pair in branches):
        return (forward,)
    return forward, make_connect_dots_distribution(-high, grid, gone.reversed, there.reversed, off)


def _compute_interval_masses(mixture: Mixture, deviation: float, edges: FloatArray, share: float) -> IntervalMasses:
    """Return ``share`` of the mass between neighbouring ``edges``, and its rounding error."""
    below, above = np.zeros(len(edges)), np.zeros(len(edges))
    for mean, weight in zip(mixture.means, mixture.weights, strict=True):
        below += weight * ndtr((edges - mean) / deviation)
        above += weight * ndtr((mean - edges) / deviation)
    use_lower = below[1:] <= 0.5
    mass = np.where(use_lower, np.diff(below), -np.diff(above))
    tail = np.where(use_lower, below[1:], above[:-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        # a place that is rounded moves a tail by its squared distance, -2·log(tail)
        error = UNIT_ROUNDOFF * np.where(tail > 0.0, tail * (16.0 - 8.0 * np.log(tail)), 0.0)
    return IntervalMasses(share * np.maximum(mass, 0.0), share * error)


def _invert_losses(pair: DominatingPair, losses: FloatArray) -> FloatArray:
    """Find where the loss is each of ``losses``; ∓∞ if that is 20 deviations outside of every part.

    For an exchange it is s²·(asinh(α·sinh(ε/2)) + ε/2) with α = e^(1/2s²)·(1−q)/q (dp_accounting's formula);
    otherwise a table gives the start of a safeguarded Newton iteration.
    """
    s, p = pair.deviation, pair.p
    is_exchange = pair.q == p.mirrored
    if is_exchange and p.means == (1.0,):
        return losses * s**2 / 2.0
    if is_exchange and p.means == (0.0, 1.0):
        log_alpha = 0.5 / s**2 + math.log(p.weights[0]) - math.log(p.weights[1])
        half = np.abs(losses) / 2.0
        with np.errstate(divide="ignore"):
            scaled = log_alpha + half + np.log(-np.expm1(-2.0 * half)) - math.log(2.0)
        # asinh(e^scaled)
        large = np.logaddexp(0.5 * np.logaddexp(0.0, 2.0 * scaled), scaled)
        asinh = np.where(scaled < 0.0, np.arcsinh(np.exp(np.minimum(scaled, 0.0))), large)
        return np.asarray(s**2 * (np.sign(losses) * asinh + losses / 2.0))
    table = np.linspace(min(pair.means) - 20.0 * s, max(pair.means) + 20.0 * s, 4096)
    known = compute_privacy_loss(pair, table)
    positions = np.where(losses <= known[0], -np.inf, np.inf)
    inside = (losses > known[0]) & (losses < known[-1])
    positions[inside] = _invert_by_newton(pair, losses[inside], table, known)
    return positions


def _invert_by_newton(
    pair: DominatingPair, target_losses: FloatArray, table: FloatArray, table_losses: FloatArray
) -> FloatArray:
    index = np.clip(np.searchsorted(table_losses, target_losses), 1, len(table) - 1)
    low, high = table[index - 1], table[index]
    x = np.interp(target_losses, table_losses, table)
    todo = np.arange(len(target_losses))
    for _ in range(80):
        value = compute_privacy_loss(pair, x[todo])
        off = value - target_losses[todo]
        high[todo] = np.where(off > 0.0, x[todo], high[todo])
        low[todo] = np.where(off > 0.0, low[todo], x[todo])
        is_far = np.abs(off) > 1e-12 * np.maximum(1.0, np.abs(value))
        todo, value, off = todo[is_far], value[is_far], off[is_far]
        if not len(todo):
            return x
        with np.errstate(over="ignore"):
            step = x[todo] - off / np.maximum(_compute_loss_slope(pair, x[todo]), 1e-300)
        is_within = (step > low[todo]) & (step < high[todo])
        x[todo] = np.where(is_within, step, (low[todo] + high[todo]) / 2.0)
    raise _LossInversionError


def _compute_log_terms(mixture: Mixture, deviation: float, x: FloatArray) -> FloatArray:
    """log of each part's density against that of N(0, s²), cx/s² − c²/2s² + log w, as [x, part]."""
    c, w = np.array(mixture.means), np.array(mixture.weights)
    return np.asarray(np.outer(x, c) / deviation**2 - c**2 / (2.0 * deviation**2) + np.log(w))


def _compute_log_density(mixture: Mixture, deviation: float, x: FloatArray) -> FloatArray:
    terms = _compute_log_terms(mixture, deviation, x)
    largest = terms.max(axis=1)
    return np.asarray(largest + np.log(np.exp(terms - largest[:, None]).sum(axis=1)))


def _compute_loss_slope(pair: DominatingPair, x: FloatArray) -> FloatArray:
    """Compute the derivative of the loss."""

    def compute_posterior_mean(mixture: Mixture) -> FloatArray:
        terms = _compute_log_terms(mixture, pair.deviation, x)
        weights = np.exp(terms - terms.max(axis=1)[:, None])
        return np.asarray((weights @ np.array(mixture.means)) / weights.sum(axis=1))

    return (compute_posterior_mean(pair.p) - compute_posterior_mean(pair.q)) / pair.deviation**2


def make_connect_dots_distribution(
    first: int, grid: float, upper: IntervalMasses, lower: IntervalMasses, loss_error: float
) -> LossDistribution:
    """Make the law of log dP/dQ from the masses of P = ``upper`` and Q = ``lower`` in the buckets between dots.

    Bucket 0 is below dot ``first``, the last one above the last dot: its mass counts as infinite loss.
    """
    p, q = upper.mass[1:-1], lower.mass[1:-1]
    left = (first + np.arange(len(p))) * grid
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # Q(bucket)·e^left/P(bucket) lies between e^-grid and 1
        ratio = np.exp(left + np.log(q) - np.log(p))
        rounding = upper.error[1:-1] / p + lower.error[1:-1] / q + 8.0 * UNIT_ROUNDOFF * (1.0 + np.abs(left))
        share = (1.0 - ratio + rounding) / -math.expm1(-grid)
    share = np.where(np.isfinite(share), np.clip(share, 0.0, 1.0), 1.0)
    safe = upper.mass + upper.error
    inner = safe[1:-1]
    mass = np.zeros(len(p) + 1)
    mass[:-1] += inner * (1.0 - share)
    mass[1:] += inner * share
    mass[0] += safe[0]
    nonzero = np.flatnonzero(mass)
    begin, end = (int(nonzero[0]), int(nonzero[-1]) + 1) if len(nonzero) else (0, 1)
    return LossDistribution(first + begin, mass[begin:end], float(safe[-1]), grid, loss_error)


# Steps composed.


def compute_composed_epsilon(distributions: LossDistributions, delta: float) -> float:
    """Return the smallest epsilon of ``distributions`` together at ``delta``, rounded up; ``inf`` if there is none."""
    left = delta - sum(count * law.infinite_mass for law, count in distributions)
    if left <= 0.0:
        return math.inf
    composition = _TiltedComposition.compose_for_delta(distributions, left)
    return math.inf if composition is None else composition.find_epsilon(left)


def compute_composed_deltas(distributions: LossDistributions, epsilons: FloatArray) -> FloatArray:
    """Bound delta of ``distributions`` together at each of ``epsilons``, the smallest over a few tilts."""
    shifted = epsilons - sum(count * law.loss_error for law, count in distributions)
    best, grid = np.ones_like(shifted), distributions[0][0].grid
    for epsilon in np.quantile(shifted, np.linspace(0.0, 1.0, _TILT_COUNT)):
        # at the dot before it, whose delta is taken
        def bound_log_delta(log_tilt: float, loss: float = math.floor(epsilon / grid) * grid) -> float:
            tilt = math.exp(log_tilt)
            return _sum_coarse_log_moments(distributions, tilt) - tilt * loss + _compute_log_max_ratio(tilt)

        composition = _TiltedComposition.compose(distributions, math.exp(_minimize_over_tilts(bound_log_delta)))
        if composition is not None:
            best = np.minimum(best, composition.compute_deltas(shifted))
    return np.minimum(1.0, best + sum(count * law.infinite_mass for law, count in distributions))


@dataclass(frozen=True)
class _TiltedComposition:
    """``deltas[i]``·e^(``log_moment`` − ``tilt``·loss) is delta at the loss (``first`` + i)·``grid``."""

    deltas: FloatArray
    first_index: int
    grid: float
    tilt: float
    log_moment: float
    loss_error: float

    @classmethod
    def compose_for_delta(cls, distributions: LossDistributions, delta: float) -> _TiltedComposition | None:
        """Tilt to where ``delta`` is reached, so that Chernoff's bound of epsilon is smallest."""

        def bound_epsilon(log_tilt: float) -> float:
            tilt = math.exp(log_tilt)
            return (
                _sum_coarse_log_moments(distributions, tilt) + _compute_log_max_ratio(tilt) - math.log(delta)
            ) / tilt

        return cls.compose(distributions, math.exp(_minimize_over_tilts(bound_epsilon)))

    @classmethod
    def compose(cls, distributions: LossDistributions, tilt: float) -> _TiltedComposition | None:
        """Return the composition; None if it has too many cells."""
        grid, moment = distributions[0][0].grid, _sum_log_moments(distributions, tilt)
        low = -_bound_tilted_sum_range(distributions, tilt, moment, -1.0)
        high = _bound_tilted_sum_range(distributions, tilt, moment, 1.0)
        first, last = math.floor(low / grid), math.ceil(high / grid)
        cells = 1 << max(4, math.ceil(math.log2(last - first + 2)))
        if cells > _MAX_CELLS:
            return None
        folded, max_cell_error, l2_error = _convolve_distributions(
            [(folded.fold_tilted_distribution(tilt, cells), count) for folded, count in distributions]
        )
        folded = np.maximum(np.roll(folded, -(first % cells)), 0.0)
        # d(k−1) = e^(−λh)·(d(k)·e^(−h) + (1 − e^(−h))·a), a all the mass from k on: nothing is subtracted
        fall, back = math.exp(-tilt * grid), math.exp(-grid)
        share = signal.lfilter([1.0], [1.0, -fall], folded[::-1])
        deltas = signal.lfilter([-math.expm1(-grid) * fall], [1.0, -fall * back], share)[::-1]
        spread = 1.0 / math.expm1(min(tilt * grid, 700.0)) - 1.0 / math.expm1(min((tilt + 1.0) * grid, 700.0))
        # an error's cells count by a share of at most e^_steepest, ``spread`` together
        spread, largest = min(spread, cells), math.exp(_compute_log_max_ratio(tilt))
        errors = min(max_cell_error * spread, l2_error * math.sqrt(largest * spread)) + 4.0 * _WRAPPED_MASS * largest
        deltas = deltas * (1.0 + 16.0 * UNIT_ROUNDOFF * (1.0 + 1.0 / (tilt * grid))) + errors
        off = sum(count * distribution.loss_error for distribution, count in distributions)
        exponents = sum(
            n * (4.0 + tilt * float(np.abs(distribution.losses[[0, -1]]).max())) for distribution, n in distributions
        )
        rounding = 8.0 * UNIT_ROUNDOFF * (abs(moment) + exponents)
        return cls(deltas, first - 1, grid, tilt, moment + rounding, off)

    def find_epsilon(self, delta: float) -> float:
        """Find the smallest epsilon >= 0 with at most ``delta``."""
        places = self.first_index + np.arange(len(self.deltas))
        logs = self.log_moment - self.tilt * self.grid * places + np.log(self.deltas)
        under = np.flatnonzero(logs <= math.log(delta))
        if not len(under):
            return math.inf
        index = int(under[0])
        loss = float(places[index]) * self.grid
        if index:
            # between two dots delta is linear in e^epsilon
            before, after = (math.expm1(min(logs[at] - math.log(delta), 700.0)) for at in (index - 1, index))
            loss += math.log1p(before / (before - after) * math.expm1(self.grid)) - self.grid
        return max(0.0, loss + self.loss_error)

    def compute_deltas(self, epsilons: FloatArray) -> FloatArray:
        """Return delta at each of ``epsilons``: that of the dot before it; before the first, by convexity in e^ε."""
        positions = np.floor(epsilons / self.grid).astype(np.int64) - self.first_index
        indices = np.clip(positions, 0, len(self.deltas) - 1)
        logs = self.log_moment - self.tilt * self.grid * (self.first_index + indices) + np.log(self.deltas[indices])
        deltas = np.exp(np.minimum(logs, 0.0))
        first = np.exp(np.minimum(epsilons - self.grid * self.first_index, 0.0))
        return np.asarray(np.where(positions < 0, 1.0 - (1.0 - deltas) * first, deltas), np.float64)


def _convolve_distributions(folded: Sequence[tuple[FloatArray, int]]) -> tuple[FloatArray, float, float]:
    """Convolve ``count`` times each law, and bound the error: per cell, and in L2.

    A transform's error is at most 8u·log2(n) of its L2 norm (Higham 2002, Theorem 24.2); that of a power, T·(|f| +
    2‖e‖)^(T−1)·|e|, summed by Cauchy and Schwarz; that of a rounded exponent x + iy, |x|·u and T·u.
    """
    cells = len(folded[0][0])
    relative = 8.0 * UNIT_ROUNDOFF * math.log2(cells)
    exponents = np.zeros(cells // 2 + 1, np.complex128)
    slopes: list[tuple[FloatArray, float]] = []
    total = sum(count for _, count in folded)
    with np.errstate(divide="ignore", invalid="ignore"):
        for step, count in folded:
            spectrum = fft.rfft(step)
            error = relative * math.sqrt(cells) * float(np.linalg.norm(step))
            sizes = np.abs(spectrum)
            exponents += count * np.log(np.maximum(sizes, 1e-300)) + 1j * (count * np.angle(spectrum))
            slopes.append((np.log(sizes + 2.0 * error), count * error))
        sizes = np.exp(exponents.real)
        reach = sum(count * log for (log, _), (_, count) in zip(slopes, folded, strict=True))
        others = [(np.exp(reach - log), error) for log, error in slopes]
    power_error = sizes * UNIT_ROUNDOFF * (16.0 * total + 16.0 - 8.0 * exponents.real)
    most = sum(_compute_full_norm(other, 2) * error for other, error in others) + _compute_full_norm(power_error, 1)
    l2_error = sum(float(other.max()) * error for other, error in others) + _compute_full_norm(power_error, 2)
    result = fft.irfft(np.exp(exponents), cells)
    last = relative * float(np.linalg.norm(result))
    return result, most / cells + last, l2_error / math.sqrt(cells) + last


def _compute_full_norm(half: FloatArray, power: int) -> float:
    """Compute the norm of a real law's whole spectrum from one ``half`` of it."""
    return float((2.0 * (half**power).sum()) ** (1.0 / power))


def _bound_tilted_sum_range(distributions: LossDistributions, tilt: float, moment: float, sign: float) -> float:
    """Bound how far the tilted sum reaches to one side, except for a mass of ``_WRAPPED_MASS`` (Chernoff)."""

    def make_range_bound(
        compute_moment: Callable[[LossDistributions, float], float], start: float
    ) -> Callable[[float], float]:
        def compute_range_bound(log_added_tilt: float) -> float:
            more = math.exp(log_added_tilt)
            return (compute_moment(distributions, tilt + sign * more) - start - math.log(_WRAPPED_MASS)) / more

        return compute_range_bound

    coarse_moment = _sum_coarse_log_moments(distributions, tilt)
    place = _minimize_over_tilts(make_range_bound(_sum_coarse_log_moments, coarse_moment))
    return make_range_bound(_sum_log_moments, moment)(place) + distributions[0][0].grid


def _minimize_over_tilts(bound: Callable[[float], float]) -> float:
    """Return about the logarithm of the tilt that minimises ``bound``, which falls and then rises."""
    return float(optimize.minimize_scalar(bound, bounds=_LOG_TILT_RANGE, method="bounded", options={"xatol": 1e-3}).x)


def _compute_log_max_ratio(tilt: float) -> float:
    """Compute the log of the largest e^(−λu)·(1 − e^(−u)): the part of a moment that can count as delta."""
    return tilt * math.log(tilt) - (1.0 + tilt) * math.log1p(tilt)


def _sum_log_moments(distributions: LossDistributions, tilt: float) -> float:
    return math.fsum(count * law.compute_log_moment(tilt) for law, count in distributions)


def _sum_coarse_log_moments(distributions: LossDistributions, tilt: float) -> float:
    return math.fsum(count * _compute_log_moment(*law.coarse_approximation, tilt) for law, count in distributions)


def _compute_log_moment(losses: FloatArray, mass: FloatArray, tilt: float) -> float:
    with np.errstate(divide="ignore"):
        exponents = tilt * losses + np.log(mass)
    largest = float(exponents.max(initial=-math.inf, where=mass > 0.0))
    return largest + math.log(float(np.exp(exponents - largest).sum()))
