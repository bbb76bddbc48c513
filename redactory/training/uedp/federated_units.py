"""The units of a step: every user, entity and extended point throws coins by its own keyed id.

So a unit that is taken away moves no other unit's coins, and whatever the order of a table, a unit's
coins stay its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import CheckFailed, ConfigurationError, GuaranteeError
from redactory.foundation.stream import RandomStream
from redactory.training.uedp.bounding import Kept, cap_spread
from redactory.training.uedp.incidence import Ids, Incidence
from redactory.training.units.federated_mechanism import EntitySampling, PoissonUsersGaussian

_USERS, _ENTITIES, _EXTENDED = "user coins", "entity coins", "extended coins"
_WORD = 64


@dataclass(frozen=True)
class User:
    """A user's keyed id as a number, and the rows of her points in their table, int64."""

    key: int
    rows: NDArray[np.int64]


def users_of(incidence: Incidence, mechanism: PoissonUsersGaussian) -> tuple[Incidence, tuple[User, ...]]:
    """The hypergraph (every point keeps its row), and its users with the points a training may use.

    With an enforced M those are the points that :func:`cap_spread` keeps, a function of the graph alone.
    ``GuaranteeError`` where a point has several users: then one of them changes the updates of the others.
    ``ConfigurationError`` where M is |U| and there are more users than the public constant says.
    """
    if np.any(incidence.users.lengths != 1):
        raise GuaranteeError(
            "a point has several users (train.units.copies merge): sampling users is proved for points of "
            "one user each; keep the copies apart"
        )
    owners = incidence.users.indices
    if mechanism.entities is not None and len(np.unique(owners)) > mechanism.users:
        raise ConfigurationError(
            "train.federated.users: there are more users than this public bound; raise it, and train anew"
        )
    kept = _kept(incidence, mechanism.entities)
    order = np.argsort(owners, kind="stable")
    order = order[kept[order]]
    starts = np.searchsorted(owners[order], np.arange(incidence.users.columns + 1))
    return incidence, tuple(
        User(_number(incidence.user_ids, user), order[starts[user] : starts[user + 1]].astype(np.int64))
        for user in range(incidence.users.columns)
    )


def _kept(incidence: Incidence, entities: EntitySampling | None) -> Kept:
    if entities is None or entities.max_users_per_entity is None:
        return np.ones(len(incidence), np.bool_)
    return cap_spread(incidence, entities.max_users_per_entity)


class UserSampler(Protocol):
    """Chooses the users of a step."""

    def drawn(self, stream: RandomStream, step: int, users: tuple[User, ...]) -> list[User]:
        """Those of ``users`` who take part in ``step``, in their order."""


@dataclass(frozen=True)
class PoissonUsers:
    """Each user by a coin of her own, of probability ``rate`` up to 2⁻⁵³, in each step.

    Formal guarantees: independent over users and steps while the root of the stream is secret; never cut
    or filled up; an empty sample is a step of noise alone.
    """

    rate: float

    def drawn(self, stream: RandomStream, step: int, users: tuple[User, ...]) -> list[User]:
        """Those of ``users`` who take part in ``step``, in their order."""
        return [user for user in users if coin(stream, _USERS, step, user.key) < self.rate]


class PointWeights(Protocol):
    """How much each point counts in its user's local update."""

    def of(self, stream: RandomStream, step: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The weight of each of ``rows`` in ``step``, float64; 0 where a point is not used."""


class EveryPoint:
    """All points alike, as in DP-FedAvg."""

    def of(self, stream: RandomStream, step: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """1 for each of ``rows``."""
        return np.ones(len(rows))


@dataclass
class SampledEntities:
    """Algorithm 1, lines 9, 24, 25 and 26: w_e for each sampled entity of a point, or w_s.

    A point is used when any of its entities is sampled, or, by rule ``all``, when every one is; a point of
    the extended set S by its own coin, and never by ``f_E``.

    Formal guarantees: a weight is a function of the point's own entities, their coins and constants; what
    other points there are, or how many, does not enter.
    """

    incidence: Incidence
    sampling: EntitySampling
    _seen: tuple[int, dict[int, bool]] = field(default=(-1, {}), init=False)

    def of(self, stream: RandomStream, step: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """The weight of each of ``rows`` in ``step``, float64; 0 where a point is not used."""
        if self._seen[0] != step:
            self._seen = step, {}
        return np.array([self._weight(stream, step, int(row)) for row in rows], np.float64)

    def _weight(self, stream: RandomStream, step: int, row: int) -> float:
        own, entities = self.sampling, self.incidence.entities.of(row)
        if not len(entities):
            used = own.estimator == "f_E+" and self._extended(stream, step, row)
            return own.extended_weight if used else 0.0
        sampled = [self._entity(stream, step, int(entity)) for entity in entities]
        if own.rule == "all" and not all(sampled):
            return 0.0
        return own.entity_weight * sum(sampled)

    def _entity(self, stream: RandomStream, step: int, entity: int) -> bool:
        known = self._seen[1]
        if entity not in known:
            key = _number(self.incidence.entity_ids, entity)
            known[entity] = coin(stream, _ENTITIES, step, key) < self.sampling.entity_rate
        return known[entity]

    def _extended(self, stream: RandomStream, step: int, row: int) -> bool:
        key = (int(self.incidence.priorities[row]) << _WORD) + int(self.incidence.points[row])
        return coin(stream, _EXTENDED, step, key) < self.sampling.extended_rate


def weights_of(incidence: Incidence, mechanism: PoissonUsersGaussian) -> PointWeights:
    """The rule of Algorithm 1, or that of DP-FedAvg."""
    return EveryPoint() if mechanism.entities is None else SampledEntities(incidence, mechanism.entities)


def require_rows(incidence: Incidence, points: int) -> None:
    """``CheckFailed`` unless the table of ``points`` points is that of the hypergraph."""
    if len(incidence) != points:
        raise CheckFailed("the hypergraph is not that of the points that are trained on")


def coin(stream: RandomStream, purpose: str, step: int, key: int) -> float:
    """The draw of one unit in one step, uniform in (0, 1)."""
    return float(stream.uniform(purpose, step, 1, key)[0])


def _number(ids: Ids, unit: int) -> int:
    return int.from_bytes(ids[unit].tobytes(), "big")
