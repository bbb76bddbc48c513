"""Figure 6 by formula: what redaction makes of an epsilon, as published and as it is sound."""

from __future__ import annotations

from typing import Any

from redactory.foundation.progress import Progress
from redactory.pipelines.reproduction.plan import Plan

SAMPLING_RATE, STEPS = 0.1, 100
"""The mechanism of the authors' notebook: ten epochs at a sampling rate of 0.1."""
_GRID = 1e-3


def amplification(plan: Plan, progress: Progress) -> list[dict[str, Any]]:
    """Rows {trainer, target, gamma, noise_multiplier, named, as_published, sound} for Figure 6.

    For each ε' the noise is that at which the Rényi epsilon of one point there or not is ε' at δ, which is
    what the paper holds fixed.  ``as_published`` is log(1 + γ(exp(ε_RDP(δ/γ)) − 1)).  ``sound`` is the same
    with the epsilon of one point exchanged for its masked form, δ₂ being 0
    (``docs/guarantees.md``, "Amplification by redaction"); ``named`` is that epsilon without amplification.
    """
    from redactory.training.accounting import Spending, epsilon
    from redactory.training.accounting.published import crt_bayesian
    from redactory.training.confidentiality import bayesian_epsilon
    from redactory.training.mechanism import PoissonGaussian, Relation

    rows: list[dict[str, Any]] = []
    total = len(plan.epsilons) * len(plan.gammas)
    for target in plan.epsilons:
        noise = renyi_noise(target, plan.delta)
        mechanism = PoissonGaussian(SAMPLING_RATE, noise, 1.0, 1.0)
        spent = (Spending(mechanism, STEPS),)

        def exchanged(delta: float, mechanism: Any = mechanism) -> float | None:
            return epsilon(mechanism, STEPS, delta, Relation.SUBSTITUTION, _GRID)

        named = exchanged(plan.delta)
        for gamma in plan.gammas:
            rows.append(
                {
                    "trainer": "crt",
                    "target": target,
                    "gamma": gamma,
                    "noise_multiplier": noise,
                    "named": named,
                    "as_published": crt_bayesian(spent, plan.delta, gamma),
                    "sound": bayesian_epsilon(exchanged, plan.delta, gamma, 0.0),
                }
            )
            progress("amplification", len(rows), total, "points of the figure")
    return rows


def renyi_noise(target: float, delta: float) -> float:
    """The noise multiplier at which the Rényi epsilon of one point there or not is ``target``."""
    from scipy import optimize

    from redactory.training.accounting import Spending
    from redactory.training.accounting.renyi import renyi_epsilon
    from redactory.training.mechanism import PoissonGaussian, Relation

    def beyond(noise: float) -> float:
        spent = (Spending(PoissonGaussian(SAMPLING_RATE, noise, 1.0, 1.0), STEPS),)
        found = renyi_epsilon(spent, delta, Relation.ADD_OR_REMOVE)
        return (1e6 if found is None else found) - target

    low, high = 0.3, 1.0
    while beyond(high) > 0:
        low, high = high, 2 * high
    return float(optimize.brentq(beyond, low, high, xtol=1e-4))
