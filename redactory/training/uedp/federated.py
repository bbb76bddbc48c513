"""Algorithm 1 of UeDP, and DP-FedAvg: noisy steps whose unit is a user's whole update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.foundation.stream import RandomStream
from redactory.training.data import EncodedPoints
from redactory.training.ledger import Admission
from redactory.training.mechanism import EntitySampling, PoissonUsersGaussian
from redactory.training.models.network import Network
from redactory.training.steps import Descent, descend, trainable
from redactory.training.uedp.bounding import cap_spread
from redactory.training.uedp.incidence import Ids, Incidence
from redactory.training.uedp.local_update import Cohort, LocalData, LocalRule, UpdateMap, cohorts, summed_updates

_USERS, _ENTITIES, _EXTENDED = "user coins", "entity coins", "extended coins"
_WORD = 64


@dataclass(frozen=True)
class User:
    """A user's keyed id as a number, and the rows of their points in the table, int64."""

    key: int
    rows: NDArray[np.int64]


def users_of(incidence: Incidence, mechanism: PoissonUsersGaussian) -> tuple[User, ...]:
    """The users, with the points of theirs that a training may use.

    With an enforced M those are the points that :func:`cap_spread` keeps, a function of the graph alone.
    ``GuaranteeError`` where a point has several users: then one of them changes the updates of the others.
    ``ConfigurationError`` where M is |U| and there are more users than the public constant says.
    """
    if np.any(incidence.users.lengths != 1):
        raise GuaranteeError(
            "an example has several users (train.units.duplicates merge): sampling users is proved for "
            "examples of one user each; set it to keep"
        )
    owners = incidence.users.indices
    if mechanism.entities is not None and len(np.unique(owners)) > mechanism.users:
        raise ConfigurationError(
            "train.federated.users: there are more users than this public bound; raise it, and train again"
        )
    cap = None if mechanism.entities is None else mechanism.entities.max_users_per_entity
    kept = np.ones(len(incidence), np.bool_) if cap is None else cap_spread(incidence, cap)
    order = np.argsort(owners, kind="stable")
    order = order[kept[order]]
    starts = np.searchsorted(owners[order], np.arange(incidence.users.columns + 1))
    return tuple(
        User(_number(incidence.user_ids, user), order[starts[user] : starts[user + 1]].astype(np.int64))
        for user in range(incidence.users.columns)
    )


def drawn_users(stream: RandomStream, step: int, users: Sequence[User], rate: float) -> list[User]:
    """Those of ``users`` who take part in ``step``, each by a coin of their own of probability ``rate``.

    Formal guarantees: independent over users and steps while the root of the stream is secret, the
    probability up to 2⁻⁵³; never cut or filled up; an empty sample is a step of noise alone.
    """
    return [user for user in users if coin(stream, _USERS, step, user.key) < rate]


PointWeights = Callable[[RandomStream, int, NDArray[np.int64]], NDArray[np.float64]]
"""How much each of some rows counts in a step in its user's local update, float64; 0: it is not used."""


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
        own, graph, known = self.sampling, self.incidence, self._seen[1]
        weights = np.zeros(len(rows))
        for place, row in enumerate(rows.tolist()):
            entities = graph.entities.of(row).tolist()
            if not entities and own.estimator == "f_E+":
                key = (int(graph.priorities[row]) << _WORD) + int(graph.points[row])
                used = coin(stream, _EXTENDED, step, key) < own.related_entity_rate
                weights[place] = own.extended_weight if used else 0.0
            for entity in entities:
                if entity not in known:
                    key = _number(graph.entity_ids, entity)
                    known[entity] = coin(stream, _ENTITIES, step, key) < own.entity_rate
            sampled = sum(known[entity] for entity in entities)
            if entities and (own.rule == "any" or sampled == len(entities)):
                weights[place] = own.entity_weight * sampled
        return weights


def weights_of(incidence: Incidence, mechanism: PoissonUsersGaussian) -> PointWeights:
    """The rule of Algorithm 1, or that of DP-FedAvg."""
    if mechanism.entities is None:
        return lambda stream, step, rows: np.ones(len(rows))
    return SampledEntities(incidence, mechanism.entities).of


def coin(stream: RandomStream, purpose: str, step: int, key: int) -> float:
    """The draw of one unit in one step, uniform in (0, 1)."""
    return float(stream.uniform(purpose, step, 1, key)[0])


def _number(ids: Ids, unit: int) -> int:
    return int.from_bytes(ids[unit].tobytes(), "big")


# Algorithm 1 of UeDP, and DP-FedAvg: noisy steps whose unit is a user's whole update.


@dataclass
class FederatedPhase:
    """Sample users (and entities), let each train on their own points, clip, sum, add noise, move the model.

    Formal guarantees: a step reads the points only through ``mechanism.noisy_mean`` of the sum of the
    drawn users' clipped updates; the sum is admitted by the ledger before noise is drawn; no step is left
    out, whoever was drawn; weights and normaliser are public constants.  What moves the model is
    post-processing.  A step is a function of its number, the parameters, the data and the stream.
    """

    network: Network
    descent: Descent
    points: EncodedPoints
    users: tuple[User, ...]
    mechanism: PoissonUsersGaussian
    weights: PointWeights
    rule: LocalRule
    stream: RandomStream
    ledger: Admission
    every: UpdateMap = map
    update: Callable[[Cohort], NDArray[np.float64]] = summed_updates

    def step(self, number: int) -> None:
        """Algorithm 1, lines 8 to 15, in step ``number``."""
        # the updates of users who have no point to use in this step are zero
        drawn = []
        for user in drawn_users(self.stream, number, self.users, self.mechanism.sampling_rate):
            weights = self.weights(self.stream, number, user.rows)
            if weights.any():
                root = self.stream.octets("local update", number, 32, user.key)
                own = RandomStream(root, seeded=self.stream.seeded)
                drawn.append(LocalData(self.points.take(user.rows), weights, own))
        total = torch.zeros(sum(p.numel() for p in trainable(self.network)), dtype=torch.float64)
        tasks = cohorts(self.network, drawn, self.rule)
        for part in self.every(self.update, tasks):
            total += torch.from_numpy(part)
        self.ledger.admit(number, total)
        mean = self.mechanism.noisy_mean(total, self.stream, number)
        like = trainable(self.network)[0]
        descend(self.network, self.descent, -mean.to(like), number)
