"""Make the guarantee card: metrics that are theorems about the code that ran, from the ledger and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, Template

from redactory.detectors import describe_gaps, get_publishable_gaps
from redactory.detectors.settings import describe_fit_side_channel, format_public_label_note, get_public_labels
from redactory.foundation.bounds import TEMPLATE_FILTERS
from redactory.foundation.errors import pluralize
from redactory.redaction.folder import RunFolder
from redactory.redaction.mask import MASK
from redactory.training.accounting import make_event_tree
from redactory.training.count_selection import CountSelection
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.description import describe_for_hub, describe_training
from redactory.training.guarantee.metrics import (
    EPSILON_NAMES,
    UNIT_METRIC_NAMES,
    EpsilonInputs,
    Metrics,
    compute_epsilons,
    compute_unit_metrics,
    find_unproved_reason,
    make_null_metrics,
    require_reasons,
    select_titles,
)
from redactory.training.guarantee.remarks import TrainingFacts, count_noised_examples, make_remarks
from redactory.training.guarantee.spec import (
    KNOWN_IN_EXAMPLE,
    START_KEY,
    LedgerFacts,
    TrainingSpec,
    is_routed_by_text,
    read_ledger_facts,
    read_parent_manifest,
    read_training_spec,
)
from redactory.training.held_out import read_curve_rows
from redactory.training.mechanisms.users import get_users_mechanism
from redactory.training.model import format_loading_instructions, get_library_name
from redactory.training.models.settings import FrozenEncoderSettings
from redactory.training.settings import ENCODER_SOURCE, RecallMeasurement
from redactory.training.unit_settings import Adjacency, PrivacyUnit

FORMAT, UNITS_FORMAT = "redactory-guarantee/2", "redactory-unit-guarantee/1"
NOTHING_GUARANTEED = "everything: nothing is guaranteed"


def make_guarantee_card(run: RunFolder, name: str, recall: RecallMeasurement | None = None) -> dict[str, Any]:
    """Make the guarantee of model ``name`` of ``run`` as JSON, derived again each time by two accountants.

    ``recall`` replaces the measurement in the training's settings. A metric that cannot be stated is ``None``, and
    ``reasons`` says why (``docs/guarantees.md``, "The card"). ``GuaranteeError`` if the ledger does not match the
    weights, the run or itself, or the accountants disagree.
    """
    facts = read_ledger_facts(run, run.get_model_folder(name))
    manifest = read_parent_manifest(run, facts)
    if facts.trainer.has_units:
        spec, card = facts.make_spec(), make_unit_level_card(name, facts, manifest)
    else:
        uncovered = describe_gaps(get_publishable_gaps(manifest)) if facts.trainer.uses_policy else None
        measurement = (
            None if uncovered or not is_routed_by_text(manifest) else recall or facts.settings.detector_recall_file
        )
        spec = read_training_spec(run, facts, measurement)
        card = make_example_level_card(name, facts, spec, manifest, measurement, uncovered)
    curve = read_curve_rows(run.get_model_folder(name).held_out)
    points, parameters = count_noised_examples(spec, manifest.get("counts", {})), facts.trainable_parameters
    training_facts = TrainingFacts(points, parameters=parameters, held_out_curve=curve, is_upper_bound=True)
    return {
        **card,
        "training": describe_training(facts, spec, manifest, curve),
        "hub": describe_for_hub(card, facts, manifest.get("run"), curve),
        "remarks": make_remarks(spec, training_facts),
    }


def make_example_level_card(
    name: str,
    facts: LedgerFacts,
    spec: TrainingSpec,
    manifest: Mapping[str, Any],
    measurement: RecallMeasurement | None,
    uncovered: str | None,
) -> dict[str, Any]:
    """Make the card of secrets and examples, and of the baselines that learn from the same splits."""
    inputs, refusal, spending = EpsilonInputs.from_spec(spec), spec.refusal_reason, spec.spending
    metrics = make_null_metrics(EPSILON_NAMES, refusal, inputs.group_sizes) if refusal else compute_epsilons(inputs)
    coverage = None
    if spec.mechanism is None:
        coverage_reason = spec.trainer.no_guarantee_reason
    elif not spec.trainer.uses_policy:
        coverage_reason = WORDS["no_policies"]
    else:
        coverage, coverage_reason = spec.rates.delta_2, uncovered or WORDS["recall_unknown"]
    metrics.set_value("coverage_failure", coverage, None, coverage_reason)
    is_any = not (spec.depends_on_public_split or spec.trainer.uses_policy or inputs.is_counted)
    meaning = f"{inputs.relation.value}{'_of_any' if is_any else ''}"
    return _make_common_card(
        FORMAT,
        name,
        facts,
        spec,
        metrics,
        {
            "unit": WORDS["counted"]["unit"] if inputs.is_counted else spec.privacy_unit_description,
            "relation": inputs.relation.value,
            "relation_meaning": WORDS["counted" if inputs.is_counted else "relation"][meaning],
            **({"selection": manifest["route"]} if inputs.is_counted else {}),
            "uncovered": uncovered,
            "public_labels": list(get_public_labels(manifest)) if spec.trainer.uses_policy else [],
            "event": make_event_tree(inputs.spendings) if spec.mechanism else None,
            "sensitivity": spending.rows * spending.mechanism.get_sensitivity(inputs.missed_span_relation)
            if spending
            else None,
            "miss_rates": {
                "gamma_upper": spec.rates.gamma,
                "delta_2_upper": spec.rates.delta_2,
                "measured": None if measurement is None else measurement.model_dump(mode="json", exclude_none=True),
            },
            "as_published": inputs.published_crt_epsilons,
            **_make_example_level_texts(
                facts, spec, manifest, (uncovered,) if uncovered else _describe_recall(measurement, coverage)
            ),
        },
    )


def make_unit_level_card(
    name: str, facts: LedgerFacts, manifest: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Make the card of users and entities, and of the baselines that are trained on the same examples."""
    spec, words = facts.make_spec(selection=CountSelection.from_manifest(manifest)), WORDS["units"]
    if spec.mechanism is None:
        metrics = make_null_metrics(UNIT_METRIC_NAMES, spec.refusal_reason or "")
        meaning = "No two corpora are compared: nothing is guaranteed."
        texts: dict[str, Any] = {"conditions": [], "assumptions": [], "not_covered": [NOTHING_GUARANTEED]}
    else:
        metrics = compute_unit_metrics(spec)
        if spec.refusal_reason is not None:
            # nothing sound is left; what is published stays under its label
            for name in metrics.values.keys() - {"epsilon_as_published"}:
                metrics.set_value(name, None, None, spec.refusal_reason)
            metrics.bounds, metrics.unconfirmed, metrics.no_bounds_reason = {}, [], spec.refusal_reason
        fixed = metrics.relation.endswith(Adjacency.FIXED_GRAPH.value)
        meaning = words["fixed_graph" if fixed else "removal"].format(
            points=words["examples"][spec.protected_unit.value], relation=metrics.relation
        )
        texts = _make_unit_level_texts(facts, spec)
        if spec.selection:
            texts["assumptions"].append(WORDS["counted"]["with_public"].format(**manifest["route"]))
    return _make_common_card(
        UNITS_FORMAT,
        name,
        facts,
        spec,
        metrics,
        {
            "privacy_unit": spec.protected_unit.value if spec.mechanism else None,
            "public_text": facts.public_text,
            "pretraining_epochs": facts.settings.pretraining_epochs,
            "unit": spec.units_description,
            "relation": metrics.relation,
            "relation_meaning": meaning,
            "event": spec.mechanism
            and {"class": "SelfComposedDpEvent", "event": spec.mechanism.to_event(), "count": spec.steps},
            **metrics.facts,
            **({"selection": manifest["route"]} if spec.selection and spec.mechanism else {}),
            **texts,
            "notes": {**words["notes"], "curve": metrics.facts.get("curve_meaning", words["notes"]["curve"])},
        },
        WORDS["second_accountant"] if metrics.bounds else metrics.no_bounds_reason,
    )


def describe_accountants(metrics: Metrics, second: str | None = WORDS["second_accountant"]) -> dict[str, Any]:
    """Describe the two accountants, and the bounds of each epsilon."""
    return {"main": WORDS["main_accountant"], "second": second, "bounds": metrics.bounds, "alone": metrics.unconfirmed}


def _make_common_card(
    card_format: str,
    name: str,
    facts: LedgerFacts,
    spec: TrainingSpec,
    metrics: Metrics,
    details: dict[str, Any],
    second: str | None = WORDS["second_accountant"],
) -> dict[str, Any]:
    """Make what every card has, whatever it protects, and add its ``details``."""
    require_reasons(metrics.values, metrics.reasons)
    failure_reason = spec.failure_reason or find_unproved_reason(metrics.reasons)
    sampler = spec.mechanism.sampler if spec.mechanism else None
    keys = ("clip_norm", "sampling_rate", "noise_multiplier", "noise", "normaliser")
    encoder = _describe_encoder(facts)
    if encoder:
        details = {**details, "not_covered": [*details["not_covered"], WORDS[ENCODER_SOURCE]["not_covered"]]}
    return {
        "format": card_format,
        "model": name,
        "kind": (facts.private_loop or facts.base or {}).get("model_type", facts.settings.model.kind),
        "trainer": facts.settings.trainer,
        "task": facts.settings.task,
        **({"classes": list(facts.settings.classes)} if facts.settings.task == "classify" else {}),
        "holds": failure_reason is None,
        "holds_reason": failure_reason,
        "seeded": facts.seeded,
        "ledger": {"head": facts.chain_head, "steps": facts.steps, "parent": facts.parent},
        **({"base": facts.base} if START_KEY in (facts.base or {}) else {}),
        **({"encoder": encoder} if encoder else {}),
        "versions": facts.versions,
        **({} if facts.settings.device == "cpu" else {"device": facts.settings.device}),
        "vocabulary": facts.vocabulary,
        **({} if facts.private_loop is None else {"own_loop": facts.private_loop}),
        "sampler_run": sampler,
        "sampler_accounted": sampler,
        **{key: getattr(spec.mechanism, key, None) for key in keys},
        **_describe_chat_examples(spec),
        "steps": spec.steps,
        "delta": spec.delta,
        **details,
        **metrics.values,
        "reasons": metrics.reasons,
        "accountants": describe_accountants(metrics, second) if spec.mechanism else None,
    }


def _describe_encoder(facts: LedgerFacts) -> dict[str, Any] | None:
    """Describe the encoder below the trained layer: digest, licence, pretraining, adapters; None without one."""
    if not isinstance(facts.settings.model, FrozenEncoderSettings):
        return None
    words = WORDS[ENCODER_SOURCE]["package" if facts.settings.model.folder is None else "folder"]
    return {**words, "sha256": facts.vocabulary["sha256"], "lora_rank": facts.vocabulary.get("lora_rank", 0)}


def _describe_chat_examples(spec: TrainingSpec) -> dict[str, Any]:
    """Describe what an example of a chat model is, and which rule merges equal ones."""
    chat, dedup = spec.settings.chat, spec.dedup or {}
    if chat is None:
        return {}
    merged = {"rule": dedup.get("rule"), "group_size": dedup.get("group_size")}
    return {"chat": {**chat.model_dump(), **(merged if spec.trainer.uses_policy else {})}}


def _make_example_level_texts(
    facts: LedgerFacts, spec: TrainingSpec, manifest: Mapping[str, Any], recall: tuple[str, ...]
) -> dict[str, Any]:
    """Make assumptions, side channels and gaps of a training on secrets and examples."""
    if spec.mechanism is None:
        empty: dict[str, Any] = {key: [] for key in ("assumptions", "pre_steps", "side_channels")}
        return {**empty, "not_covered": [NOTHING_GUARANTEED], "recall": None, "notes": WORDS["notes"]}
    by_policy, dedup_index = spec.trainer.uses_policy, get_dedup_index(spec, manifest)
    counted = WORDS["counted"] if spec.selection_spendings else {}
    by_split = by_policy or spec.depends_on_public_split
    rule = WORDS["deduplication"].get(manifest["dedup"]["rule"])
    index = dedup_index and {"index": dedup_index["id"], "runs": pluralize(len(dedup_index["runs"]), "earlier run")}
    instead = {"vocabulary and initial weights": describe_vocabulary(facts.vocabulary, bool(counted))}
    if by_split and (tuned := describe_fit_side_channel(manifest["policies"])):
        instead["policies tuned on private text"] = tuned
    if index:
        instead["an index or warm start from earlier runs"] = WORDS["indexed"].format(**index)
    if counted:
        instead |= counted["instead"]
    covered = () if by_policy or counted else (WORDS["of_private_split" if by_split else "any_example"],)
    assumptions = [
        *([counted.get("decision", WORDS["assumptions"][0])] if by_split else []),
        WORDS["assumptions"][1],
        *([] if facts.seeded else WORDS["assumptions"][2:]),
        *([rule] if rule and by_policy else []),
        *(() if counted else spec.trainer.comparison_notes),
        *covered,
        *spec.trainer.assumptions,
        *([WORDS["classes"]] if by_policy and spec.settings.task == "classify" else []),
        *(recall if by_policy else ()),
    ]
    assumptions += (
        [counted["how"].format(**manifest["route"], public=counted["public"][manifest["route"]["strategy"]])]
        if counted
        else []
    )
    assumptions += [WORDS["known_in_example"]] if spec.known_in == KNOWN_IN_EXAMPLE and by_policy else []
    assumptions += [WORDS["conversation"]] if spec.settings.has_whole_conversations and by_policy else []
    assumptions += [WORDS["staged"].format(name=spec.start.settings.model_name)] if spec.start else []
    steps = [*WORDS["pre_steps"], *WORDS["pre_steps_by_policy"][slice(None) if by_policy else slice(1, 2)]]
    if not by_split:
        steps = [step for step in steps if step[0] != "masking and routing"]
    gaps = WORDS["not_covered"][1:4] if by_policy else [*WORDS["not_covered"][1:3], WORDS["number_of_examples"]]
    return {
        "assumptions": [*assumptions, *_list_assumptions(spec, facts), *instead.values()],
        "pre_steps": [
            {"step": step, "depends_on": data, "covered": counted.get("covered", {}).get(step, why)}
            for step, data, why in steps
        ],
        "side_channels": _list_side_channels(spec, facts, instead),
        "not_covered": [
            *filter(None, [format_public_label_note(get_public_labels(manifest)) if by_policy else None]),
            *(counted["not_covered"] if counted else WORDS["not_covered"][:1] if by_policy else ()),
            *(WORDS["not_covered"][2:3] if counted else gaps),
            *WORDS["not_covered"][4:],
            *([WORDS["models_of_an_index"].format(**index)] if index else []),
        ],
        "recall": " ".join(recall) if by_policy else None,
        "notes": WORDS["notes"],
    }


def _list_side_channels(spec: TrainingSpec, facts: LedgerFacts, instead: Mapping[str, str]) -> list[dict[str, Any]]:
    """List the side channels that apply, by their numbers in ``docs/guarantees.md``; ``instead`` has other answers."""
    words, settings, trainer = WORDS["alternatives"], spec.settings, spec.trainer
    applicable = {
        "splits": trainer.uses_policy or spec.depends_on_public_split,
        "noise_free": bool(trainer.noise_free_folders or settings.pretraining_epochs),
        "poisson": spec.mechanism is not None and spec.mechanism.sampler == "poisson",
    }
    is_own_network = facts.private_loop is None and get_library_name(settings.model.kind) == "redactory"
    answers = {
        "known or weak randomness": words["seeded"] if facts.seeded else None,
        "operations across examples": words["own_network"] if is_own_network else None,
        "an index or warm start from earlier runs": words["no_index"] if trainer.uses_policy else None,
        "oversize or empty Poisson batches": words["with_public"] if trainer.samples_public(settings) else None,
    }
    answers = {channel: answer for channel, answer in answers.items() if answer} | dict(instead)
    return [
        {"item": number, "channel": channel, "ensured_by": answers.get(channel, ensured)}
        for number, (channel, ensured, *condition) in enumerate(WORDS["side_channels"], 1)
        if all(applicable[name] for name in condition)
    ]


def describe_vocabulary(vocabulary: Mapping[str, Any], is_counted: bool = False) -> str:
    """Describe the sources of the vocabulary, as an assumption, with the digest of their content."""
    words = WORDS["vocabulary"] | (WORDS["counted"]["vocabulary"] if is_counted else {})
    if ENCODER_SOURCE in vocabulary["made_of"]:
        return str(words[ENCODER_SOURCE].format(sha256=vocabulary["sha256"]))
    source_texts = (
        words[source] + (f" (sha256 {sha256})" if sha256 else "") for source, sha256 in vocabulary["made_of"].items()
    )
    return str(WORDS["vocabulary"]["made_of"].format(sources="; ".join(source_texts), sha256=vocabulary["sha256"]))


def _list_assumptions(spec: TrainingSpec, facts: LedgerFacts) -> list[str]:
    """List how noise was drawn, where sums were computed, what roles are, and who wrote the loop."""
    assert spec.mechanism is not None
    on_cuda = [] if spec.settings.device == "cpu" else [WORDS["on_cuda"]]
    chat = spec.settings.chat
    uses_roles = spec.settings.prefix or (chat and chat.example == "turn")
    roles = [WORDS["roles"]] if uses_roles else []
    roles += [WORDS["chat"][chat.loss_on]] if chat else []
    loop = []
    if facts.private_loop is not None:
        loop = [WORDS["own_loop"].format(**facts.private_loop)]
        public_steps = facts.private_loop["public_steps"]
        loop += [WORDS["own_public_steps"].format(declaration=public_steps)] if public_steps else []
    return [WORDS["noise"][spec.mechanism.noise], *on_cuda, *roles, *loop]


def get_dedup_index(spec: TrainingSpec, manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the index that decided which private texts are trained on: its ``id``, and the ``runs`` before."""
    dedup = manifest["dedup"]
    if not spec.trainer.uses_policy or dedup["rule"] == "none":
        return None
    index: dict[str, Any] | None = dedup.get("index")
    return index


def _describe_recall(recall: RecallMeasurement | None, coverage_failure: float | None) -> tuple[str, ...]:
    """Describe the source, size and date of the recall, or what follows without one."""
    words = WORDS["recall"]
    if recall is None:
        return (words["not_measured"], *([words["coverage_unknown"]] if coverage_failure is None else []))
    labels = pluralize(recall.labels, "labelled secret" if recall.sample is None else "secret")
    if recall.sample is None:
        when = f"on {recall.date}" if recall.date else "on a day that was not recorded"
        return (words["of_counts"].format(labels=labels, when=when),)
    sample = recall.sample
    return (
        words["of_sample"].format(
            name=sample.name, texts=pluralize(sample.texts, "text"), labels=labels, date=sample.date
        ),
    )


def _make_unit_level_texts(facts: LedgerFacts, spec: TrainingSpec) -> dict[str, Any]:
    """Make conditions, assumptions and gaps of a training that hides users or entities."""
    words, bounding, units = WORDS["units"], spec.settings.bounding, spec.settings.units
    of_users = spec.protected_unit is PrivacyUnit.USERS
    if not spec.trainer.samples_users:
        conditions = [
            {"item": item, "condition": name, "holds": True, "why": why or words["duplicates"][units.duplicates]}
            for name, (item, why) in words["conditions"].items()
        ]
        assumed = words["constants"]["r-loc" if bounding.rule == "r-loc" else "graph"]
        gaps = [words["hypergraph"], *([words["gap_of_users"]] if of_users else [])]
    else:
        mechanism = get_users_mechanism(spec.mechanism)
        entities = mechanism.entities
        condition_texts, assumed = list(words["conditions_of_users"]), []
        gaps = [words["gap_of_users"] if of_users else words["gap_of_entities"]]
        if entities is not None:
            condition_texts.append(words["of_entities"])
            if entities.max_users_per_entity is not None:
                condition_texts.append(words["of_cap"].format(cap=entities.max_users_per_entity))
                gaps.append(words["gap_of_graph"])
            elif not of_users:
                condition_texts.append(words["of_all_users"].format(users=mechanism.users))
        conditions = [
            {"item": str(number), "condition": f"federated {number}", "holds": True, "why": why}
            for number, why in enumerate(condition_texts, 1)
        ]
    has_public_source = facts.public_text is not None or facts.base is not None
    gaps += [] if of_users else words["entities_not_covered"]
    gaps += [words["hubs"]] if not of_users and units.high_degree_entities else []
    return {
        "conditions": conditions,
        "assumptions": [
            *([words["public_sources"]] if has_public_source else []),
            *([] if of_users else words["entity_assumptions"]),
            *words["assumptions"][: 1 if facts.seeded else None],
            describe_vocabulary(facts.vocabulary),
            *assumed,
            *_list_assumptions(spec, facts),
        ],
        "not_covered": [*gaps, *words["not_covered"]],
    }


# The card as a page for people: the model card of a trained model, from ``card.md.j2``.


def render_guarantee_page(card: dict[str, Any]) -> str:
    """Render ``card`` (of ``make_guarantee_card``) as Markdown with YAML front matter, free of corpus text."""
    units = card["format"] == UNITS_FORMAT
    page = _load_template().render(
        c=card,
        units=units,
        titles=select_titles(card),
        metadata=yaml.safe_dump(card.get("hub", {}), sort_keys=False, allow_unicode=True),
        opened_with=format_loading_instructions(card["kind"], card["task"], card["model"]),
        bounds=[] if units else list(_iterate_bounds(card)),
        event=json.dumps(card.get("event"), sort_keys=True),
    )
    return page.replace(MASK, f"`{MASK}`")


@cache
def _load_template() -> Template:
    # Markdown, not HTML: nothing is escaped
    environment = Environment(
        loader=PackageLoader("redactory.training.guarantee", "."),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(TEMPLATE_FILTERS, some=pluralize)
    return environment.get_template("card.md.j2")


def _iterate_bounds(card: dict[str, Any]) -> Iterator[tuple[str, float, float]]:
    """Yield each epsilon with the lower bound."""
    bounds = dict(card["accountants"]["bounds"]) if card["accountants"] else {}
    groups = bounds.pop("epsilon_group", {})
    for name, two in bounds.items():
        if card[name] is not None:
            yield name, two["lower"], card[name]
    for size, two in groups.items():
        yield f"epsilon_group, {size}", two["lower"], card["epsilon_group"][size]
