"""The figures of a training that samples users: sound ones, and what the papers would have printed.

Formal guarantees: every epsilon but that of :func:`as_published` is an upper bound under the relation it
names (``docs/explanation/uedp.md``, "Algorithm 1 with sound accounting"); it is computed from the
mechanism of the ledger and the number of its steps alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from redactory.training.accounting import Spending, epsilon_of
from redactory.training.accounting.mixtures import group_curve
from redactory.training.accounting.second import Bracket
from redactory.training.guarantee_figures import one_exchanged
from redactory.training.mechanism import Relation
from redactory.training.uedp.algorithm1_accounting import (
    Algorithm1,
    Algorithm1Conditions,
    Algorithm1Figures,
    Rule,
    Spread,
    SpreadSource,
    sound_epsilon,
)
from redactory.training.uedp.published import AS_PUBLISHED, Estimator, published_epsilon, published_rate
from redactory.training.units.federated_mechanism import PoissonUsersGaussian
from redactory.training.units.federated_settings import FederatedSettings
from redactory.training.units.relations import Adjacency, Constants, Figure, Protect, relation

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
NO_SHARE = (
    "the published formula multiplies by the share of sentences with an entity: a count of the corpus, which "
    "federated.sensitive_share would have to declare public"
)


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
    mechanism: PoissonUsersGaussian, steps: int, delta: float, settings: FederatedSettings
) -> Published:
    """The papers' moments accountant at their own z: as published, not a guarantee."""
    own = mechanism.entities
    estimator = Estimator.USER_LEVEL if own is None else Estimator(own.estimator)
    share = settings.sensitive_share
    if estimator is Estimator.F_E_PLUS and share is None:
        return Published(None, NO_SHARE)
    rate = published_rate(
        estimator,
        mechanism.sampling_rate,
        1.0 if own is None else own.entity_rate,
        1.0 if share is None else share,
    )
    scale = noise_scale(mechanism, settings.noise_form)
    found = published_epsilon(rate, scale, steps, delta)
    value = {
        "note": AS_PUBLISHED,
        "epsilon": found.epsilon,
        "delta": delta,
        "estimator": estimator.value,
        "sampling_rate": rate,
        "noise_scale": scale,
    }
    return Published(value, None)


def noise_scale(mechanism: PoissonUsersGaussian, form: str) -> float:
    """z of the papers: ζ over q_u·|U| + 1 (``paper``) or |U| + 1 (``patent``); ζ itself for DP-FedAvg."""
    if mechanism.entities is None:
        return mechanism.noise_multiplier
    expected = 1.0 if form == "patent" else mechanism.sampling_rate
    return mechanism.noise_multiplier / (expected * mechanism.users + 1.0)


def _of_users(mechanism: PoissonUsersGaussian, steps: int) -> tuple[Spending, ...]:
    return (Spending(mechanism.of_one_user(), steps),) if steps else ()
