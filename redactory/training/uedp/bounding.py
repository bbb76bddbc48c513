"""Which selection of points is stable, and under what: rules by name, all others refused.

A rule is stable where taking a unit away changes a bounded number of kept points.  Proofs and
counterexamples: ``docs/explanation/uedp.md``, "Contribution bounding"; tests try every proof by brute force.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError
from redactory.training.uedp.incidence import Incidence, Rows
from redactory.training.units import Adjacency

NONE, GREEDY, ALL_KEEP, R_LOC = RULES = ("none", "greedy", "all-keep", "r-loc")
_PATH = "removing a user's one example can flip the choice along a whole path"
_HUB = "removing one hub entity admits an example of each of its users"
_LISTS = "a removed user frees places in the lists of each of their entities, whose number is unbounded"
_WHY_NOT: dict[str, dict[Adjacency, str | None]] = {
    NONE: {Adjacency.FIXED_GRAPH: None, Adjacency.REMOVAL: None},
    GREEDY: {Adjacency.FIXED_GRAPH: None, Adjacency.REMOVAL: _PATH, Adjacency.USER_REMOVAL: _PATH},
    ALL_KEEP: {Adjacency.FIXED_GRAPH: None, Adjacency.REMOVAL: _HUB, Adjacency.USER_REMOVAL: _LISTS},
    R_LOC: {Adjacency.FIXED_GRAPH: None, Adjacency.USER_REMOVAL: None, Adjacency.REMOVAL: _HUB},
}
"""By rule and adjacency: None where it is proved stable, else why it is not."""


@dataclass(frozen=True)
class Affected:
    """How many kept points differ: ``gone`` become null or vanish, ``come`` others take their place."""

    gone: int
    come: int = 0


def check_stable(rule: str, adjacency: Adjacency) -> None:
    """``GuaranteeError``, by name and reason, unless ``rule`` is proved stable under ``adjacency``."""
    if rule not in _WHY_NOT:
        raise GuaranteeError(f"unknown selection rule {rule!r}; valid rules: {', '.join(RULES)}")
    why = _WHY_NOT[rule].get(adjacency, "no bound is proved")
    if why is not None:
        raise GuaranteeError(f"selection rule {rule!r} is not stable under {adjacency.value}: {why}")


Kept = NDArray[np.bool_]


def bound(
    incidence: Incidence,
    k_user: int | None,
    k_entity: int | None,
    rule: str = GREEDY,
    adjacency: Adjacency = Adjacency.FIXED_GRAPH,
    entities_per_point: int | None = None,
) -> Kept:
    """The points that ``rule`` keeps, bool [n]; its caps (None: no cap on that unit) are counted again.

    ``entities_per_point`` r is for ``r-loc`` alone: points with more entities are left out.  Raises
    ``GuaranteeError`` for a rule that is not stable under ``adjacency``, ``ConfigurationError`` for caps
    below 1, ``CheckFailed`` where a unit has more kept points than its cap.
    """
    check_stable(rule, adjacency)
    if any(cap is not None and cap < 1 for cap in (k_user, k_entity)):
        raise ConfigurationError("k_user and k_entity: must be at least 1")
    if rule == NONE and (k_user is not None or k_entity is not None):
        raise ConfigurationError("bounding.rule none enforces no cap; use another rule")
    kept = _RULES[rule](incidence, k_user, k_entity, entities_per_point)
    for cap, rows in ((k_user, incidence.users), (k_entity, incidence.entities)):
        if cap is not None and rows.columns and int(rows.degrees(kept).max()) > cap:
            raise CheckFailed("a privacy unit has more kept examples than its cap")
    return kept


def order_of(incidence: Incidence) -> NDArray[np.int64]:
    """The points, those first whose units have the fewest points together; then by keyed id.

    A point that shares its units with many others stands in the way of many: taken last, more are kept.
    """
    shared = sum(rows.matrix @ rows.degrees() for rows in (incidence.users, incidence.entities))
    return np.lexsort((incidence.points, incidence.priorities, shared))


def cap_spread(incidence: Incidence, users: int) -> Kept:
    """The points that leave each entity with at most ``users`` M users: Algorithm 1's cap, on a fixed graph.

    Greedy in the order of :func:`order_of`: a point stays where each of its entities is already held by its
    user, or has fewer than M users so far.  ``GuaranteeError`` for points with several users.
    """
    if users < 1:
        raise ConfigurationError("max_users_per_entity: must be at least 1")
    owners = _single_user(incidence, "the cap on an entity's users").tolist()
    holders: list[set[int]] = [set() for _ in range(incidence.entities.columns)]
    kept = np.zeros(len(incidence), np.bool_)
    for point in order_of(incidence).tolist():
        owner, entities = owners[point], incidence.entities.of(point).tolist()
        if all(owner in holders[e] or len(holders[e]) < users for e in entities):
            kept[point] = True
            for e in entities:
                holders[e].add(owner)
    left = incidence.take(kept)
    if left.entities.columns and len(left) and int(left.entity_spread().max()) > users:
        raise CheckFailed("an entity has more users than its cap")
    return kept


def _greedy(incidence: Incidence, k_user: int | None, k_entity: int | None, r: int | None) -> Kept:
    """Each point in turn, where every one of its units has a place left."""
    shift = incidence.users.columns
    users, entities = incidence.users, incidence.entities
    unlimited = len(incidence) + 1
    places = [k_user or unlimited] * shift + [k_entity or unlimited] * entities.columns
    kept = np.zeros(len(incidence), np.bool_)
    for point in order_of(incidence).tolist():
        units = users.of(point).tolist() + [shift + e for e in entities.of(point).tolist()]
        if all(places[unit] for unit in units):
            kept[point] = True
            for unit in units:
                places[unit] -= 1
    return kept


def _all_keep(incidence: Incidence, k_user: int | None, k_entity: int | None, r: int | None) -> Kept:
    """Each unit keeps its own first k; a point stays where all its units keep it."""
    kept = _first(incidence, incidence.users, k_user, None)
    return kept & _first(incidence, incidence.entities, k_entity, None)


def _r_loc(incidence: Incidence, k_user: int | None, k_entity: int | None, r: int | None) -> Kept:
    """At most r entities; then each user's first k_u; then each entity's first k_e of those."""
    if r is None or r < 0 or k_user is None:
        raise ConfigurationError("r-loc needs entities_per_point and k_user: its bound is k_user times the former")
    _single_user(incidence, "r-loc")
    small: Kept = incidence.entities.lengths <= r
    chosen = small & _first(incidence, incidence.users, k_user, small)
    return chosen & _first(incidence, incidence.entities, k_entity, chosen)


def _first(incidence: Incidence, rows: Rows, cap: int | None, among: Kept | None) -> Kept:
    """The points that each of their columns holds among its ``cap`` first, by keyed id, of ``among``."""
    kept = np.ones(len(incidence), np.bool_)
    if cap is None:
        return kept
    row, column = rows.row_of, rows.indices
    if among is not None:
        row, column = row[among[row]], column[among[row]]
    order = np.lexsort((incidence.points[row], incidence.priorities[row], column))
    row, column = row[order], column[order]
    # the place of each in its column's list
    place = np.arange(len(column)) - np.searchsorted(column, column)
    kept[row[place >= cap]] = False
    return kept


def _single_user(incidence: Incidence, what: str) -> NDArray[np.int32]:
    if np.any(incidence.users.lengths != 1):
        raise GuaranteeError(f"{what} is proved for examples of one user each: set copies to keep")
    return incidence.users.indices


_RULES: dict[str, Callable[[Incidence, int | None, int | None, int | None], Kept]] = {
    NONE: lambda incidence, *_: np.ones(len(incidence), np.bool_),
    GREEDY: _greedy,
    ALL_KEEP: _all_keep,
    R_LOC: _r_loc,
}
