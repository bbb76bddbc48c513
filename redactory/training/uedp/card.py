"""The figures of ``uedp-bounded``: C1, C2 where it is stable, the curve C0, each null with its reason.

``docs/explanation/uedp.md``, "What is promised instead".
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from redactory.training import guarantee_figures as guarantee_text
from redactory.training.guarantee_figures import Figures, outward, require_reasons
from redactory.training.ledgerfacts import LedgerFacts, noise_of
from redactory.training.settings import TrainSettings
from redactory.training.uedp import claim as words
from redactory.training.uedp.algorithm1 import (
    algorithm1_of,
    as_published,
    confirmed_figure,
    figures_of,
    spread_curve,
)
from redactory.training.uedp.bounded import bounded_training, conditions_of, points_affected
from redactory.training.uedp.bounded_accounting import BoundedTraining, Conditions, curve, local, zero_out
from redactory.training.uedp.bounding import NONE, R_LOC
from redactory.training.uedp.claim import UnitClaim, refused
from redactory.training.uedp.federated import protected
from redactory.training.uedp.forecast import put_group
from redactory.training.units.federated_mechanism import PoissonUsersGaussian
from redactory.training.units.settings import (
    UEDP_TRAINERS,
    Adjacency,
    Figure,
    Protect,
    points_relation,
    relation,
)

if TYPE_CHECKING:
    from redactory.training.settings import TrainSettings


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


# What the guarantee card says of ``uedp-alg1`` and ``user-level``: figures, reasons, conditions, gaps.


NO_SECOND = (
    "the second accountant knows samples of points and of users; for users who change because an entity goes "
    "it has no figure, and the least of the proved bounds stands alone"
)
CONDITIONS = (
    "every user is sampled by a coin of her own, with probability q_u, in each step; samples are never cut, "
    "filled up or left out",
    "the whole update of a user, all tensors and all local steps together, has norm at most the clip",
    "weights, rates and the normaliser are public constants: none is counted in the corpus",
    "nothing that a user or an entity has part in is trained without noise",
)
OF_ENTITIES = (
    "every entity, and every point in which none was found, is sampled in each step by a coin of its own, "
    "the same for all users"
)
OF_CAP = (
    "an entity touches at most M = {cap} users: points beyond that are left out, by the hypergraph and keyed "
    "ids alone. What other users hold then depends on the graph, so the relation keeps the graph fixed"
)
OF_ALL_USERS = (
    "an entity may touch every user: M = |U| = {users}, declared public; a larger corpus is refused"
)
GAPS_OF_ENTITIES = (
    "sentences in which an entity was missed: an entity that nobody listed in them is protected there as a "
    "sentence only; the curve over M says what an entity in the updates of more users costs",
    "hub values on the allow-list",
)
GAP_OF_USERS = "entities: who is mentioned by several users is hidden by no user's removal"
GAP_OF_GRAPH = "the hypergraph: which points were left out under the cap, and how many"
GROUP_CURVE = "epsilon of that many users at once"
SPREAD_CURVE = "epsilon for an entity whose points belong to at most that many users"


def federated_card(
    settings: TrainSettings, mechanism: PoissonUsersGaussian, steps: int
) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """(entries of the card, second opinions, reasons for every null), as JSON.

    ``GuaranteeError`` where the second accountant disagrees.
    """
    protect, delta = protected(settings), settings.delta
    figure, second = confirmed_figure(mechanism, steps, delta, protect)
    bounds = figures_of(mechanism, steps, delta, protect)
    published = as_published(mechanism, steps, delta, settings.federated)
    curve = spread_curve(mechanism, steps, delta, protect)
    reasons = {}
    if figure.epsilon is None:
        reasons = dict.fromkeys(("epsilon", "epsilon_sound"), figure.reason or "")
    if published.reason is not None:
        reasons["epsilon_as_published"] = published.reason
    if second is None:
        reasons["second"] = NO_SECOND if figure.epsilon is not None else "there is no figure to confirm"
    if None in curve.values():
        reasons["curve"] = "where there is no figure, none was found for so little noise"
    card = {
        "unit": unit(protect),
        "relation": figure.relation,
        "protect": protect.value,
        **_constants(mechanism, steps, delta, protect),
        "epsilon": figure.epsilon,
        "epsilon_sound": figure.epsilon,
        "bounds": {"revealed": bounds.revealed, "chain": bounds.chain, "all_rule": bounds.all_rule},
        "curve": {str(size): value for size, value in curve.items()},
        "curve_meaning": GROUP_CURVE if protect is Protect.USERS else SPREAD_CURVE,
        "epsilon_as_published": published.value,
        "conditions": list(_conditions_federated_card(mechanism, protect)),
        "not_covered": list(_gaps(mechanism, protect)),
    }
    return card, {} if second is None else {"epsilon": outward(second)}, reasons


def unit(protect: Protect) -> str:
    """What is hidden, in words."""
    entity = "one entity, in all points that list it"
    return {
        Protect.USERS: "one user with all of her points",
        Protect.ENTITIES: entity,
        Protect.BOTH: f"one user with all of her points and {entity}",
        Protect.EITHER: f"one user with all of her points, or {entity}",
    }[protect]


def _constants(mechanism: PoissonUsersGaussian, steps: int, delta: float, protect: Protect) -> dict[str, Any]:
    own, spread = mechanism.entities, algorithm1_of(mechanism, steps).spread
    told: dict[str, Any] = {
        "sampler_run": mechanism.sampler,
        "sampler_accounted": mechanism.sampler,
        "users": mechanism.users,
        "sampling_rate": mechanism.sampling_rate,
        "clip_norm": mechanism.clip_norm,
        "noise_multiplier": mechanism.noise_multiplier,
        "noise": mechanism.noise,
        "normaliser": mechanism.normaliser,
        "steps": steps,
        "delta": delta,
        "K": None,
        "M": None,
        "M_source": None,
    }
    if own is not None:
        told |= {
            "entity_rate": own.entity_rate,
            "extended_rate": own.extended_rate if own.estimator == "f_E+" else None,
            "estimator": own.estimator,
            "rule": own.rule,
        }
    if spread is not None and protect is not Protect.USERS:
        told |= {"M": spread.users, "M_source": spread.source.value}
    return told


def _conditions_federated_card(mechanism: PoissonUsersGaussian, protect: Protect) -> tuple[str, ...]:
    own = mechanism.entities
    if own is None:
        return CONDITIONS
    if own.max_users_per_entity is not None:
        return (*CONDITIONS, OF_ENTITIES, OF_CAP.format(cap=own.max_users_per_entity))
    if protect is Protect.USERS:
        return (*CONDITIONS, OF_ENTITIES)
    return (*CONDITIONS, OF_ENTITIES, OF_ALL_USERS.format(users=mechanism.users))


def _gaps(mechanism: PoissonUsersGaussian, protect: Protect) -> tuple[str, ...]:
    own = mechanism.entities
    capped = own is not None and own.max_users_per_entity is not None
    gaps = (GAP_OF_USERS,) if protect is Protect.USERS else GAPS_OF_ENTITIES
    return (*gaps, GAP_OF_GRAPH) if capped else gaps


# What the card states of ``uedp-alg1`` and ``user-level``, in the form that every such card has.


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
        conditions=_conditions_federated_claim(told["conditions"]),
        not_covered=tuple(told["not_covered"]),
        no_second=reasons.get("second"),
    )


def _meaning(relation: str, protect: Protect) -> str:
    fixed = relation.endswith(Adjacency.FIXED_GRAPH.value)
    said = words.FIXED_GRAPH if fixed else words.REMOVAL
    return said.format(points=words.MEANINGS[protect], relation=relation)


def _conditions_federated_claim(told: list[str]) -> list[dict[str, Any]]:
    return [
        {"item": str(number), "condition": f"federated {number}", "holds": True, "why": why}
        for number, why in enumerate(told, 1)
    ]


# The guarantee card of trainers under a user or entity relation, and of their baselines without noise.


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
