"""What the card states of ``uedp-alg1`` and ``user-level``, in the form that every such card has."""

from __future__ import annotations

from typing import Any

from redactory.training.guarantee_figures import Figures
from redactory.training.ledgerfacts import LedgerFacts
from redactory.training.uedp import card_words as words
from redactory.training.uedp.claim import UnitClaim
from redactory.training.uedp.federated_card import federated_card
from redactory.training.units.relations import Adjacency, Protect

_FIGURES = ("epsilon_sound", "epsilon_as_published", "curve")
_OF_THE_CARD = {"epsilon", "unit", "relation", "conditions", "not_covered", "steps", "delta", *_FIGURES}


def federated_claim(facts: LedgerFacts) -> UnitClaim:
    """The claim of a finished training; ``GuaranteeError`` where the two accountants disagree."""
    assert facts.users is not None
    told, second, reasons = federated_card(facts.settings, facts.users, facts.steps)
    figures = Figures({name: told[name] for name in _FIGURES}, {}, {})
    figures.reasons = {name: reasons[name] for name in _FIGURES if name in reasons}
    figures.put("epsilon_user_removal", None, None, words.ONLY_BOUNDED)
    figures.second = {"epsilon_sound": second["epsilon"]} if second else {}
    figures.alone = ["curve"] if second or told["epsilon_sound"] is None else ["epsilon_sound", "curve"]
    protect = Protect(told["protect"])
    return UnitClaim(
        relation=told["relation"],
        meaning=_meaning(told["relation"], protect),
        figures=figures,
        facts={"adjacency": told["relation"], **{k: v for k, v in told.items() if k not in _OF_THE_CARD}},
        conditions=_conditions(told["conditions"]),
        not_covered=tuple(told["not_covered"]),
        no_second=reasons.get("second"),
    )


def _meaning(relation: str, protect: Protect) -> str:
    fixed = relation.endswith(Adjacency.FIXED_GRAPH.value)
    said = words.FIXED_GRAPH if fixed else words.REMOVAL
    return said.format(points=words.MEANINGS[protect], relation=relation)


def _conditions(told: list[str]) -> list[dict[str, Any]]:
    return [
        {"item": str(number), "condition": f"federated {number}", "holds": True, "why": why}
        for number, why in enumerate(told, 1)
    ]
