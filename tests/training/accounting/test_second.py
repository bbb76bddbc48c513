"""Two accountants without common code: they agree, the second one is right where the answer is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, special, stats

from redactory.foundation.errors import GuaranteeError
from redactory.training.accounting import (
    Spending,
    epsilon_of,
    event_tree,
    group_epsilon_of,
    removal_epsilon_of,
)
from redactory.training.accounting import second as other_accountant
from redactory.training.accounting.bounds import chain, gaussian_delta, revealed
from redactory.training.accounting.pairs import group_weights, removal, substitution
from redactory.training.accounting.published import renyi_epsilon
from redactory.training.accounting.second import Bracket
from redactory.training.accounting.second_opinion import bracket, group_bracket, removal_bracket, stated
from redactory.training.ledger import mechanism_from_json
from redactory.training.mechanism import PoissonGaussian, Relation, TruncatedPoissonGaussian

RELATIONS = {
    Relation.SUBSTITUTION: NeighboringRelation.REPLACE_ONE,
    Relation.ADD_OR_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
}
SUBSTITUTION, ADD_OR_REMOVE = Relation.SUBSTITUTION, Relation.ADD_OR_REMOVE
GRID = 1e-3


def spent(rate: float, noise: float, steps: int, rows: int = 1) -> tuple[Spending, ...]:
    return (Spending(PoissonGaussian(rate, noise, 1.0, 1.0), steps, rows),)


def confirmed(figure: float | None, second: Bracket, what: str) -> float | None:
    """What is stated of ``figure`` beside ``second``, whatever the delta."""
    return stated(lambda _: figure, lambda _: second, 1e-5, what).value


def gaussian_epsilon(mu: float, delta: float) -> float:
    def off(eps: float) -> float:
        return (
            float(special.ndtr(mu / 2 - eps / mu) - math.exp(eps) * special.ndtr(-mu / 2 - eps / mu)) - delta
        )

    return float(optimize.brentq(off, 0.0, 100.0))


@pytest.mark.parametrize(("noise", "steps"), [(4.0, 10), (10.0, 100), (1.0, 1)])
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_full_batches_have_a_closed_form_between_the_bounds(noise: float, steps: int, delta: float) -> None:
    for relation, sensitivity in ((SUBSTITUTION, 2.0), (ADD_OR_REMOVE, 1.0)):
        exact = gaussian_epsilon(sensitivity * math.sqrt(steps) / noise, delta)
        found = bracket(spent(1.0, noise, steps), delta, relation)
        assert found.lower <= exact <= found.upper
        assert found.upper - found.lower < min(0.02, 0.01 * exact)


@given(st.floats(0.005, 1.0), st.floats(0.6, 8.0), st.integers(1, 60), st.sampled_from([1e-3, 1e-5, 1e-7]))
@settings(max_examples=5, deadline=None)
def test_the_main_figure_lies_between_the_bounds(rate: float, noise: float, steps: int, delta: float) -> None:
    for relation in Relation:
        figure = epsilon_of(spent(rate, noise, steps), delta, relation, GRID)
        second = bracket(spent(rate, noise, steps), delta, relation)
        assert second.lower <= second.upper
        assert confirmed(figure, second, relation.value) == figure


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 0.6), (0.5, 1.0), (1.0, 8.0), (0.001, 3.0)])
@pytest.mark.parametrize("cell", [2e-5, 1e-3])
def test_buckets_are_no_wider_than_is_allowed_for(rate: float, noise: float, cell: float) -> None:
    for pair in (substitution(rate, noise), *removal(rate, noise, 4)):
        edges = other_accountant._edges(pair, cell, *other_accountant._line(pair, 1e-24))
        if len(edges) > 1:
            assert np.diff(pair.loss(edges)).max() <= other_accountant._WIDER * cell


@pytest.mark.parametrize("factor", [0.9, 0.98, 1.02, 1.1])
def test_a_figure_that_is_off_is_refused(factor: float) -> None:
    own = spent(0.02, 1.5, 200)
    figure = epsilon_of(own, 1e-5, SUBSTITUTION)
    assert figure is not None
    second = bracket(own, 1e-5, SUBSTITUTION)
    assert confirmed(figure, second, "epsilon") == figure
    with pytest.raises(GuaranteeError, match="disagree about epsilon"):
        confirmed(factor * figure, second, "epsilon")
    assert confirmed(None, second, "epsilon") is None
    assert confirmed(figure, Bracket(0.9 * figure, math.inf), "epsilon") is None


def test_removal_in_the_place_of_an_exchange_would_be_caught() -> None:
    own = spent(0.02, 1.5, 200)
    wrong = epsilon_of(own, 1e-5, ADD_OR_REMOVE)
    with pytest.raises(GuaranteeError, match="disagree"):
        confirmed(wrong, bracket(own, 1e-5, SUBSTITUTION), "epsilon_substitution")


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

    a, b = (u / np.linalg.norm(u) * rng.uniform() for u in rng.normal(size=(2, 2)))
    p, q = ((1 - rate) * bump((0, 0)) + rate * bump(v) for v in (a, b))
    plane = np.maximum(p - math.exp(log_a) * q, 0.0).sum() * area
    fine = np.linspace(-16.0, 16.0, 20_001)
    pair = substitution(rate, noise)
    both = [np.exp(side.log_density(fine)) / (noise * math.sqrt(2 * math.pi)) for side in (pair.p, pair.q)]
    on_the_line = np.maximum(both[0] - math.exp(log_a) * both[1], 0.0).sum() * (fine[1] - fine[0])
    assert plane <= on_the_line + 1e-6


@pytest.mark.parametrize(("points", "expected"), [(2, 2.855), (8, 14.14)])
def test_groups_there_or_gone(points: int, expected: float) -> None:
    own = spent(0.01, 1.0, 500)
    figure = removal_epsilon_of(own, 1e-5, points)
    assert figure == pytest.approx(expected, rel=2e-3)
    assert confirmed(figure, removal_bracket(own, 1e-5, points), "group") == figure


@pytest.mark.parametrize("points", [2, 4])
def test_groups_exchanged(points: int) -> None:
    own = spent(0.02, 2.0, 200)
    figure = group_epsilon_of(own, 1e-5, points)
    assert confirmed(figure, group_bracket(own, 1e-5, points), "group") == figure
    assert figure == pytest.approx({2: 2.681, 4: 5.996}[points], rel=5e-3)


def test_rows_of_one_point_are_a_group() -> None:
    assert epsilon_of(spent(0.02, 2.0, 200, rows=2), 1e-5, SUBSTITUTION) == pytest.approx(2.681, rel=5e-3)
    with pytest.raises(GuaranteeError):
        epsilon_of(spent(0.02, 2.0, 200, rows=2), 1e-5, ADD_OR_REMOVE)


def test_models_compose_to_less_than_the_sum_and_more_than_each() -> None:
    first, second = spent(0.01, 1.0, 500)[0], spent(0.02, 2.0, 300)[0]
    alone = [epsilon_of((one,), 1e-5, SUBSTITUTION, GRID) or 0.0 for one in (first, second)]
    both = epsilon_of((first, second), 1e-5, SUBSTITUTION, GRID)
    assert both is not None
    assert max(alone) < both < sum(alone)
    assert confirmed(both, bracket((first, second), 1e-5, SUBSTITUTION), "both") == both
    halves = spent(0.01, 1.0, 250) * 2
    assert epsilon_of(halves, 1e-5, SUBSTITUTION) == pytest.approx(
        epsilon_of((first,), 1e-5, SUBSTITUTION), abs=1e-3
    )
    assert epsilon_of((), 1e-5, SUBSTITUTION) == 0.0


def truncated(batch: int, noise: float = 1.0) -> TruncatedPoissonGaussian:
    return TruncatedPoissonGaussian(0.1, noise, 1.0, 1.0, truncated_batch_size=batch, points=100)


@pytest.mark.parametrize("relation", list(Relation))
def test_truncated_batches_are_accounted_as_what_they_are(relation: Relation) -> None:
    found = [
        epsilon_of((Spending(truncated(batch, 2.0), 50),), 1e-5, relation, GRID) or math.inf
        for batch in (100, 20, 12)
    ]
    whole = epsilon_of(spent(0.1, 2.0, 50), 1e-5, relation, GRID)
    assert found[0] == pytest.approx(whole, abs=1e-3)
    assert found[0] < found[1] < found[2]
    for batch, figure in zip((20, 12), found[1:], strict=True):
        second = bracket((Spending(truncated(batch, 2.0), 50),), 1e-5, relation)
        assert confirmed(figure, second, "truncated") == figure


def test_a_truncated_group_has_the_revealed_bound() -> None:
    own = (Spending(truncated(20, 8.0), 20),)
    assert (group_epsilon_of(own, 1e-5, 2) or 0.0) > (epsilon_of(own, 1e-5, SUBSTITUTION, GRID) or math.inf)
    with pytest.raises(GuaranteeError):
        group_epsilon_of(own * 2, 1e-5, 2)
    with pytest.raises(GuaranteeError):
        TruncatedPoissonGaussian(0.1, 1.0, 1.0, 1.0, truncated_batch_size=101, points=100)


def test_revealed_coins_mix_gaussians() -> None:
    law = {2 * count: float(stats.binom.pmf(count, 3, 0.2)) for count in range(4)}
    found = revealed(law, 6.0, 1, 1e-4)
    mixed = sum(w * float(gaussian_delta(found, np.array([c / 6.0]))[0]) for c, w in law.items())
    assert mixed == pytest.approx(1e-4, rel=1e-3)
    assert revealed({1: 1.0}, 4.0, 16, 1e-5) == pytest.approx(gaussian_epsilon(1.0, 1e-5), abs=1e-4)
    assert revealed({0: 1.0}, 4.0, 16, 1e-5) == 0.0
    assert revealed({100: 1.0}, 0.5, 16, 1e-5) == math.inf


def test_the_chain_is_no_better_than_its_parts_and_infinite_without_them() -> None:
    assert chain(lambda d: 1.0, lambda d: 2.0, 1e-5) == 3.0
    assert chain(lambda d: math.inf, lambda d: 2.0, 1e-5) == math.inf


@given(st.floats(1e-4, 1.0), st.integers(1, 40))
def test_no_weight_of_a_group_is_lost(rate: float, points: int) -> None:
    weights = group_weights(rate, points)
    assert math.fsum(weights.values()) == pytest.approx(1.0, abs=1e-12)
    assert weights[float(points)] >= rate**points * (1 - 1e-9) > 0
    for pair in removal(rate, 1.0, points):
        x = np.linspace(*pair.reach(1e-12), 50)
        assert (np.diff(pair.loss(x)) >= -1e-12).all()


def test_renyi_bounds_removal_and_is_refused_for_an_exchange() -> None:
    own = spent(0.01, 1.0, 1000)
    bound = renyi_epsilon(own, 1e-5, ADD_OR_REMOVE)
    assert bound == pytest.approx(2.1014, abs=1e-3)
    assert bound > (epsilon_of(own, 1e-5, ADD_OR_REMOVE, GRID) or math.inf)
    with pytest.raises(GuaranteeError, match="never for substitution"):
        renyi_epsilon(own, 1e-5, SUBSTITUTION)
    with pytest.raises(GuaranteeError):
        renyi_epsilon((Spending(truncated(20), 1),), 1e-5, ADD_OR_REMOVE)
    with pytest.raises(GuaranteeError):
        renyi_epsilon(spent(0.01, 1.0, 10, rows=2), 1e-5, ADD_OR_REMOVE)


def as_event(tree: dict[str, Any]) -> Any:
    """The JSON of an event tree, made dp_accounting's own event again."""
    fields = {
        name: as_event(value)
        if isinstance(value, dict)
        else [as_event(one) for one in value]
        if isinstance(value, list)
        else value
        for name, value in tree.items()
        if name != "class"
    }
    return getattr(dp_event, tree["class"])(**fields)


@pytest.mark.parametrize("relation", list(Relation))
def test_the_event_in_the_ledger_gives_dp_accountings_own_figure(relation: Relation) -> None:
    own = (*spent(0.05, 1.5, 30), Spending(truncated(20, 2.0), 10))
    accountant = PLDAccountant(RELATIONS[relation], GRID)
    accountant.compose(as_event(event_tree(own)))
    assert epsilon_of(own, 1e-5, relation, GRID) == pytest.approx(accountant.get_epsilon(1e-5), abs=1e-6)
    assert event_tree(()) == {"class": "NoOpDpEvent"}
    assert event_tree(own[:1])["class"] == "SelfComposedDpEvent"


def test_mechanisms_are_read_back_and_unknown_ones_refused() -> None:
    for one in (truncated(20), PoissonGaussian(0.1, 1.0, 0.5, 8.0, noise="lattice")):
        assert mechanism_from_json(one.to_json()) == one
        with pytest.raises(GuaranteeError):
            mechanism_from_json({**one.to_json(), "noise": "dithered"})
