"""The guarantee card: figures that are theorems about the code that ran, from the ledger and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from jinja2 import Environment, PackageLoader, Template

from redactory.detectors import blind_said, blind_words
from redactory.detectors.settings import public_of, public_words, side_channel
from redactory.foundation.bounds import FILTERS
from redactory.foundation.errors import some
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.training.accounting import event_tree
from redactory.training.counted import Selection
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.figures import (
    EPSILONS,
    UNIT_FIGURES,
    Claim,
    Figures,
    figures_of,
    refused,
    require_reasons,
    unit_figures,
)
from redactory.training.guarantee.remarks import Facts, points_in_both_worlds, remarks
from redactory.training.guarantee.spec import (
    EXAMPLE,
    START,
    LedgerFacts,
    TrainingSpec,
    by_texts_alone,
    ledger_facts,
    parent_manifest,
    spec_in,
)
from redactory.training.held_out import curve_in
from redactory.training.mechanism import BandedGaussian, PoissonUsersGaussian
from redactory.training.model import library_of, opened_with, parameters_in
from redactory.training.settings import RecallMeasurement
from redactory.training.uedp.bounding import R_LOC
from redactory.training.units import Adjacency, Protect

FORMAT, FORMAT_OF_UNITS = "redactory-guarantee/2", "redactory-unit-guarantee/1"
NOTHING = "everything: nothing is guaranteed"


def guarantee_card(run: RunFolder, name: str, recall: RecallMeasurement | None = None) -> dict[str, Any]:
    """The guarantee of model ``name`` of ``run`` as JSON, derived again each time by two accountants.

    ``recall`` replaces the measurement that the training's settings hold.  A figure that cannot be
    stated is ``None``, and ``reasons`` says why (``docs/guarantees.md``, "The card").  Raises
    ``GuaranteeError`` where the ledger does not match the weights, the run or itself, or where the
    accountants disagree.
    """
    facts = ledger_facts(run, run.model(name))
    manifest = parent_manifest(run, facts)
    if facts.trainer.of_units:
        spec, card = facts.spec(), units_card(name, facts, manifest)
    else:
        blind = blind_words(blind_said(manifest)) if facts.trainer.by_policy else None
        measured = None if blind or not by_texts_alone(manifest) else recall or facts.settings.detector_recall_file
        spec = spec_in(run, facts, measured)
        card = points_card(name, facts, spec, manifest, measured, blind)
    folder = run.model(name)
    count = None if getattr(facts.settings.model, "lora", None) else parameters_in(folder)
    points = points_in_both_worlds(spec, manifest.get("counts", {}))
    told = Facts(points, parameters=count, curve=curve_in(folder.held_out), at_most=True)
    return {**card, "remarks": remarks(spec, told)}


def points_card(
    name: str,
    facts: LedgerFacts,
    spec: TrainingSpec,
    manifest: Mapping[str, Any],
    measured: RecallMeasurement | None,
    blind: str | None,
) -> dict[str, Any]:
    """The card of secrets and points, and of the baselines that learn from the same sides."""
    claim, refusal, spent = Claim.of(spec), spec.refusal, spec.spending
    figures = refused(EPSILONS, refusal, claim.group_sizes) if refusal else figures_of(claim)
    coverage = None
    if spec.mechanism is None:
        why = spec.trainer.nothing
    elif not spec.trainer.by_policy:
        why = WORDS["no_policies"]
    else:
        coverage, why = spec.rates.delta_2, blind or WORDS["recall_unknown"]
    figures.put("coverage_failure", coverage, None, why)
    return _card(
        FORMAT,
        name,
        facts,
        spec,
        figures,
        {
            "unit": WORDS["counted"]["unit"] if claim.counted else spec.unit,
            "relation": claim.relation.value,
            "relation_meaning": WORDS["counted" if claim.counted else "relation"][claim.relation.value],
            **({"selection": manifest["route"]} if claim.counted else {}),
            "blind": blind,
            "public_labels": list(public_of(manifest)) if spec.trainer.by_policy else [],
            "event": event_tree(claim.spent) if spec.mechanism else None,
            "sensitivity": spent.rows * spent.mechanism.sensitivity(claim.missed) if spent else None,
            "miss_rates": {
                "gamma_upper": spec.rates.gamma,
                "delta_2_upper": spec.rates.delta_2,
                "measured": None if measured is None else measured.model_dump(mode="json", exclude_none=True),
            },
            "as_published": claim.as_published,
            **_words(facts, spec, manifest, (blind,) if blind else _recall_words(measured, coverage)),
        },
    )


def units_card(name: str, facts: LedgerFacts, manifest: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    """The card of users and entities, and of the baselines that learn from the same points."""
    spec, words = facts.spec(selection=Selection.of_run(manifest)), WORDS["units"]
    if spec.mechanism is None:
        found = refused(UNIT_FIGURES, spec.refusal or "")
        meaning = "No two corpora are compared: nothing is guaranteed."
        said: dict[str, Any] = {"conditions": [], "assumptions": [], "not_covered": [NOTHING]}
    else:
        found = unit_figures(spec)
        if spec.refusal is not None:
            # nothing sound is left; what is published stays under its label
            for name in found.values.keys() - {"epsilon_as_published"}:
                found.put(name, None, None, spec.refusal)
            found.second, found.alone, found.no_second = {}, [], spec.refusal
        fixed = found.relation.endswith(Adjacency.FIXED_GRAPH.value)
        meaning = words["fixed_graph" if fixed else "removal"].format(
            points=words["points"][spec.protect.value], relation=found.relation
        )
        said = _units_words(facts, spec)
        if spec.selection:
            said["assumptions"].append(WORDS["counted"]["with_public"].format(**manifest["route"]))
    return _card(
        FORMAT_OF_UNITS,
        name,
        facts,
        spec,
        found,
        {
            "task": facts.settings.task,
            "privacy_unit": spec.protect.value if spec.mechanism else None,
            "public_text": facts.public_text,
            "pretraining_epochs": facts.settings.pretraining_epochs,
            "unit": spec.units_in_words,
            "relation": found.relation,
            "relation_meaning": meaning,
            "event": spec.mechanism
            and {"class": "SelfComposedDpEvent", "event": spec.mechanism.event(), "count": spec.steps},
            **found.facts,
            **({"selection": manifest["route"]} if spec.selection and spec.mechanism else {}),
            **said,
            "notes": {**words["notes"], "curve": found.facts.get("curve_meaning", words["notes"]["curve"])},
        },
        WORDS["second_accountant_of_units"] if found.second else found.no_second,
    )


def accountants(figures: Figures, second: str | None = WORDS["second_accountant"]) -> dict[str, Any]:
    """Who computed the figures, and the bounds that each of them lies between."""
    return {"main": WORDS["main_accountant"], "second": second, "bounds": figures.second, "alone": figures.alone}


def _card(
    form: str,
    name: str,
    facts: LedgerFacts,
    spec: TrainingSpec,
    figures: Figures,
    own: dict[str, Any],
    second: str | None = WORDS["second_accountant"],
) -> dict[str, Any]:
    """What every card has, whatever it protects, and its ``own``."""
    require_reasons(figures.values, figures.reasons)
    sampler = spec.mechanism.sampler if spec.mechanism else None
    keys = ("clip_norm", "sampling_rate", "noise_multiplier", "noise", "normaliser")
    return {
        "format": form,
        "model": name,
        "kind": (facts.own_loop or facts.base or {}).get("model_type", facts.settings.model.kind),
        "trainer": facts.settings.trainer,
        "holds": spec.broken is None,
        "holds_reason": spec.broken,
        "seeded": facts.seeded,
        "ledger": {"head": facts.chain_head, "steps": facts.steps, "parent": facts.parent},
        **({"base": facts.base} if START in (facts.base or {}) else {}),
        "versions": facts.versions,
        **({} if facts.settings.device == "cpu" else {"device": facts.settings.device}),
        "vocabulary": facts.vocabulary,
        **({} if facts.own_loop is None else {"own_loop": facts.own_loop}),
        "sampler_run": sampler,
        "sampler_accounted": sampler,
        **{key: getattr(spec.mechanism, key, None) for key in keys},
        **_correlated(spec),
        **_chat(spec),
        "steps": spec.steps,
        "delta": spec.delta,
        **own,
        **figures.values,
        "reasons": figures.reasons,
        "accountants": accountants(figures, second) if spec.mechanism else None,
    }


def _correlated(spec: TrainingSpec) -> dict[str, Any]:
    """Groups, their rate and the matrix, where noise is correlated."""
    own = spec.mechanism
    if not isinstance(own, BandedGaussian):
        return {}
    return {"bands": own.matrix.bands, "group_rate": own.group_rate, "matrix": own.matrix.digest}


def _chat(spec: TrainingSpec) -> dict[str, Any]:
    """What an example of a chat model is, and by what rule equal ones are merged."""
    own, dedup = spec.settings.chat, spec.dedup or {}
    if own is None:
        return {}
    merged = {"rule": dedup.get("rule"), "group_size": dedup.get("group_size")}
    return {"chat": {**own.model_dump(), **(merged if spec.trainer.by_policy else {})}}


def _words(
    facts: LedgerFacts, spec: TrainingSpec, manifest: Mapping[str, Any], recall: tuple[str, ...]
) -> dict[str, Any]:
    """Assumptions, side channels and gaps of a training on secrets and points."""
    if spec.mechanism is None:
        empty: dict[str, Any] = {key: [] for key in ("assumptions", "pre_steps", "side_channels")}
        return {**empty, "not_covered": [NOTHING], "recall": None, "notes": WORDS["notes"]}
    by_policy, found = spec.trainer.by_policy, index_of(spec, manifest)
    rule = WORDS["deduplication"].get(manifest["dedup"]["rule"])
    index = found and {"index": found["id"], "runs": some(len(found["runs"]), "earlier run")}
    instead = {"vocabulary and initial weights": vocabulary_words(facts.vocabulary, bool(spec.beside))}
    if tuned := side_channel(manifest["policies"]):
        instead["policies tuned on private text"] = tuned
    if index:
        instead["an index or warm start from earlier runs"] = WORDS["indexed"].format(**index)
    counted = WORDS["counted"] if spec.beside else {}
    if counted:
        instead |= counted["instead"]
    own = [*([rule] if rule and by_policy else []), *(() if counted else spec.trainer.compared)]
    own += [*spec.trainer.assumptions, *(recall if by_policy else ())]
    own += (
        [counted["how"].format(**manifest["route"], public=counted["public"][manifest["route"]["strategy"]])]
        if counted
        else []
    )
    own += [WORDS["known_in_example"]] if spec.known_in == EXAMPLE else []
    own += [WORDS["conversation"]] if spec.settings.whole_conversations and by_policy else []
    own += [WORDS["staged"].format(name=spec.start.settings.model_name)] if spec.start else []
    steps = [*WORDS["pre_steps"], *WORDS["pre_steps_by_policy"][slice(None) if by_policy else slice(1, 2)]]
    return {
        "assumptions": [
            counted.get("fate", WORDS["assumptions"][0]),
            *WORDS["assumptions"][1:],
            *own,
            *_resting_on(spec, facts),
            *instead.values(),
        ],
        "pre_steps": [
            {"step": step, "depends_on": data, "covered": counted.get("covered", {}).get(step, why)}
            for step, data, why in steps
        ],
        "side_channels": [
            {"item": number, "channel": channel, "ensured_by": instead.get(channel, ensured)}
            for number, (channel, ensured) in enumerate(WORDS["side_channels"], 1)
        ],
        "not_covered": [
            *filter(None, [public_words(public_of(manifest)) if by_policy else None]),
            *(counted["not_covered"] if counted else WORDS["not_covered"][:1]),
            *(WORDS["not_covered"][2:3] if counted else WORDS["not_covered"][1:4]),
            *WORDS["not_covered"][4:],
            *([WORDS["models_of_an_index"].format(**index)] if index else []),
        ],
        "recall": " ".join(recall) if by_policy else None,
        "notes": WORDS["notes"],
    }


def vocabulary_words(vocabulary: Mapping[str, Any], counted: bool = False) -> str:
    """What the vocabulary was made of, as an assumption, with what proves which content it was."""
    words = WORDS["vocabulary"] | (WORDS["counted"]["vocabulary"] if counted else {})
    said = (
        words[source] + (f" (sha256 {sha256})" if sha256 else "") for source, sha256 in vocabulary["made_of"].items()
    )
    return str(WORDS["vocabulary"]["made_of"].format(sources="; ".join(said), sha256=vocabulary["sha256"]))


def _resting_on(spec: TrainingSpec, facts: LedgerFacts) -> list[str]:
    """How noise was drawn, where sums were computed, what roles are, and whose the loop was."""
    assert spec.mechanism is not None
    on_cuda = [] if spec.settings.device == "cpu" else [WORDS["on_cuda"]]
    chat = spec.settings.chat
    of_turns = spec.settings.prefix or (chat and chat.example == "turn")
    roles = [WORDS["roles"]] if of_turns else []
    roles += [WORDS["chat"][chat.loss_on]] if chat else []
    correlated = [WORDS["correlated"].format(**own)] if (own := _correlated(spec)) else []
    loop = []
    if facts.own_loop is not None:
        loop = [WORDS["own_loop"].format(**facts.own_loop)]
        said = facts.own_loop["public_steps"]
        loop += [WORDS["own_public_steps"].format(said=said)] if said else []
    return [WORDS["noise"][spec.mechanism.noise], *correlated, *on_cuda, *roles, *loop]


def index_of(spec: TrainingSpec, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """The index that decided which private texts are trained on: its ``id``, and the ``runs`` before."""
    dedup = manifest["dedup"]
    if not spec.trainer.by_policy or dedup["rule"] == "none":
        return None
    index: dict[str, Any] | None = dedup.get("index")
    return index


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
        words["of_sample"].format(name=sample.name, texts=some(sample.texts, "text"), labels=labels, date=sample.date),
    )


def _units_words(facts: LedgerFacts, spec: TrainingSpec) -> dict[str, Any]:
    """Conditions, assumptions and gaps of a training that hides users or entities."""
    words, own, units = WORDS["units"], spec.settings.bounding, spec.settings.units
    if not isinstance(spec.mechanism, PoissonUsersGaussian):
        conditions = [
            {"item": item, "condition": name, "holds": True, "why": why or words["duplicates"][units.duplicates]}
            for name, (item, why) in words["conditions"].items()
        ]
        assumed = [words["constants"][own.constants]]
        assumed += [words["secret_places"]] if own.rule == R_LOC and own.constants == "public" else []
        missed = units.unmatched_mentions
        gaps = [words["missed"].format(count=missed)] if missed else []
    else:
        entities, of_users = spec.mechanism.entities, spec.protect is Protect.USERS
        said, assumed = list(words["conditions_of_users"]), []
        gaps = [words["gap_of_users"]] if of_users else list(words["gaps_of_entities"])
        if entities is not None:
            said.append(words["of_entities"])
            if entities.max_users_per_entity is not None:
                said.append(words["of_cap"].format(cap=entities.max_users_per_entity))
                gaps.append(words["gap_of_graph"])
            elif not of_users:
                said.append(words["of_all_users"].format(users=spec.mechanism.users))
        conditions = [
            {"item": str(number), "condition": f"federated {number}", "holds": True, "why": why}
            for number, why in enumerate(said, 1)
        ]
    return {
        "conditions": conditions,
        "assumptions": [*words["assumptions"], vocabulary_words(facts.vocabulary), *assumed, *_resting_on(spec, facts)],
        "not_covered": [*gaps, *words["not_covered"]],
    }


# The card as a page for people: the model card of a trained model, from ``card.md.j2``.


_TITLES = {
    "epsilon": "One named sensitive span that the strict policy missed",
    "epsilon_confidentiality": "Every sensitive span of the corpus",
    "epsilon_bayesian": "Sensitive spans that at least one policy catches",
    "coverage_failure": "Share of sensitive spans without any guarantee, at most",
    "epsilon_substitution": "One private example exchanged for another",
    "epsilon_add_remove": "For information: one example there or not",
}
_TITLES_COUNTED = {
    "epsilon": "One named sensitive span, whether a policy found it or not",
    "epsilon_confidentiality": "Every sensitive span that stands in one example",
    "coverage_failure": "Share of such spans without any guarantee, at most",
    "epsilon_substitution": "The text of one example exchanged for another",
}
_TITLES_OF_UNITS = {
    "epsilon_sound": "The privacy unit above",
    "epsilon_user_removal": "The same, where the user's examples vanish",
    "epsilon_with_public": "The model and the public texts together",
    "epsilon_as_published": "As published, not a guarantee",
}


def guarantee_page(card: dict[str, Any]) -> str:
    """``card`` (of ``guarantee_card``) in Markdown with YAML front matter, free of corpus text."""
    units = card["format"] == FORMAT_OF_UNITS
    page = _template().render(
        c=card,
        units=units,
        titles=_TITLES_OF_UNITS if units else _TITLES | (_TITLES_COUNTED if "selection" in card else {}),
        library=library_of(card["kind"]),
        opened_with=opened_with(card["kind"], card.get("task", "next-word")),
        bounds=[] if units else list(_bounds(card)),
        event=json.dumps(card.get("event"), sort_keys=True),
    )
    return page.replace(MASK, f"`{MASK}`")


@cache
def _template() -> Template:
    # Markdown, not HTML: nothing is escaped
    environment = Environment(
        loader=PackageLoader("redactory.training.guarantee", "."),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(FILTERS, some=some)
    return environment.get_template("card.md.j2")


def _bounds(card: dict[str, Any]) -> Iterator[tuple[str, float | None, float, float | None]]:
    """Each figure between the second accountant's bounds."""
    bounds = dict(card["accountants"]["bounds"]) if card["accountants"] else {}
    groups = bounds.pop("epsilon_group", {})
    for name, two in bounds.items():
        if card[name] is not None:
            yield name, two["lower"], card[name], two["upper"]
    for size, two in groups.items():
        yield f"epsilon_group, {size}", two["lower"], card["epsilon_group"][size], two["upper"]
