"""Trainings that hide users or entities: their settings, and which two worlds their figures compare."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from redactory.foundation.settings import Settings

Rate = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class FederatedSettings(Settings):
    """Algorithm 1 of UeDP (``uedp-alg1``) and DP-FedAvg (``user-level``; McMahan et al. 2018).

    The clip β of a user's update is ``train.clip_norm``; ζ = ``train.noise_multiplier`` is the noise on the
    sum of updates in units of β.  Where the paper counts (w_u, w_e, w_s, W_u, W_e, W_s), a point weighs 1 and
    the sum is divided by q_u·|U|: a number that was counted differs between two neighbouring corpora
    (``docs/explanation/uedp.md``, "What the published accounting gets wrong").
    """

    users: PositiveInt | None = Field(
        None,
        description="|U|, a public bound on the number of users; needed. With uedp-alg1 a corpus with more "
        "is refused: the spread of an entity rests on it where no cap does.",
    )
    user_rate: Rate = Field(0.05, description="q_u: probability of each user in each noisy step.")
    entity_rate: Rate = Field(0.5, description="uedp-alg1, q_e: probability of each entity in each step.")
    extended_rate: Share = Field(
        1.0,
        description="uedp-alg1, q_s: probability in each step of each point without an entity (the extended "
        "set S, estimator f_E+); at 0 points with an entity alone are learnt from (f_E).",
    )
    rule: Literal["any", "all"] = Field(
        "any",
        description="uedp-alg1: a point is used when any of its entities is sampled (as published: q_e then "
        "hides nothing), or when all of them are.",
    )
    max_users_per_entity: PositiveInt | None = Field(
        None,
        description="uedp-alg1: cap M on the users that one entity touches, enforced on the fixed graph by "
        "leaving points out; |U| if absent.",
    )
    local_epochs: ClassVar[int] = 1
    """Passes of a sampled user over their own points."""
    local_batch_size: PositiveInt = Field(8, description="B: points of a user's batch.")
    local_learning_rate: PositiveFloat = Field(
        0.02, description="η: step size of a user's own SGD, on the sum over a batch of the points' losses."
    )

    @model_validator(mode="after")
    def _cap_is_a_cap(self) -> Self:
        if self.users is not None and (self.max_users_per_entity or 0) > self.users:
            raise ValueError("max_users_per_entity: at most users, the public number of users")
        return self


# Who is hidden and which two worlds are compared: every figure of UeDP names both.


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


# What a training under UeDP is told: its units, and how much one of them may contribute.


Task = Literal["next-word", "classify"]
Hubs = Literal["countries", "months", "weekdays"]
HUBS = get_args(Hubs)


class UnitSettings(Settings):
    """Whom and what is protected (the patent's configuration)."""

    protect: Protect = Field(
        Protect.BOTH,
        description="What the other world lacks: users, entities, both (one of each at once), or either (one "
        "of the two).",
    )
    labels: tuple[str, ...] | None = Field(
        None, description="Labels whose hits are entities; every label if absent."
    )
    entities: Path | None = Field(
        None,
        description="A text file with an entity a line (the client's list): looked up in every text, "
        "whether or not a detector saw it.",
    )
    aliases: Path | None = Field(
        None, description="A text file with an alias, a tab, and the value it stands for in a line."
    )
    hubs: tuple[Hubs | Path, ...] = Field(
        (),
        description="Public lists of values that are protected by nothing: the ready-made countries, months "
        "and weekdays, or text files with a value a line, listed without looking at the corpus.",
    )
    copies: Literal["keep", "merge"] = Field(
        "keep",
        description="Points that repeat another one's text: keep each as its own user's, or merge them into "
        "one point that counts against the cap of every holder (dedup.mode exact).",
    )
    missed_mentions: NonNegativeInt = Field(
        0, description="Points in which an entity may stand unlisted, and which epsilon is to cover as well."
    )

    @property
    def lists(self) -> tuple[str, ...]:
        """The keys whose content lies in files."""
        own = [key for key in ("entities", "aliases") if getattr(self, key) is not None]
        return (*own, "hubs") if self.hub_files else tuple(own)

    @property
    def hub_files(self) -> tuple[Path, ...]:
        """The lists of hubs that are files."""
        return tuple(one for one in self.hubs if isinstance(one, Path))


def _proved(value: Any) -> Any:
    if value not in ("conversation", "turn"):
        raise ValueError(
            "conversation or turn; a turn with those before it as its context has no proof, for one secret "
            "would stand in the row of every turn after it"
        )
    return value


class ChatSettings(Settings):
    """Conversations that are trained on with roles and a chat template (``docs/how-to/train.md``)."""

    example: Annotated[Literal["conversation", "turn"], BeforeValidator(_proved)] = Field(
        "conversation",
        description="What one example is, and so what a secret stands in: a whole conversation, which is "
        "private where one of its turns is; or each example of the run by itself, without what was said "
        "before it.",
    )
    loss_on: Literal["assistant", "all"] = Field(
        "assistant", description="Whose turns are learnt: what the assistant says, or everything."
    )
    template: Literal["auto", "plain"] = Field(
        "auto",
        description="How roles are written: as the model folder's tokenizer does where it has a template, "
        "else plain ('user: ...' and the end token).",
    )


class BoundingSettings(Settings):
    """Contribution bounding of ``uedp-bounded``: a stable rule and its caps."""

    rule: Literal["greedy", "all-keep", "r-loc", "none"] = Field(
        "greedy",
        description="How points are chosen under the caps; r-loc also bounds a user's removal; none keeps "
        "every point and has only the curve over K.",
    )
    k_user: PositiveInt | None = Field(None, description="Most points of one user that are trained on.")
    k_entity: PositiveInt | None = Field(None, description="Most points of one entity that are trained on.")
    entities_per_point: NonNegativeInt | None = Field(
        None, description="r-loc: points that list more entities than this are left out."
    )
    constants: Literal["graph", "public"] = Field(
        "graph",
        description="Where sampling rate, epochs, normaliser, noise and caps come from: chosen by counts of "
        "the corpus, such as a plan's (a fixed graph has the same), or without looking at it. Removal is "
        "stated for the latter alone.",
    )

    @model_validator(mode="after")
    def _a_rule_has_what_it_needs(self) -> Self:
        if self.rule == "none" and (self.k_user is not None or self.k_entity is not None):
            raise ValueError("rule none keeps every point and enforces no cap: remove k_user and k_entity")
        if self.rule == "r-loc" and (self.entities_per_point is None or self.k_user is None):
            raise ValueError("rule r-loc needs entities_per_point and k_user")
        if self.rule != "r-loc" and self.entities_per_point is not None:
            raise ValueError("entities_per_point belongs to rule r-loc")
        return self

    def missing_cap(self, protect: Protect) -> str | None:
        """The first cap that is needed to protect ``protect`` and is not given; None where all are."""
        if self.rule == "none":
            return None
        if self.k_user is None and protect is not Protect.ENTITIES:
            return "k_user"
        if self.k_entity is None and protect is not Protect.USERS:
            return "k_entity"
        return None
