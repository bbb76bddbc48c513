"""Sound epsilons of UeDP's Algorithm 1: Poisson users and entities, one clip a user, noise on the sum.

Formal guarantees: upper bounds for the released noisy sums of all steps, under the relation that the
figure names, provided that :class:`Algorithm1Conditions` hold.  An entity changes the updates of every
sampled user who holds it, each by up to twice the clip; so everything hangs on the number of users that
one entity touches (``docs/explanation/uedp.md``, "Algorithm 1 with sound accounting").
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np

from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting import Spending, epsilon_of
from redactory.training.accounting.bounds import FINE_SPLITS, LARGEST_EPSILON, Curve, chain, revealed
from redactory.training.accounting.losses import branches_curve, group_curve
from redactory.training.accounting.pairs import NOTHING, Mixture, Pair, group_law, mixture_of
from redactory.training.accounting.published import NOTE, Estimator, published_epsilon, published_rate
from redactory.training.accounting.second import Bracket, one_exchanged
from redactory.training.mechanism import PoissonUsersGaussian, Relation
from redactory.training.units import (
    PRIVATE_POINTS_OF_A_USER,
    Adjacency,
    Constants,
    Figure,
    Protect,
    relation,
)

_CHAIN_WORTH, _FEW_USERS = 20.0, 64
"""Beyond such an epsilon the chain gains nothing but where few users hold the entity."""
_BINS = 24
_THIN = 1e-14


class Rule(Enum):
    """Which of a sampled user's points a step uses."""

    ANY = "any"
    """Those with at least one sampled entity (Algorithm 1, line 24): q_e then hides nothing."""
    ALL = "all"
    """Those whose entities are all sampled."""


class SpreadSource(Enum):
    """Where M, the largest number of users that one entity touches, comes from."""

    ALL_USERS = "the public number of users"
    FIXED_GRAPH = "a cap enforced on the fixed graph"
    OBSERVED = "counted in the data"


@dataclass(frozen=True)
class Spread:
    """M and its source; a number that was merely counted bounds nothing in the neighbouring world."""

    users: int
    source: SpreadSource


@dataclass(frozen=True)
class Algorithm1:
    """Public constants of a run: |U|, q_u, q_e, ζ = noise deviation / clip on the un-normalised sum, T."""

    users: int
    user_rate: float
    entity_rate: float
    noise_ratio: float
    steps: int
    spread: Spread | None
    rule: Rule = Rule.ANY

    def __post_init__(self) -> None:
        rates = 0.0 < self.user_rate <= 1.0 and 0.0 <= self.entity_rate <= 1.0
        if not (rates and self.users >= 1 and self.steps >= 0 and self.noise_ratio > 0.0):
            raise ConfigurationError(
                "Algorithm 1 needs users >= 1, rates in [0, 1], noise > 0 and steps >= 0"
            )
        if self.spread is not None and not 1 <= self.spread.users <= self.users:
            raise ConfigurationError("max_users_per_entity: a number from 1 to the number of users is needed")


@dataclass(frozen=True)
class Algorithm1Conditions:
    """What the training states of itself; each is a precondition of every figure."""

    poisson_users: bool
    """Each user is sampled with probability q_u, by a coin of her own, in each step."""
    poisson_entities: bool
    """Each entity, detected or extended, likewise with q_e or q_s."""
    whole_update_clipped: bool
    """The whole update of a user, all tensors and local steps, has norm at most the clip; weights <= 1."""
    constant_normaliser: bool
    """The sum is divided by a constant, not by the number of users that came."""
    only_noisy_steps: bool
    """Nothing that the two worlds do not share is trained without noise."""
    weights: Constants
    """What w_u, w_e and w_s are computed from; from counts they differ once points vanish."""


_REASONS = {
    "poisson_users": "users are not sampled by independent coins",
    "poisson_entities": "entities are not sampled by independent coins",
    "whole_update_clipped": "a user's whole update is not clipped, or a weight is above 1",
    "constant_normaliser": "the sum is divided by a number that depends on the sample or the data",
    "only_noisy_steps": "points are trained on without noise: "
    f"no relation but '{PRIVATE_POINTS_OF_A_USER}' is left",
}


@dataclass(frozen=True)
class Algorithm1Figures:
    """``sound`` is the least of the proved bounds; the others are what it was taken from."""

    sound: Figure
    revealed: float | None
    chain: float | None
    all_rule: float | None
    spread: Spread | None


def paper_noise_ratio(noise: float, user_rate: float, users: int) -> float:
    """ζ of the paper's noise: z(q_u|U| + 1) (equation 6)."""
    return noise * (user_rate * users + 1.0)


def patent_noise_ratio(noise: float, users: int) -> float:
    """ζ of the patent's noise: z(|U| + 1) (its equations 5 and 6)."""
    return noise * (users + 1.0)


def sound_epsilon(
    run: Algorithm1,
    conditions: Algorithm1Conditions,
    delta: float,
    protect: Protect = Protect.BOTH,
    coarser: float = 1.0,
) -> Algorithm1Figures:
    """The sound epsilon of ``run`` at ``delta``: B(i), the least of *revealed* and *chain*, and B(ii).

    B(ii) exists for rule ``all`` only and B(i) bounds it too.  No finite epsilon, with the reason, where
    a condition does not hold, or where no M is enforced or declared public.  A grid that is ``coarser`` by a
    factor is faster and only nearly as good.
    """
    if not 0.0 < delta < 1.0:
        raise ConfigurationError("delta: a number between 0 and 1 is needed")
    name = relation(protect, _adjacency(run, conditions))
    broken = refusal(run, conditions, protect)
    if broken is not None:
        return _none(delta, name, broken, run.spread)
    if run.steps == 0:
        return Algorithm1Figures(Figure(0.0, delta, name), 0.0, 0.0, None, run.spread)
    if protect is Protect.EITHER:
        one, other = (
            sound_epsilon(run, conditions, delta, p, coarser) for p in (Protect.USERS, Protect.ENTITIES)
        )
        found = [one.sound.epsilon, other.sound.epsilon]
        worst = math.inf if None in found else max(e for e in found if e is not None)
        return Algorithm1Figures(_figure(worst, delta, name), other.revealed, other.chain, None, run.spread)
    if protect is Protect.USERS:
        alone = group_curve(1, run.user_rate, run.noise_ratio, run.steps, coarser)(delta)
        return Algorithm1Figures(_figure(alone, delta, name), None, None, None, run.spread)
    assert run.spread is not None
    touched = run.spread.users
    law = shift_law(touched, run.user_rate, protect)
    told = revealed(law, run.noise_ratio, run.steps, delta, coarser)
    worth = told < _CHAIN_WORTH or touched <= _FEW_USERS
    linked = _chained(run, touched, protect, delta, coarser) if worth else None
    every = _all_rule(run, touched, protect, delta, coarser) if run.rule is Rule.ALL else None
    best = min(bound for bound in (told, linked, every) if bound is not None)
    return Algorithm1Figures(
        _figure(best, delta, name), _known(told), _known(linked), _known(every), run.spread
    )


def refusal(run: Algorithm1, conditions: Algorithm1Conditions, protect: Protect) -> str | None:
    """Why no finite epsilon can be stated; None where one can."""
    for entry in fields(conditions):
        if entry.name in _REASONS and getattr(conditions, entry.name) is not True:
            return _REASONS[entry.name]
    if protect is Protect.USERS:
        return None
    if run.spread is None:
        return (
            "no cap on the users that an entity touches is enforced, and no public number of users declared"
        )
    if run.spread.source is SpreadSource.OBSERVED:
        return "the users that an entity touches were counted, not capped: that bounds no other data set"
    if run.spread.source is SpreadSource.ALL_USERS and run.spread.users != run.users:
        return "M is said to be the number of users, and is another number"
    return None


def shift_law(touched: int, user_rate: float, protect: Protect) -> Mixture:
    """The law of a step's largest shift in clips, b + 2j: b the user, j sampled holders of the entity."""
    law: dict[float, float] = defaultdict(float)
    coins = {0: 1.0} if protect is Protect.ENTITIES else {0: 1.0 - user_rate, 1: user_rate}
    holders = group_law(user_rate, touched)
    for count, weight in zip(holders.means, holders.weights, strict=True):
        for own, coin in coins.items():
            law[2 * count + own] += weight * coin
    return mixture_of(law)


def _chained(run: Algorithm1, touched: int, protect: Protect, delta: float, coarser: float) -> float:
    """Through the world without the M holders: they go, and come back changed, with the user."""

    def curve(count: int) -> Curve:
        return group_curve(count, run.user_rate, run.noise_ratio, run.steps, coarser)

    gone = curve(touched)
    return chain(gone, gone if protect is Protect.ENTITIES else curve(touched + 1), delta, FINE_SPLITS)


def _all_rule(run: Algorithm1, touched: int, protect: Protect, delta: float, coarser: float) -> float:
    """B(ii): given j sampled holders the entity's own coin q_e still hides their shift of 2j.

    j is rounded up onto at most 24 values, which only enlarges the divergence; of the thinnest tail each
    step is counted as a failure.
    """
    holders = group_law(run.user_rate, touched)
    law = dict(zip(holders.means, holders.weights, strict=True))
    usual = {count: weight for count, weight in law.items() if weight > _THIN}
    remaining = delta - run.steps * math.fsum(weight for weight in law.values() if weight <= _THIN)
    if remaining <= 0.0:
        return math.inf
    edges = np.unique(np.linspace(min(usual), max(usual), _BINS).astype(int))
    binned: dict[int, float] = defaultdict(float)
    for count, weight in usual.items():
        binned[int(edges[np.searchsorted(edges, count)])] += weight
    branches = tuple(
        (weight, Pair(_given(run, count, protect), NOTHING, run.noise_ratio))
        for count, weight in sorted(binned.items())
    )
    return branches_curve(branches, run.steps, coarser)(remaining)


def _given(run: Algorithm1, holders: int, protect: Protect) -> Mixture:
    """One step, the number of sampled holders known: shifts 0, 1, 2j, 2j + 1 by two coins."""
    user, entity = (0.0 if protect is Protect.ENTITIES else run.user_rate), run.entity_rate
    law: dict[float, float] = defaultdict(float)
    for own, coin in ((0.0, 1.0 - user), (1.0, user)):
        law[own] += coin * (1.0 - entity)
        law[2.0 * holders + own] += coin * entity
    return mixture_of(law)


def _adjacency(run: Algorithm1, conditions: Algorithm1Conditions) -> Adjacency:
    """Points may vanish only where neither a cap nor a weight looks at what else is there."""
    uncapped = run.spread is None or run.spread.source is not SpreadSource.FIXED_GRAPH
    public = conditions.weights is Constants.PUBLIC
    return Adjacency.REMOVAL if uncapped and public else Adjacency.FIXED_GRAPH


def _figure(value: float, delta: float, name: str) -> Figure:
    if value >= LARGEST_EPSILON or not math.isfinite(value):
        return Figure(None, delta, name, "no finite epsilon was found for so little noise")
    return Figure(value, delta, name)


def _known(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _none(delta: float, name: str, reason: str, spread: Spread | None) -> Algorithm1Figures:
    return Algorithm1Figures(
        Figure(None, delta, name, f"no finite epsilon: {reason}"), None, None, None, spread
    )


# The figures of a training that samples users: sound ones, and what the papers would have printed.


HOLDS = Algorithm1Conditions(
    poisson_users=True,
    poisson_entities=True,
    whole_update_clipped=True,
    constant_normaliser=True,
    only_noisy_steps=True,
    weights=Constants.PUBLIC,
)
"""What the code of a :class:`~redactory.training.uedp.federated.FederatedPhase` does, line by line."""
SPREADS, GROUPS = (1, 4, 16, 64), (1, 2, 4, 8)
_HOPELESS_NOISE = 0.05
"""ζ below which no figure is searched: nothing is hidden there, and no grid of losses would hold it."""
NOT_FINITE = "no finite epsilon was found for so little noise"
NO_ENTITIES = "DP-FedAvg samples no entities and hides none: only users are protected"
NO_SHARE = "the published formula multiplies by the share of sentences with an entity: a count of the corpus"


def algorithm1_of(mechanism: PoissonUsersGaussian, steps: int) -> Algorithm1:
    """The constants of a training as the accountant takes them; M is |U|, or the enforced cap."""
    own = mechanism.entities
    cap = None if own is None else own.max_users_per_entity
    if own is None:
        spread = None
    elif cap is None:
        spread = Spread(mechanism.users, SpreadSource.ALL_USERS)
    else:
        spread = Spread(cap, SpreadSource.FIXED_GRAPH)
    return Algorithm1(
        users=mechanism.users,
        user_rate=mechanism.sampling_rate,
        entity_rate=1.0 if own is None else own.entity_rate,
        noise_ratio=mechanism.noise_multiplier,
        steps=steps,
        spread=spread,
        rule=Rule.ANY if own is None else Rule(own.rule),
    )


@lru_cache(maxsize=64)
def figures_of(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: Protect, coarser: float = 1.0
) -> Algorithm1Figures:
    """B(i) and B(ii) of a training; without entities the figure for one user, and no other.

    By rule ``all`` a point of the extended set is an entity with one holder and a coin of its own, q_s:
    where that costs more than an entity with M holders and q_e, it is the figure.
    """
    run = algorithm1_of(mechanism, steps)
    own = mechanism.entities
    if own is None and protect is not Protect.USERS:
        name = relation(protect, Adjacency.REMOVAL)
        none = Figure(None, delta, name, f"no finite epsilon: {NO_ENTITIES}")
        return Algorithm1Figures(none, None, None, None, None)
    found = sound_epsilon(run, HOLDS, delta, protect, coarser)
    if own is None or own.rule == "any" or own.estimator == "f_E" or found.sound.epsilon is None:
        return found
    alone = replace(run, entity_rate=own.extended_rate, spread=Spread(1, SpreadSource.FIXED_GRAPH))
    other = sound_epsilon(alone, HOLDS, delta, protect, coarser).sound.epsilon
    if other is not None and other <= found.sound.epsilon:
        return found
    reason = NOT_FINITE if other is None else None
    return replace(found, sound=replace(found.sound, epsilon=other, reason=reason))


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


def spread_curve(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: Protect
) -> dict[int, float | None]:
    """Epsilon for an entity whose points belong to at most so many users, by the number of users.

    For users alone: epsilon of that many users at once.
    """
    if protect is Protect.USERS:
        found = {}
        for size in GROUPS:
            value = group_curve(size, mechanism.sampling_rate, mechanism.noise_multiplier, steps)(delta)
            found[size] = value if value < float("inf") else None
        return found
    spread = algorithm1_of(mechanism, steps).spread
    largest = 0 if spread is None else spread.users
    sizes = [size for size in SPREADS if size < largest]
    return {size: _held_by(mechanism, steps, delta, protect, size) for size in (*sizes, largest) if size}


def _held_by(
    mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: Protect, users: int
) -> float | None:
    assert mechanism.entities is not None
    spread = algorithm1_of(mechanism, steps).spread
    if spread is not None and spread.users == users:
        return figures_of(mechanism, steps, delta, protect).sound.epsilon
    narrow = replace(mechanism, entities=replace(mechanism.entities, max_users_per_entity=users))
    return figures_of(narrow, steps, delta, protect).sound.epsilon


@dataclass(frozen=True)
class Published:
    """The papers' figure with its label, or the reason why not even that can be computed."""

    value: dict[str, Any] | None
    reason: str | None


def as_published(
    mechanism: PoissonUsersGaussian,
    steps: int,
    delta: float,
    estimator: Estimator | None = None,
) -> Published:
    """The papers' moments accountant at their own z: as published, not a guarantee."""
    own = mechanism.entities
    if estimator is None:
        estimator = Estimator.USER_LEVEL if own is None else Estimator(own.estimator)
    if estimator is Estimator.F_E_PLUS:
        return Published(None, NO_SHARE)
    rate = published_rate(estimator, mechanism.sampling_rate, 1.0 if own is None else own.entity_rate)
    scale = noise_scale(mechanism)
    value = {
        "note": NOTE,
        "epsilon": published_epsilon(rate, scale, steps, delta),
        "delta": delta,
        "estimator": estimator.value,
        "sampling_rate": rate,
        "noise_scale": scale,
    }
    return Published(value, None)


def noise_scale(mechanism: PoissonUsersGaussian) -> float:
    """z of the paper: ζ over q_u·|U| + 1; ζ itself for DP-FedAvg."""
    if mechanism.entities is None:
        return mechanism.noise_multiplier
    return mechanism.noise_multiplier / (mechanism.sampling_rate * mechanism.users + 1.0)


def _of_users(mechanism: PoissonUsersGaussian, steps: int) -> tuple[Spending, ...]:
    return (Spending(mechanism.of_one_user(), steps),) if steps else ()
