"""What the UeDP papers print as epsilon, computed as they do: AS PUBLISHED, NOT A GUARANTEE.

Kept so that published tables can be told from sound figures: none of these numbers is a theorem about
a training (``docs/explanation/uedp.md``, "What the published accounting gets wrong").
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

import numpy as np
from scipy.special import gammaln, logsumexp

from redactory.foundation.errors import ConfigurationError

AS_PUBLISHED = "as published, not a guarantee"
ORDERS = 64
"""The reference code's largest moment λ; it puts a floor of −log(δ)/64 under every figure."""


class Estimator(Enum):
    """Which of the paper's estimators the figure is for (section V, equation 4)."""

    USER_LEVEL = "user-level"
    F_E = "f_E"
    F_E_PLUS = "f_E+"


@dataclass(frozen=True)
class PublishedEpsilon:
    """A figure that cannot be had without its label."""

    epsilon: float
    delta: float
    sampling_rate: float
    note: str = AS_PUBLISHED

    def __str__(self) -> str:
        return f"ε = {self.epsilon:.3f} at δ = {self.delta:g} ({self.note})"


def published_rate(
    estimator: Estimator, user_rate: float, entity_rate: float = 1.0, sensitive_share: float = 1.0
) -> float:
    """The sampling rate that the published figures put into the moments accountant.

    ``user_rate`` is ν/|U| for ν users a step, ``entity_rate`` q_e, ``sensitive_share`` the share of
    sentences with a detected entity.  q_s does not occur.  No part of it but ν/|U| is the probability
    of anything that a neighbouring data set changes.  ``ConfigurationError`` outside of [0, 1].
    """
    for name, value in (
        ("user_rate", user_rate),
        ("entity_rate", entity_rate),
        ("sensitive_share", sensitive_share),
    ):
        if not 0.0 <= value <= 1.0:
            raise ConfigurationError(f"{name}: a share from 0 to 1 is needed")
    match estimator:
        case Estimator.USER_LEVEL:
            return user_rate
        case Estimator.F_E:
            return user_rate * entity_rate
        case Estimator.F_E_PLUS:
            return user_rate * entity_rate * sensitive_share


def published_epsilon(
    sampling_rate: float, noise: float, steps: int, delta: float, orders: int = ORDERS
) -> PublishedEpsilon:
    """min over λ = 1..``orders`` of (T·α(λ) − log δ)/λ, with α the log-moment of a sampled Gaussian.

    ``noise`` is z (σ in units of the *claimed* sensitivity), ``steps`` T.  For λ the moment of order
    λ + 1 is log Σ_i C(λ+1, i)(1−q)^(λ+1−i) q^i exp((i²−i)/2z²) (Abadi et al. 2016, in the direction
    that the reference code takes).
    """
    if not (0.0 <= sampling_rate <= 1.0 and noise > 0.0 and steps >= 0 and 0.0 < delta < 1.0 and orders >= 1):
        raise ConfigurationError("a published epsilon needs a rate in [0, 1], noise > 0 and delta in (0, 1)")
    found = min(
        (steps * log_moment(sampling_rate, noise, order) - math.log(delta)) / order
        for order in range(1, orders + 1)
    )
    return PublishedEpsilon(found, delta, sampling_rate)


@lru_cache(maxsize=65_536)
def log_moment(sampling_rate: float, noise: float, order: int) -> float:
    """α(λ): log E_{x~Q}[(Q(x)/P(x))^λ], P = N(0, z²), Q = (1−q)N(0, z²) + qN(1, z²), λ = ``order``."""
    power = order + 1
    if sampling_rate in (0.0, 1.0):
        return sampling_rate * (power * power - power) / (2.0 * noise**2)
    i = np.arange(power + 1, dtype=np.float64)
    choose = gammaln(power + 1) - gammaln(i + 1) - gammaln(power - i + 1)
    coins = (power - i) * math.log1p(-sampling_rate) + i * math.log(sampling_rate)
    return float(logsumexp(choose + coins + (i * i - i) / (2.0 * noise**2)))
