"""The distributions against dp_accounting's own, against integrals, and against what must never happen."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as losses
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from redactory.training.accounting import group_epsilon, removal_epsilon_of
from redactory.training.accounting.bounds import FINE_SPLITS, chain, gaussian_delta, revealed
from redactory.training.accounting.mixtures import (
    NOTHING,
    Branches,
    Shifts,
    Worlds,
    branches_curve,
    composed_deltas,
    group_curve,
    group_shifts,
)
from redactory.training.accounting.pairs import group_weights
from redactory.training.accounting.spending import Spending
from redactory.training.mechanism import PoissonGaussian
from tests.training.uedp.worlds import hockey_stick, repeated

LAWS = st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.01, 1.0)), min_size=1, max_size=4).map(
    lambda rows: {round(size, 3): weight for size, weight in rows}
)


def one_step(shifts: Shifts, sigma: float) -> tuple[tuple[Branches, int], ...]:
    return ((((1.0, Worlds(shifts, NOTHING, sigma)),), 1),)


def shifts_of(law: dict[float, float]) -> Shifts:
    total = sum(law.values())
    return Shifts(tuple(sorted(law)), tuple(law[size] / total for size in sorted(law)))


@pytest.mark.parametrize(
    ("points", "rate", "sigma", "steps"), [(8, 0.02, 4.0, 100), (3, 0.3, 2.0, 20), (1, 0.1, 1.0, 30)]
)
def test_a_group_costs_what_dp_accounting_says(points: int, rate: float, sigma: float, steps: int) -> None:
    weights = stats.binom.pmf(range(points + 1), points, rate).tolist()
    theirs = losses.from_mixture_gaussian_mechanism(
        sigma, [float(j) for j in range(points + 1)], weights, value_discretization_interval=4e-3
    ).self_compose(steps)
    ours = group_curve(points, rate, sigma, steps)
    for delta in (1e-3, 1e-5, 1e-8):
        assert ours(delta) == pytest.approx(theirs.get_epsilon_for_delta(delta), rel=4e-3, abs=1e-3)


@settings(max_examples=30, deadline=None)
@given(LAWS, st.floats(0.5, 3.0), st.floats(-3.0, 6.0))
def test_both_curves_are_the_integrals_that_define_them(
    law: dict[float, float], sigma: float, eps: float
) -> None:
    shifts = shifts_of(law)
    there = dict(zip(shifts.sizes, shifts.weights, strict=True))
    both = (hockey_stick(there, {0.0: 1.0}, sigma, eps), hockey_stick({0.0: 1.0}, there, sigma, eps))
    found = composed_deltas(one_step(shifts, sigma), 1e-3, np.array([round(eps, 3)]))[0]
    assert found == pytest.approx(max(both), abs=2e-3)
    assert found >= max(both) - 1e-3 - 1e-6


@settings(max_examples=15, deadline=None)
@given(LAWS, st.integers(1, 3), st.floats(0.8, 3.0))
def test_a_composed_epsilon_is_never_below_an_attack(
    law: dict[float, float], steps: int, sigma: float
) -> None:
    """Looking at the sum of all steps is one attack; its own curve must lie below the figure."""
    shifts = shifts_of(law)
    epsilon = branches_curve(((1.0, Worlds(shifts, NOTHING, sigma)),), steps)(1e-3)
    there = repeated(dict(zip(shifts.sizes, shifts.weights, strict=True)), steps)
    wide = sigma * math.sqrt(steps)
    assert hockey_stick(there, {0.0: 1.0}, wide, epsilon) <= 1e-3 + 1e-6
    assert hockey_stick({0.0: 1.0}, there, wide, epsilon) <= 1e-3 + 1e-6


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.floats(1e-6, 0.999))
def test_no_mass_of_a_binomial_is_lost_or_moved_down(points: int, rate: float) -> None:
    law = group_weights(rate, points)
    assert math.fsum(law.values()) == pytest.approx(1.0, abs=1e-12)
    sizes = np.arange(points + 1)
    ours = np.array([math.fsum(w for j, w in law.items() if j >= size) for size in sizes])
    assert np.all(ours >= stats.binom.sf(sizes - 1, points, rate) * (1 - 1e-9) - 1e-15)
    assert law.get(points, 0.0) > 0.0


def test_dropping_the_rare_counts_would_be_cheaper_than_the_truth() -> None:
    """Sabotage: a law cut at j <= 1 and renormalised, as a careless accountant would, reports less."""
    points, rate, sigma, steps = 16, 256 / 14_000, 2.0, 100
    honest = group_curve(points, rate, sigma, steps)(1e-5)
    weights = stats.binom.pmf([0, 1], points, rate)
    cut = Shifts((0.0, 1.0), tuple((weights / weights.sum()).tolist()))
    careless = branches_curve(((1.0, Worlds(cut, NOTHING, sigma)),), steps)
    assert careless(1e-5) < 0.75 * honest


def test_branches_are_averaged_as_dp_accounting_mixes_them() -> None:
    one, other = Shifts((0.0, 1.0), (0.9, 0.1)), Shifts((0.0, 4.0), (0.5, 0.5))
    branches = tuple((share, Worlds(law, NOTHING, 3.0)) for share, law in ((0.7, one), (0.3, other)))
    ours = branches_curve(branches, 10)(1e-5)
    parts = [
        losses.from_mixture_gaussian_mechanism(
            3.0, list(s.sizes), list(s.weights), value_discretization_interval=4e-3
        )
        for s in (one, other)
    ]
    theirs = parts[0].compute_mixture(parts[1], 0.7).self_compose(10)
    assert ours == pytest.approx(theirs.get_epsilon_for_delta(1e-5), rel=5e-3)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 12), st.floats(0.01, 0.5), st.floats(1.0, 8.0))
def test_a_larger_group_diverges_more(points: int, rate: float, sigma: float) -> None:
    at = np.linspace(-2.0, 4.0, 61) + 1e-9
    smaller, larger = group_shifts(rate, points), group_shifts(rate, points + 1)
    few, many = (composed_deltas(one_step(law, sigma), 1e-2, at) for law in (smaller, larger))
    assert np.all(few <= many + 1e-6)


def test_no_points_and_no_steps_cost_nothing() -> None:
    assert group_curve(0, 0.1, 1.0, 5)(1e-5) == group_curve(3, 0.1, 1.0, 0)(1e-5) == 0.0


def test_hopeless_noise_still_has_a_sound_figure() -> None:
    """K/σ over 24 is answered by revealing, which is never below the exact pair."""
    figure = group_curve(50, 0.01, 2.0, 3)(1e-5)
    exact = group_curve(48, 0.01, 2.0, 3)(1e-5)
    assert exact < figure < math.inf


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_revealing_is_the_average_over_every_path(steps: int) -> None:
    law = {0: 0.5, 1: 0.3, 4: 0.2}
    epsilon = revealed(law, 6.0, steps, 1e-4)

    def delta(eps: float) -> float:
        total = 0.0
        for path in product(law, repeat=steps):
            mu = math.sqrt(sum(c * c for c in path)) / 6.0
            total += math.prod(law[c] for c in path) * float(gaussian_delta(eps, np.array([mu]))[0])
        return total

    assert delta(epsilon) <= 1e-4 < delta(epsilon - 1e-4)


def test_revealing_refuses_what_is_too_far() -> None:
    assert revealed({1000: 1.0}, 1.0, 1, 1e-5) == math.inf


def test_the_chain_bounds_the_gaussian_that_it_passes_through() -> None:
    """N(0) to N(1) to N(2): the chain of two single shifts is sound for the double one."""
    one, both = (
        branches_curve(((1.0, Worlds(Shifts((shift,), (1.0,)), NOTHING, 2.0)),), 1) for shift in (1.0, 2.0)
    )
    assert chain(one, one, 1e-4) >= both(1e-4)
    assert chain(lambda _: math.inf, lambda _: math.inf, 1e-4) == math.inf


def test_finer_splits_cost_nothing_and_may_help() -> None:
    few = group_curve(2, 0.02, 8.0, 50), group_curve(24, 0.02, 8.0, 50)
    assert chain(*few, 1e-5, FINE_SPLITS) <= chain(*few, 1e-5, (0.25, 0.5, 0.75)) + 1e-12


@pytest.mark.parametrize(("points", "rate", "sigma", "steps"), [(8, 0.02, 4.0, 100), (2, 0.1, 2.0, 50)])
def test_a_card_s_group_and_a_unit_cost_the_same(points: int, rate: float, sigma: float, steps: int) -> None:
    """One pair under two names; the card's grid is the coarser one."""
    spent = (Spending(PoissonGaussian(rate, sigma, 1.0, 1.0), steps),)
    one_side = removal_epsilon_of(spent, 1e-5, points)
    exact = group_curve(points, rate, sigma, steps)
    assert one_side is not None
    assert exact(1e-5) * (1 - 1e-9) <= one_side <= exact(1e-5) * 1.005
    both = group_epsilon(PoissonGaussian(rate, sigma, 1.0, 1.0), steps, 1e-5, points)
    assert both == pytest.approx(chain(exact, exact, 1e-5), rel=5e-3)


def test_what_a_transform_rounds_off_is_paid_for() -> None:
    """With delta near the rounding of the transform there is no figure, rather than a lucky one."""
    law = {0: 0.9, 3: 0.1}
    assert revealed(law, 4.0, 2_000, 1e-5) < math.inf
    assert revealed(law, 4.0, 2_000, 1e-18) == math.inf
