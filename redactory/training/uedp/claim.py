"""What a card under a user or entity relation states, whichever trainer it is for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from redactory.training.guarantee_figures import Figures
from redactory.training.units.settings import Protect


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


# The words of a card under a user or entity relation that do not depend on figures.


UNITS = {
    Protect.USERS: "one user",
    Protect.ENTITIES: "one entity",
    Protect.BOTH: "one user and one entity at once",
    Protect.EITHER: "one user or one entity",
}
"""What is protected, by ``train.units.protect``."""

MEANINGS = {
    Protect.USERS: "all points of one user",
    Protect.ENTITIES: "all points that list one entity",
    Protect.BOTH: "all points of one user, and all points that list one entity,",
    Protect.EITHER: "all points of one user, or all points that list one entity,",
}
FIXED_GRAPH = (
    "Two corpora are neighbours when {points} are null in one of them: they contribute a gradient of exactly "
    "0, and keep their place. Who holds which point, and which entities are listed in it, is the same in "
    "both ({relation})."
)
REMOVAL = (
    "Two corpora are neighbours when {points} are there in one of them, and not in the other ({relation})."
)
NOT_PUBLISHED = "the papers have no figure for bounded contributions"
ONLY_R_LOC = "stated for rule r-loc alone: no other rule is stable when a user's points vanish"
ONLY_BOUNDED = "stated for uedp-bounded with rule r-loc alone"
NO_SECOND = "not asked for: the noise is under a 24th of what K points can move, and epsilon protects nobody"
SECOND = (
    "a discretised distribution of our own, rounded both ways: the main figure lies between its bounds, or "
    "none is stated"
)

COPIES = {
    "keep": "no point was dropped as a copy: each is a point of its own user",
    "merge": "copies were merged, and the kept point lists every user who holds one and counts against the "
    "cap of each",
}
CONDITIONS = {
    "ordered_by_ids": "order and ties of the selection follow from keyed point ids and the hypergraph",
    "null_is_zero": "a point enters the sum by its clipped gradient and by nothing else; a null point's is 0",
    "mentions_listed": "stated for the points in which the hypergraph lists the unit, and for nothing else",
    "only_noisy_steps": "every step on the corpus is noised; what is learnt before is public text",
    "poisson": "each point throws a coin of its own in each step",
}
ITEMS = {
    "copies_accounted": "a",
    "ordered_by_ids": "b",
    "null_is_zero": "c",
    "mentions_listed": "d",
    "only_noisy_steps": "e",
    "poisson": "sampler",
}
"""Conditions by the letters of docs/explanation/uedp.md, "What is promised instead"."""

ASSUMPTIONS = (
    "The public text, and the weights and the tokenizer of a pretrained folder, hold nothing that was "
    "computed from the corpus, and no unit of it.",
    "The labels that count, the lists of entities and aliases, and the public list of hubs were made without "
    "looking at this corpus.",
    "Which entities a point lists is a function of its own text, of policies fixed before this corpus was "
    "seen, and of those lists.",
    "Whoever reads the model learns nothing else that was computed from the corpus: no plan, count, report, "
    "log or second model of the same data (each further model costs its own epsilon).",
    "The root key came from the operating system's entropy, unless this card says that it was seeded, and "
    "was deleted when training ended.",
)
CONSTANTS = {
    "graph": "Sampling rate, steps, normaliser, noise and caps may follow counts of the hypergraph: it is "
    "the same in both worlds.",
    "public": "Sampling rate, steps, normaliser, noise and caps were chosen without looking at the corpus, "
    "nor at a plan that counted it.",
}
NOT_COVERED = (
    "The hypergraph itself: who stands in how many points, and which entity in which of them, may decide "
    "which other points are trained on. Counts, plans and degrees are private.",
    "Mentions that nothing listed: such a point is protected as a point of its user; the curve over K says "
    "what several of them cost.",
    "Hubs on the allow-list: values that are declared public.",
    "The paper's own notion of a removed user and entity: no figure here is stated under it.",
    "What can be inferred about a person from other people's text or from public text.",
    "The released shards, reports and evaluations on private text: the figures are about the model only.",
    "Timing, the machine itself, and whoever holds the run folder.",
)
SECRET_PLACES = (
    "For the user's removal: a point's place in its units' lists is drawn by its number in the corpus under "
    "the digest key of the run, which is secret and drawn at random."
)
MISSED = "{count} points in which an entity stands unlisted are covered: K counts them."
NOTES = {
    "epsilon": "the same as epsilon_sound",
    "epsilon_sound": "a theorem about the code that ran, under the relation that is named",
    "epsilon_user_removal": "the user's points vanish, an entity's become null",
    "epsilon_as_published": "as published, not a guarantee",
    "curve": "by K: any units with at most K of the points that were trained on",
}
