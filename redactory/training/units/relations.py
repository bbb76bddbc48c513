"""Who is hidden and which two worlds are compared: every figure of UeDP names both.

``docs/explanation/uedp.md``, "The relations by name".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PRIVATE_POINTS_OF_A_USER = "private points of a user"
"""The only relation of a training with public points without noise: a user's own would vanish too."""


class Protect(Enum):
    """What one neighbouring world lacks (the patent's configuration; ``either`` is a user *or* an entity)."""

    USERS = "users"
    ENTITIES = "entities"
    BOTH = "both"
    EITHER = "either"

    @property
    def unit(self) -> str:
        """The unit in the name of a relation."""
        return {"users": "user", "entities": "entity", "both": "user-entity", "either": "user-or-entity"}[
            self.value
        ]


class Adjacency(Enum):
    """How a unit is taken away."""

    FIXED_GRAPH = "zero-out on a fixed graph"
    """Its points are replaced by null points (gradient 0) that keep their place in the hypergraph."""
    USER_REMOVAL = "user removal, entity zero-out"
    """A user's points vanish, an entity's become null: what R-LOC is stable under."""
    REMOVAL = "removal"
    """Its points vanish."""


class Constants(Enum):
    """What sampling rate, steps, weights and normaliser are computed from."""

    PUBLIC = "public constants"
    GRAPH = "functions of the hypergraph"
    """Equal in both worlds on a fixed graph, and on no other relation."""


def relation(protect: Protect, adjacency: Adjacency) -> str:
    """The name under which a figure is printed, such as "user-entity zero-out on a fixed graph"."""
    if adjacency is Adjacency.USER_REMOVAL:
        return {
            Protect.USERS: "user removal",
            Protect.ENTITIES: "entity zero-out",
            Protect.BOTH: "user removal and entity zero-out",
            Protect.EITHER: "user removal or entity zero-out",
        }[protect]
    return f"{protect.unit} {adjacency.value}"


def points_relation(count: int, adjacency: Adjacency) -> str:
    """The name of the C0 relation: units with at most ``count`` points."""
    return f"any units with at most {count} points, {adjacency.value}"


@dataclass(frozen=True)
class Figure:
    """Epsilon at ``delta`` under a named relation; None, with the reason, where there is no finite one."""

    epsilon: float | None
    delta: float
    relation: str
    reason: str | None = None

    def __post_init__(self) -> None:
        if (self.epsilon is None) != (self.reason is not None):
            raise ValueError("a figure has either an epsilon or a reason why there is none")
