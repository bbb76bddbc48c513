"""The guarantee card of trainers under a user or entity relation, and of their baselines without noise."""

from __future__ import annotations

from typing import Any

from redactory.training import guarantee_text
from redactory.training.guarantee_figures import Figures, require_reasons
from redactory.training.ledgerfacts import LedgerFacts, noise_of
from redactory.training.settings import TrainSettings
from redactory.training.uedp import card_words as words
from redactory.training.uedp.bounded_card import bounded_claim
from redactory.training.uedp.claim import UnitClaim, refused
from redactory.training.uedp.federated_card import unit
from redactory.training.uedp.federated_claim import federated_claim
from redactory.training.uedp.federated_noise import protected
from redactory.training.units.relations import Protect
from redactory.training.units.settings import UEDP_TRAINERS

FORMAT = "redactory-unit-guarantee/1"
COMPOSED = "SelfComposedDpEvent"
FIGURES = ("epsilon", "epsilon_sound", "epsilon_user_removal", "epsilon_as_published", "curve")


def is_of_units(settings: TrainSettings) -> bool:
    """Whether the card of these settings is one of this module."""
    return settings.trainer in UEDP_TRAINERS


def unit_in_words(settings: TrainSettings) -> str:
    """What is protected; two cards that say other words cannot be composed."""
    if settings.trainer not in _CLAIMS:
        return "nothing"
    units = settings.units
    told = unit(protected(settings))
    if units.copies == "merge":
        told += "; copies of a text are one point, of all who hold one"
    if protected(settings) is Protect.USERS:
        return told
    labels = (
        "" if units.labels is None else f"; entities are those labelled {', '.join(sorted(units.labels))}"
    )
    hubs = [*sorted(units.hubs), *([] if units.hubs_file is None else ["a list of hubs"])]
    said = (
        ("entities on a list count", units.entities is not None),
        ("aliases on a list are one entity", units.aliases is not None),
        (f"no entity is what stands on {', '.join(hubs)}", bool(hubs)),
    )
    return "; ".join([f"{told}{labels}", *(words for words, is_so in said if is_so)])


def units_card(name: str, facts: LedgerFacts) -> dict[str, Any]:
    """The card as JSON, derived from the ledger's facts; every null has its reason."""
    claim = _claim(facts)
    values = {"epsilon": claim.figures.values["epsilon_sound"], **claim.figures.values}
    reasons = dict(claim.figures.reasons)
    if "epsilon_sound" in reasons:
        reasons["epsilon"] = reasons["epsilon_sound"]
    card = {
        **_identity(name, facts),
        "unit": unit_in_words(facts.settings),
        "relation": claim.relation,
        "relation_meaning": claim.meaning,
        **_mechanism(facts),
        **claim.facts,
        **values,
        "reasons": reasons,
        "conditions": claim.conditions,
        "accountants": _accountants(facts, claim),
        **_words(facts, claim),
    }
    require_reasons(values, reasons)
    return card


def _claim(facts: LedgerFacts) -> UnitClaim:
    refusal = facts.refusal({})
    made = _CLAIMS.get(facts.settings.trainer)
    if made is not None and facts.noised is not None:
        claim = made(facts)
        return claim if refusal is None else refused(claim, refusal)
    reason = refusal or ""
    figures = Figures(dict.fromkeys(FIGURES[1:]), dict.fromkeys(FIGURES[1:], reason))
    return UnitClaim("none", "No two corpora are compared: nothing is guaranteed.", figures)


_CLAIMS = {"uedp-bounded": bounded_claim, "uedp-alg1": federated_claim, "user-level": federated_claim}


def _identity(name: str, facts: LedgerFacts) -> dict[str, Any]:
    settings = facts.settings
    reason = facts.broken_by({})
    return {
        "format": FORMAT,
        "model": name,
        "kind": settings.model.kind,
        "task": settings.task,
        "trainer": settings.trainer,
        "protect": protected(settings).value if facts.noised is not None else None,
        "holds": reason is None,
        "holds_reason": reason,
        "seeded": facts.seeded,
        "ledger": {"head": facts.chain_head, "steps": facts.steps, "parent": facts.parent},
        "versions": facts.versions,
        "public_text": facts.public_text,
        "pretraining_epochs": settings.pretraining_epochs,
        **guarantee_text.place_of(settings.device),
    }


def _mechanism(facts: LedgerFacts) -> dict[str, Any]:
    mechanism = facts.noised
    event = mechanism and {"class": COMPOSED, "event": mechanism.event(), "count": facts.steps}
    return {
        "sampler_run": mechanism.sampler if mechanism else None,
        "sampler_accounted": mechanism.sampler if mechanism else None,
        "event": event,
        **noise_of(facts),
    }


def _accountants(facts: LedgerFacts, claim: UnitClaim) -> dict[str, Any] | None:
    if facts.noised is None:
        return None
    second = words.SECOND if claim.figures.second else claim.no_second
    return {
        "main": guarantee_text.MAIN_ACCOUNTANT,
        "second": second,
        "bounds": claim.figures.second,
        "alone": claim.figures.alone,
    }


def _words(facts: LedgerFacts, claim: UnitClaim) -> dict[str, Any]:
    if facts.noised is None:
        return {"assumptions": [], "not_covered": ["everything: nothing is guaranteed"], "notes": words.NOTES}
    noise = guarantee_text.NOISE[facts.noised.noise]
    on_card = guarantee_text.resting_on(facts.settings.device)
    return {
        "assumptions": [*words.ASSUMPTIONS, *claim.assumptions, noise, *on_card],
        "not_covered": [*claim.not_covered, *words.NOT_COVERED],
        "notes": {**words.NOTES, "curve": claim.facts.get("curve_meaning", words.NOTES["curve"])},
    }
