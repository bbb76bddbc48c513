"""One step's privacy loss where a point is exchanged for another: dp_accounting's, for all losses at once.

dp_accounting inverts the loss of a subsampled Gaussian one loss after the other, in Python; that is most of
what an epsilon costs.  The same formula over an array gives the same distribution.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from dp_accounting.pld import pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def exchange_step(deviation: float, rate: float, grid: float) -> Any:
    """A Poisson(q)-sampled Gaussian of ``deviation`` clips, one point exchanged, losses ``grid`` apart.

    What ``from_gaussian_mechanism`` makes under ``REPLACE_ONE``: pessimistic, by connecting the dots
    (Doroshenko et al. 2022).
    """
    loss = GaussianPrivacyLoss(
        deviation, sensitivity=1.0, sampling_prob=rate, adjacency_type=AdjacencyType.REPLACE
    )
    bounds = loss.connect_dots_bounds()
    low, high = math.floor(bounds.epsilon_lower / grid), math.ceil(bounds.epsilon_upper / grid)
    epsilons = np.arange(low, high + 1) * grid
    places = _places(epsilons, deviation, rate)
    deltas = loss.mu_upper_cdf(places) - np.exp(epsilons + loss.mu_lower_log_cdf(places))
    pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(grid, low, high, np.clip(deltas, 0, 1))
    return PrivacyLossDistribution(pmf)


def _places(epsilons: Floats, deviation: float, rate: float) -> Floats:
    """Where the loss is each of ``epsilons``: s²·(asinh(-sinh(ε/2)·α) - ε/2), α = e^(1/2s²)·(1-q)/q."""
    if rate == 1.0:
        return -epsilons * deviation**2 / 2.0
    log_alpha = 0.5 / deviation**2 + math.log1p(-rate) - math.log(rate)
    half = np.abs(epsilons) / 2.0
    with np.errstate(divide="ignore"):
        # of ε = 0 it is -inf, and the place is 0
        log_sinh = half + np.log1p(-np.exp(-2.0 * half)) - math.log(2.0)
    scaled = log_alpha + log_sinh
    asinh = np.logaddexp(0.5 * np.logaddexp(0.0, 2.0 * scaled), scaled)
    return np.asarray(deviation**2 * (-np.sign(epsilons) * asinh - epsilons / 2.0))
