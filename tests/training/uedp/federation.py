"""The grey box of trainings that sample users: sums on neighbouring worlds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from redactory.foundation.stream import RandomStream
from redactory.training.data import TokenizedExamples
from redactory.training.mechanisms.users import EntitySampling, PoissonUsersGaussian
from redactory.training.steps import ScheduledOptimizer, make_optimizer
from redactory.training.uedp.federated import FederatedSteps, collect_users, draw_unit_uniform, make_example_weights
from redactory.training.uedp.local_update import LocalUpdateRule
from tests.training.greybox import TOKENIZER, GreyBoxTrial, Recorder
from tests.training.uedp.worlds import World, hypergraph, unit

BETA, STEPS = 0.2, 5
ANY = EntitySampling(0.5, 0.6, None)
LOCAL = LocalUpdateRule(batch_size=3, learning_rate=0.5, clip_norm=BETA, max_physical_batch_tokens=64)
GONE_USER, GONE_ENTITY = 2, 1
WORDS = ("9" * 18, "Hello", "a" * 18, "Thank you", "9" * 9, "my name is 4711", "b" * 12)
WORLD: World = {
    # user 2 and, with entity 1, users 0, 1, 5 and 8; points without an entity are their own
    point: (user, frozenset(entities))
    for point, (user, entities) in enumerate(
        [
            *[(0, {1}), (0, {0}), (0, set()), (1, {0, 1}), (1, {2}), (2, {1}), (2, {0, 2}), (2, set())],
            *[(3, {2}), (3, set()), (4, {0}), (5, {1, 2}), (5, {3}), (5, set()), (6, {0}), (7, {3})],
            *[(8, {1}), (8, {0, 3}), (9, set()), (9, {2}), (10, {3}), (0, {2}), (1, set()), (11, {0})],
        ]
    )
}


def mechanism(entities: EntitySampling | None = ANY, **changes: Any) -> PoissonUsersGaussian:
    """A mechanism of q_u = 0.6 over at most 12 users."""
    told = {"noise_multiplier": 0.5, "clip_norm": BETA, "normaliser": 7.2, "users": 12, "entities": entities}
    return PoissonUsersGaussian(**{"sampling_rate": 0.6, **told, **changes})


def text_of(point: int, words: tuple[str, ...] = WORDS) -> str:
    """The text of a point: it stays the point's, whatever else is in the world."""
    return words[point % len(words)]


@dataclass(frozen=True)
class Federation:
    """One training, and the parts of its step that a test may exchange."""

    mechanism: PoissonUsersGaussian = field(default_factory=mechanism)
    kind: str = "lstm"
    rule: LocalUpdateRule = LOCAL
    words: tuple[str, ...] = WORDS
    max_tokens: int = 20

    def phase(self, world: World, ledger: Any, null: World | None = None) -> FederatedSteps:
        """Its phase on ``world``; the points that ``null`` lacks are null and keep their place."""
        network, graph = GreyBoxTrial(self.kind).build_network(), hypergraph(world)
        texts = [text_of(point, self.words) for point in sorted(world)]
        points = TokenizedExamples.from_texts(texts, TOKENIZER, self.max_tokens)
        inner = make_example_weights(graph, self.mechanism)
        # a point that is null has weight 0: its gradient is exactly 0
        gone = np.array([null is not None and point not in null for point in sorted(world)], bool)
        return FederatedSteps(
            network=network,
            scheduled_optimizer=ScheduledOptimizer(make_optimizer(network, "sgd"), 1.0),
            examples=points,
            users=collect_users(graph, self.mechanism),
            mechanism=self.mechanism,
            weights=lambda *draw: np.where(gone[draw[-1]], 0.0, inner(*draw)),
            rule=self.rule,
            stream=RandomStream.from_seed(5),
            ledger=ledger,
        )

    def distances(self, world: World, other: World, fixed: bool = False) -> Iterator[float]:
        """‖sum − sum'‖ at every step, the other world walking with the parameters that ``world`` released.

        ``fixed``: the points that ``other`` lacks are null in the same hypergraph.
        """
        ours, theirs = Recorder(), Recorder()
        one = self.phase(world, ours)
        two = self.phase(world, theirs, null=other) if fixed else self.phase(other, theirs)
        for step in range(STEPS):
            two.network.load_state_dict(one.network.state_dict())
            one.step(step)
            two.step(step)
            yield float((ours.sums[-1] - theirs.sums[-1]).norm())


def moved(phase: FederatedSteps) -> Tensor:
    """The parameters, flat."""
    return torch.cat([p.detach().flatten().clone() for p in phase.network.parameters() if p.requires_grad])


def drawn(step: int, users: set[int], rate: float = 0.6) -> int:
    """How many of ``users`` the coins of ``step`` draw: computed from their keyed ids alone."""
    stream = RandomStream.from_seed(5)
    return sum(draw_unit_uniform(stream, "user coins", step, int.from_bytes(unit(u), "big")) < rate for u in users)


def holders(entity: int) -> set[int]:
    """The users who hold an entity."""
    return {user for user, entities in WORLD.values() if entity in entities}


def entity_drawn(step: int, entity: int, rate: float = 0.5) -> bool:
    """Whether the coin of ``step`` draws an entity."""
    key = int.from_bytes(unit(1000 + entity), "big")
    return draw_unit_uniform(RandomStream.from_seed(5), "entity coins", step, key) < rate
