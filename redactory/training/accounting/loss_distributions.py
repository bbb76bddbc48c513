"""The estimate: privacy loss distributions of dp_accounting (Google), composed over all steps.

The library discretises a step's losses by "connect the dots" (Doroshenko et al. 2022), which only raises delta, and
composes steps by Fourier transform. Its floating point is not analysed: ``verification`` proves how far from the
truth an epsilon can be (``docs/guarantees.md``, "Two accountants"). For pairs that the library lacks (groups, hidden
classes) this module computes delta at each point of the grid, and the library does the rest.
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import ndtr, ndtri

from redactory.training.mechanisms.pairs import (
    MAX_SHIFT_DEVIATIONS,
    NO_SHIFT,
    Branches,
    Composition,
    DominatingPair,
    FloatArray,
    Mixture,
)

if TYPE_CHECKING:
    # an extra, and slow to import: curation and verification do without it
    from dp_accounting.pld.pld_pmf import PLDPmf
    from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution

_ROUNDING_ALLOWANCE = 8.0 * 2.0**-53
"""Times the root of the number of grid points times steps: an estimate, which is compared with proved bounds."""
_TAIL_MASS, _TRUNCATED_MASS = 1e-22, 1e-18
"""Mass that counts as infinite loss: in each tail of one step, and of all steps together."""
_INTERVAL_SHARE_OF_DEVIATION, _FINE_INTERVAL = 0.05, 1e-4
_MAX_GRID_POINTS = 1 << 20
_TABLE_SIZE = 1 << 15


def compose_epsilon(composition: Composition, max_interval: float, delta: float) -> float:
    """Compute epsilon of all of ``composition`` together at ``delta``, the worse order; ``inf`` if there is none.

    The losses are put on a grid of at most ``max_interval``.
    """
    pairs = [pair for branches, _ in composition for _, pair in branches]
    if any(max(map(abs, pair.means)) > MAX_SHIFT_DEVIATIONS * pair.deviation for pair in pairs):
        return math.inf
    losses, rounding = _compose(composition, choose_interval(composition, max_interval))
    remaining_delta = delta - rounding
    if remaining_delta <= 0.0:
        return math.inf
    with np.errstate(over="ignore"):
        return float(losses.get_epsilon_for_delta(remaining_delta))


def compose_deltas(composition: Composition, max_interval: float, epsilons: FloatArray) -> FloatArray:
    """Compute delta of all of ``composition`` together at each of ``epsilons``, the worse order."""
    losses, rounding = _compose(composition, choose_interval(composition, max_interval))
    return np.asarray(np.minimum(losses.get_delta_for_epsilon(epsilons) + rounding, 1.0), np.float64)


def choose_interval(composition: Composition, max_interval: float) -> float:
    """Choose a grid of at most ``max_interval``, fine relative to one step's losses, whose points fit in memory."""
    total = sum(count for _, count in composition)
    variances = [sum(share * _estimate_loss_variance(pair) for share, pair in branches) for branches, _ in composition]
    deviation = math.sqrt(math.fsum(v * n for v, (_, n) in zip(variances, composition, strict=True)) / total)
    # connecting the dots adds about interval²/6 to a step's variance
    fine = _INTERVAL_SHARE_OF_DEVIATION * deviation * max(1.0, math.sqrt(max_interval / _FINE_INTERVAL) / 2.0)
    width = max(high - low for branches, _ in composition for low, high in (_find_loss_range(p) for _, p in branches))
    return max(min(max_interval, fine), width / _MAX_GRID_POINTS, 1e-12)


@lru_cache(maxsize=64)
def _compose(composition: Composition, interval: float) -> tuple[PrivacyLossDistribution, float]:
    """Compose all steps; also return an allowance for what the transforms round off, to be added to delta."""
    parts = (
        make_step_distribution(branches, interval).self_compose(count, _TRUNCATED_MASS)
        for branches, count in composition
    )
    losses = reduce(lambda first, second: first.compose(second, _TRUNCATED_MASS), parts)
    steps = sum(count for _, count in composition)
    return losses, _ROUNDING_ALLOWANCE * math.sqrt(losses._pmf_remove.size * steps)


@lru_cache(maxsize=64)
def make_step_distribution(branches: Branches, interval: float) -> PrivacyLossDistribution:
    """Make the losses of one step of ``branches``; which branch is played has the same probability in both worlds."""
    mixture, weight = _make_pair_distribution(branches[0][1], interval), branches[0][0]
    for share, pair in branches[1:]:
        weight += share
        mixture = mixture.compute_mixture(_make_pair_distribution(pair, interval), 1.0 - share / weight)
    return mixture


def _make_pair_distribution(pair: DominatingPair, interval: float) -> PrivacyLossDistribution:
    """Make the losses of one pair: the library's own for one example, exchanged or removed."""
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as library

    if pair.p == pair.q == NO_SHIFT:
        return library.identity(interval)
    relation = {pair.p.mirrored: NeighboringRelation.REPLACE_ONE, NO_SHIFT: NeighboringRelation.ADD_OR_REMOVE_ONE}
    if pair.p.means in ((1.0,), (0.0, 1.0)) and pair.q in relation:
        return library.from_gaussian_mechanism(
            pair.deviation,
            value_discretization_interval=interval,
            sampling_prob=pair.p.weights[-1],
            neighboring_relation=relation[pair.q],
        )
    forward = _discretize_losses(pair, interval)
    if pair == pair.reversed:
        return library.PrivacyLossDistribution(forward)
    return library.PrivacyLossDistribution(forward, _discretize_losses(pair.reversed, interval))


# Pairs that the library lacks: mixtures of Gaussians of one deviation, whose loss rises along the line.


def _discretize_losses(pair: DominatingPair, interval: float) -> PLDPmf:
    from dp_accounting.pld import pld_pmf

    low, high = _find_loss_range(pair)
    first, last = math.floor(low / interval), math.ceil(high / interval)
    epsilons = np.arange(first, last + 1, dtype=np.float64) * interval
    return pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(
        interval, first, last, compute_hockey_stick_divergence(pair, epsilons)
    )


def compute_hockey_stick_divergence(pair: DominatingPair, epsilons: FloatArray) -> FloatArray:
    """Compute P(L > ε) − e^ε·Q(L > ε) at each of ascending ``epsilons``."""
    x = _invert_losses(pair, epsilons)
    p, q = (_compute_upper_tail(mixture, pair.deviation, x) for mixture in (pair.p, pair.q))
    with np.errstate(over="ignore", invalid="ignore"):
        deltas = p - np.where(q > 0.0, np.exp(epsilons) * q, 0.0)
    # rounding must not make a curve that falls rise
    return np.asarray(np.maximum.accumulate(np.maximum(deltas, 0.0)[::-1])[::-1], np.float64)


def _compute_upper_tail(mixture: Mixture, deviation: float, x: FloatArray) -> FloatArray:
    parts = zip(mixture.weights, mixture.means, strict=True)
    return np.asarray(sum(weight * ndtr((mean - x) / deviation) for weight, mean in parts), np.float64)


def _invert_losses(pair: DominatingPair, losses: FloatArray) -> FloatArray:
    """Find where the loss is each of ``losses``: from a table, improved by secants to the last digits that matter.

    A place that is off by e changes the divergence by e² only, for the true one maximises it.
    """
    low, high = find_line_ends(pair)
    table = np.linspace(low - pair.deviation, high + pair.deviation, _TABLE_SIZE)
    known = compute_loss(pair, table)
    x = np.interp(losses, known, table)
    step = table[1] - table[0]
    for _ in range(2):
        here = compute_loss(pair, x)
        slope = (compute_loss(pair, x + step) - here) / step
        with np.errstate(divide="ignore", invalid="ignore"):
            better = x - (here - losses) / slope
        x = np.where(np.abs(better - x) < step, better, x)
    return np.asarray(x, np.float64)


def compute_loss(pair: DominatingPair, x: FloatArray) -> FloatArray:
    """Compute the log of the ratio of the two densities."""
    return compute_log_density(pair.p, pair.deviation, x) - compute_log_density(pair.q, pair.deviation, x)


def compute_log_density(mixture: Mixture, deviation: float, x: FloatArray) -> FloatArray:
    """Compute the log of a density against that of N(0, s²): parts are cx/s² − c²/2s² + log w."""
    parts = zip(mixture.means, mixture.weights, strict=True)
    return reduce(np.logaddexp, ((c * x - c * c / 2.0) / deviation**2 + math.log(w) for c, w in parts))


def find_line_ends(pair: DominatingPair) -> tuple[float, float]:
    """Return the ends of the range that contains all of either world except about ``_TAIL_MASS`` at each end."""
    means, weights = np.array(pair.means), np.array((*pair.p.weights, *pair.q.weights))
    far = -pair.deviation * ndtri(np.minimum(_TAIL_MASS / weights, 0.5))
    return float((means - far).min()), float((means + far).max())


def _find_loss_range(pair: DominatingPair) -> tuple[float, float]:
    low, high = compute_loss(pair, np.array(find_line_ends(pair)))
    return float(low), float(high)


def _estimate_loss_variance(pair: DominatingPair) -> float:
    """Estimate the variance of the loss, in the world with the smaller one."""
    s = pair.deviation
    x = np.linspace(min(pair.means) - 8.0 * s, max(pair.means) + 8.0 * s, 4001)
    loss, variances = compute_loss(pair, x), []
    for mixture in (pair.p, pair.q):
        density = np.exp(compute_log_density(mixture, s, x) - x**2 / (2.0 * s**2))
        mean = float((density * loss).sum() / density.sum())
        variances.append(float((density * (loss - mean) ** 2).sum() / density.sum()))
    return min(variances)
