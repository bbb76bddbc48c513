"""Contribution bounding: caps, stability of each rule by brute force, refusals by name, the planner."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError
from redactory.training.uedp import bounding
from redactory.training.uedp.bounded_accounting import NO_ENTITY, CalibrationTarget, compare_caps, suggest_cap
from redactory.training.uedp.bounding import bound_contributions, cap_entity_users
from redactory.training.uedp.entities import Mention
from redactory.training.uedp.incidence import IncidenceBuilder, count_degrees
from redactory.training.unit_settings import PrivacyUnit
from tests.training.uedp.worlds import World, hypergraph, kept_ids, mixed, unit, without_entity, without_user

ROWS = st.tuples(st.integers(0, 4), st.frozensets(st.integers(0, 4), max_size=3))
WORLDS = st.lists(ROWS, min_size=1, max_size=14).map(lambda rows: dict(enumerate(rows)))
CAPS = st.integers(1, 3)
R = 3


def keep(world: World, k_u: int, k_e: int, r: int | None = None) -> set[int]:
    """What greedy, or R-LOC with r, keeps of a world."""
    if not world:
        return set()
    incidence = hypergraph(world)
    return kept_ids(incidence, bound_contributions(incidence, k_u, k_e, r))


def ordered(world: World, k_u: int, k_e: int, r: int | None = None) -> set[int]:
    """What a rule keeps where the points' priorities rise with their ids."""
    incidence = hypergraph(world, {point: point for point in world})
    return kept_ids(incidence, bound_contributions(incidence, k_u, k_e, r))


def used(world: World, kept: set[int]) -> tuple[int, int]:
    users = Counter(world[point][0] for point in kept)
    entities = Counter(e for point in kept for e in world[point][1])
    return max(users.values(), default=0), max(entities.values(), default=0)


@settings(max_examples=80, deadline=None)
@given(WORLDS, st.sampled_from([None, R]), CAPS, CAPS)
def test_no_unit_exceeds_its_cap_in_any_order(world: World, r: int | None, k_u: int, k_e: int) -> None:
    """So on a fixed graph at most k_u + k_e kept points become null: the selection stays as it is."""
    kept = keep(world, k_u, k_e, r)
    user, entity = used(world, kept)
    assert user <= k_u
    assert entity <= k_e
    assert keep(dict(reversed(world.items())), k_u, k_e, r) == kept


@settings(max_examples=60, deadline=None)
@given(WORLDS, CAPS, CAPS)
def test_greedy_is_the_plain_loop_over_its_order(world: World, k_u: int, k_e: int) -> None:
    degree = Counter(("u", u) for u, _ in world.values()) + Counter(("e", e) for _, es in world.values() for e in es)
    units = {p: [("u", u), *(("e", e) for e in es)] for p, (u, es) in world.items()}
    count: Counter[tuple[str, int]] = Counter()
    kept = set()
    for point in sorted(world, key=lambda p: (sum(degree[w] for w in units[p]), mixed(p), p)):
        if all(count[w] < (k_u if w[0] == "u" else k_e) for w in units[point]):
            kept.add(point)
            count.update(units[point])
    assert keep(world, k_u, k_e) == kept


@settings(max_examples=150, deadline=None)
@given(WORLDS, CAPS, CAPS, st.integers(0, 4))
def test_r_loc_bounds_what_a_removed_user_lets_in(world: World, k_u: int, k_e: int, user: int) -> None:
    before, after = keep(world, k_u, k_e, R), keep(without_user(world, user), k_u, k_e, R)
    assert len(before - after) <= k_u
    assert len(after - before) <= k_u * R


def test_the_bound_of_r_loc_is_attained() -> None:
    """One point of user 0 stands before one of each other user in three entities' lists."""
    world: World = {0: (0, frozenset({0, 1, 2}))}
    world |= {n: (n, frozenset({n - 1})) for n in (1, 2, 3)}
    assert ordered(world, 1, 1, 3) == {0}
    assert ordered(without_user(world, 0), 1, 1, 3) == {1, 2, 3}


def test_r_loc_fills_an_entity_with_what_users_kept_alone_and_leaves_out_points_of_too_many() -> None:
    """A user of ten points stands first in ten entities' lists, and may hold a place in one of them only."""
    world: World = {point: (0, frozenset({point})) for point in range(10)}
    world |= {10 + point: (1 + point, frozenset({point})) for point in range(10)}
    assert ordered(world, 1, 1, 1) == {0, *range(11, 20)}
    assert ordered(without_user(world, 0), 1, 1, 1) == set(range(10, 20))
    wide: World = {0: (0, frozenset({0, 1, 2, 3})), 1: (0, frozenset({0, 1, 2})), 2: (1, frozenset({3}))}
    assert ordered(wide, 1, 1, 3) == {1, 2}
    assert ordered(wide, 1, 1, 4) == {0}


def test_a_hub_that_vanishes_lets_half_of_its_users_in() -> None:
    """Why nothing is stated for a removed entity: k = 1, a thousand users of one hub."""
    world: World = {2 * u: (u, frozenset({0})) for u in range(1000)} | {
        2 * u + 1: (u, frozenset()) for u in range(1000)
    }
    before, after = keep(world, 1, 1, R), keep(without_entity(world, 0), 1, 1, R)
    assert len(before - after) <= 1
    assert len(after - before) > 400


def test_a_user_who_vanishes_flips_greedy_along_a_path() -> None:
    """Why nothing is stated for a removed user with ``greedy``: after one point every choice turns."""
    length = 200
    world: World = {}
    for place in range(length):
        world[2 * place] = (place, frozenset({place}))
        world[2 * place + 1] = (place + 1, frozenset({place}))
    whole = ordered(world, 1, 1)
    assert max(len(whole ^ ordered(without_user(world, user), 1, 1)) for user in (0, 1, length)) > length


def test_senseless_caps_are_refused_and_a_broken_cap_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    incidence = hypergraph({0: (0, frozenset()), 1: (0, frozenset())})
    with pytest.raises(ConfigurationError, match="at least 1"):
        bound_contributions(incidence, 0, 1)
    with pytest.raises(ConfigurationError, match="r-loc needs k_user"):
        bound_contributions(incidence, None, 1, R)
    # sabotage: a greedy that keeps everything
    monkeypatch.setattr(bounding, "_select_greedily", lambda *_: np.ones(2, bool))
    with pytest.raises(CheckFailed, match="more kept examples than its cap"):
        bound_contributions(incidence, 1, None)


def test_a_point_with_several_holders_counts_against_each() -> None:
    collector = IncidenceBuilder()
    for point, holders in enumerate(([1, 2, 3], [1], [3])):
        collector.add(point, 9 - point, [unit(h) for h in holders], [])
    incidence = collector.build()
    assert kept_ids(incidence, bound_contributions(incidence, 1, None)) == {1, 2}
    assert kept_ids(incidence, bound_contributions(incidence, 2, None)) == {0, 1, 2}
    with pytest.raises(GuaranteeError, match="examples of one user each"):
        bound_contributions(incidence, 1, 1, 1)
    with pytest.raises(GuaranteeError, match="examples of one user each"):
        cap_entity_users(incidence, 1)
    part = incidence.select_examples(np.array([True, False, True]))
    assert (part.example_ids.tolist(), count_degrees(part.users).tolist()) == ([0, 2], [1, 1, 2])


@settings(max_examples=60, deadline=None)
@given(WORLDS, st.integers(1, 3))
def test_no_entity_keeps_more_users_than_its_cap(world: World, users: int) -> None:
    incidence = hypergraph(world)
    kept = kept_ids(incidence, cap_entity_users(incidence, users))
    holders: dict[int, set[int]] = {}
    for point in kept:
        for entity in world[point][1]:
            holders.setdefault(entity, set()).add(world[point][0])
    assert all(len(found) <= users for found in holders.values())
    assert {point for point, (_, entities) in world.items() if not entities} <= kept
    assert cap_entity_users(incidence, 5).all()


def test_a_plan_says_what_each_cap_keeps_of_946_users_and_entities_as_popular_as_one_over_rank() -> None:
    rng, collector = random.Random(1), IncidenceBuilder()
    weights = [1 / (rank + 1) for rank in range(5000)]
    for point in range(14_040):
        user, entities = rng.randrange(946), rng.choices(range(5000), weights, k=rng.choice((0, 1, 1, 2, 3)))
        mentions = [Mention(unit(10_000 + e), f"L{e % 3}") for e in entities]
        collector.add(point, mixed(point), [unit(user)], mentions)
    incidence = collector.build()
    found = compare_caps(incidence, caps=(1, 4, 16))
    assert (found["examples"], found["users"]) == (14_040, 946)
    assert found["suggested"] == 15 == suggest_cap(14_040, 946)
    # at least what a greedy without degrees keeps
    for choice, least in zip(found["choices"], (944, 3_597, 7_344), strict=True):
        assert least <= choice["kept"] <= choice["cap"] * 946
        assert choice["affected"] == 2 * choice["cap"]
        assert set(choice["by_label"]) == {"L0", "L1", "L2", NO_ENTITY}
        assert max(choice["by_label"].values()) <= choice["kept"] <= sum(choice["by_label"].values())
    alone = compare_caps(incidence, PrivacyUnit.USERS, caps=(16,))["choices"][0]
    assert alone["kept"] > found["choices"][2]["kept"]
    assert alone["affected"] == 16


def test_a_plan_for_a_target_has_the_noise_of_each_cap() -> None:
    world: World = {point: (point % 40, frozenset({point % 37})) for point in range(400)}
    target = CalibrationTarget(epsilon=8.0, delta=1e-5, batch_size=10, steps=20)
    found = compare_caps(hypergraph(world), caps=(1, 4, 10, 16), target=target)
    assert found["suggested"] == 10
    assert [choice["cap"] for choice in compare_caps(hypergraph(world))["choices"]] == [1, 2, 4, 8, 10, 16]
    noises = [choice["relative_noise"] or 0.0 for choice in found["choices"]]
    assert min(noises) > 0.0
    assert noises[2] == pytest.approx(noises[0], rel=0.15)  # the cap is free while every place is taken
    assert noises[3] > noises[2]  # past n/U it is not
    assert found["choices"][0]["sampling_rate"] == pytest.approx(10 / found["choices"][0]["kept"])
    with pytest.raises(ConfigurationError):
        compare_caps(hypergraph(world).select_examples(np.zeros(400, bool)))
