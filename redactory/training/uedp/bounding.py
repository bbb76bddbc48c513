"""Select examples so that caps hold, by two rules that are proved stable: greedy and R-LOC.

A rule is stable if removing a unit changes a bounded number of kept examples: both are on a fixed graph, and R-LOC
also if a user's examples vanish. Proofs and counterexamples: ``docs/explanation/uedp.md``, "Contribution bounding";
tests try every proof by brute force.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_matrix

from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError
from redactory.training.uedp.incidence import Incidence, count_degrees, get_columns

KeptMask = NDArray[np.bool_]


def bound_contributions(
    incidence: Incidence, k_user: int | None, k_entity: int | None, entities_per_point: int | None = None
) -> KeptMask:
    """Select the examples that greedy keeps, bool [n]; its caps (None: no cap on that unit) are counted again.

    With ``entities_per_point`` r it is R-LOC, which leaves out examples with more entities. ``ConfigurationError``
    for caps below 1, ``CheckFailed`` if a unit has more kept examples than its cap.
    """
    if any(cap is not None and cap < 1 for cap in (k_user, k_entity)):
        raise ConfigurationError("k_user and k_entity: must be at least 1")
    if entities_per_point is None:
        kept = _select_greedily(incidence, k_user, k_entity)
    else:
        kept = _select_by_r_loc_rule(incidence, k_user, k_entity, entities_per_point)
    for cap, rows in ((k_user, incidence.users), (k_entity, incidence.entities)):
        if cap is not None and int(count_degrees(rows[kept]).max(initial=0)) > cap:
            raise CheckFailed("a privacy unit has more kept examples than its cap")
    return kept


def rank_examples_by_shared_units(incidence: Incidence) -> NDArray[np.int64]:
    """Order the examples by how many examples their units have together, fewest first; then by keyed id.

    An example that shares its units with many others blocks many: if it comes last, more are kept.
    """
    shared = sum(rows @ count_degrees(rows) for rows in (incidence.users, incidence.entities))
    return np.lexsort((incidence.example_ids, incidence.priorities, shared))


def cap_entity_users(incidence: Incidence, max_users: int) -> KeptMask:
    """Select the examples that leave each entity with at most ``max_users`` (M) users: Algorithm 1's cap.

    Greedy in the order of :func:`rank_examples_by_shared_units`: an example is kept if each of its entities already has
    its user, or has fewer than M users so far. ``GuaranteeError`` for examples with several users.
    """
    if max_users < 1:
        raise ConfigurationError("max_users_per_entity: must be at least 1")
    owners = _require_single_user(incidence, "the cap on an entity's users").tolist()
    holders: list[set[int]] = [set() for _ in range(incidence.entities.shape[1])]
    kept = np.zeros(len(incidence), np.bool_)
    for row in rank_examples_by_shared_units(incidence).tolist():
        owner, entities = owners[row], get_columns(incidence.entities, row).tolist()
        if all(owner in holders[e] or len(holders[e]) < max_users for e in entities):
            kept[row] = True
            for e in entities:
                holders[e].add(owner)
    if int(incidence.select_examples(kept).count_entity_users().max(initial=0)) > max_users:
        raise CheckFailed("an entity has more users than its cap")
    return kept


def _select_greedily(incidence: Incidence, k_user: int | None, k_entity: int | None) -> KeptMask:
    """Keep each example in turn if all its units are below their caps."""
    users, entities = incidence.users, incidence.entities
    shift = users.shape[1]
    unlimited = len(incidence) + 1
    places = [k_user or unlimited] * shift + [k_entity or unlimited] * entities.shape[1]
    kept = np.zeros(len(incidence), np.bool_)
    for row in rank_examples_by_shared_units(incidence).tolist():
        units = [*get_columns(users, row).tolist(), *(get_columns(entities, row) + shift).tolist()]
        if all(places[unit] for unit in units):
            kept[row] = True
            for unit in units:
                places[unit] -= 1
    return kept


def _select_by_r_loc_rule(
    incidence: Incidence, k_user: int | None, k_entity: int | None, max_entities: int
) -> KeptMask:
    """Keep examples with at most r entities; then each user's first k_u; then each entity's first k_e of those."""
    if k_user is None:
        raise ConfigurationError("r-loc needs k_user: its bound is k_user times entities_per_point")
    _require_single_user(incidence, "r-loc")
    is_small: KeptMask = np.diff(incidence.entities.indptr) <= max_entities
    chosen = is_small & _select_first_per_unit(incidence, incidence.users, k_user, is_small)
    return (
        chosen if k_entity is None else chosen & _select_first_per_unit(incidence, incidence.entities, k_entity, chosen)
    )


def _select_first_per_unit(incidence: Incidence, rows: csr_matrix, cap: int, candidates: KeptMask) -> KeptMask:
    """Keep the ``candidates`` that are among the ``cap`` first of each of their columns, by keyed id."""
    kept = np.ones(len(incidence), np.bool_)
    row, column = np.repeat(np.arange(len(incidence)), np.diff(rows.indptr)), rows.indices
    row, column = row[candidates[row]], column[candidates[row]]
    order = np.lexsort((incidence.example_ids[row], incidence.priorities[row], column))
    row, column = row[order], column[order]
    # the place of each in its column's list
    rank = np.arange(len(column)) - np.searchsorted(column, column)
    kept[row[rank >= cap]] = False
    return kept


def _require_single_user(incidence: Incidence, subject: str) -> NDArray[np.int32]:
    if np.any(np.diff(incidence.users.indptr) != 1):
        raise GuaranteeError(f"{subject} is proved for examples of one user each: set copies to keep")
    return np.asarray(incidence.users.indices)
