"""The epsilon and the noise of a benchmark's own loop, by the product's accountants."""

from __future__ import annotations

from redactory.training.accounting import (
    Comparison,
    NoiseSearch,
    Spending,
    Spendings,
    compare_examples,
    confirm_epsilon,
    find_noise,
)
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation


def compute_epsilon(spendings: Spendings, delta: float, relation: Relation) -> float | None:
    """Prove the epsilon of one example; None if there is none."""
    return confirm_epsilon(compare_examples(spendings, relation), delta, "epsilon").value


def compute_step_epsilon(rate: float, noise: float, steps: int, delta: float, relation: Relation) -> float | None:
    """Prove the epsilon of ``steps`` Poisson-sampled steps of one rate and noise multiplier."""
    return compute_epsilon((Spending(PoissonGaussian(rate, noise, 1.0, 1.0), steps),), delta, relation)


def find_noise_multiplier(
    target: float, delta: float, rate: float, steps: int, relation: Relation = Relation.SUBSTITUTION
) -> float:
    """Find the noise multiplier of ``steps`` steps for the ``target`` epsilon."""

    def make_comparison(noise: float) -> Comparison:
        return compare_examples((Spending(PoissonGaussian(rate, noise, 1.0, 1.0), steps),), relation)

    return find_noise(make_comparison, target, delta, NoiseSearch(1.0, 0.1, 1e4, 1e-4, 1e4))
