"""How many points each cap keeps, of which labels, and which cap to take: k is about n / U.

A plan counts a private corpus: it is no release, and no epsilon covers it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from redactory.foundation.errors import ConfigurationError
from redactory.training.uedp.bounded_accounting import BoundedTraining, Conditions, affected, calibrate
from redactory.training.uedp.bounding import bound
from redactory.training.uedp.incidence import Incidence
from redactory.training.uedp.stability import GREEDY
from redactory.training.units.relations import Constants, Protect

NO_ENTITY = "(no entity)"


@dataclass(frozen=True)
class Budget:
    """A target: ε at δ in ``steps`` steps of ``batch_size`` expected points (q = batch size / kept)."""

    epsilon: float
    delta: float
    batch_size: int
    steps: int


@dataclass(frozen=True)
class Choice:
    """What one cap k_u = k_e = ``cap`` keeps.

    ``by_label``: kept points that mention an entity of the label; ``(no entity)`` those of S.  ``users``,
    ``entities``: those with a kept point.  ``affected`` K.  ``noise_multiplier`` σ reaches the budget;
    ``relative_noise`` is σ / batch size, the noise on the mean gradient in clips.
    """

    cap: int
    kept: int
    by_label: dict[str, int]
    users: int
    entities: int
    affected: int
    sampling_rate: float | None = None
    noise_multiplier: float | None = None
    relative_noise: float | None = None


@dataclass(frozen=True)
class Plan:
    """``suggested`` is the cap to take; the other counts describe the whole corpus."""

    points: int
    users: int
    entities: int
    by_label: dict[str, int]
    suggested: int
    choices: tuple[Choice, ...]


def suggested_cap(points: int, units: int) -> int:
    """k = n / U, rounded, at least 1.

    While kU points are kept, K·q = 2·batch/U does not depend on k: more data at the same noise, up to
    k = n/U; beyond it K grows and the data do not.
    """
    return max(1, round(points / units)) if units else 1


def plan(
    incidence: Incidence,
    protect: Protect = Protect.BOTH,
    caps: Iterable[int] | None = None,
    budget: Budget | None = None,
) -> Plan:
    """What each cap of ``caps`` keeps under ``greedy``; powers of two past the suggestion if absent.

    The suggestion is n/U over the users (over the entities that stand in more than one point, where only
    entities are protected).
    """
    if not len(incidence):
        raise ConfigurationError("there is no point to plan for")
    degrees = (incidence.entities if protect is Protect.ENTITIES else incidence.users).degrees()
    shared = degrees[degrees > 1] if protect is Protect.ENTITIES else degrees[degrees > 0]
    suggested = suggested_cap(int(shared.sum()), len(shared))
    powers = {1 << power for power in range(suggested.bit_length() + 1)}
    tried = sorted({suggested, *powers} if caps is None else set(caps))
    return Plan(
        len(incidence),
        *_units(incidence),
        points_by_label(incidence),
        suggested,
        tuple(_choice(incidence, protect, cap, budget) for cap in tried),
    )


def points_by_label(incidence: Incidence) -> dict[str, int]:
    """Points that mention an entity of each label; a point of several labels counts in each."""
    counts = dict(zip(incidence.label_names, incidence.labels.degrees().tolist(), strict=True))
    return {**dict(sorted(counts.items())), NO_ENTITY: int(incidence.extended.sum())}


def _choice(incidence: Incidence, protect: Protect, cap: int, budget: Budget | None) -> Choice:
    k_user = cap if protect is not Protect.ENTITIES else None
    k_entity = cap if protect is not Protect.USERS else None
    kept = incidence.take(bound(incidence, k_user, k_entity).kept)
    rate = None if budget is None else min(1.0, budget.batch_size / len(kept))
    training = BoundedTraining(
        rate or 1.0, 1.0, budget.steps if budget is not None else 0, k_user, k_entity, protect, GREEDY
    )
    sigma = None
    if budget is not None:
        sigma = calibrate(budget.epsilon, training, _HELD, budget.delta, tolerance=1e-2)
    return Choice(
        cap,
        len(kept),
        points_by_label(kept),
        *_units(kept),
        affected(training).gone,
        rate,
        sigma,
        None if budget is None or sigma is None else sigma / budget.batch_size,
    )


def _units(incidence: Incidence) -> tuple[int, int]:
    return int((incidence.users.degrees() > 0).sum()), int((incidence.entities.degrees() > 0).sum())


_HELD = Conditions(True, True, True, True, True, True, Constants.GRAPH)
