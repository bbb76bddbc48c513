"""What the trainers that sample users are told: public constants, all of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from redactory.foundation.settings import Settings
from redactory.training.models.settings import ModelSettings, TransformerSettings

FEDERATED_TRAINERS = ("uedp-alg1", "user-level")
"""The trainers whose noisy steps sample users and clip the whole update of each."""
Rate = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class FederatedSettings(Settings):
    """Algorithm 1 of UeDP (``uedp-alg1``) and DP-FedAvg (``user-level``; McMahan et al. 2018).

    The clip β of a user's update is ``train.clip_norm``; ζ = ``train.noise_multiplier`` is the noise on the
    sum of updates in units of β.  Where the paper counts (w_u, w_e, w_s, W_u, W_e, W_s), these are constants:
    a number that was counted differs between two neighbouring corpora
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
        "set S).",
    )
    estimator: Literal["f_E", "f_E+"] = Field(
        "f_E+",
        description="uedp-alg1: f_E learns from points with an entity, f_E+ from the extended set as well.",
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
    entity_weight: Rate = Field(1.0, description="w_e: weight of a point for each of its sampled entities.")
    extended_weight: Rate = Field(1.0, description="w_s: weight of a sampled point of the extended set.")
    total_entity_weight: PositiveFloat | None = Field(
        None,
        description="W_e of the normaliser q_u·|U|·(q_e·W_e + q_s·W_s); without them it is q_u·|U|: the "
        "mean of the sampled users' updates.",
    )
    total_extended_weight: PositiveFloat | None = Field(None, description="W_s of the normaliser.")

    noise_scale: PositiveFloat | None = Field(
        None,
        description="z of the papers, instead of train.noise_multiplier. uedp-alg1: ζ = z·(q_u·|U| + 1), or, "
        "in the patent, z·(|U| + 1); user-level: ζ = z.",
    )
    noise_form: Literal["paper", "patent"] = Field("paper", description="Which of the two noise_scale means.")
    sensitive_share: Share | None = Field(
        None,
        description="Share of sentences with an entity, for the figure as published of f_E+; a count of a "
        "private corpus unless it was published.",
    )

    local_epochs: PositiveInt = Field(1, description="Passes of a sampled user over her own points.")
    local_batch_size: PositiveInt = Field(8, description="B: points of a user's batch.")
    local_learning_rate: PositiveFloat = Field(
        0.02, description="η: step size of a user's own SGD, on the sum over a batch of the points' losses."
    )
    server: Literal["average", "optimizer"] = Field(
        "average",
        description="How the noisy mean of updates moves the model: added to it, as published, or as a "
        "gradient of train.optimizer with train.private_learning_rate.",
    )
    workers: PositiveInt | None = Field(
        None,
        description="Processes that users' local updates are computed in, train.workers if absent; the "
        "result has the same bits.",
    )
    dask: str | None = Field(
        None,
        description="Address of a Dask scheduler (tls://HOST:PORT) whose workers compute them instead, with "
        "the same bits: processes of one thread each, which are sent the points of the users who were drawn.",
    )

    @model_validator(mode="after")
    def _normaliser_has_both_totals(self) -> Self:
        both = (self.total_entity_weight is None) == (self.total_extended_weight is None)
        if not both and self.estimator == "f_E+":
            raise ValueError("total_entity_weight and total_extended_weight: give both, or neither")
        if self.total_entity_weight is None and self.total_extended_weight is not None:
            raise ValueError("estimator f_E has a total_entity_weight, and no total_extended_weight")
        return self

    @model_validator(mode="after")
    def _cap_is_a_cap(self) -> Self:
        if self.users is not None and (self.max_users_per_entity or 0) > self.users:
            raise ValueError("max_users_per_entity: at most users, the public number of users")
        return self


def federated_problem(trainer: str, own: FederatedSettings, noise_multiplier: float | None) -> str | None:
    """What ``train.federated`` lacks for ``trainer``, with the mend; None where nothing."""
    if trainer not in FEDERATED_TRAINERS:
        return None
    if own.users is None:
        return f"train.federated.users: {trainer} needs |U|, a public bound on the number of users"
    if own.noise_scale is not None and noise_multiplier is not None:
        return "train.noise_multiplier and train.federated.noise_scale: keep one of them"
    if trainer == "user-level" and own.max_users_per_entity is not None:
        return "train.federated.max_users_per_entity: user-level protects no entities; remove it"
    return None


# Who is hidden and which two worlds are compared: every figure of UeDP names both.


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


# What a training under UeDP is told: its units, and how much one of them may contribute.


UNITS_PROTECTED = ("uedp-bounded", "uedp-alg1", "user-level")
"""The trainers that hide users or entities: nothing public of theirs may come from the corpus."""
UEDP_TRAINERS = (*UNITS_PROTECTED, "de-identification", "noiseless")
"""These and their baselines without noise: all learn from the originals of the vault."""
Task = Literal["next-word", "classify"]


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
    hubs: tuple[Literal["countries", "months", "weekdays"], ...] = Field(
        (), description="Ready-made public lists of values that are protected by nothing."
    )
    hubs_file: Path | None = Field(
        None, description="More such values, one a line, listed without looking at the corpus."
    )
    copies: Literal["keep", "merge"] = Field(
        "keep",
        description="Points that repeat another one's text: keep each as its own user's, or merge them into "
        "one point that counts against the cap of every holder (dedup.mode exact).",
    )
    missed_mentions: NonNegativeInt = Field(
        0,
        description="Points in which an entity may stand unlisted, and which epsilon is to cover as well.",
    )

    @property
    def lists(self) -> tuple[str, ...]:
        """The keys whose content lies in files."""
        return tuple(key for key in ("entities", "aliases", "hubs_file") if getattr(self, key) is not None)


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


# What a training's settings lack or contradict, before anything is read.


_CLASSIFY = (*UEDP_TRAINERS, "dpsgd")


class Wanted(Protocol):
    """The keys of a training that must fit each other."""

    @property
    def trainer(self) -> str: ...
    @property
    def task(self) -> str: ...
    @property
    def classes(self) -> tuple[str, ...]: ...
    @property
    def model(self) -> ModelSettings: ...
    @property
    def public_text(self) -> Any: ...
    @property
    def pretraining_epochs(self) -> int: ...
    @property
    def units(self) -> UnitSettings: ...
    @property
    def bounding(self) -> BoundingSettings: ...
    @property
    def federated(self) -> FederatedSettings: ...
    @property
    def noise_multiplier(self) -> float | None: ...
    @property
    def truncated_batch_size(self) -> int | None: ...
    @property
    def budget(self) -> Any: ...
    @property
    def device(self) -> str: ...


def problem_of(settings: Wanted) -> str | None:
    """The first mistake in what ``settings`` say of task, units and public text, with its mend; else None."""
    found = (check(settings) for check in (_task, _public_text, _budget, _bounding, _federated))
    return next((problem for problem in found if problem is not None), None)


def _task(settings: Wanted) -> str | None:
    classify, classes = settings.task == "classify", settings.classes
    if classify and len(classes) < 2:
        return "train.classes: task classify needs the names of at least two classes"
    if len(set(classes)) != len(classes) or "" in classes:
        return "train.classes: a name is empty or stands there twice"
    if classes and not classify:
        return "train.classes: they belong to task classify"
    if classify and settings.model.kind in ("gpt2", "llama"):
        kind = settings.model.kind
        return f"train.model.kind: {kind} predicts words; task classify needs lstm, awd-lstm, bilstm or bert"
    if not classify and settings.model.kind in ("bert", "bilstm"):
        return (
            f"train.model.kind: {settings.model.kind} predicts classes; give task classify, or another kind"
        )
    if classify and settings.trainer not in _CLASSIFY:
        return f"train.task: classify is trained by {', '.join(_CLASSIFY)}"
    return None


def _public_text(settings: Wanted) -> str | None:
    if settings.pretraining_epochs and settings.public_text is None:
        return "train.public_text: pretraining_epochs pass over it, and it is not given"
    if settings.trainer not in UEDP_TRAINERS:
        return "train.public_text serves " + ", ".join(UEDP_TRAINERS) if settings.public_text else None
    from_folder = isinstance(settings.model, TransformerSettings) and settings.model.folder is not None
    if settings.trainer in UNITS_PROTECTED and settings.public_text is None and not from_folder:
        return (
            f"train.public_text: {settings.trainer} hides users and entities, so not even the vocabulary may "
            "come from the corpus: give a file of text that is no part of it, or model.folder"
        )
    if settings.trainer in UNITS_PROTECTED and settings.truncated_batch_size is not None:
        return "train.truncated_batch_size: no epsilon is proved for users and entities under truncation"
    return None


def _budget(settings: Wanted) -> str | None:
    if settings.budget is None or settings.trainer not in UNITS_PROTECTED or not settings.units.lists:
        return None
    return (
        f"train.budget: what stands on units.{settings.units.lists[0]} is nowhere on record, so trainings "
        "cannot be told to hide the same units: leave out the budget or the list"
    )


def _bounding(settings: Wanted) -> str | None:
    if settings.trainer != "uedp-bounded":
        return None
    missing = settings.bounding.missing_cap(settings.units.protect)
    if missing is not None:
        return (
            f"train.bounding.{missing}: units.protect is {settings.units.protect.value}, so a cap is needed; "
            "redactory plan suggests one"
        )
    if settings.bounding.rule == "none" and settings.noise_multiplier is None:
        return "train.noise_multiplier: rule none has no epsilon to calibrate to; give the noise"
    if settings.bounding.rule == "none" and settings.budget is not None:
        return "train.budget: rule none has no epsilon to book; give a rule with caps"
    if settings.bounding.rule == "r-loc" and settings.units.copies == "merge":
        return "train.units.copies: r-loc is proved for points of one user each: keep the copies"
    vanish = settings.bounding.rule == "none" and settings.bounding.constants == "public"
    if vanish and settings.units.copies == "merge":
        return (
            "train.units.copies: where points vanish, other users' copies of them would come: keep the "
            "copies, or give bounding.constants graph"
        )
    return None


def _federated(settings: Wanted) -> str | None:
    trainer, own = settings.trainer, settings.federated
    problem = federated_problem(trainer, own, settings.noise_multiplier)
    if problem is not None or trainer not in FEDERATED_TRAINERS:
        return problem
    if settings.units.copies == "merge":
        return f"train.units.copies: {trainer} is proved for points of one user each: keep the copies"
    several = (own.workers or 1) > 1
    if several and own.dask is not None:
        return "train.federated.workers: Dask's own workers compute: leave it out, or dask"
    if (several or own.dask is not None) and settings.device != "cpu":
        return "train.federated: several processes compute on device cpu alone"
    if trainer == "uedp-alg1" and settings.budget is not None:
        return "train.budget: trainings with uedp-alg1 cannot be composed with others: leave it out"
    return None
