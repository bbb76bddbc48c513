"""The figures of ``uedp-bounded``: C1, C2 where it is stable, the curve C0, each null with its reason.

``docs/explanation/uedp.md``, "What is promised instead".
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from redactory.training.guarantee_figures import Figures
from redactory.training.ledgerfacts import LedgerFacts
from redactory.training.uedp import card_words as words
from redactory.training.uedp.bounded import bounded_training, conditions_of, points_affected
from redactory.training.uedp.bounded_accounting import BoundedTraining, Conditions, curve, local, zero_out
from redactory.training.uedp.claim import UnitClaim
from redactory.training.uedp.forecast import put_group
from redactory.training.uedp.stability import NONE, R_LOC
from redactory.training.units.relations import Adjacency, Figure, points_relation, relation


def bounded_claim(facts: LedgerFacts) -> UnitClaim:
    """The claim of a finished training; ``GuaranteeError`` where the two accountants disagree."""
    settings, mechanism = facts.settings, facts.mechanism
    assert mechanism is not None
    held = conditions_of(settings, mechanism)
    training = bounded_training(settings, mechanism.noise_multiplier, facts.steps)
    training = replace(training, sampling_rate=mechanism.sampling_rate)
    name = relation(settings.units.protect, Adjacency.FIXED_GRAPH)
    missed = settings.units.missed_mentions
    return UnitClaim(
        relation=name,
        meaning=words.FIXED_GRAPH.format(points=words.MEANINGS[settings.units.protect], relation=name),
        figures=_figures(facts, training, held),
        facts=_facts(facts, name),
        conditions=_conditions(held, settings.units.copies),
        assumptions=_assumptions(facts),
        not_covered=(words.MISSED.format(count=missed),) if missed else (),
        no_second=words.NO_SECOND,
    )


def _assumptions(facts: LedgerFacts) -> tuple[str, ...]:
    own = facts.settings.bounding
    secret = (words.SECRET_PLACES,) if own.rule == R_LOC and own.constants == "public" else ()
    return (words.CONSTANTS[own.constants], *secret)


def _figures(facts: LedgerFacts, training: BoundedTraining, held: Conditions) -> Figures:
    found, delta = Figures(), facts.settings.delta
    size = points_affected(facts.settings) or 0
    main = zero_out(training, held, delta)
    rate, noise, steps = training.sampling_rate, training.noise_multiplier, training.steps
    put_group(found, "epsilon_sound", main, rate, noise, steps, size)
    vanishing = _user_removal(facts, training, held)
    found.put("epsilon_user_removal", vanishing.epsilon, None, vanishing.reason or "")
    found.put("epsilon_as_published", None, None, words.NOT_PUBLISHED)
    figures = curve(training, held, delta)
    found.values["curve"] = {str(count): one.epsilon for count, one in figures.items()}
    found.alone += ["curve", *(["epsilon_user_removal"] if vanishing.epsilon is not None else [])]
    lacking = next((one.reason for one in figures.values() if one.reason is not None), None)
    if lacking is not None:
        found.reasons["curve"] = lacking
    return found


def _user_removal(facts: LedgerFacts, training: BoundedTraining, held: Conditions) -> Figure:
    own, delta = facts.settings.bounding, facts.settings.delta
    if own.rule != R_LOC or own.entities_per_point is None:
        name = relation(facts.settings.units.protect, Adjacency.USER_REMOVAL)
        return Figure(None, delta, name, words.ONLY_R_LOC)
    return local(training, held, delta, own.entities_per_point)


def _facts(facts: LedgerFacts, name: str) -> dict[str, Any]:
    own = facts.settings.bounding
    vanish = own.rule == NONE and own.constants == "public"
    over = points_relation(1, Adjacency.REMOVAL if vanish else Adjacency.FIXED_GRAPH)
    return {
        "adjacency": name,
        "adjacency_user_removal": relation(facts.settings.units.protect, Adjacency.USER_REMOVAL),
        "adjacency_curve": over.replace("at most 1 points", "at most K points"),
        "K": points_affected(facts.settings),
        "rule": own.rule,
        "k_user": own.k_user,
        "k_entity": own.k_entity,
        "entities_per_point": own.entities_per_point,
    }


def _conditions(held: Conditions, copies: str) -> list[dict[str, Any]]:
    why = {"copies_accounted": words.COPIES[copies], **words.CONDITIONS}
    return [
        {"item": item, "condition": name, "holds": getattr(held, name), "why": why[name]}
        for name, item in words.ITEMS.items()
    ]
