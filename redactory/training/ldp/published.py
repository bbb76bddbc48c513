"""What the LDP-NLP paper prints as epsilon, computed as it does: AS PUBLISHED, NOT A GUARANTEE.

Kept so that published tables can be told from sound figures.  None of these numbers is a theorem: the
sensitivity is C where it is 2C, the central limit theorem is no bound, and neither sampling nor fictitious
sentences hide anything from a server that sees the messages (``docs/guarantees.md``, "Local differential
privacy").
"""

from __future__ import annotations

import math

from scipy import optimize

from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting.bounds import gaussian_epsilon

NOTE = "as published, not a guarantee"
WHY_NOT = {
    "sensitivity": "C stands where two sentences' clipped vectors can be 2C apart (pairs: 2√2·C)",
    "composition": "the central limit theorem is an approximation, here below the truth, not a bound",
    "sampling": "a sentence that is not sent sends nothing, which the server sees: no amplification",
    "fictitious": "what other messages hold says nothing about this one: fictitious sentences hide none",
}
_LARGEST_SQUARE = 600.0


def mu_total(mu: float, rate: float, steps: int) -> float:
    """Equations 8 and 9: p·√(T·(e^(μ²) − 1)); for inference p is q·p_query.  ``inf`` where it overflows."""
    _check(rate, steps)
    if mu**2 > _LARGEST_SQUARE:
        return math.inf
    return rate * math.sqrt(steps * math.expm1(mu**2))


def mu_of_total(total: float, rate: float, steps: int) -> float:
    """Equations 8 and 9 solved for μ of one step (Algorithms 2 and 3, line "compute μ by")."""
    _check(rate, steps)
    return math.sqrt(math.log1p((total / rate) ** 2 / steps))


def mu_of_epsilon(epsilon: float, delta: float) -> float:
    """Equation 5 solved for μ (Algorithms 2 and 3, "compute μ_tot corresponding to (ε, δ)")."""
    if not (0.0 < epsilon < math.inf and 0.0 < delta < 1.0):
        raise ConfigurationError("epsilon must be positive, delta between 0 and 1")
    high = 1.0
    while gaussian_epsilon(high, delta) < epsilon:
        high *= 2.0
    low = high
    while gaussian_epsilon(low, delta) > epsilon:
        low /= 2.0
    return (
        low
        if low == high
        else float(optimize.brentq(lambda mu: gaussian_epsilon(mu, delta) - epsilon, low, high, xtol=1e-10))
    )


def epsilon_published(
    noise: float, rate: float, steps: int, delta: float, sentences: int = 1
) -> float | None:
    """Epsilon by equations 5 to 8 (with ``rate`` q·p_query: 9); None where it is not below 4096.

    ``noise`` is σ/C; ``sentences`` is |x_t| of equation 7: 1 a message, 2 for a pair.
    """
    total = mu_total(sentences / noise, rate, steps)
    found = gaussian_epsilon(total, delta) if math.isfinite(total) else math.inf
    return found if math.isfinite(found) else None


def noise_published(epsilon: float, rate: float, steps: int, delta: float, sentences: int = 1) -> float:
    """σ/C by Algorithm 2 (with ``rate`` q·p_query: Algorithm 3, its μ_train read as μ_query)."""
    return sentences / mu_of_total(mu_of_epsilon(epsilon, delta), rate, steps)


def epsilon_of_sends(noise: float, sends: int, delta: float, sentences: int = 1) -> float | None:
    """Epsilon of ``sends`` messages by section 4.1: Gaussian composition with a sensitivity of C each."""
    found = gaussian_epsilon(math.sqrt(sends) * sentences / noise, delta)
    return found if math.isfinite(found) else None


def _check(rate: float, steps: int) -> None:
    if not 0.0 < rate <= 1.0 or steps < 1:
        raise ConfigurationError("a sampling rate between 0 and 1 and at least one step are needed")
