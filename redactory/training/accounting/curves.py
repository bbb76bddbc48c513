"""Curves from delta to epsilon, for groups of examples or users and for chains of worlds."""

from __future__ import annotations

import math

from redactory.training.accounting.bounds import PrivacyCurve, compute_gaussian_epsilon, compute_revealed_shift_epsilon
from redactory.training.accounting.dominating_pairs import Branches, make_binomial_mixture, make_removal_pair
from redactory.training.accounting.loss_distributions import compose_epsilon
from redactory.training.accounting.verification import bound_composed_epsilon

FINEST_INTERVAL = 2e-4
_MAX_SHIFT_RATIO = 24.0


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
    """Make the curve of ``steps`` steps of ``branches``, both orders, on a grid for the ratio of shift to noise.

    Where delta is too small for the main accountant, it is the second one's proved upper bound.
    """
    ratio = max(pair.p.means[-1] / pair.deviation for _, pair in branches)
    interval, parts = coarsening * FINEST_INTERVAL * min(max(2.5 * ratio, 1.0), 50.0), ((branches, steps),)

    def compute_epsilon(delta: float) -> float:
        epsilon = compose_epsilon(parts, interval, delta)
        return epsilon if math.isfinite(epsilon) else bound_composed_epsilon(parts, delta).upper

    return compute_epsilon
