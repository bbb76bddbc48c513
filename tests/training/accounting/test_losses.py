"""The main accountant's distributions against dp_accounting's, against integrals, and under sabotage."""

from __future__ import annotations

import math
from functools import partial
from itertools import product

import numpy as np
import pytest
from dp_accounting import NeighboringRelation
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import stats

from redactory.training.accounting import Spending, compare_examples, confirm_epsilon, loss_distributions
from redactory.training.accounting.bounds import (
    FINE_SPLITS,
    compute_chain_epsilon,
    compute_gaussian_delta,
    compute_revealed_shift_epsilon,
)
from redactory.training.accounting.loss_distributions import compose_deltas
from redactory.training.mechanisms import pairs
from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation
from redactory.training.mechanisms.pairs import (
    NO_SHIFT,
    Composition,
    DominatingPair,
    Mixture,
    make_binomial_mixture,
    make_exchange_pair,
    make_mixture,
    make_removal_pair,
)
from tests.training.accounting.worlds import estimate_branches, estimate_epsilon, estimate_group_epsilon, spend
from tests.training.uedp.worlds import hockey_stick, repeated

THEIRS = {
    Relation.SUBSTITUTION: NeighboringRelation.REPLACE_ONE,
    Relation.ADD_OR_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
}
STEPS = [(1.0, 0.01, 1e-3), (3.0, 0.25, 1e-3), (0.5, 0.1, 1e-2), (8.0, 1.0, 1e-3), (0.3, 0.5, 1e-2), (5.0, 0.9, 1e-3)]
"""Deviation in clips, sampling rate, width of the grid."""
LAWS = st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.01, 1.0)), min_size=1, max_size=4).map(
    lambda rows: {round(size, 3): weight for size, weight in rows}
)


def law_of(law: dict[float, float]) -> Mixture:
    return make_mixture({size: weight / sum(law.values()) for size, weight in law.items()})


def as_dict(law: Mixture) -> dict[float, float]:
    return dict(zip(law.means, law.weights, strict=True))


def one_step(law: Mixture, sigma: float) -> Composition:
    return ((((1.0, DominatingPair(law, NO_SHIFT, sigma)),), 1),)


def theirs_of(law: Mixture, sigma: float) -> privacy_loss_distribution.PrivacyLossDistribution:
    return privacy_loss_distribution.from_mixture_gaussian_mechanism(
        sigma, list(law.means), list(law.weights), value_discretization_interval=4e-3
    )


def _off(relation: Relation, deviation: float, rate: float, grid: float) -> float:
    """The largest difference of our grid of deltas, as groups use it, from dp_accounting's for one example."""
    theirs = privacy_loss_distribution.from_gaussian_mechanism(
        deviation, sampling_prob=rate, value_discretization_interval=grid, neighboring_relation=THEIRS[relation]
    )
    epsilons = np.arange(-2.0, 12.0, 0.37) + 1e-9
    mechanism = PoissonGaussian(rate, deviation, 1.0, 1.0)
    (((_, pair),), _) = mechanism.state_pairs(None if relation is Relation.SUBSTITUTION else 1)
    both = (pair, pair.reversed)
    ours = [loss_distributions._discretize_losses(one, grid).get_delta_for_epsilon(epsilons) for one in both]
    return float(np.abs(np.max(ours, axis=0) - np.asarray(theirs.get_delta_for_epsilon(epsilons))).max())


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("deviation", "rate", "grid"), STEPS)
def test_the_distribution_is_dp_accountings(relation: Relation, deviation: float, rate: float, grid: float) -> None:
    assert _off(relation, deviation, rate, grid) < 1e-8


def test_another_place_of_a_loss_or_weight_of_a_point_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    real = loss_distributions._invert_losses
    with monkeypatch.context() as patch:
        patch.setattr(loss_distributions, "_invert_losses", lambda pair, at: real(pair, at) + 0.1)
        assert _off(Relation.SUBSTITUTION, 1.0, 0.25, 1e-3) > 1e-6
    monkeypatch.setattr(
        pairs, "make_binomial_mixture", lambda rate, points: make_mixture({0: 1 - 0.9 * rate, 1: 0.9 * rate})
    )
    assert _off(Relation.ADD_OR_REMOVE, 1.0, 0.25, 1e-3) > 1e-6


@pytest.mark.parametrize(
    ("points", "rate", "sigma", "steps"), [(8, 0.02, 4.0, 100), (3, 0.3, 2.0, 20), (1, 0.1, 1.0, 30)]
)
def test_a_group_costs_what_dp_accounting_says(points: int, rate: float, sigma: float, steps: int) -> None:
    weights = stats.binom.pmf(range(points + 1), points, rate).tolist()
    theirs = theirs_of(make_mixture(dict(enumerate(weights))), sigma).self_compose(steps)
    for delta in (1e-3, 1e-5, 1e-8):
        ours = estimate_group_epsilon(spend(rate, sigma, steps), delta, points)
        assert ours == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=4e-3, abs=1e-3)


def test_branches_are_averaged_as_dp_accounting_mixes_them() -> None:
    one, other = make_mixture({0: 0.9, 1: 0.1}), make_mixture({0: 0.5, 4: 0.5})
    branches = ((0.7, DominatingPair(one, NO_SHIFT, 3.0)), (0.3, DominatingPair(other, NO_SHIFT, 3.0)))
    ours = estimate_branches(branches, 10, 1e-5)
    theirs = theirs_of(one, 3.0).compute_mixture(theirs_of(other, 3.0), 0.7).self_compose(10)
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(1e-5), rel=5e-3)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(LAWS, st.floats(0.5, 3.0), st.floats(-3.0, 6.0))
@example({0.0: 0.9375, 1.0: 0.125}, 1.0, 0.125)  # beside the largest loss there is: delta was 1
@example({0.0: 0.9453125, 1.0: 0.125}, 1.0, 0.125)
def test_both_curves_are_the_integrals_that_define_them(law: dict[float, float], sigma: float, eps: float) -> None:
    there = as_dict(law_of(law))
    both = (hockey_stick(there, {0.0: 1.0}, sigma, eps), hockey_stick({0.0: 1.0}, there, sigma, eps))
    found = compose_deltas(one_step(law_of(law), sigma), 1e-3, np.array([round(eps, 3)]))[0]
    assert found == pytest.approx(max(both), abs=2e-3)
    assert found >= max(both) - 1e-3 - 1e-6


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(LAWS, st.integers(1, 3), st.floats(0.8, 3.0))
def test_a_composed_epsilon_is_never_below_an_attack(law: dict[float, float], steps: int, sigma: float) -> None:
    """Looking at the sum of all steps is one attack; its own curve must lie below the figure."""
    epsilon = estimate_branches(((1.0, DominatingPair(law_of(law), NO_SHIFT, sigma)),), steps, 1e-3)
    there, wide = repeated(as_dict(law_of(law)), steps), sigma * math.sqrt(steps)
    assert hockey_stick(there, {0.0: 1.0}, wide, epsilon) <= 1e-3 + 1e-6
    assert hockey_stick({0.0: 1.0}, there, wide, epsilon) <= 1e-3 + 1e-6


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.floats(1e-6, 0.999))
def test_no_mass_of_a_binomial_is_lost_or_moved_down(points: int, rate: float) -> None:
    law = as_dict(make_binomial_mixture(rate, points))
    assert math.fsum(law.values()) == pytest.approx(1.0, abs=1e-12)
    sizes = np.arange(points + 1)
    ours = np.array([math.fsum(w for j, w in law.items() if j >= size) for size in sizes])
    assert np.all(ours >= stats.binom.sf(sizes - 1, points, rate) * (1 - 1e-9) - 1e-15)
    assert law.get(points, 0.0) > 0.0


def test_dropping_the_rare_counts_would_be_cheaper_than_the_truth() -> None:
    """Sabotage: a law cut at j <= 1 and renormalised, as a careless accountant would, reports less."""
    points, rate, sigma, steps = 16, 256 / 14_000, 2.0, 100
    cut = law_of(dict(enumerate(stats.binom.pmf([0, 1], points, rate).tolist())))
    careless = estimate_branches(((1.0, DominatingPair(cut, NO_SHIFT, sigma)),), steps, 1e-5)
    assert careless < 0.75 * estimate_group_epsilon(spend(rate, sigma, steps), 1e-5, points)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.floats(0.01, 0.5), st.floats(1.0, 8.0))
def test_a_larger_group_diverges_more(points: int, rate: float, sigma: float) -> None:
    at = np.linspace(-2.0, 4.0, 61) + 1e-9
    few, many = (
        compose_deltas(one_step(make_binomial_mixture(rate, size), sigma), 1e-2, at) for size in (points, points + 1)
    )
    assert np.all(few <= many + 1e-6)


@pytest.mark.parametrize("pair", [make_exchange_pair(0.2, 1.0), make_removal_pair(0.1, 1.0, 3)])
def test_mass_that_is_cut_off_a_step_counts_as_lost(pair: DominatingPair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss_distributions, "_TAIL_MASS", 1e-4)
    law = loss_distributions._discretize_losses(pair, 1e-3)
    assert 1e-5 < law.get_delta_for_epsilon(1e3) < 5e-4


def test_less_delta_than_transforms_round_off_has_no_epsilon() -> None:
    """The second accountant has one, with bounds that are proved: that is printed, as computed once."""
    spent = (Spending(PoissonGaussian(0.01, 1.0, 1.0, 1.0), 2_000),)
    compared = compare_examples(spent, Relation.SUBSTITUTION)
    assert compared.estimate_epsilon(1e-14) == math.inf
    confirmed = confirm_epsilon(compared, 1e-14, "test")
    assert confirmed.is_computed_once
    assert confirmed.bounds is not None
    assert confirmed.value == confirmed.bounds.upper < 1.01 * confirmed.bounds.lower
    assert not confirm_epsilon(compared, 1e-6, "test").is_computed_once


def test_no_points_and_no_steps_cost_nothing_and_hopeless_noise_protects_no_group() -> None:
    assert estimate_group_epsilon(spend(0.1, 1.0, 5), 1e-5, 0) == 0.0
    assert estimate_group_epsilon(spend(0.1, 1.0, 0), 1e-5, 3) == 0.0
    assert estimate_group_epsilon(spend(0.01, 2.0, 3), 1e-5, 40) < math.inf
    assert estimate_group_epsilon(spend(0.01, 2.0, 3), 1e-5, 41) == math.inf


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_revealing_is_the_average_over_every_path(steps: int) -> None:
    law = {0: 0.5, 1: 0.3, 4: 0.2}
    epsilon = compute_revealed_shift_epsilon(make_mixture(law), 6.0, steps, 1e-4)

    def delta(eps: float) -> float:
        total = 0.0
        for path in product(law, repeat=steps):
            mu = math.sqrt(sum(c * c for c in path)) / 6.0
            total += math.prod(law[c] for c in path) * float(compute_gaussian_delta(eps, np.array([mu]))[0])
        return total

    assert delta(epsilon) <= 1e-4 < delta(epsilon - 1e-4)


def test_revealing_refuses_what_is_too_far_and_pays_for_what_a_transform_rounds_off() -> None:
    """With delta near the rounding of the transform there is no figure, rather than a lucky one."""
    assert compute_revealed_shift_epsilon(make_mixture({1000: 1.0}), 1.0, 1, 1e-5) == math.inf
    assert compute_revealed_shift_epsilon(make_mixture({0: 1.0}), 4.0, 16, 1e-5) == 0.0
    law = make_mixture({0: 0.9, 3: 0.1})
    assert (
        compute_revealed_shift_epsilon(law, 4.0, 2_000, 1e-5)
        < compute_revealed_shift_epsilon(law, 4.0, 2_000, 1e-18)
        == math.inf
    )


def test_the_chain_bounds_the_gaussian_that_it_passes_through() -> None:
    """N(0) to N(1) to N(2): the chain of two single shifts is sound for the double one."""
    one, both = (
        partial(estimate_branches, ((1.0, DominatingPair(make_mixture({m: 1}), NO_SHIFT, 2.0)),), 1) for m in (1.0, 2.0)
    )
    assert compute_chain_epsilon(one, one, 1e-4) >= both(1e-4)
    assert compute_chain_epsilon(lambda _: 1.0, lambda _: 2.0, 1e-5) == 3.0
    assert compute_chain_epsilon(lambda _: math.inf, lambda _: 2.0, 1e-4) == math.inf
    few, many = (
        lambda delta, size=size: estimate_group_epsilon(spend(0.02, 8.0, 50), delta, size)  # type: ignore[misc]
        for size in (2, 24)
    )
    coarse = compute_chain_epsilon(few, many, 1e-5, (0.25, 0.5, 0.75))
    assert compute_chain_epsilon(few, many, 1e-5, FINE_SPLITS) <= coarse + 1e-12


@pytest.mark.parametrize("deviation", [1e-9, 1e-3, 0.03])
def test_noise_too_small_for_a_double_has_no_figure_and_ends_no_training(deviation: float) -> None:
    """A model that was trained with next to no noise gets its card, with none on it."""
    spent = (Spending(PoissonGaussian(0.02, deviation, 1.0, 256.0), 400),)
    assert estimate_epsilon(spent, 1e-5, Relation.ADD_OR_REMOVE) == math.inf
    assert confirm_epsilon(compare_examples(spent, Relation.ADD_OR_REMOVE), 1e-5, "test").value is None
    assert estimate_epsilon(spent, 1e-5, Relation.SUBSTITUTION) > 1_000.0
