"""Two accountants without common arithmetic: they agree, the second is right where the answer is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting import (
    compare_examples,
    compare_units,
    comparisons,
    confirm_epsilon,
    make_event_tree,
    verification,
)
from redactory.training.accounting.verification import EpsilonBounds
from redactory.training.mechanisms import pairs, rederived_pairs
from redactory.training.mechanisms.mechanism import Relation
from redactory.training.mechanisms.pairs import (
    NO_SHIFT,
    DominatingPair,
    Mixture,
    make_binomial_mixture,
    make_exchange_pair,
    make_removal_pair,
)
from redactory.training.mechanisms.rederived_pairs import rederive_exchange_pair, rederive_removal_pair, reverse_pair
from tests.training.accounting.test_exact import gaussian
from tests.training.accounting.test_losses import THEIRS
from tests.training.accounting.worlds import (
    bound_epsilon,
    calibrate_noise,
    estimate_epsilon,
    estimate_group_epsilon,
    spend,
    state,
)

SUBSTITUTION, ADD_OR_REMOVE = Relation.SUBSTITUTION, Relation.ADD_OR_REMOVE
GRID = 1e-3


def agree(estimate: float | None, bounds: EpsilonBounds) -> bool:
    """Whether both accountants agree to 1%; ``GuaranteeError`` if the estimate is refuted."""
    found = confirm_epsilon(state(estimate, bounds), 1e-5, "epsilon")
    assert found.value == (bounds.upper if math.isfinite(bounds.upper) else None)
    return found.value is not None and not found.is_computed_once


@pytest.mark.parametrize(("noise", "steps"), [(4.0, 10), (10.0, 100), (1.0, 1)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_full_batches_have_a_closed_form_between_the_bounds(noise: float, steps: int, delta: float) -> None:
    for relation, sensitivity in ((SUBSTITUTION, 2.0), (ADD_OR_REMOVE, 1.0)):
        exact = gaussian(sensitivity * math.sqrt(steps) / noise, delta)
        found = bound_epsilon(spend(1.0, noise, steps), delta, relation)
        assert found.lower <= exact <= found.upper
        assert found.upper - found.lower < min(0.02, 0.01 * exact)


@given(st.floats(0.005, 1.0), st.floats(0.6, 8.0), st.integers(1, 60), st.sampled_from([1e-3, 1e-5, 1e-7]))
@settings(max_examples=5, deadline=None)
def test_the_main_figure_lies_between_the_bounds(rate: float, noise: float, steps: int, delta: float) -> None:
    for relation in Relation:
        compared = compare_examples(spend(rate, noise, steps), relation)
        assert agree(compared.estimate_epsilon(delta), compared.bound_epsilon(delta))


@pytest.mark.parametrize(
    ("relation", "rate", "noise", "steps", "delta", "expected"),
    [
        (SUBSTITUTION, 0.01, 0.002, 1000, 1e-6, math.inf),  # the share in wrong cells is no float
        (SUBSTITUTION, 0.01, 1e-9, 1000, 1e-6, math.inf),
        (
            ADD_OR_REMOVE,
            1.5e-6,
            0.06,
            5000,
            3e-9,
            425.8,
        ),  # a removal's lowest loss is 500,000 times as far as its typical one
    ],
)
def test_extreme_settings_are_bounded_or_have_no_epsilon(
    relation: Relation, rate: float, noise: float, steps: int, delta: float, expected: float
) -> None:
    with np.errstate(over="raise"):
        found = bound_epsilon(spend(rate, noise, steps), delta, relation)
    assert found.upper == pytest.approx(expected, rel=2e-3)


def test_no_bound_overflows_where_epsilon_is_far_above_what_protects() -> None:
    """An infinite discount would make every epsilon look proved."""
    with np.errstate(over="raise"):
        found = compare_units(spend(0.03, 0.21, 745), 1, 1).bound_epsilon(2e-7)
    assert 500.0 < found.lower < found.upper


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 0.6), (0.5, 1.0), (1.0, 8.0), (0.001, 3.0)])
@pytest.mark.parametrize("cell", [2e-5, 1e-3])
def test_buckets_are_no_wider_than_is_allowed_for(rate: float, noise: float, cell: float) -> None:
    group = rederive_removal_pair(rate, noise, 4)
    for pair in (rederive_exchange_pair(rate, noise), group, reverse_pair(group)):
        edges = verification._find_bucket_edges(cell, *verification._sample_losses(pair, 1e-24))
        if len(edges) > 1:
            assert np.diff(verification._compute_loss(pair, edges)).max() <= verification._BUCKET_SLACK * cell


def test_bounds_lie_as_far_apart_as_the_theorem_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """However well they agree: Azuma and Hoeffding allow T steps of an interval h to wander so far."""
    seen: list[tuple[float, int, EpsilonBounds]] = []
    real = verification._ComposedLoss.bound_epsilon

    def noted(own: Any, *given: Any) -> EpsilonBounds:
        seen.append((own.cell, sum(own.counts), real(own, *given)))
        return seen[-1][2]

    monkeypatch.setattr(verification._ComposedLoss, "bound_epsilon", noted)
    for rate, noise, steps, delta in ((0.01, 1.0, 1_000, 1e-5), (0.3, 2.0, 20, 1e-9), (1.0, 9.0, 1, 1e-3)):
        verification.bound_one_order_epsilon.cache_clear()
        found = bound_epsilon(spend(rate, noise, steps), delta, SUBSTITUTION)
        assert found == seen[-1][2]
        h, count, _ = seen[-1]
        assert count == steps
        wander = h * math.sqrt(steps / 2 * math.log(1 / (1e-4 * delta)))
        assert found.upper - found.lower >= 3 * wander + steps * h**2 / 8
        assert found.lower > 0


@pytest.mark.parametrize("factor", [0.9, 0.98, 1.02, 1.1])
def test_a_figure_that_is_off_is_refused(factor: float) -> None:
    own = spend(0.02, 1.5, 200)
    figure, bounds = estimate_epsilon(own, 1e-5, SUBSTITUTION), bound_epsilon(own, 1e-5, SUBSTITUTION)
    assert agree(figure, bounds)
    # also the figure of a point there or not in the place of an exchange
    with pytest.raises(GuaranteeError, match="disagree about epsilon"):
        agree(estimate_epsilon(own, 1e-5, ADD_OR_REMOVE), bounds)
    if factor < 1.0:
        with pytest.raises(GuaranteeError, match="disagree about epsilon"):
            agree(factor * figure, bounds)
    else:
        assert not agree(factor * figure, bounds)
    assert not agree(None, bounds)
    assert not agree(figure, EpsilonBounds(0.9 * figure, math.inf))


@pytest.mark.parametrize(
    ("points", "name", "slip"),
    [
        (None, "make_exchange_pair", lambda rate, noise: make_exchange_pair(0.9 * rate, noise)),
        (
            None,
            "make_exchange_pair",
            lambda rate, noise: DominatingPair(make_exchange_pair(rate, noise).p, NO_SHIFT, noise),
        ),
        (1, "make_removal_pair", lambda rate, noise, points: make_removal_pair(0.9 * rate, noise, points)),
        (3, "make_binomial_mixture", lambda rate, points: make_binomial_mixture(rate, points - 1)),
    ],
)
def test_a_slip_in_a_pair_is_refused(monkeypatch: pytest.MonkeyPatch, points: int | None, name: str, slip: Any) -> None:
    """Each accountant states its pairs: a wrong weight or mean of the main one's is no silent figure."""
    own = spend(0.02, 1.5, 200)

    def are_confirmed() -> bool:
        compared = compare_examples(own, SUBSTITUTION) if points is None else compare_units(own, points)
        return not confirm_epsilon(compared, 1e-5, "epsilon").is_computed_once

    assert are_confirmed()
    monkeypatch.setattr(pairs, name, slip)
    with pytest.raises(GuaranteeError, match="disagree"):
        are_confirmed()


@pytest.mark.parametrize("delta", [1e-5, 1e-12])
@pytest.mark.parametrize(
    ("points", "name", "slip"),
    [
        (None, "rederive_exchange_pair", lambda rate, noise: make_exchange_pair(0.9 * rate, noise)),
        (None, "rederive_exchange_pair", lambda rate, noise: make_exchange_pair(rate, 2.0 * noise)),
        pytest.param(
            None,
            "rederive_exchange_pair",
            lambda rate, noise: DominatingPair(NO_SHIFT, NO_SHIFT, noise),
            marks=pytest.mark.slow,
        ),
        (3, "rederive_removal_pair", lambda rate, noise, points: make_removal_pair(rate, noise, points - 1)),
    ],
)
def test_a_slip_in_the_second_statement_is_refused(
    monkeypatch: pytest.MonkeyPatch, points: int | None, name: str, slip: Any, delta: float
) -> None:
    """It makes the proved bound too small, also where dp_accounting has no epsilon near it."""
    monkeypatch.setattr(rederived_pairs, name, slip)
    own = spend(0.02, 1.5, 200)
    compared = compare_examples(own, SUBSTITUTION) if points is None else compare_units(own, points, points)
    with pytest.raises(GuaranteeError, match="disagree about epsilon"):
        confirm_epsilon(compared, delta, "epsilon")
    if points is None:
        with pytest.raises(GuaranteeError, match="disagree about the noise that was found"):
            calibrate_noise(2.0, delta, 0.02, 200)


def test_a_branch_that_is_lost_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    law = Mixture((0.0, 1.0), (0.5, 0.4))
    monkeypatch.setattr(rederived_pairs, "rederive_exchange_pair", lambda *_: DominatingPair(law, NO_SHIFT, 1.5))
    with pytest.raises(GuaranteeError, match="do not add up to 1"):
        compare_examples(spend(0.02, 1.5, 200), SUBSTITUTION)


@given(st.integers(1, 60), st.floats(1e-6, 1.0))
@settings(max_examples=40, deadline=None)
def test_both_statements_of_a_pair_are_one(points: int, rate: float) -> None:
    for ours, theirs in (
        (rederive_removal_pair(rate, 2.0, points), make_removal_pair(rate, 2.0, points)),
        (rederive_exchange_pair(rate, 2.0), make_exchange_pair(rate, 2.0)),
    ):
        for one, other in ((ours, theirs), (reverse_pair(ours), theirs.reversed)):
            for law, same in ((one.p, other.p), (one.q, other.q)):
                weights = dict(zip(law.means, law.weights, strict=True))
                assert [weights.get(mean, 0.0) for mean in same.means] == pytest.approx(same.weights)


@given(st.floats(0.01, 0.6), st.floats(0.7, 3.0), st.floats(-1.0, 3.0))
@settings(max_examples=25, deadline=None)
def test_a_pair_dominates_every_two_vectors_of_its_kind(rate: float, noise: float, log_a: float) -> None:
    rng = np.random.default_rng(int(1e6 * rate))
    line = np.linspace(-16.0, 16.0, 401)
    x, y = np.meshgrid(line, line)
    area = (line[1] - line[0]) ** 2

    def bump(v: Any) -> Any:
        scale = 2 * math.pi * noise**2
        return np.exp(-((x - v[0]) ** 2 + (y - v[1]) ** 2) / (2 * noise**2)) / scale

    def density(law: Any) -> Any:
        parts = zip(law.weights, law.means, strict=True)
        return sum(w * np.exp(-((fine - m) ** 2) / (2 * noise**2)) for w, m in parts)

    a, b = (u / np.linalg.norm(u) * rng.uniform() for u in rng.normal(size=(2, 2)))
    p, q = ((1 - rate) * bump((0, 0)) + rate * bump(v) for v in (a, b))
    plane = np.maximum(p - math.exp(log_a) * q, 0.0).sum() * area
    fine, pair = np.linspace(-16.0, 16.0, 20_001), make_exchange_pair(rate, noise)
    over = np.maximum(density(pair.p) - math.exp(log_a) * density(pair.q), 0.0)
    assert plane <= over.sum() * (fine[1] - fine[0]) / (noise * math.sqrt(2 * math.pi)) + 1e-6


@pytest.mark.parametrize(("points", "expected"), [(2, 2.855), (8, 14.14)])
def test_groups_there_or_gone(points: int, expected: float) -> None:
    compared = compare_units(spend(0.01, 1.0, 500), points)
    assert compared.estimate_epsilon(1e-5) == pytest.approx(expected, rel=2e-3)
    assert agree(compared.estimate_epsilon(1e-5), compared.bound_epsilon(1e-5))


@pytest.mark.parametrize(("points", "expected"), [(2, 2.681), (4, 5.996)])
def test_groups_exchanged(points: int, expected: float) -> None:
    compared = compare_units(spend(0.02, 2.0, 200), points, points)
    assert agree(compared.estimate_epsilon(1e-5), compared.bound_epsilon(1e-5))
    assert compared.estimate_epsilon(1e-5) == pytest.approx(expected, rel=5e-3)


def test_examples_that_vanish_and_fewer_that_appear_cost_less_than_an_exchange() -> None:
    own = spend(0.02, 2.0, 200)
    few, many = estimate_group_epsilon(own, 1e-5, 4, 1), estimate_group_epsilon(own, 1e-5, 4, 4)
    assert estimate_group_epsilon(own, 1e-5, 4) < few == estimate_group_epsilon(own, 1e-5, 1, 4) < many
    bounds = compare_units(own, 4, 1).bound_epsilon(1e-5)
    assert bounds == compare_units(own, 1, 4).bound_epsilon(1e-5)
    assert agree(few, bounds)


def test_the_rest_of_a_chain_is_what_the_upper_bound_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[float, ...]] = []

    def bound(pairs: Any, delta: float, lesser: float | None = None, relative_gap: float = 0.0) -> EpsilonBounds:
        asked.append((delta, lesser or delta))
        return EpsilonBounds(1.0, 3.0)

    monkeypatch.setattr(comparisons, "bound_composed_epsilon", bound)
    assert compare_units(spend(0.02, 2.0, 200), 2, 2).bound_epsilon(1e-5) == EpsilonBounds(2.0, 6.0)
    (first, _), rest = asked
    assert rest == pytest.approx(((1e-5 - first) * math.exp(-1.0), (1e-5 - first) * math.exp(-3.0)))


def test_rows_of_one_point_are_a_group() -> None:
    assert estimate_epsilon(spend(0.02, 2.0, 200, rows=2), 1e-5, SUBSTITUTION) == pytest.approx(2.681, rel=5e-3)
    with pytest.raises(GuaranteeError):
        estimate_epsilon(spend(0.02, 2.0, 200, rows=2), 1e-5, ADD_OR_REMOVE)


def test_models_compose_to_less_than_the_sum_and_more_than_each() -> None:
    first, other = spend(0.01, 1.0, 500)[0], spend(0.02, 2.0, 300)[0]
    alone = [estimate_epsilon((one,), 1e-5, SUBSTITUTION) for one in (first, other)]
    both = estimate_epsilon((first, other), 1e-5, SUBSTITUTION)
    assert max(alone) < both < sum(alone)
    assert agree(both, bound_epsilon((first, other), 1e-5, SUBSTITUTION))
    halves = estimate_epsilon(spend(0.01, 1.0, 250) * 2, 1e-5, SUBSTITUTION)
    assert halves == pytest.approx(estimate_epsilon((first,), 1e-5, SUBSTITUTION), abs=1e-3)
    assert estimate_epsilon((), 1e-5, SUBSTITUTION) == 0.0


def as_event(tree: dict[str, Any]) -> Any:
    """The JSON of an event tree, made dp_accounting's own event again."""

    def read(value: Any) -> Any:
        if isinstance(value, list):
            return [as_event(one) for one in value]
        return as_event(value) if isinstance(value, dict) else value

    return getattr(dp_event, tree["class"])(**{k: read(v) for k, v in tree.items() if k != "class"})


@pytest.mark.parametrize("relation", list(Relation))
def test_the_event_in_the_ledger_gives_dp_accountings_own_figure(relation: Relation) -> None:
    own = (*spend(0.05, 1.5, 30), *spend(0.1, 2.0, 10))
    accountant = PLDAccountant(THEIRS[relation], GRID)
    accountant.compose(as_event(make_event_tree(own)))
    assert estimate_epsilon(own, 1e-5, relation) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-3)
    assert make_event_tree(()) == {"class": "NoOpDpEvent"}
    assert make_event_tree(own[:1])["class"] == "SelfComposedDpEvent"
