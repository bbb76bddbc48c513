"""What a training under UeDP is told: its units, and how much one of them may contribute.

Every list here is public in the sense of the guarantee: made without looking at the corpus
(``docs/explanation/uedp.md``, "Users, entities and points").
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from redactory.foundation.settings import Settings
from redactory.training.units.relations import Protect

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
