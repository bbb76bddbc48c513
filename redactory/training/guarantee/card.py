"""The guarantee card: figures that are theorems about the code that ran, from the ledger and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from redactory.detectors import blind_of, blind_words
from redactory.detectors.settings import side_channel
from redactory.foundation.errors import some
from redactory.redaction.folder import RunFolder
from redactory.training.accounting import event_tree
from redactory.training.guarantee.confidentiality import MissRates
from redactory.training.guarantee.figures import (
    Claim,
    Figures,
    UnitFigures,
    figures_of,
    refused,
    require_reasons,
    unit_figures,
)
from redactory.training.guarantee.ledgerfacts import LedgerFacts, ledger_facts, parent_manifest
from redactory.training.guarantee.spec import TrainingSpec
from redactory.training.guarantee.words import WORDS
from redactory.training.mechanism import PoissonGaussian, Relation
from redactory.training.settings import RecallMeasurement
from redactory.training.uedp.bounded_accounting import conditions_of
from redactory.training.uedp.bounding import R_LOC
from redactory.training.units.federated_mechanism import PoissonUsersGaussian
from redactory.training.units.settings import Adjacency, Protect

FORMAT, FORMAT_OF_UNITS = "redactory-guarantee/2", "redactory-unit-guarantee/1"
NOTHING = "everything: nothing is guaranteed"
_UNIT_FIGURES = ("epsilon_sound", "epsilon_user_removal", "epsilon_as_published", "curve")


def guarantee_card(run: RunFolder, name: str, recall: RecallMeasurement | None = None) -> dict[str, Any]:
    """The guarantee of model ``name`` of ``run`` as JSON, derived again each time by two accountants.

    ``recall`` replaces the measurement that the training's settings hold.  A figure that cannot be
    stated is ``None``, and ``reasons`` says why (``docs/guarantees.md``, "The card").  Raises
    ``GuaranteeError`` where the ledger does not match the weights, the run or itself, or where the
    accountants disagree.
    """
    facts = ledger_facts(run, run.model(name))
    if facts.trainer.of_units:
        return units_card(name, facts)
    return _points_card(name, facts, parent_manifest(run, facts), recall)


def spec_of(
    facts: LedgerFacts, manifest: Mapping[str, Any], recall: RecallMeasurement | None
) -> TrainingSpec:
    """The spec of the training that a ledger proves, of a run with this ``manifest``."""
    rates = MissRates.of_run(recall, manifest)
    return facts.spec(manifest["dedup"], rates)


def _points_card(
    name: str, facts: LedgerFacts, manifest: Mapping[str, Any], recall: RecallMeasurement | None
) -> dict[str, Any]:
    """The card of secrets and points."""
    blind = blind_words(blind_of(manifest)) if facts.trainer.by_policy else None
    measured = None if blind else recall or facts.settings.recall
    spec = spec_of(facts, manifest, measured)
    claim, refusal = Claim.of(spec), spec.refusal
    figures = refused(claim.group_sizes, refusal) if refusal else figures_of(claim)
    coverage, why = _coverage(spec, blind)
    card = {
        **_identity(FORMAT, name, facts, spec),
        "unit": spec.unit,
        "relation": spec.relation.value,
        "relation_meaning": WORDS["relation"][spec.relation.value],
        "blind": blind,
        **_mechanism(spec),
        "event": event_tree(claim.spent) if spec.mechanism else None,
        "sensitivity": _sensitivity(claim) if spec.mechanism else None,
        "coverage_failure": coverage,
        "miss_rates": {
            "gamma_upper": spec.rates.gamma,
            "delta_2_upper": spec.rates.delta_2,
            "measured": None if measured is None else measured.model_dump(mode="json", exclude_none=True),
        },
        **figures.values,
        "reasons": {**why, **figures.reasons},
        "accountants": accountants(figures) if spec.mechanism else None,
        "as_published": claim.as_published,
        **_words(spec, manifest, (blind,) if blind else _recall_words(measured, coverage)),
    }
    require_reasons({**figures.values, "coverage_failure": coverage}, card["reasons"])
    return card


def units_card(name: str, facts: LedgerFacts) -> dict[str, Any]:
    """The card of users and entities, and of the baselines that learn from the same points."""
    spec, words = facts.spec(), WORDS["units"]
    if spec.mechanism is None:
        figures = Figures(dict.fromkeys(_UNIT_FIGURES), dict.fromkeys(_UNIT_FIGURES, spec.refusal or ""))
        found, meaning = (
            UnitFigures("none", figures, {}),
            "No two corpora are compared: nothing is guaranteed.",
        )
        said: dict[str, Any] = {"conditions": [], "assumptions": [], "not_covered": [NOTHING]}
    else:
        found = unit_figures(spec)
        if spec.refusal is not None:
            found = _without_sound(found, spec.refusal)
        meaning, said = _meaning(found.relation, spec.protect), _units_words(spec)
    values = {"epsilon": found.figures.values["epsilon_sound"], **found.figures.values}
    reasons = dict(found.figures.reasons)
    if "epsilon_sound" in reasons:
        reasons["epsilon"] = reasons["epsilon_sound"]
    second = WORDS["second_accountant_of_units"] if found.figures.second else found.no_second
    card = {
        **_identity(FORMAT_OF_UNITS, name, facts, spec),
        "task": facts.settings.task,
        "protect": spec.protect.value if spec.mechanism else None,
        "public_text": facts.public_text,
        "pretraining_epochs": facts.settings.pretraining_epochs,
        "unit": spec.units_in_words,
        "relation": found.relation,
        "relation_meaning": meaning,
        **_mechanism(spec),
        "event": spec.mechanism
        and {"class": "SelfComposedDpEvent", "event": spec.mechanism.event(), "count": spec.steps},
        **found.facts,
        **values,
        "reasons": reasons,
        "accountants": accountants(found.figures, second) if spec.mechanism else None,
        **said,
        "notes": {**words["notes"], "curve": found.facts.get("curve_meaning", words["notes"]["curve"])},
    }
    require_reasons(values, reasons)
    return card


def accountants(figures: Figures, second: str | None = WORDS["second_accountant"]) -> dict[str, Any]:
    """Who computed the figures, and the bounds that each of them lies between."""
    return {
        "main": WORDS["main_accountant"],
        "second": second,
        "bounds": figures.second,
        "alone": figures.alone,
    }


def _identity(form: str, name: str, facts: LedgerFacts, spec: TrainingSpec) -> dict[str, Any]:
    place = {} if facts.settings.device == "cpu" else {"device": facts.settings.device}
    return {
        "format": form,
        "model": name,
        "kind": facts.settings.model.kind,
        "trainer": facts.settings.trainer,
        "holds": spec.broken is None,
        "holds_reason": spec.broken,
        "seeded": facts.seeded,
        "ledger": {"head": facts.chain_head, "steps": facts.steps, "parent": facts.parent},
        "versions": facts.versions,
        **place,
    }


def _mechanism(spec: TrainingSpec) -> dict[str, Any]:
    """Sampler, clip, rate, noise and steps; None where nothing was noised."""
    keys = ("clip_norm", "sampling_rate", "noise_multiplier", "noise", "normaliser")
    sampler = spec.mechanism.sampler if spec.mechanism else None
    return {
        "sampler_run": sampler,
        "sampler_accounted": sampler,
        **{key: getattr(spec.mechanism, key, None) for key in keys},
        "steps": spec.steps,
        "delta": spec.delta,
    }


def _sensitivity(claim: Claim) -> float:
    (one,) = claim.spent
    relation = Relation.ADD_OR_REMOVE if claim.dropped else Relation.SUBSTITUTION
    return one.rows * one.mechanism.sensitivity(relation)


def _coverage(spec: TrainingSpec, blind: str | None) -> tuple[float | None, dict[str, str]]:
    """``coverage_failure``, or the reason why there is none; only CRT relies on the policies."""
    reason = None
    if spec.mechanism is None:
        reason = spec.trainer.nothing
    elif not spec.trainer.by_policy:
        reason = WORDS["no_policies"]
    elif spec.rates.delta_2 is None:
        reason = blind or WORDS["recall_unknown"]
    return (None, {"coverage_failure": reason}) if reason else (spec.rates.delta_2, {})


def _words(spec: TrainingSpec, manifest: Mapping[str, Any], recall: tuple[str, ...]) -> dict[str, Any]:
    if spec.mechanism is None:
        empty: dict[str, Any] = {key: [] for key in ("assumptions", "pre_steps", "side_channels")}
        return {**empty, "not_covered": [NOTHING], "recall": None, "notes": WORDS["notes"]}
    by_policy = spec.trainer.by_policy
    rule = WORDS["deduplication"].get(manifest["dedup"]["rule"])
    instead, index = {}, _of_index(spec, manifest)
    if tuned := side_channel(manifest["policies"]):
        instead["policies tuned on private text"] = tuned
    if index:
        instead["an index or warm start from earlier runs"] = WORDS["indexed"].format(**index)
    of_crt = ([rule] if rule else []), list(recall)
    own = [*of_crt[0], *spec.trainer.assumptions, *of_crt[1]] if by_policy else spec.trainer.assumptions
    steps = [*WORDS["pre_steps"], *WORDS["pre_steps_by_policy"][slice(None) if by_policy else slice(1, 2)]]
    return {
        "assumptions": [*WORDS["assumptions"], *own, *_resting_on(spec), *instead.values()],
        "pre_steps": [{"step": step, "depends_on": data, "covered": why} for step, data, why in steps],
        "side_channels": [
            {"item": number, "channel": channel, "ensured_by": instead.get(channel, ensured)}
            for number, (channel, ensured) in enumerate(WORDS["side_channels"], 1)
        ],
        "not_covered": [
            *WORDS["not_covered"],
            *([WORDS["models_of_an_index"].format(**index)] if index else []),
        ],
        "recall": " ".join(recall) if by_policy else None,
        "notes": WORDS["notes"],
    }


def _resting_on(spec: TrainingSpec) -> list[str]:
    """How noise was drawn, and where sums were computed, as assumptions."""
    assert spec.mechanism is not None
    on_cuda = [] if spec.settings.device == "cpu" else [WORDS["on_cuda"]]
    return [WORDS["noise"][spec.mechanism.noise], *on_cuda]


def index_of(spec: TrainingSpec, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """The index that decided which private texts are trained on: its ``id``, and the ``runs`` before."""
    dedup = manifest["dedup"]
    if not spec.trainer.by_policy or dedup["rule"] == "none":
        return None
    index: dict[str, Any] | None = dedup.get("index")
    return index


def _of_index(spec: TrainingSpec, manifest: Mapping[str, Any]) -> dict[str, str]:
    """In words: which index, and how many runs it held; nothing without one."""
    index = index_of(spec, manifest)
    return {} if index is None else {"index": index["id"], "runs": some(len(index["runs"]), "earlier run")}


def _recall_words(recall: RecallMeasurement | None, coverage_failure: float | None) -> tuple[str, ...]:
    """What recall rests on: its source, size and date, or what follows where there is none."""
    words = WORDS["recall"]
    if recall is None:
        return (words["not_measured"], *([words["coverage_unknown"]] if coverage_failure is None else []))
    labels = some(recall.labels, "labelled secret" if recall.sample is None else "secret")
    if recall.sample is None:
        when = f"on {recall.date}" if recall.date else "on a day that was not recorded"
        return (words["of_counts"].format(labels=labels, when=when),)
    sample = recall.sample
    return (
        words["of_sample"].format(
            name=sample.name, texts=some(sample.texts, "text"), labels=labels, date=sample.date
        ),
    )


# The words of a card of users and entities.


def _meaning(relation: str, protect: Protect) -> str:
    fixed = relation.endswith(Adjacency.FIXED_GRAPH.value)
    said: str = WORDS["units"]["fixed_graph" if fixed else "removal"]
    return said.format(points=WORDS["units"]["points"][protect.value], relation=relation)


def _without_sound(found: UnitFigures, reason: str) -> UnitFigures:
    """``found`` without a sound figure, for one reason."""
    kept = "epsilon_as_published"
    values = {name: value if name == kept else None for name, value in found.figures.values.items()}
    reasons = {name: reason for name in values if name != kept}
    why = {name: text for name, text in found.figures.reasons.items() if name == kept}
    return UnitFigures(found.relation, Figures(values, {**reasons, **why}), found.facts, reason)


def _units_words(spec: TrainingSpec) -> dict[str, Any]:
    """Conditions, assumptions and gaps of a training with noise."""
    words = WORDS["units"]
    of_users = isinstance(spec.mechanism, PoissonUsersGaussian)
    conditions, own, gaps = (_users_words if of_users else _bounded_words)(spec)
    return {
        "conditions": conditions,
        "assumptions": [*words["assumptions"], *own, *_resting_on(spec)],
        "not_covered": [*gaps, *words["not_covered"]],
    }


_Said = tuple[list[dict[str, Any]], list[str], list[str]]


def _bounded_words(spec: TrainingSpec) -> _Said:
    words, own, units = WORDS["units"], spec.settings.bounding, spec.settings.units
    held = conditions_of(spec.settings, isinstance(spec.mechanism, PoissonGaussian))
    conditions = [
        {
            "item": item,
            "condition": name,
            "holds": getattr(held, name),
            "why": why or words["copies"][units.copies],
        }
        for name, (item, why) in words["conditions"].items()
    ]
    secret = [words["secret_places"]] if own.rule == R_LOC and own.constants == "public" else []
    missed = [words["missed"].format(count=units.missed_mentions)] if units.missed_mentions else []
    return conditions, [words["constants"][own.constants], *secret], missed


def _users_words(spec: TrainingSpec) -> _Said:
    assert isinstance(spec.mechanism, PoissonUsersGaussian)
    words, own, of_users = WORDS["units"], spec.mechanism.entities, spec.protect is Protect.USERS
    said = list(words["conditions_of_users"])
    gaps = [words["gap_of_users"]] if of_users else list(words["gaps_of_entities"])
    if own is not None:
        said.append(words["of_entities"])
        if own.max_users_per_entity is not None:
            said.append(words["of_cap"].format(cap=own.max_users_per_entity))
            gaps.append(words["gap_of_graph"])
        elif not of_users:
            said.append(words["of_all_users"].format(users=spec.mechanism.users))
    conditions = [
        {"item": str(number), "condition": f"federated {number}", "holds": True, "why": why}
        for number, why in enumerate(said, 1)
    ]
    return conditions, [], gaps
