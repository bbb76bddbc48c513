"""Compute what the papers print, in their way: AS PUBLISHED, NOT A GUARANTEE.

For comparing published tables with sound epsilons. None of these numbers is a theorem about a training
(``docs/explanation/published-epsilon.md``; CRT: ``docs/guarantees.md``, "As published, not a guarantee"; UeDP:
``docs/explanation/uedp.md``, "What the published accounting gets wrong"; LDP-NLP: ``docs/guarantees.md``,
"Local differential privacy").
"""

from __future__ import annotations

import logging
import math
from functools import lru_cache
from typing import Any

import numpy as np
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy import optimize
from scipy.special import gammaln, logsumexp

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.training.accounting.bounds import compute_gaussian_epsilon
from redactory.training.accounting.spendings import Spendings
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation

PUBLISHED_NOTE = "as published, not a guarantee"
_MIN_NOISE, _MAX_NOISE = 1e-150, 1e150
"""Beyond them a square is 0 or infinite: less is computed as the one, more as the other."""


# CRT, by Rényi accounting: an upper bound where it is valid, refused where it is not.


RENYI_ORDERS = (*(1.0 + tenth / 10.0 for tenth in range(1, 100)), *range(11, 256))


def compute_renyi_epsilon(spendings: Spendings, delta: float, relation: Relation) -> float | None:
    """Compute an upper bound of epsilon; ``GuaranteeError`` for any relation but ``ADD_OR_REMOVE``."""
    if relation is not Relation.ADD_OR_REMOVE:
        raise GuaranteeError("Rényi accounting is valid for one example's presence, never for substitution")
    # dp_accounting warns about left-out orders; the bound holds with the remaining ones
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        epsilon = float(_compose_renyi(spendings).get_epsilon(delta))
    finally:
        logger.setLevel(level)
    return epsilon if math.isfinite(epsilon) else None


@lru_cache(maxsize=8)
def _compose_renyi(spendings: Spendings) -> RdpAccountant:
    accountant = RdpAccountant(list(RENYI_ORDERS), NeighboringRelation.ADD_OR_REMOVE_ONE)
    for spending in spendings:
        if spending.mechanism.event_class != PoissonGaussian.event_class or spending.rows != 1:
            raise GuaranteeError("Rényi accounting supports only Poisson sampling of single examples")
        event = PoissonSampledDpEvent(
            spending.mechanism.sampling_rate,
            GaussianDpEvent(min(max(spending.mechanism.noise_multiplier, _MIN_NOISE), _MAX_NOISE)),
        )
        accountant.compose(event, spending.steps)
    return accountant


_MAX_EXPONENT = 500.0


def amplify_epsilon(epsilon: float, gamma: float) -> float:
    """log(1 + γ(e^ε − 1))."""
    if epsilon > _MAX_EXPONENT:
        return epsilon + math.log(gamma) if gamma else 0.0
    return math.log1p(gamma * math.expm1(epsilon))


def compute_crt_bayesian_epsilon(spendings: Spendings, delta: float, gamma: float) -> float | None:
    """Compute CRT, Theorem 8.3 as the authors' notebook does: log(1 + γ(exp(ε_RDP(δ/γ)) − 1))."""
    if gamma <= 0.0 or delta / gamma >= 1.0:
        return 0.0
    epsilon = compute_renyi_epsilon(spendings, delta / gamma, Relation.ADD_OR_REMOVE)
    return None if epsilon is None else amplify_epsilon(epsilon, gamma)


def describe_published_crt(
    spendings: Spendings, delta: float, gamma: float, delta_2: float | None, secret_counts: tuple[int, ...]
) -> dict[str, Any]:
    """Describe Theorems 8.1 to 8.3 with their label."""
    # Theorem 8.1: the epsilon of one example there or not, used for an exchange
    single = compute_renyi_epsilon(spendings, delta, Relation.ADD_OR_REMOVE)
    # Theorem 8.2: γ̃mε for m unique secrets of which π detects the share γ̃, here its recall
    groups = {str(count): None if single is None else (1.0 - gamma) * count * single for count in secret_counts}
    return {
        "note": PUBLISHED_NOTE,
        "epsilon": single,
        "epsilon_bayesian": compute_crt_bayesian_epsilon(spendings, delta, gamma),
        "delta_bayesian": delta + (delta_2 or 0.0),
        "epsilon_group": groups,
        "why_not": {
            "epsilon": "accounts for an example's presence, while a secret is exchanged for its mask",
            "epsilon_bayesian": "the same, and treats the recall of a sample as the true recall",
            "epsilon_group": "shrinks with the share that is missed, and counts unique secrets, not examples",
        },
    }


# UeDP: the moments accountant of its reference code, by the papers' rates: ν/|U| for ν users a step (user-level),
# times q_e (f_E), times the share of sentences with a detected entity (f_E+).  Only ν/|U| is the probability of
# anything that a neighbouring data set changes.


MAX_MOMENT = 64
"""The reference code's largest moment λ; it puts a floor of −log(δ)/64 under every figure."""


def compute_moments_epsilon(
    sampling_rate: float, noise: float, steps: int, delta: float, orders: int = MAX_MOMENT
) -> float:
    """min over λ = 1..``orders`` of (T·α(λ) − log δ)/λ, with α the log-moment of a sampled Gaussian.

    ``noise`` is z (σ in units of the *claimed* sensitivity), ``steps`` T.  For λ the moment of order λ + 1 is log Σ_i
    C(λ+1, i)(1−q)^(λ+1−i) q^i exp((i²−i)/2z²) (Abadi et al. 2016, in the direction that the reference code takes).
    """
    if not (0.0 <= sampling_rate <= 1.0 and noise > 0.0 and steps >= 0 and 0.0 < delta < 1.0 and orders >= 1):
        raise ConfigurationError("a published epsilon needs a rate in [0, 1], noise > 0 and delta in (0, 1)")
    return min(
        (steps * compute_log_moment(sampling_rate, noise, order) - math.log(delta)) / order
        for order in range(1, orders + 1)
    )


@lru_cache(maxsize=65_536)
def compute_log_moment(sampling_rate: float, noise: float, order: int) -> float:
    """α(λ): log E_{x~Q}[(Q(x)/P(x))^λ], P = N(0, z²), Q = (1−q)N(0, z²) + qN(1, z²), λ = ``order``."""
    power, noise = order + 1, max(noise, _MIN_NOISE)
    if sampling_rate in (0.0, 1.0):
        return sampling_rate * (power * power - power) / (2.0 * noise**2)
    i = np.arange(power + 1, dtype=np.float64)
    choose = gammaln(power + 1) - gammaln(i + 1) - gammaln(power - i + 1)
    coins = (power - i) * math.log1p(-sampling_rate) + i * math.log(sampling_rate)
    return float(logsumexp(choose + coins + (i * i - i) / (2.0 * noise**2)))


# LDP-NLP: the central limit theorem, with a sensitivity of C.


LDP_CAVEATS = {
    "sensitivity": "the formula uses C, but the clipped vectors of two sentences can be 2C apart (pairs: 2√2·C)",
    "composition": "the central limit theorem is an approximation, here below the truth, not a bound",
    "sampling": "a sentence that is not sent sends nothing, which the server sees: no amplification",
    "fictitious": "other messages say nothing about this one: fictitious sentences do not hide it",
}
_MAX_SQUARED_MU = 600.0


def compute_total_mu(mu: float, rate: float, steps: int) -> float:
    """Equations 8 and 9: p·√(T·(e^(μ²) − 1)); for inference p is q·p_query.  ``inf`` where it overflows."""
    if mu**2 > _MAX_SQUARED_MU:
        return math.inf
    return rate * math.sqrt(steps * math.expm1(mu**2))


def solve_step_mu(total: float, rate: float, steps: int) -> float:
    """Equations 8 and 9 solved for μ of one step (Algorithms 2 and 3, line "compute μ by")."""
    return math.sqrt(math.log1p((total / rate) ** 2 / steps))


def solve_total_mu(epsilon: float, delta: float) -> float:
    """Equation 5 solved for μ (Algorithms 2 and 3, "compute μ_tot corresponding to (ε, δ)")."""
    if not (0.0 < epsilon < math.inf and 0.0 < delta < 1.0):
        raise ConfigurationError("epsilon must be positive, delta between 0 and 1")
    low = high = 1.0
    while compute_gaussian_epsilon(high, delta) < epsilon:
        high *= 2.0
    while compute_gaussian_epsilon(low, delta) > epsilon:
        low /= 2.0
    return float(optimize.brentq(lambda mu: compute_gaussian_epsilon(mu, delta) - epsilon, low, high, xtol=1e-10))


def compute_published_ldp_epsilon(
    noise: float, rate: float, steps: int, delta: float, sentences: int = 1
) -> float | None:
    """Epsilon by equations 5 to 8 (with ``rate`` q·p_query: 9); None where it is not below 4096.

    ``noise`` is σ/C; ``sentences`` is |x_t| of equation 7: 1 a message, 2 for a pair.
    """
    total = compute_total_mu(sentences / noise, rate, steps)
    epsilon = compute_gaussian_epsilon(total, delta) if math.isfinite(total) else math.inf
    return epsilon if math.isfinite(epsilon) else None


def compute_published_ldp_noise(epsilon: float, rate: float, steps: int, delta: float, sentences: int = 1) -> float:
    """σ/C by Algorithm 2 (with ``rate`` q·p_query: Algorithm 3, its μ_train read as μ_query)."""
    return sentences / solve_step_mu(solve_total_mu(epsilon, delta), rate, steps)


def compute_published_gaussian_epsilon(noise: float, sends: int, delta: float, sentences: int = 1) -> float | None:
    """Epsilon of ``sends`` messages by section 4.1: Gaussian composition with a sensitivity of C each."""
    epsilon = compute_gaussian_epsilon(math.sqrt(sends) * sentences / noise, delta)
    return epsilon if math.isfinite(epsilon) else None
