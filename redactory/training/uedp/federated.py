"""Algorithm 1 of UeDP, and DP-FedAvg: noisy steps whose unit is a user's whole update."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from redactory.foundation.stream import RandomStream
from redactory.training.ledger import Admission
from redactory.training.models.network import Network
from redactory.training.phases import Descent, descend, trainable
from redactory.training.points import Placed, Points
from redactory.training.uedp.federated_units import (
    PointWeights,
    PoissonUsers,
    User,
    UserSampler,
    require_rows,
    users_of,
    weights_of,
)
from redactory.training.uedp.incidence import Incidence
from redactory.training.uedp.local_map import UpdateMap
from redactory.training.uedp.local_update import (
    Cohort,
    LocalData,
    LocalRule,
    cohorts,
    own_points,
    summed_updates,
)
from redactory.training.units.federated_mechanism import PoissonUsersGaussian
from redactory.training.units.federated_settings import FederatedSettings


@dataclass
class FederatedPhase:
    """Sample users (and entities), let each train on her own points, clip, sum, add noise, move the model.

    Formal guarantees: a step reads the points only through ``mechanism.noisy_mean`` of the sum of the
    drawn users' clipped updates; the sum is admitted by the ledger before noise is drawn; no step is left
    out, whoever was drawn; weights and normaliser are public constants.  What moves the model is
    post-processing.  A step is a function of its number, the parameters, the data and the stream.
    """

    network: Network
    descent: Descent
    points: Points
    users: tuple[User, ...]
    mechanism: PoissonUsersGaussian
    sampler: UserSampler
    weights: PointWeights
    rule: LocalRule
    stream: RandomStream
    ledger: Admission
    every: UpdateMap = map
    update: Callable[[Cohort], NDArray[np.float64]] = summed_updates

    def fall_over(self, steps: int) -> None:
        """Let the step size fall to zero over ``steps`` steps."""
        self.descent = replace(self.descent, steps=steps)

    def step(self, number: int) -> None:
        """Algorithm 1, lines 8 to 15, in step ``number``."""
        total = torch.zeros(sum(p.numel() for p in trainable(self.network)), dtype=torch.float64)
        tasks = cohorts(self.network, [*self._drawn(number)], self.rule)
        for part in self.every(self.update, tasks):
            total += torch.from_numpy(part)
        self.ledger.admit(number, total)
        mean = self.mechanism.noisy_mean(total, self.stream, number)
        like = trainable(self.network)[0]
        descend(self.network, self.descent, -mean.to(like), number)

    def _drawn(self, number: int) -> list[LocalData]:
        """The users of the step who have a point to use in it; the others' updates are zero."""
        found = []
        for user in self.sampler.drawn(self.stream, number, self.users):
            weights = self.weights.of(self.stream, number, user.rows)
            if weights.any():
                found.append(
                    LocalData(own_points(self.points, user.rows), weights, self._stream_of(user, number))
                )
        return found

    def _stream_of(self, user: User, number: int) -> RandomStream:
        root = self.stream.octets("local update", number, 32, user.key)
        return RandomStream(root, seeded=self.stream.seeded)


def federated_phase(
    settings: FederatedSettings,
    physical_tokens: int,
    network: Network,
    descent: Descent,
    points: Points,
    incidence: Incidence,
    mechanism: PoissonUsersGaussian,
    stream: RandomStream,
    ledger: Admission,
    every: UpdateMap = map,
) -> FederatedPhase:
    """The phase of ``uedp-alg1`` or ``user-level``, as ``mechanism`` says.

    Row i of ``points`` is point i of ``incidence``.  ``descent`` is used with ``server: optimizer`` alone.
    Raises what :func:`users_of` does, and ``CheckFailed`` where the two tables differ.
    """
    inner = points.points if isinstance(points, Placed) else points
    require_rows(incidence, len(inner))
    incidence, users = users_of(incidence, mechanism)
    if settings.server == "average":
        descent = Descent(torch.optim.SGD(trainable(network), lr=1.0), 1.0)
    return FederatedPhase(
        network=network,
        descent=descent,
        points=inner,
        users=users,
        mechanism=mechanism,
        sampler=PoissonUsers(mechanism.sampling_rate),
        weights=weights_of(incidence, mechanism),
        rule=LocalRule(
            settings.local_epochs,
            settings.local_batch_size,
            settings.local_learning_rate,
            mechanism.clip_norm,
            physical_tokens,
        ),
        stream=stream,
        ledger=ledger,
        every=every,
    )
