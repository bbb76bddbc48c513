"""Short names for what an epsilon compares, and comparisons whose accountants say what a test wants."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from redactory.training.accounting import Comparison, NoiseSearch, Spending, compare_examples, compare_units, find_noise
from redactory.training.accounting.loss_distributions import compose_epsilon
from redactory.training.accounting.verification import EpsilonBounds
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation
from redactory.training.mechanisms.pairs import Branches


def spend(rate: float, noise: float, steps: int, rows: int = 1) -> tuple[Spending, ...]:
    return (Spending(PoissonGaussian(rate, noise, 1.0, 1.0), steps, rows),)


def estimate_epsilon(spendings: tuple[Spending, ...], delta: float, relation: Relation) -> float:
    """dp_accounting's epsilon of one example."""
    return compare_examples(spendings, relation).estimate_epsilon(delta)


def bound_epsilon(spendings: tuple[Spending, ...], delta: float, relation: Relation) -> EpsilonBounds:
    return compare_examples(spendings, relation).bound_epsilon(delta)


def estimate_group_epsilon(spendings: tuple[Spending, ...], delta: float, removed: int, added: int = 0) -> float:
    """dp_accounting's epsilon of ``removed`` examples that vanish, and ``added`` others that appear."""
    return compare_units(spendings, removed, added).estimate_epsilon(delta)


def estimate_branches(branches: Branches, steps: int, delta: float) -> float:
    return compose_epsilon(((branches, steps),), 2e-4, delta)


def calibrate_noise(target: float, delta: float, rate: float, steps: int) -> float:
    def make_comparison(noise: float) -> Comparison:
        return compare_examples(spend(rate, noise, steps), Relation.SUBSTITUTION)

    return find_noise(make_comparison, target, delta, NoiseSearch(1.0, 0.1, 1e4, 1e-4, 1e4))


@dataclass(frozen=True)
class Stated(Comparison):
    """A comparison whose two accountants say ``estimate`` and ``bounds``, whatever the delta."""

    estimate: float = field(kw_only=True)
    bounds: EpsilonBounds = field(kw_only=True)

    def estimate_epsilon(self, delta: float, coarsening: float = 1.0) -> float:
        return self.estimate

    def bound_epsilon(self, delta: float) -> EpsilonBounds:
        return self.bounds


def state(estimate: float | None, bounds: EpsilonBounds) -> Stated:
    return Stated((), estimate=math.inf if estimate is None else estimate, bounds=bounds)


def prove_epsilon(spendings: tuple[Spending, ...], delta: float, relation: Relation) -> float:
    """The epsilon that may be printed of one example."""
    return bound_epsilon(spendings, delta, relation).upper


def prove_group_epsilon(spendings: tuple[Spending, ...], delta: float, removed: int, added: int = 0) -> float:
    return compare_units(spendings, removed, added).bound_epsilon(delta).upper
