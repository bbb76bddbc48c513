"""Sound epsilons of UeDP's Algorithm 1: Poisson users and entities, clipping per user, noise on the sum.

Formal guarantees: upper bounds for the released noisy sums of all steps of a
:class:`~redactory.training.uedp.federated.FederatedSteps`, under the relation that the epsilon names. An entity
changes the updates of every sampled user who holds it, each by up to twice the clip. So everything depends on
M, the number of users that one entity touches (``docs/explanation/uedp.md``, "Algorithm 1 with sound
accounting"). ζ is the deviation of the noise over the clip, on the un-normalised sum.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from functools import lru_cache
from typing import Any

from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting import Spending, compute_total_epsilon
from redactory.training.accounting.bounds import (
    FINE_SPLITS,
    MAX_EPSILON,
    compute_chain_epsilon,
    compute_revealed_shift_epsilon,
)
from redactory.training.accounting.confirmation import confirm_single_epsilon
from redactory.training.accounting.curves import make_group_epsilon_curve
from redactory.training.accounting.dominating_pairs import Mixture, make_binomial_mixture, make_mixture
from redactory.training.accounting.published_epsilons import PUBLISHED_NOTE, compute_moments_epsilon
from redactory.training.accounting.verification import EpsilonBounds
from redactory.training.mechanisms.mechanism import PoissonUsersGaussian, Relation
from redactory.training.unit_settings import Adjacency, PrivacyUnit, UnitEpsilon, make_relation_name

_MAX_CHAIN_EPSILON, _MAX_CHAIN_USERS = 20.0, 64
"""Beyond such an epsilon the chain gains nothing but where few users hold the entity."""
_MIN_SEARCHED_NOISE = 0.05
"""ζ below which no figure is searched: nothing is hidden there, and no grid of losses would hold it."""
CURVE_SPREADS, CURVE_GROUP_SIZES = (1, 4, 16, 64), (1, 2, 4, 8)
PUBLIC_USER_COUNT, FIXED_GRAPH_CAP = "the public number of users", "a cap enforced on the fixed graph"
"""Where M comes from."""
NO_EPSILON_FOUND = "no finite epsilon was found for so little noise"
NO_ENTITIES_REASON = "DP-FedAvg does not sample or protect entities: only users are protected"
NO_SHARE_REASON = "the published formula multiplies by the share of sentences with an entity: a count of the corpus"


def get_max_users_per_entity(mechanism: PoissonUsersGaussian) -> tuple[int, str] | None:
    """Return M and its source: |U|, or the enforced cap; None without entities."""
    if mechanism.entities is None:
        return None
    cap = mechanism.entities.max_users_per_entity
    return (mechanism.users, PUBLIC_USER_COUNT) if cap is None else (cap, FIXED_GRAPH_CAP)


def compute_federated_epsilon(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: PrivacyUnit, coarsening: float = 1.0
) -> UnitEpsilon:
    """Compute the sound epsilon of ``steps`` steps at ``delta``, under the relation that it names.

    A user is one Poisson-sampled Gaussian: the target of calibration. A user or an entity costs what the entity
    does, whose holders move a sum by two clips each, a user by one. A grid that is ``coarsening`` times coarser is
    faster and slightly less tight.
    """
    if not 0.0 < delta < 1.0:
        raise ConfigurationError("delta: must be between 0 and 1")
    spread, epsilon = get_max_users_per_entity(mechanism), math.inf
    # examples may vanish only if no cap depends on the others
    is_capped = spread is not None and spread[1] == FIXED_GRAPH_CAP
    relation = make_relation_name(protect, Adjacency.FIXED_GRAPH if is_capped else Adjacency.REMOVAL)
    if protect is PrivacyUnit.USERS:
        if mechanism.noise_multiplier >= _MIN_SEARCHED_NOISE:
            total = compute_total_epsilon(_make_user_spendings(mechanism, steps), delta, Relation.ADD_OR_REMOVE)
            epsilon = math.inf if total is None else total
    elif spread is None:
        return UnitEpsilon(None, delta, relation, f"no finite epsilon: {NO_ENTITIES_REASON}")
    else:
        epsilon = _compute_entity_epsilon(mechanism, spread[0], steps, delta, protect, coarsening) if steps else 0.0
    if epsilon >= MAX_EPSILON:
        return UnitEpsilon(None, delta, relation, NO_EPSILON_FOUND)
    return UnitEpsilon(epsilon, delta, relation)


@lru_cache(maxsize=64)
def _compute_entity_epsilon(
    mechanism: PoissonUsersGaussian,
    touched_users: int,
    steps: int,
    delta: float,
    protect: PrivacyUnit,
    coarsening: float,
) -> float:
    """Compute the smaller of the bounds *revealed* and *chain*."""
    constants = mechanism.sampling_rate, mechanism.noise_multiplier, steps, coarsening
    shifts = make_shift_mixture(touched_users, mechanism.sampling_rate, protect)
    revealed = compute_revealed_shift_epsilon(shifts, mechanism.noise_multiplier, steps, delta, coarsening)
    if revealed >= _MAX_CHAIN_EPSILON and touched_users > _MAX_CHAIN_USERS:
        return revealed
    # through the world without the M holders: they go, and come back changed, with the user
    gone = back = make_group_epsilon_curve(touched_users, *constants)
    if protect is PrivacyUnit.BOTH:
        back = make_group_epsilon_curve(touched_users + 1, *constants)
    return min(revealed, compute_chain_epsilon(gone, back, delta, FINE_SPLITS))


def make_shift_mixture(touched_users: int, user_rate: float, protect: PrivacyUnit) -> Mixture:
    """Make the law of a step's largest shift in clips, b + 2j: b the user, j sampled holders of the entity."""
    weights: dict[float, float] = defaultdict(float)
    coins = {0: 1.0 - user_rate, 1: user_rate} if protect is PrivacyUnit.BOTH else {0: 1.0}
    holders = make_binomial_mixture(user_rate, touched_users)
    for count, weight in zip(holders.means, holders.weights, strict=True):
        for user_shift, coin in coins.items():
            weights[2 * count + user_shift] += weight * coin
    return make_mixture(weights)


def confirm_federated_epsilon(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: PrivacyUnit
) -> tuple[UnitEpsilon, EpsilonBounds | None]:
    """Compute the epsilon and its bounds by the second accountant; for users, no bounds means no epsilon.

    Entities have no second accountant, so their bounds are None.
    """
    figure = compute_federated_epsilon(mechanism, steps, delta, protect)
    if protect is not PrivacyUnit.USERS or mechanism.noise_multiplier < _MIN_SEARCHED_NOISE:
        return figure, None
    spendings = _make_user_spendings(mechanism, steps)
    confirmed = confirm_single_epsilon(spendings, delta, Relation.ADD_OR_REMOVE, "epsilon")
    return replace(figure, epsilon=confirmed.value, reason=confirmed.reason), confirmed.bounds


def _make_user_spendings(mechanism: PoissonUsersGaussian, steps: int) -> tuple[Spending, ...]:
    return (Spending(mechanism.make_single_user_mechanism(), steps),) if steps else ()


def compute_epsilon_by_user_count(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: PrivacyUnit
) -> dict[int, float | None]:
    """Compute epsilon for an entity whose examples belong to at most K users, by K.

    For users alone: epsilon of K users at once.
    """
    if protect is PrivacyUnit.USERS:
        rate, noise = mechanism.sampling_rate, mechanism.noise_multiplier
        values = {size: make_group_epsilon_curve(size, rate, noise, steps)(delta) for size in CURVE_GROUP_SIZES}
        return {size: value if math.isfinite(value) else None for size, value in values.items()}
    entities, spread = mechanism.entities, get_max_users_per_entity(mechanism)
    if entities is None or spread is None:
        return {}
    sizes = *(size for size in CURVE_SPREADS if size < spread[0]), spread[0]
    narrowed = {size: replace(mechanism, entities=replace(entities, max_users_per_entity=size)) for size in sizes}
    narrowed[spread[0]] = mechanism
    return {size: compute_federated_epsilon(narrowed[size], steps, delta, protect).epsilon for size in sizes}


def compute_published_federated_epsilon(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, estimator: str | None = None
) -> dict[str, Any] | None:
    """Compute the papers' moments accountant at their own rate and z, with its label.

    None (:data:`NO_SHARE_REASON`) for ``f_E+``.
    """
    entities, rate = mechanism.entities, mechanism.sampling_rate
    estimator = estimator or ("user-level" if entities is None else entities.estimator)
    if estimator == "f_E+":
        return None
    if entities is not None and estimator == "f_E":
        rate *= entities.entity_rate
    scale = compute_paper_noise_scale(mechanism)
    return {
        "note": PUBLISHED_NOTE,
        "epsilon": compute_moments_epsilon(rate, scale, steps, delta),
        "delta": delta,
        "estimator": estimator,
        "sampling_rate": rate,
        "noise_scale": scale,
    }


def compute_paper_noise_scale(mechanism: PoissonUsersGaussian) -> float:
    """Return z of the paper: ζ over q_u·|U| + 1 (equation 6); ζ itself for DP-FedAvg."""
    expected_users = mechanism.sampling_rate * mechanism.users
    return mechanism.noise_multiplier / (1.0 if mechanism.entities is None else expected_users + 1.0)
