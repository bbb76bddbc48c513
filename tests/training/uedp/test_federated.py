"""Grey box of Algorithm 1 and DP-FedAvg: sums move as far as accounted, and every known defect is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError
from redactory.foundation.records import RecordLog
from redactory.foundation.stream import RandomStream
from redactory.redaction.mask import MASK
from redactory.training.data import TokenizedExamples
from redactory.training.mechanisms.ledger import StepLedger
from redactory.training.mechanisms.mechanism import parse_mechanism_json
from redactory.training.mechanisms.users import EntitySampling
from redactory.training.uedp.entities import Mention
from redactory.training.uedp.federated import collect_users, draw_users, make_example_weights
from redactory.training.uedp.incidence import IncidenceBuilder, get_columns
from redactory.training.uedp.local_update import clip_update
from tests.training.greybox import TOKENIZER, Recorder
from tests.training.uedp.federation import (
    ANY,
    BETA,
    GONE_ENTITY,
    GONE_USER,
    WORLD,
    Federation,
    drawn,
    entity_drawn,
    holders,
    mechanism,
    moved,
)
from tests.training.uedp.worlds import World, hypergraph, unit, without_entity, without_user

OTHERS = holders(GONE_ENTITY) - {GONE_USER}
NO_USER = without_user(WORLD, GONE_USER)
NO_ENTITY = without_entity(WORLD, GONE_ENTITY)
NEITHER = without_entity(NO_USER, GONE_ENTITY)


EDGES = ("", "9" * 30, "Hello", MASK, f"Hello{MASK}", "a", " ")
BOUNDS: dict[str, tuple[World, Callable[[int], int]]] = {
    "user": (NO_USER, lambda step: drawn(step, {GONE_USER})),
    "entity": (NO_ENTITY, lambda step: 2 * drawn(step, {*OTHERS, GONE_USER})),
    "both": (NEITHER, lambda step: drawn(step, {GONE_USER}) + 2 * drawn(step, OTHERS)),
}
"""The world without a unit, and the most clips that a step's sum moves: b + 2j, as B(i) says."""


@pytest.mark.parametrize(
    ("trial", "units"),
    [
        (Federation(), ("user", "entity", "both")),
        (Federation(words=EDGES, max_tokens=1), ("user", "entity")),
        (Federation(words=EDGES, max_tokens=3), ("user", "entity")),
        (Federation(kind="awd-lstm"), ("user", "both")),
        (Federation(mechanism(None)), ("user",)),
    ],
    ids=["Algorithm 1", "empty", "cut", "dropout", "DP-FedAvg"],
)
def test_a_unit_that_goes_moves_a_sum_no_further_than_accounted(trial: Federation, units: tuple[str, ...]) -> None:
    """And not at all where no coin drew it or its holders: points may vanish, or become null."""
    for goes, fixed in product(units, (False, True)):
        world, clips = BOUNDS[goes]
        for step, distance in enumerate(trial.distances(WORLD, world, fixed)):
            assert distance <= BETA * clips(step)


def test_the_bounds_are_met() -> None:
    """A user who stays and loses points moves by more than one clip: the factor of two is needed."""
    always = mechanism(replace(ANY, entity_rate=1.0), sampling_rate=1.0)
    world = {0: (0, frozenset({1})), 7: (0, frozenset({1})), 14: (0, frozenset({1})), 2: (0, frozenset({0}))}
    assert max(Federation(always).distances(world, without_entity(world, 1))) > 1.1 * BETA
    assert max(Federation(always).distances(world, {})) == pytest.approx(BETA, rel=1e-5)


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 11), st.integers(0, 3))
def test_any_user_and_any_entity_are_hidden(user: int, entity: int) -> None:
    other = without_entity(without_user(WORLD, user), entity)
    for step, distance in enumerate(Federation().distances(WORLD, other)):
        assert distance <= BETA * (drawn(step, {user}) + 2 * drawn(step, holders(entity) - {user}))


def test_under_an_enforced_cap_an_entity_moves_m_users_at_most() -> None:
    capped = mechanism(replace(ANY, max_users_per_entity=2))
    incidence = hypergraph(WORLD)
    users = collect_users(incidence, capped)
    kept = np.zeros(len(incidence), bool)
    kept[np.concatenate([user.rows for user in users])] = True
    assert int(incidence.select_examples(kept).count_entity_users().max()) == 2
    assert int(incidence.count_entity_users().max()) > 2
    for step, distance in enumerate(Federation(capped).distances(WORLD, NEITHER, fixed=True)):
        assert distance <= BETA * (drawn(step, {GONE_USER}) + 2 * 2)


def test_an_update_that_is_not_finite_is_none() -> None:
    assert not clip_update(torch.tensor([1.0, float("nan")]), 1.0).any()
    assert not clip_update(torch.tensor([1.0, float("inf")]), 1.0).any()
    assert clip_update(torch.tensor([0.3, 0.4]), 1.0).tolist() == pytest.approx([0.3, 0.4])
    assert not clip_update(torch.zeros(2), 1.0).any()


def test_a_replayed_step_has_its_bits_and_another_sum_is_refused(tmp_path: Any) -> None:
    with RecordLog(tmp_path / "ledger") as log:
        ledger = StepLedger(log, mechanism(), RandomStream.from_seed(5))
        first = Federation().phase(WORLD, ledger)
        first.step(0)
        again = Federation().phase(WORLD, ledger)
        again.step(0)
        assert torch.equal(moved(first), moved(again))
        with pytest.raises(CheckFailed, match="a sum that differs"):
            Federation().phase(NO_USER, ledger).step(0)


def test_no_noise_is_drawn_for_a_sum_that_was_not_admitted() -> None:
    drawn_for: list[str] = []

    @dataclass(frozen=True)
    class Listening(RandomStream):
        def random_bytes(self, purpose: str, step: int, count: int, index: int = 0) -> bytes:
            drawn_for.append(purpose)
            return super().random_bytes(purpose, step, count, index)

    class Refusing:
        def authorize_noisy_step(self, step: int, clipped_sum: torch.Tensor) -> None:
            raise CheckFailed("no")

    phase = Federation().phase(WORLD, Refusing())
    phase.stream = Listening(phase.stream.root)
    before = moved(phase)
    with pytest.raises(CheckFailed):
        phase.step(0)
    assert "user coins" in drawn_for
    assert "noise" not in drawn_for
    assert torch.equal(before, moved(phase))


def test_an_empty_sample_is_a_step_of_noise() -> None:
    recorder = Recorder()
    phase = Federation(mechanism(sampling_rate=1e-9)).phase(WORLD, recorder)
    before = moved(phase)
    phase.step(0)
    assert not recorder.sums[0].any()
    assert not torch.equal(before, moved(phase))


def test_labelled_points_leave_with_their_classes() -> None:
    points = TokenizedExamples.from_texts(["a", "Hello", "", "9"], TOKENIZER, 20)
    rows = np.array([3, 1], np.int64)
    found = replace(points, labels=np.array([0, 1, 0, 2])).select_examples(rows)
    assert found.labels.tolist() == [2, 1]
    for place, row in enumerate(rows):
        assert found.get_targets(place).tolist() == points.get_targets(row).tolist()


def weights(sampling: Any, step: int = 0) -> NDArray[np.float64]:
    incidence = hypergraph(WORLD)
    rows = np.arange(len(incidence))
    return make_example_weights(incidence, mechanism(sampling))(RandomStream.from_seed(5), step, rows)


@pytest.mark.parametrize("step", range(4))
def test_weights_are_those_of_the_paper(step: int) -> None:
    extending = weights(ANY, step)
    for row, (_, entities) in WORLD.items():
        if entities:
            assert extending[row] == sum(entity_drawn(step, e) for e in entities)
        else:
            assert extending[row] in (0.0, 1.0)
    only = weights(replace(ANY, related_entity_rate=0.0), step)
    extended = np.array([not entities for _, entities in WORLD.values()])
    assert not only[extended].any()
    assert (only == extending)[~extended].all()


@pytest.mark.parametrize(("entity_rate", "related_entity_rate"), [(0.9, 0.1), (0.15, 0.8), (0.3, 1.0), (1.0, 0.2)])
@pytest.mark.parametrize("user_rate", [0.1, 0.85])
def test_everything_is_drawn_at_its_own_rate(entity_rate: float, related_entity_rate: float, user_rate: float) -> None:
    """Each by coins of its own, which agree no oftener than independent ones do."""
    sampling = EntitySampling(entity_rate, related_entity_rate, None)
    graph, stream, steps = hypergraph(WORLD), RandomStream.from_seed(2), 300
    own = mechanism(sampling, sampling_rate=user_rate)
    weights, users = make_example_weights(graph, own), collect_users(graph, own)
    rows = np.arange(len(graph))
    used = np.array([weights(stream, step, rows) > 0.0 for step in range(steps)])
    keys = [user.key for user in users]
    taken = [{user.key for user in draw_users(stream, step, users, user_rate)} for step in range(steps)]
    drawn = np.array([[key in own for key in keys] for own in taken])
    single = np.flatnonzero(np.diff(graph.entities.indptr) == 1)
    # the first point of each entity that stands alone in it: its coin and no other's
    first = single[np.unique([get_columns(graph.entities, row)[0] for row in single], return_index=True)[1]]
    tables = ((user_rate, drawn), (entity_rate, used[:, first]), (related_entity_rate, used[:, graph.extended_mask]))
    for rate, table in tables:
        assert stats.binomtest(int(table.sum()), table.size, rate).pvalue > 1e-6
        for both in (table[1:] & table[:-1], table[:, 1:] & table[:, :-1]):
            assert stats.binomtest(int(both.sum()), both.size, rate**2).pvalue > 1e-6


def test_points_of_several_users_and_more_users_than_declared_are_refused() -> None:
    collector = IncidenceBuilder()
    collector.add(0, 7, [unit(1), unit(2)], [Mention(unit(1000), "L")])
    with pytest.raises(GuaranteeError, match=r"units\.duplicates"):
        collect_users(collector.build(), mechanism())
    world = hypergraph(WORLD)
    with pytest.raises(ConfigurationError, match=r"train\.federated\.users"):
        collect_users(world, mechanism(ANY, users=11))
    assert len(collect_users(world, mechanism(None, users=11))) == 12


@pytest.mark.parametrize("entities", [None, ANY, replace(ANY, max_users_per_entity=3)])
def test_a_ledger_gives_the_mechanism_back_and_nothing_else(entities: Any) -> None:
    own = mechanism(entities, noise="lattice")
    assert parse_mechanism_json(own.to_json()) == own
    for change in (
        {"event": {**own.to_event(), "class": "PoissonSampledDpEvent"}},
        {"event": {**own.to_event(), "users": 0}},
        {"event": {**own.to_event(), "entities": {"entity_rate": 0.5}}},
        {"noise": "none"},
        {"normaliser": {"kind": "sampled users", "value": 7.2}},
        {"sensitivity": {"substitution": BETA, "add_or_remove": BETA}},
        {"more": 1},
    ):
        with pytest.raises(GuaranteeError):
            parse_mechanism_json({**own.to_json(), **change})
