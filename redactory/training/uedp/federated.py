"""Algorithm 1 of UeDP, and DP-FedAvg: noisy steps whose unit is a user's whole update."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.foundation.stream import RandomStream
from redactory.training.data import TokenizedExamples
from redactory.training.mechanisms.ledger import Admission
from redactory.training.mechanisms.users import PoissonUsersGaussian
from redactory.training.models.network import Network
from redactory.training.steps import ScheduledOptimizer, apply_gradient, list_trainable_parameters
from redactory.training.uedp.bounding import cap_entity_users
from redactory.training.uedp.incidence import Incidence, KeyedIds, get_columns
from redactory.training.uedp.local_update import LocalUpdateRule, LocalUserData, sum_local_updates

_USER_COINS, _ENTITY_COINS, _EXTENDED_COINS = "user coins", "entity coins", "extended coins"
_WORD_BITS = 64


@dataclass(frozen=True)
class FederatedUser:
    """A user's keyed id as a number, and the rows of their examples in the table, int64."""

    key: int
    rows: NDArray[np.int64]


def collect_users(incidence: Incidence, mechanism: PoissonUsersGaussian) -> tuple[FederatedUser, ...]:
    """Collect the users, with their examples that a training may use.

    With an enforced M these are the examples that :func:`cap_entity_users` keeps, a function of the graph alone.
    ``GuaranteeError`` if an example has several users, because one of them would change the updates of the others.
    ``ConfigurationError`` if M is |U| and there are more users than the public constant says.
    """
    if np.any(np.diff(incidence.users.indptr) != 1):
        raise GuaranteeError(
            "an example has several users (train.units.duplicates merge): sampling users is proved for "
            "examples of one user each; set it to keep"
        )
    if mechanism.entities is not None and len(np.unique(incidence.users.indices)) > mechanism.users:
        raise ConfigurationError(
            "train.federated.users: there are more users than this public bound; raise it, and train again"
        )
    cap = None if mechanism.entities is None else mechanism.entities.max_users_per_entity
    is_kept = np.ones(len(incidence), np.bool_) if cap is None else cap_entity_users(incidence, cap)
    examples_by_user = incidence.users.T.tocsr()
    users = []
    for user in range(incidence.users.shape[1]):
        rows = get_columns(examples_by_user, user).astype(np.int64)
        users.append(FederatedUser(_id_to_number(incidence.user_ids, user), rows[is_kept[rows]]))
    return tuple(users)


def draw_users(stream: RandomStream, step: int, users: Sequence[FederatedUser], rate: float) -> list[FederatedUser]:
    """Draw which of ``users`` take part in ``step``, each with their own coin of probability ``rate``.

    Formal guarantees: independent over users and steps while the root of the stream is secret; the probability is
    exact up to 2⁻⁵³; the sample is never cut or filled up, and an empty sample is a step of noise alone.
    """
    return [user for user in users if draw_unit_uniform(stream, _USER_COINS, step, user.key) < rate]


ExampleWeights = Callable[[RandomStream, int, NDArray[np.int64]], NDArray[np.float64]]
"""How much each of some rows counts in a step in its user's local update, float64; 0: it is not used."""


def make_example_weights(incidence: Incidence, mechanism: PoissonUsersGaussian) -> ExampleWeights:
    """Make the weights of Algorithm 1, lines 9, 24, 25 and 26, or those of DP-FedAvg, 1 each.

    An example counts once for each of its entities that is sampled; one of the extended set S by its own coin.

    Formal guarantees: a weight is a function of the example's own entities, their coins and constants, whatever
    other examples there are.
    """
    sampling = mechanism.entities
    if sampling is None:
        return lambda stream, step, rows: np.ones(len(rows))

    @lru_cache(maxsize=int(incidence.entities.shape[1]) + 1)
    def is_sampled(stream: RandomStream, step: int, entity: int) -> bool:
        key = _id_to_number(incidence.entity_ids, entity)
        return draw_unit_uniform(stream, _ENTITY_COINS, step, key) < sampling.entity_rate

    def compute_weight(stream: RandomStream, step: int, row: int) -> int:
        entities = get_columns(incidence.entities, row).tolist()
        if entities:
            return sum(is_sampled(stream, step, entity) for entity in entities)
        key = (int(incidence.priorities[row]) << _WORD_BITS) + int(incidence.example_ids[row])
        return draw_unit_uniform(stream, _EXTENDED_COINS, step, key) < sampling.related_entity_rate

    return lambda stream, step, rows: np.array([compute_weight(stream, step, row) for row in rows.tolist()], float)


def draw_unit_uniform(stream: RandomStream, purpose: str, step: int, key: int) -> float:
    """Draw the coin of one unit in one step, uniform in (0, 1)."""
    return float(stream.uniform(purpose, step, 1, key)[0])


def _id_to_number(ids: KeyedIds, unit: int) -> int:
    return int.from_bytes(ids[unit].tobytes(), "big")


# Algorithm 1 of UeDP, and DP-FedAvg: noisy steps whose unit is a user's whole update.


@dataclass
class FederatedSteps:
    """Sample users (and entities), let each train on their own examples, clip, sum, add noise, update the model.

    Formal guarantees: a step reads the examples only through ``mechanism.noisy_mean`` of the sum of the drawn
    users' clipped updates. The ledger admits the sum before noise is drawn. No step is left out, whoever was drawn.
    Weights and normaliser are public constants, and updating the model is post-processing. A step is a function of
    its number, the parameters, the data and the stream.
    """

    network: Network
    scheduled_optimizer: ScheduledOptimizer
    examples: TokenizedExamples
    users: tuple[FederatedUser, ...]
    mechanism: PoissonUsersGaussian
    weights: ExampleWeights
    rule: LocalUpdateRule
    stream: RandomStream
    ledger: Admission

    def step(self, number: int) -> None:
        """Run Algorithm 1, lines 8 to 15, in step ``number``."""
        # users without a usable example in this step have a zero update
        drawn = []
        for user in draw_users(self.stream, number, self.users, self.mechanism.sampling_rate):
            weights = self.weights(self.stream, number, user.rows)
            if weights.any():
                root = self.stream.random_bytes("local update", number, 32, user.key)
                local_stream = RandomStream(root, seeded=self.stream.seeded)
                drawn.append(LocalUserData(self.examples.select_examples(user.rows), weights, local_stream))
        total = sum_local_updates(self.network, drawn, self.rule).cpu()
        self.ledger.authorize_noisy_step(number, total)
        mean = self.mechanism.compute_noisy_mean(total, self.stream, number)
        like = list_trainable_parameters(self.network)[0]
        apply_gradient(self.network, self.scheduled_optimizer, -mean.to(like), number)
