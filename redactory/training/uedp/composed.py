"""What may be promised of several models together under one user or entity relation.

One unit has at most K_i points in training i; T_i steps of each are dominated by the mixture of Gaussians
of K_i points, and dominating pairs compose adaptively (``docs/explanation/uedp.md``, "What is promised
instead").  What has no such pair is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from redactory.foundation.errors import GuaranteeError
from redactory.redaction.folder import RunFolder
from redactory.training import guarantee_figures as guarantee_text
from redactory.training.accounting import Spending, event_tree
from redactory.training.budget import spending_of
from redactory.training.guarantee_figures import Figures, one_removed
from redactory.training.ledgerfacts import LedgerFacts
from redactory.training.uedp import claim as words
from redactory.training.uedp.bounded import points_affected
from redactory.training.uedp.card import units_card

FORMAT = "redactory-composed-unit-guarantee/1"
Member = tuple[RunFolder, str, LedgerFacts]


@dataclass(frozen=True)
class _Model:
    run: RunFolder
    name: str
    facts: LedgerFacts
    card: dict[str, Any]

    @property
    def title(self) -> str:
        return f"{self.run.root}: {self.name}"

    @property
    def spending(self) -> Spending | None:
        return spending_of(self.facts.noised, self.facts.steps, points_affected(self.facts.settings) or 1)


def composed_units(members: Sequence[Member], delta: float) -> dict[str, Any]:
    """The card of ``members`` together at ``delta``, as JSON.

    ``GuaranteeError`` where units, relations or trainers differ: such figures cannot be added.  A model
    without a finite epsilon leaves none to all.
    """
    models = [_Model(run, name, facts, units_card(name, facts)) for run, name, facts in members]
    _require_one(models)
    found, refusals = Figures(), _refusals(models)
    spent = tuple(one for model in models if (one := model.spending) is not None)
    if refusals:
        found.put("epsilon_sound", None, None, "; ".join(refusals))
    else:
        found.state("epsilon_sound", one_removed(spent, delta, "epsilon_sound"))
    seeded = [model.title for model in models if model.facts.seeded]
    broken = f"{guarantee_text.SEEDED}: {', '.join(seeded)}" if seeded else None
    reason = "; ".join(refusals) or broken
    reasons = dict(found.reasons)
    if "epsilon_sound" in reasons:
        reasons["epsilon"] = reasons["epsilon_sound"]
    first = models[0].card
    return {
        "format": FORMAT,
        "models": [_told(model) for model in models],
        "holds": reason is None,
        "holds_reason": reason,
        "unit": first["unit"],
        "relation": first["relation"],
        "relation_meaning": first["relation_meaning"],
        "protect": first["protect"],
        "delta": delta,
        "event": event_tree(spent),
        "epsilon": found.values["epsilon_sound"],
        **found.values,
        "curve": {},
        "reasons": reasons,
        "accountants": {
            "main": guarantee_text.MAIN_ACCOUNTANT,
            "second": words.SECOND,
            "bounds": found.second,
            "alone": found.alone,
        },
        "assumptions": list(words.ASSUMPTIONS),
        "not_covered": list(words.NOT_COVERED),
        "notes": words.NOTES,
    }


def _require_one(models: Sequence[_Model]) -> None:
    """One unit, one relation, one trainer; none that has no pair to compose."""
    noisy = [model for model in models if model.facts.noised is not None]
    if any(model.facts.settings.trainer == "uedp-alg1" for model in noisy):
        raise GuaranteeError("trainings with uedp-alg1 have no dominating pair: they cannot be composed")
    unknown = [m.title for m in noisy if m.facts.settings.units.lists]
    if len(noisy) > 1 and unknown:
        raise GuaranteeError(
            "what stands on lists in files is nowhere on record, so units cannot be compared: "
            + ", ".join(unknown)
        )
    kinds = {(m.card["unit"], m.card["relation"], m.facts.settings.trainer) for m in noisy}
    if len(kinds) > 1:
        told = ", ".join(f"{m.title} ({m.facts.settings.trainer})" for m in noisy)
        raise GuaranteeError(f"the units of these models differ and cannot be composed: {told}")


def _refusals(models: Sequence[_Model]) -> list[str]:
    """Of each model without a finite epsilon, why."""
    return [
        f"{model.title}: {model.card['reasons']['epsilon_sound']}"
        for model in models
        if model.card["epsilon_sound"] is None
    ]


def _told(model: _Model) -> dict[str, Any]:
    return {
        "run": str(model.run.root),
        "model": model.name,
        "trainer": model.facts.settings.trainer,
        "steps": model.facts.steps,
        "K": model.card.get("K"),
        "ledger": model.facts.chain_head,
        "parent": model.facts.parent,
    }
