"""Sound epsilons of UeDP's Algorithm 1: Poisson users and entities, one clip a user, noise on the sum.

Formal guarantees: upper bounds for the released noisy sums of all steps of a
:class:`~redactory.training.uedp.federated.FederatedPhase`, under the relation that the figure names.  An
entity changes the updates of every sampled user who holds it, each by up to twice the clip; so everything
hangs on M, the number of users that one entity touches (``docs/explanation/uedp.md``, "Algorithm 1 with
sound accounting").  ζ is the deviation of the noise over the clip, on the un-normalised sum.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting import Spending, epsilon_of
from redactory.training.accounting.bounds import FINE_SPLITS, LARGEST_EPSILON, chain, revealed
from redactory.training.accounting.losses import branches_curve, group_curve
from redactory.training.accounting.pairs import NOTHING, Mixture, Pair, group_law, mixture_of
from redactory.training.accounting.published import NOTE, Estimator, published_epsilon, published_rate
from redactory.training.accounting.second import Bracket, one_exchanged
from redactory.training.mechanism import PoissonUsersGaussian, Relation
from redactory.training.units import Adjacency, Figure, Protect, relation

_CHAIN_WORTH, _FEW_USERS = 20.0, 64
"""Beyond such an epsilon the chain gains nothing but where few users hold the entity."""
_BINS, _THIN = 24, 1e-14
_HOPELESS_NOISE = 0.05
"""ζ below which no figure is searched: nothing is hidden there, and no grid of losses would hold it."""
SPREADS, GROUPS = (1, 4, 16, 64), (1, 2, 4, 8)
ALL_USERS, FIXED_GRAPH = "the public number of users", "a cap enforced on the fixed graph"
"""Where M comes from."""
NOT_FINITE = "no finite epsilon was found for so little noise"
NO_ENTITIES = "DP-FedAvg does not sample or protect entities: only users are protected"
NO_SHARE = "the published formula multiplies by the share of sentences with an entity: a count of the corpus"


@dataclass(frozen=True)
class Algorithm1Figures:
    """``sound`` is the least of the proved bounds; the others are what it was taken from."""

    sound: Figure
    revealed: float | None = None
    chain: float | None = None
    all_rule: float | None = None


def spread_of(mechanism: PoissonUsersGaussian) -> tuple[int, str] | None:
    """M and its source: |U|, or the enforced cap; None without entities."""
    if mechanism.entities is None:
        return None
    cap = mechanism.entities.max_users_per_entity
    return (mechanism.users, ALL_USERS) if cap is None else (cap, FIXED_GRAPH)


@lru_cache(maxsize=64)
def figures_of(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: Protect, coarser: float = 1.0
) -> Algorithm1Figures:
    """The sound epsilon at ``delta``: of B(i) the least of *revealed* and *chain*, and B(ii).

    B(ii) exists for rule ``all`` only, and B(i) bounds it too.  By rule ``all`` a point of the extended set
    is an entity with one holder and a coin of its own, q_s: where that costs more, it is the figure.  A grid
    that is ``coarser`` by a factor is faster and only nearly as good.
    """
    found = _figures(mechanism, steps, delta, protect, coarser)
    own = mechanism.entities
    if own is None or own.rule == "any" or own.estimator == "f_E" or found.sound.epsilon is None:
        return found
    alone = (
        replace(own, entity_rate=own.related_entity_rate, max_users_per_entity=1) if own.related_entity_rate else None
    )
    if alone is None:
        return found
    other = _figures(replace(mechanism, entities=alone), steps, delta, protect, coarser).sound.epsilon
    if other is not None and other <= found.sound.epsilon:
        return found
    reason = NOT_FINITE if other is None else None
    return replace(found, sound=replace(found.sound, epsilon=other, reason=reason))


def _figures(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: Protect, coarser: float
) -> Algorithm1Figures:
    if not 0.0 < delta < 1.0:
        raise ConfigurationError("delta: must be between 0 and 1")
    own, spread = mechanism.entities, spread_of(mechanism)
    rate, noise = mechanism.sampling_rate, mechanism.noise_multiplier
    # points may vanish only where no cap looks at what else is there
    capped = spread is not None and spread[1] == FIXED_GRAPH
    name = relation(protect, Adjacency.FIXED_GRAPH if capped else Adjacency.REMOVAL)

    def figure(value: float) -> Figure:
        finite = math.isfinite(value) and value < LARGEST_EPSILON
        return Figure(value if finite else None, delta, name, None if finite else NOT_FINITE)

    if spread is None and protect is not Protect.USERS:
        return Algorithm1Figures(Figure(None, delta, name, f"no finite epsilon: {NO_ENTITIES}"))
    if steps == 0:
        return Algorithm1Figures(figure(0.0), 0.0, 0.0)
    if protect is Protect.USERS:
        return Algorithm1Figures(figure(group_curve(1, rate, noise, steps, coarser)(delta)))
    if protect is Protect.EITHER:
        of_users, of_entities = (
            _figures(mechanism, steps, delta, one, coarser) for one in (Protect.USERS, Protect.ENTITIES)
        )
        every = [one.sound.epsilon for one in (of_users, of_entities)]
        worst = max(math.inf if epsilon is None else epsilon for epsilon in every)
        return replace(of_entities, sound=figure(worst), all_rule=None)
    assert own is not None
    assert spread is not None
    touched = spread[0]
    found: dict[str, float] = {"revealed": revealed(shift_law(touched, rate, protect), noise, steps, delta, coarser)}
    if found["revealed"] < _CHAIN_WORTH or touched <= _FEW_USERS:
        # through the world without the M holders: they go, and come back changed, with the user
        gone = group_curve(touched, rate, noise, steps, coarser)
        back = gone if protect is Protect.ENTITIES else group_curve(touched + 1, rate, noise, steps, coarser)
        found["chain"] = chain(gone, back, delta, FINE_SPLITS)
    if own.rule == "all":
        found["all_rule"] = _all_rule(mechanism, own.entity_rate, touched, steps, delta, protect, coarser)
    known = {key: value for key, value in found.items() if math.isfinite(value)}
    return Algorithm1Figures(figure(min(found.values())), **known)


def shift_law(touched: int, user_rate: float, protect: Protect) -> Mixture:
    """The law of a step's largest shift in clips, b + 2j: b the user, j sampled holders of the entity."""
    law: dict[float, float] = defaultdict(float)
    coins = {0: 1.0} if protect is Protect.ENTITIES else {0: 1.0 - user_rate, 1: user_rate}
    holders = group_law(user_rate, touched)
    for count, weight in zip(holders.means, holders.weights, strict=True):
        for own, coin in coins.items():
            law[2 * count + own] += weight * coin
    return mixture_of(law)


def _all_rule(
    mechanism: PoissonUsersGaussian,
    entity_rate: float,
    touched: int,
    steps: int,
    delta: float,
    protect: Protect,
    coarser: float,
) -> float:
    """B(ii): given j sampled holders the entity's own coin q_e still hides their shift of 2j.

    j is rounded up onto at most 24 values, which only enlarges the divergence; of the thinnest tail each
    step is counted as a failure.
    """
    holders = group_law(mechanism.sampling_rate, touched)
    law = dict(zip(holders.means, holders.weights, strict=True))
    usual = {count: weight for count, weight in law.items() if weight > _THIN}
    remaining = delta - steps * math.fsum(weight for weight in law.values() if weight <= _THIN)
    if remaining <= 0.0:
        return math.inf
    edges = np.unique(np.linspace(min(usual), max(usual), _BINS).astype(int))
    binned: dict[int, float] = defaultdict(float)
    for count, weight in usual.items():
        binned[int(edges[np.searchsorted(edges, count)])] += weight
    user = 0.0 if protect is Protect.ENTITIES else mechanism.sampling_rate
    branches = []
    for count, weight in sorted(binned.items()):
        # the number of sampled holders known: shifts 0, 1, 2j, 2j + 1 by two coins
        shifts: dict[float, float] = defaultdict(float)
        for own, coin in ((0.0, 1.0 - user), (1.0, user)):
            shifts[own] += coin * (1.0 - entity_rate)
            shifts[2.0 * count + own] += coin * entity_rate
        branches.append((weight, Pair(mixture_of(shifts), NOTHING, mechanism.noise_multiplier)))
    return branches_curve(tuple(branches), steps, coarser)(remaining)


# The figures of a training that samples users: sound ones, and what the papers would have printed.


def figure_of(mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: Protect) -> Figure:
    """The sound epsilon of ``steps`` steps at ``delta``, under the relation that it names."""
    if protect is not Protect.USERS:
        return figures_of(mechanism, steps, delta, protect).sound
    # one user is one Poisson-sampled Gaussian: the target of calibration
    name = figures_of(mechanism, 0, delta, protect).sound.relation
    found = None
    if mechanism.noise_multiplier >= _HOPELESS_NOISE:
        found = epsilon_of(_of_users(mechanism, steps), delta, Relation.ADD_OR_REMOVE)
    return Figure(found, delta, name, NOT_FINITE if found is None else None)


def confirmed_figure(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: Protect
) -> tuple[Figure, Bracket | None]:
    """:func:`figure_of` with the second accountant's bounds, without which it is not stated; else None.

    It knows the figure for users alone; the bounds for entities have no second accountant.
    """
    figure = figure_of(mechanism, steps, delta, protect)
    if protect is not Protect.USERS or figure.epsilon is None:
        return figure, None
    spent = _of_users(mechanism, steps)
    found = one_exchanged(spent, delta, Relation.ADD_OR_REMOVE, "epsilon")
    return replace(figure, epsilon=found.value, reason=found.reason), found.second


def _of_users(mechanism: PoissonUsersGaussian, steps: int) -> tuple[Spending, ...]:
    return (Spending(mechanism.of_one_user(), steps),) if steps else ()


def spread_curve(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: Protect
) -> dict[int, float | None]:
    """Epsilon for an entity whose points belong to at most so many users, by the number of users.

    For users alone: epsilon of that many users at once.
    """
    if protect is Protect.USERS:
        rate, noise = mechanism.sampling_rate, mechanism.noise_multiplier
        values = {size: group_curve(size, rate, noise, steps)(delta) for size in GROUPS}
        return {size: value if math.isfinite(value) else None for size, value in values.items()}
    own, spread, found = mechanism.entities, spread_of(mechanism), dict[int, float | None]()
    if own is None or spread is None:
        return found
    for size in (*(size for size in SPREADS if size < spread[0]), spread[0]):
        narrow = replace(mechanism, entities=replace(own, max_users_per_entity=size))
        whole = mechanism if size == spread[0] else narrow
        found[size] = figures_of(whole, steps, delta, protect).sound.epsilon
    return found


def as_published(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, estimator: Estimator | None = None
) -> dict[str, Any] | None:
    """The papers' moments accountant at their own z, with its label; None (:data:`NO_SHARE`) of ``f_E+``."""
    own = mechanism.entities
    if estimator is None:
        estimator = Estimator.USER_LEVEL if own is None else Estimator(own.estimator)
    if estimator is Estimator.F_E_PLUS:
        return None
    rate = published_rate(estimator, mechanism.sampling_rate, 1.0 if own is None else own.entity_rate)
    scale = noise_scale(mechanism)
    return {
        "note": NOTE,
        "epsilon": published_epsilon(rate, scale, steps, delta),
        "delta": delta,
        "estimator": estimator.value,
        "sampling_rate": rate,
        "noise_scale": scale,
    }


def noise_scale(mechanism: PoissonUsersGaussian) -> float:
    """z of the paper: ζ over q_u·|U| + 1; ζ itself for DP-FedAvg."""
    if mechanism.entities is None:
        return mechanism.noise_multiplier
    return mechanism.noise_multiplier / paper_noise_ratio(1.0, mechanism.sampling_rate, mechanism.users)


def paper_noise_ratio(noise: float, user_rate: float, users: int) -> float:
    """ζ of the paper's noise: z(q_u|U| + 1) (equation 6)."""
    return noise * (user_rate * users + 1.0)
