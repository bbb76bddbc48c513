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
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting import Spending, compute_total_epsilon
from redactory.training.accounting.bounds import (
    FINE_SPLITS,
    MAX_EPSILON,
    compute_chain_epsilon,
    compute_revealed_shift_epsilon,
)
from redactory.training.accounting.confirmation import confirm_single_epsilon
from redactory.training.accounting.curves import make_branch_epsilon_curve, make_group_epsilon_curve
from redactory.training.accounting.dominating_pairs import (
    NO_SHIFT,
    DominatingPair,
    Mixture,
    make_binomial_mixture,
    make_mixture,
)
from redactory.training.accounting.published_epsilons import (
    PUBLISHED_NOTE,
    Estimator,
    compute_moments_epsilon,
    compute_published_rate,
)
from redactory.training.accounting.verification import EpsilonBounds
from redactory.training.mechanisms.mechanism import PoissonUsersGaussian, Relation
from redactory.training.unit_settings import Adjacency, PrivacyUnit, UnitEpsilon, make_relation_name

_MAX_CHAIN_EPSILON, _MAX_CHAIN_USERS = 20.0, 64
"""Beyond such an epsilon the chain gains nothing but where few users hold the entity."""
_MAX_BINS, _MIN_WEIGHT = 24, 1e-14
_MIN_SEARCHED_NOISE = 0.05
"""ζ below which no figure is searched: nothing is hidden there, and no grid of losses would hold it."""
CURVE_SPREADS, CURVE_GROUP_SIZES = (1, 4, 16, 64), (1, 2, 4, 8)
PUBLIC_USER_COUNT, FIXED_GRAPH_CAP = "the public number of users", "a cap enforced on the fixed graph"
"""Where M comes from."""
NO_EPSILON_FOUND = "no finite epsilon was found for so little noise"
NO_ENTITIES_REASON = "DP-FedAvg does not sample or protect entities: only users are protected"
NO_SHARE_REASON = "the published formula multiplies by the share of sentences with an entity: a count of the corpus"


@dataclass(frozen=True)
class FederatedEpsilons:
    """``sound`` is the smallest of the proved bounds, which the other fields hold."""

    sound: UnitEpsilon
    revealed: float | None = None
    chain: float | None = None
    all_rule: float | None = None


def get_max_users_per_entity(mechanism: PoissonUsersGaussian) -> tuple[int, str] | None:
    """Return M and its source: |U|, or the enforced cap; None without entities."""
    if mechanism.entities is None:
        return None
    cap = mechanism.entities.max_users_per_entity
    return (mechanism.users, PUBLIC_USER_COUNT) if cap is None else (cap, FIXED_GRAPH_CAP)


@lru_cache(maxsize=64)
def compute_federated_epsilons(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: PrivacyUnit, coarsening: float = 1.0
) -> FederatedEpsilons:
    """Compute the sound epsilon at ``delta``: of B(i) the smaller of *revealed* and *chain*, and B(ii).

    B(ii) exists for rule ``all`` only, and B(i) bounds it too. By rule ``all`` an example of the extended set is an
    entity with one holder and its own coin, q_s: if that has the larger epsilon, it counts. A grid that is
    ``coarsening`` times coarser is faster and slightly less tight.
    """
    epsilons = _compute_epsilons_by_bound(mechanism, steps, delta, protect, coarsening)
    entities = mechanism.entities
    if entities is None or entities.rule == "any" or entities.estimator == "f_E" or epsilons.sound.epsilon is None:
        return epsilons
    if not entities.related_entity_rate:
        return epsilons
    single_holder = replace(entities, entity_rate=entities.related_entity_rate, max_users_per_entity=1)
    other_epsilon = _compute_epsilons_by_bound(
        replace(mechanism, entities=single_holder), steps, delta, protect, coarsening
    ).sound.epsilon
    if other_epsilon is not None and other_epsilon <= epsilons.sound.epsilon:
        return epsilons
    reason = NO_EPSILON_FOUND if other_epsilon is None else None
    return replace(epsilons, sound=replace(epsilons.sound, epsilon=other_epsilon, reason=reason))


def _compute_epsilons_by_bound(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: PrivacyUnit, coarsening: float
) -> FederatedEpsilons:
    if not 0.0 < delta < 1.0:
        raise ConfigurationError("delta: must be between 0 and 1")
    entities, spread = mechanism.entities, get_max_users_per_entity(mechanism)
    rate, noise = mechanism.sampling_rate, mechanism.noise_multiplier
    # examples may vanish only if no cap depends on the others
    is_capped = spread is not None and spread[1] == FIXED_GRAPH_CAP
    name = make_relation_name(protect, Adjacency.FIXED_GRAPH if is_capped else Adjacency.REMOVAL)

    def make_unit_epsilon(value: float) -> UnitEpsilon:
        finite = math.isfinite(value) and value < MAX_EPSILON
        return UnitEpsilon(value if finite else None, delta, name, None if finite else NO_EPSILON_FOUND)

    if spread is None and protect is not PrivacyUnit.USERS:
        return FederatedEpsilons(UnitEpsilon(None, delta, name, f"no finite epsilon: {NO_ENTITIES_REASON}"))
    if steps == 0:
        return FederatedEpsilons(make_unit_epsilon(0.0), 0.0, 0.0)
    if protect is PrivacyUnit.USERS:
        return FederatedEpsilons(make_unit_epsilon(make_group_epsilon_curve(1, rate, noise, steps, coarsening)(delta)))
    if protect is PrivacyUnit.EITHER:
        of_users, entity_epsilons = (
            _compute_epsilons_by_bound(mechanism, steps, delta, one, coarsening)
            for one in (PrivacyUnit.USERS, PrivacyUnit.ENTITIES)
        )
        every = [one.sound.epsilon for one in (of_users, entity_epsilons)]
        worst = max(math.inf if epsilon is None else epsilon for epsilon in every)
        return replace(entity_epsilons, sound=make_unit_epsilon(worst), all_rule=None)
    assert entities is not None
    assert spread is not None
    touched = spread[0]
    candidates: dict[str, float] = {
        "revealed": compute_revealed_shift_epsilon(
            make_shift_mixture(touched, rate, protect), noise, steps, delta, coarsening
        )
    }
    if candidates["revealed"] < _MAX_CHAIN_EPSILON or touched <= _MAX_CHAIN_USERS:
        # through the world without the M holders: they go, and come back changed, with the user
        gone = make_group_epsilon_curve(touched, rate, noise, steps, coarsening)
        back = (
            gone
            if protect is PrivacyUnit.ENTITIES
            else make_group_epsilon_curve(touched + 1, rate, noise, steps, coarsening)
        )
        candidates["chain"] = compute_chain_epsilon(gone, back, delta, FINE_SPLITS)
    if entities.rule == "all":
        candidates["all_rule"] = _compute_epsilon_for_rule_all(
            mechanism, entities.entity_rate, touched, steps, delta, protect, coarsening
        )
    known = {key: value for key, value in candidates.items() if math.isfinite(value)}
    return FederatedEpsilons(make_unit_epsilon(min(candidates.values())), **known)


def make_shift_mixture(touched_users: int, user_rate: float, protect: PrivacyUnit) -> Mixture:
    """Make the law of a step's largest shift in clips, b + 2j: b the user, j sampled holders of the entity."""
    weights: dict[float, float] = defaultdict(float)
    coins = {0: 1.0} if protect is PrivacyUnit.ENTITIES else {0: 1.0 - user_rate, 1: user_rate}
    holders = make_binomial_mixture(user_rate, touched_users)
    for count, weight in zip(holders.means, holders.weights, strict=True):
        for user_shift, coin in coins.items():
            weights[2 * count + user_shift] += weight * coin
    return make_mixture(weights)


def _compute_epsilon_for_rule_all(
    mechanism: PoissonUsersGaussian,
    entity_rate: float,
    touched_users: int,
    steps: int,
    delta: float,
    protect: PrivacyUnit,
    coarsening: float,
) -> float:
    """Compute B(ii): given j sampled holders the entity's own coin q_e still hides their shift of 2j.

    j is rounded up onto at most 24 values, which only enlarges the divergence; the thinnest tail of each step is
    counted as a failure.
    """
    holders = make_binomial_mixture(mechanism.sampling_rate, touched_users)
    weights = dict(zip(holders.means, holders.weights, strict=True))
    usual = {count: weight for count, weight in weights.items() if weight > _MIN_WEIGHT}
    remaining = delta - steps * math.fsum(weight for weight in weights.values() if weight <= _MIN_WEIGHT)
    if remaining <= 0.0:
        return math.inf
    edges = np.unique(np.linspace(min(usual), max(usual), _MAX_BINS).astype(int))
    binned: dict[int, float] = defaultdict(float)
    for count, weight in usual.items():
        binned[int(edges[np.searchsorted(edges, count)])] += weight
    user = 0.0 if protect is PrivacyUnit.ENTITIES else mechanism.sampling_rate
    branches = []
    for count, weight in sorted(binned.items()):
        # the number of sampled holders known: shifts 0, 1, 2j, 2j + 1 by two coins
        shifts: dict[float, float] = defaultdict(float)
        for user_shift, coin in ((0.0, 1.0 - user), (1.0, user)):
            shifts[user_shift] += coin * (1.0 - entity_rate)
            shifts[2.0 * count + user_shift] += coin * entity_rate
        branches.append((weight, DominatingPair(make_mixture(shifts), NO_SHIFT, mechanism.noise_multiplier)))
    return make_branch_epsilon_curve(tuple(branches), steps, coarsening)(remaining)


# Epsilons of a training that samples users: sound ones, and what the papers would print.


def compute_federated_epsilon(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: PrivacyUnit
) -> UnitEpsilon:
    """Compute the sound epsilon of ``steps`` steps at ``delta``, under the relation that it names."""
    if protect is not PrivacyUnit.USERS:
        return compute_federated_epsilons(mechanism, steps, delta, protect).sound
    # one user is one Poisson-sampled Gaussian: the target of calibration
    name = compute_federated_epsilons(mechanism, 0, delta, protect).sound.relation
    epsilon = None
    if mechanism.noise_multiplier >= _MIN_SEARCHED_NOISE:
        epsilon = compute_total_epsilon(_make_user_spendings(mechanism, steps), delta, Relation.ADD_OR_REMOVE)
    return UnitEpsilon(epsilon, delta, name, NO_EPSILON_FOUND if epsilon is None else None)


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
    entities, spread, epsilons = mechanism.entities, get_max_users_per_entity(mechanism), dict[int, float | None]()
    if entities is None or spread is None:
        return epsilons
    for size in (*(size for size in CURVE_SPREADS if size < spread[0]), spread[0]):
        narrowed = replace(mechanism, entities=replace(entities, max_users_per_entity=size))
        chosen = mechanism if size == spread[0] else narrowed
        epsilons[size] = compute_federated_epsilons(chosen, steps, delta, protect).sound.epsilon
    return epsilons


def compute_published_federated_epsilon(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, estimator: Estimator | None = None
) -> dict[str, Any] | None:
    """Compute the papers' moments accountant at their own z, with its label.

    None (:data:`NO_SHARE_REASON`) for ``f_E+``.
    """
    entities = mechanism.entities
    if estimator is None:
        estimator = Estimator.USER_LEVEL if entities is None else Estimator(entities.estimator)
    if estimator is Estimator.F_E_PLUS:
        return None
    rate = compute_published_rate(estimator, mechanism.sampling_rate, 1.0 if entities is None else entities.entity_rate)
    scale = compute_paper_noise_scale(mechanism)
    return {
        "note": PUBLISHED_NOTE,
        "epsilon": compute_moments_epsilon(rate, scale, steps, delta),
        "delta": delta,
        "estimator": estimator.value,
        "sampling_rate": rate,
        "noise_scale": scale,
    }


def compute_paper_noise_scale(mechanism: PoissonUsersGaussian) -> float:
    """Return z of the paper: ζ over q_u·|U| + 1; ζ itself for DP-FedAvg."""
    if mechanism.entities is None:
        return mechanism.noise_multiplier
    return mechanism.noise_multiplier / compute_paper_noise(1.0, mechanism.sampling_rate, mechanism.users)


def compute_paper_noise(noise: float, user_rate: float, users: int) -> float:
    """Return ζ of the paper's noise: z(q_u|U| + 1) (equation 6)."""
    return noise * (user_rate * users + 1.0)
