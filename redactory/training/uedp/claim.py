"""What a card under a user or entity relation states, whichever trainer it is for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redactory.training.guarantee_figures import Figures


@dataclass(frozen=True)
class UnitClaim:
    """What a card states of a training that hides users or entities.

    ``figures`` have ``epsilon_sound``, ``epsilon_user_removal``, ``epsilon_as_published`` and ``curve``;
    ``facts`` what they were computed from (``adjacency``, ``K`` or ``M``, rule, caps); ``conditions``
    {item, condition, holds, why} in the order of the explanation; ``meaning`` the relation in words;
    ``no_second`` why no second accountant was asked, where none was.
    """

    relation: str
    meaning: str
    figures: Figures
    facts: dict[str, Any] = field(default_factory=dict)
    conditions: list[dict[str, Any]] = field(default_factory=list)
    assumptions: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    no_second: str | None = None


def refused(claim: UnitClaim, reason: str) -> UnitClaim:
    """``claim`` without a sound figure, for one reason."""
    kept = ("epsilon_as_published",)
    values = {name: value if name in kept else None for name, value in claim.figures.values.items()}
    reasons = {name: reason for name in values if name not in kept}
    told = {name: why for name, why in claim.figures.reasons.items() if name in kept}
    return UnitClaim(
        claim.relation,
        claim.meaning,
        Figures(values, {**reasons, **told}),
        claim.facts,
        claim.conditions,
        claim.assumptions,
        claim.not_covered,
        reason,
    )
