"""Settings of trainings that protect users or entities, and the relations that their epsilons refer to."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from redactory.foundation.settings import Settings

Rate = Annotated[float, Field(gt=0, le=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class FederatedSettings(Settings):
    """Algorithm 1 of UeDP (``uedp-alg1``) and DP-FedAvg (``user-level``; McMahan et al. 2018).

    The clip β of a user's update is ``train.clip_norm``; ζ = ``train.noise_multiplier`` is the noise on the sum of
    updates in units of β. The paper's counts (w_u, w_e, w_s, W_u, W_e, W_s) differ between neighbouring corpora, so
    here an example weighs 1 and the sum is divided by q_u·|U| (``docs/explanation/uedp.md``, "What the published
    accounting gets wrong").
    """

    users: PositiveInt | None = Field(
        None,
        description="|U|, a public upper bound on the number of users; required. With uedp-alg1 a corpus "
        "with more is refused: it bounds the users of an entity if no cap does.",
    )
    user_rate: Rate = Field(0.05, description="q_u: probability of each user in each noisy step.")
    entity_rate: Rate = Field(0.5, description="uedp-alg1, q_e: probability of each entity in each step.")
    related_entity_rate: Share = Field(
        1.0,
        description="uedp-alg1, q_s: probability in each step of each example without an entity (the "
        "extended set S, estimator f_E+); at 0 only examples with an entity are used (f_E).",
    )
    max_users_per_entity: PositiveInt | None = Field(
        None,
        description="uedp-alg1: cap M on the users that one entity touches, enforced on the fixed graph by "
        "omitting examples; default: |U|.",
    )
    local_batch_size: PositiveInt = Field(8, description="B: number of examples in a user's batch.")
    local_learning_rate: PositiveFloat = Field(
        0.02, description="η: learning rate of a user's local SGD, on the sum of a batch's losses."
    )

    @model_validator(mode="after")
    def _require_cap_within_users(self) -> Self:
        if self.users is not None and (self.max_users_per_entity or 0) > self.users:
            raise ValueError("max_users_per_entity: at most users, the public number of users")
        return self


class PrivacyUnit(Enum):
    """What one neighbouring world lacks (the patent's configuration; ``either`` is a user *or* an entity)."""

    USERS = "users"
    ENTITIES = "entities"
    BOTH = "both"
    EITHER = "either"


class Adjacency(Enum):
    """How a privacy unit is removed."""

    FIXED_GRAPH = "zero-out on a fixed graph"
    """Null examples (gradient 0) replace its examples in the same places of the hypergraph."""
    USER_REMOVAL = "user removal, entity zero-out"
    """A user's examples are removed, an entity's become null: R-LOC is stable under this."""
    REMOVAL = "removal"
    """Its examples are removed."""


def make_relation_name(unit: PrivacyUnit, adjacency: Adjacency) -> str:
    """Name the relation of an epsilon, for example "user-entity zero-out on a fixed graph"."""
    if adjacency is Adjacency.USER_REMOVAL:
        return {
            PrivacyUnit.USERS: "user removal",
            PrivacyUnit.ENTITIES: "entity zero-out",
            PrivacyUnit.BOTH: "user removal and entity zero-out",
            PrivacyUnit.EITHER: "user removal or entity zero-out",
        }[unit]
    names = {"users": "user", "entities": "entity", "both": "user-entity", "either": "user-or-entity"}
    return f"{names[unit.value]} {adjacency.value}"


Task = Literal["next-word", "classify"]
HighDegreeList = Literal["countries", "months", "weekdays"]
HIGH_DEGREE_LISTS = get_args(HighDegreeList)


class UnitSettings(Settings):
    """The privacy unit and how it is determined (the patent's configuration)."""

    privacy_unit: PrivacyUnit = Field(
        PrivacyUnit.BOTH,
        description="What the other world lacks: users, entities, both (one of each at once), or either (one "
        "of the two).",
    )
    labels: tuple[str, ...] | None = Field(None, description="Labels whose spans are entities; default: every label.")
    entities: Path | None = Field(
        None,
        description="A text file with one entity per line (the client's list): searched in every text, "
        "whether or not a detector found it.",
    )
    aliases: Path | None = Field(
        None, description="A text file with an alias, a tab, and the value it stands for on each line."
    )
    high_degree_entities: tuple[HighDegreeList | Path, ...] = Field(
        (),
        description="Public lists of values that are not protected: the built-in countries, months and "
        "weekdays, or text files with one value per line, compiled without looking at the corpus.",
    )
    duplicates: Literal["keep", "merge"] = Field(
        "keep",
        description="Examples that repeat another one's text: keep each as its user's, or merge them into "
        "one example that counts against the cap of every holder (dedup.mode exact).",
    )

    @property
    def file_keys(self) -> tuple[str, ...]:
        """The keys whose values are file contents."""
        keys = [key for key in ("entities", "aliases") if getattr(self, key) is not None]
        return (*keys, "high_degree_entities") if self.high_degree_files else tuple(keys)

    @property
    def high_degree_files(self) -> tuple[Path, ...]:
        """The lists of high-degree entities that are files."""
        return tuple(entry for entry in self.high_degree_entities if isinstance(entry, Path))


def _require_supported_example(value: Any) -> Any:
    if value not in ("conversation", "turn"):
        raise ValueError(
            "conversation or turn; a turn with those before it as its context has no proof, for one secret "
            "would be in the row of every later turn"
        )
    return value


class ChatSettings(Settings):
    """Training on conversations with roles and a chat template (``docs/how-to/train.md``)."""

    example: Annotated[Literal["conversation", "turn"], BeforeValidator(_require_supported_example)] = Field(
        "conversation",
        description="What one example is, and so what a secret is part of: a whole conversation, which is "
        "private if one of its turns is; or each example of the run by itself, without what was said before "
        "it.",
    )
    loss_on: Literal["assistant", "all"] = Field(
        "assistant", description="Whose turns are learned: the assistant's, or all."
    )
    template: Literal["auto", "plain"] = Field(
        "auto",
        description="How roles are written: with the template of the model folder's tokenizer, if it has "
        "one, otherwise plain ('user: ...' and the end token).",
    )


class BoundingSettings(Settings):
    """Contribution bounding of ``uedp-bounded``: a stable rule and its caps."""

    rule: Literal["greedy", "r-loc", "none"] = Field(
        "greedy",
        description="How examples are selected under the caps; r-loc also bounds a user's removal, if the caps, "
        "the sampling rate and the epochs were chosen without looking at the corpus; none keeps every example, "
        "with only the curve over K.",
    )
    k_user: PositiveInt | None = Field(None, description="Maximum examples of one user to train on.")
    k_entity: PositiveInt | None = Field(None, description="Maximum examples of one entity to train on.")
    entities_per_point: NonNegativeInt | None = Field(
        None, description="r-loc: examples that list more entities than this are omitted."
    )

    @model_validator(mode="after")
    def _require_rule_arguments(self) -> Self:
        if self.rule == "none" and (self.k_user is not None or self.k_entity is not None):
            raise ValueError("rule none keeps every example and enforces no cap: remove k_user and k_entity")
        if self.rule == "r-loc" and (self.entities_per_point is None or self.k_user is None):
            raise ValueError("rule r-loc needs entities_per_point and k_user")
        if self.rule != "r-loc" and self.entities_per_point is not None:
            raise ValueError("entities_per_point requires rule r-loc")
        return self

    def find_missing_cap(self, unit: PrivacyUnit) -> str | None:
        """Return the first cap that protecting ``unit`` needs and that is not set, or None."""
        if self.rule == "none":
            return None
        if self.k_user is None and unit is not PrivacyUnit.ENTITIES:
            return "k_user"
        if self.k_entity is None and unit is not PrivacyUnit.USERS:
            return "k_entity"
        return None
