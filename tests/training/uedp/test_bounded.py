"""``uedp-bounded``: its numbers, small worlds computed whole, what voids the figures, noise for a target."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting import ConfirmedEpsilon, NoiseSearch, find_noise
from redactory.training.guarantee.metrics import make_epsilon_function
from redactory.training.guarantee.spec import TrainingSpec
from redactory.training.mechanisms.mechanism import PoissonGaussian
from redactory.training.settings import TrainSettings
from redactory.training.uedp.bounded_accounting import (
    BoundedTraining,
    confirm_epsilon_by_example_count,
    confirm_user_removal_epsilon,
    confirm_zero_out_epsilon,
    count_affected_examples,
)
from redactory.training.unit_settings import PrivacyUnit
from tests.training.uedp.worlds import convolved, hockey_stick, sampled_sum

DELTA = 1e-5


def noise_for(asked: BoundedTraining, target: float) -> float:
    affected = count_affected_examples(asked)
    return find_noise(
        lambda sigma: replace(asked, noise_multiplier=sigma).compare_worlds(affected),
        target,
        DELTA,
        NoiseSearch(1.0, 0.01, 1e6, 1e-4),
    )


def training(kept: int, batch: int, k: int, sigma: float, steps: int = 500) -> BoundedTraining:
    return BoundedTraining(batch / kept, sigma, steps, k, k)


@pytest.mark.parametrize(
    ("points", "batch", "users", "k", "at_8"),
    [
        (14_000, 256, 1_000, 1, 6.75),
        (14_000, 256, 1_000, 4, 6.78),
        (14_000, 256, 1_000, 16, 7.96),
        (14_000, 256, 3_000, 1, 1.92),
        (14_000, 256, 3_000, 4, 1.92),
        (14_000, 256, 10_000, 1, 0.51),
        (14_000, 256, 10_000, 4, 1.62),
        (100_000, 512, 1_000, 4, 15.96),
        (100_000, 512, 3_000, 16, 4.22),
        (100_000, 512, 10_000, 16, 1.84),
    ],
)
def test_the_figures_at_a_noise_of_eight(points: int, batch: int, users: int, k: int, at_8: float) -> None:
    figure = confirm_zero_out_epsilon(training(min(points, k * users), batch, k, 8.0), DELTA)
    assert figure.value == pytest.approx(at_8, abs=0.013)


@pytest.mark.parametrize(
    ("points", "batch", "users", "k", "target", "sigma"),
    [
        (14_000, 256, 1_000, 1, 8.0, 6.96),
        (14_000, 256, 3_000, 4, 8.0, 2.47),
        (14_000, 256, 10_000, 4, 2.0, 6.64),
        pytest.param(100_000, 512, 10_000, 16, 8.0, 2.39, marks=pytest.mark.slow),
    ],
)
def test_the_noise_for_a_target(points: int, batch: int, users: int, k: int, target: float, sigma: float) -> None:
    asked = training(min(points, k * users), batch, k, 1.0)
    found = noise_for(asked, target)
    assert found == pytest.approx(sigma, rel=6e-3)
    reached: Any = confirm_zero_out_epsilon(replace(asked, noise_multiplier=found), DELTA).value
    assert 0.98 * target < reached <= target


def test_the_curve_over_group_sizes() -> None:
    run = replace(training(14_000, 256, 4, 2.0), k_user=None, k_entity=None)
    figures = confirm_epsilon_by_example_count(run, DELTA, (1, 2, 4, 8, 16))
    assert [figures[k].value for k in (1, 2, 4, 8, 16)] == pytest.approx([0.84, 1.80, 3.94, 8.93, 21.53], rel=5e-3)
    fixed = confirm_epsilon_by_example_count(training(14_000, 256, 4, 2.0), DELTA, (4,))[4]
    assert fixed == figures[4]


@pytest.mark.parametrize(("k", "one_sided", "both"), [(1, 0.39, 1.07), (4, 1.79, 5.07), (16, 8.88, 29.09)])
def test_r_loc_costs_about_three_times_as_much(k: int, one_sided: float, both: float) -> None:
    run = BoundedTraining(0.02, 8.0, 500, k, k, entities_per_point=3)
    assert confirm_zero_out_epsilon(run, DELTA).value == pytest.approx(one_sided, abs=0.013)
    figure = confirm_user_removal_epsilon(run, DELTA)
    assert figure.value == pytest.approx(both, rel=8e-3)


def test_while_all_places_are_taken_the_cap_costs_nothing() -> None:
    """K·q = 2·batch/U: the figures at k = 1, 4 and 10 are within 2%."""
    found = [confirm_zero_out_epsilon(training(1_000 * k, 256, k, 8.0), DELTA).value for k in (1, 4, 10)]
    assert max(found) < 1.02 * min(found)  # type: ignore[type-var, operator]


GRADIENTS = st.lists(st.floats(-1.0, 1.0), min_size=0, max_size=4)


@settings(max_examples=20, deadline=None)
@given(GRADIENTS, st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=4), st.floats(0.05, 0.9), st.floats(0.8, 3.0))
def test_one_step_of_a_small_world_is_never_above_its_figure(
    others: list[float], units: list[float], rate: float, sigma: float
) -> None:
    """D' has the unit's gradients, D has null points in their places: every subset is summed."""
    run = BoundedTraining(rate, sigma, 1, len(units), None, PrivacyUnit.USERS)
    figure: Any = confirm_zero_out_epsilon(run, 1e-2).value
    gone = sampled_sum(others, rate)
    there = convolved(gone, sampled_sum(units, rate))
    assert hockey_stick(there, gone, sigma, figure) <= 1e-2 + 1e-5
    assert hockey_stick(gone, there, sigma, figure) <= 1e-2 + 1e-5


def test_one_point_too_few_is_caught_by_the_same_world() -> None:
    """Sabotage: K − 1 instead of K falls below what three aligned gradients do."""
    sigma, rate = 1.0, 0.5
    too_low = BoundedTraining(rate, sigma, 1, 3, None, PrivacyUnit.USERS).compare_worlds(2).bound_epsilon(1e-2).upper
    there = sampled_sum([1.0, 1.0, 1.0], rate)
    assert hockey_stick(there, {0.0: 1.0}, sigma, too_low) > 1.5e-2


@settings(max_examples=8, deadline=None)
@given(st.floats(0.05, 0.6), st.floats(1.0, 3.0), st.lists(st.floats(-1, 1), min_size=1, max_size=2))
def test_what_comes_and_goes_is_never_above_the_chain(rate: float, sigma: float, come: list[float]) -> None:
    run = BoundedTraining(rate, sigma, 1, 2, 1)
    figure = run.compare_worlds(3, len(come)).bound_epsilon(1e-2).upper
    there, gone = sampled_sum([1.0, 1.0, 1.0], rate), sampled_sum(come, rate)
    assert hockey_stick(there, gone, sigma, figure) <= 1e-2 + 1e-5
    assert hockey_stick(gone, there, sigma, figure) <= 1e-2 + 1e-5


def test_a_rate_computed_from_the_data_voids_removal() -> None:
    """n = 1000, batch 256, K = 2, σ = 22.88, T = 500: 2.00 is stated on a fixed graph, 3.65 is true of q = B/n.

    All gradients are +1 but the unit's two, which are −1; the attacker looks at the sum of all steps.
    """
    n, batch, sigma, steps = 1_000, 256, 22.88, 500
    run = replace(training(n, batch, 1, sigma), k_user=None, k_entity=None)
    figure = confirm_epsilon_by_example_count(run, DELTA, (2,))[2]
    assert figure.value == pytest.approx(2.0, abs=0.01)

    noise = sigma * math.sqrt(steps)
    without = stats.norm(steps * batch, math.hypot(noise, math.sqrt(steps * batch * (1 - batch / n))))
    rate = batch / (n + 2)
    mean, spread = steps * rate * (n - 2), math.sqrt(steps * (n + 2) * rate * (1 - rate))
    there = stats.norm(mean, math.hypot(noise, spread))
    best = 0.0
    for place in range(-4_000, 1_000, 10):
        p, q = there.cdf(steps * batch + place), without.cdf(steps * batch + place)
        if p > DELTA + 1e-9:
            best = max(best, math.log((p - DELTA) / q))
    assert best > 3.6


def test_k_for_each_protection() -> None:
    run = BoundedTraining(0.1, 1.0, 1, 3, 5)
    sizes = {p: count_affected_examples(replace(run, protect=p)) for p in PrivacyUnit}
    assert sizes == {PrivacyUnit.USERS: 3, PrivacyUnit.ENTITIES: 5, PrivacyUnit.BOTH: 8, PrivacyUnit.EITHER: 5}


def test_a_unit_without_a_cap_has_no_figure() -> None:
    run = training(1_000, 256, 1, 8.0)
    assert "k_user" in (confirm_zero_out_epsilon(replace(run, k_user=None), DELTA).reason or "")
    assert confirm_zero_out_epsilon(replace(run, k_user=None, protect=PrivacyUnit.ENTITIES), DELTA).value is not None


def test_only_r_loc_is_accounted_for_a_removed_user() -> None:
    figure = confirm_user_removal_epsilon(training(1_000, 256, 1, 8.0), DELTA)
    assert figure.value is None
    assert "only for bounding.rule r-loc" in (figure.reason or "")


def test_a_figure_has_a_number_or_a_reason() -> None:
    with pytest.raises(ValueError, match="either an epsilon or a reason"):
        ConfirmedEpsilon(None)
    with pytest.raises(ConfigurationError):
        training(1_000, 256, 0, 8.0)
    assert confirm_zero_out_epsilon(training(1_000, 256, 1, 1e-3), DELTA).value is None


def test_no_progress_line_is_below_what_was_spent_and_the_last_one_is_the_cards() -> None:
    caps = {"k_user": 2, "k_entity": 2}
    own = TrainSettings(trainer="uedp-bounded", public_text="public.jsonl", bounding=caps)
    compute_epsilon = make_epsilon_function(TrainingSpec(own, PoissonGaussian(0.05, 4.0, 1.0, 1.0), 50))
    for done in (1, 7, 30, 50):
        run = BoundedTraining(0.05, 4.0, done, k_user=2, k_entity=2)
        exact, shown = (
            run.compare_worlds(count_affected_examples(run)).bound_epsilon(own.delta).upper,
            compute_epsilon(done),
        )
        assert shown is not None
        assert shown >= exact
    assert shown is not None
    assert shown <= exact * 1.01
