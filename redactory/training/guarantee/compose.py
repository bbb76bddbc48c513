"""The guarantee of several models together, against somebody who has all of them.

Each ledger is checked as for its own card, and the events of all are composed adaptively
(``docs/guarantees.md``, "Several models"). One unit has at most K_i examples in training i; T_i steps of each
are dominated by the mixture of Gaussians of K_i examples, and dominating pairs compose
(``docs/explanation/uedp.md``). A training without such a pair is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from redactory.detectors.settings import format_public_label_note, get_kinds, get_public_labels
from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.redaction.folder import RunFolder
from redactory.training.accounting import ConfirmedEpsilon, compare_units, confirm_epsilon, make_event_tree
from redactory.training.accounting.comparisons import NO_FINITE_EPSILON
from redactory.training.count_selection import CountSelection
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.card import describe_accountants, get_dedup_index, make_unit_level_card
from redactory.training.guarantee.metrics import (
    EPSILON_NAMES,
    EpsilonInputs,
    Metrics,
    add_user_epsilon_with_public_texts,
    compute_epsilons,
    find_unproved_reason,
    make_null_metrics,
    require_reasons,
)
from redactory.training.guarantee.spec import (
    IN_PRIVATE_SPLIT,
    START_KEY,
    LedgerFacts,
    MissRates,
    TrainingSpec,
    read_ledger_facts,
    read_parent_manifest,
    read_training_spec,
)
from redactory.training.histogram import Histogram
from redactory.training.mechanisms.mechanism import Relation
from redactory.training.unit_settings import Adjacency, PrivacyUnit

FORMAT, UNITS_FORMAT = "redactory-composed-guarantee/1", "redactory-composed-unit-guarantee/1"


@dataclass(frozen=True)
class _ComposedModel:
    """One model with what its ledger proves; ``card`` is its own under a user or entity relation."""

    run: RunFolder
    name: str
    facts: LedgerFacts
    manifest: dict[str, Any]
    spec: TrainingSpec
    card: dict[str, Any]

    @classmethod
    def load(cls, run: RunFolder, name: str) -> _ComposedModel:
        facts = read_ledger_facts(run, run.get_model_folder(name))
        manifest = read_parent_manifest(run, facts)
        if facts.trainer.has_units:
            spec = facts.make_spec(selection=CountSelection.from_manifest(manifest))
            return cls(run, name, facts, {}, spec, make_unit_level_card(name, facts, manifest))
        # what it started from is a member of its own
        spec = read_training_spec(run, facts, facts.settings.detector_recall_file)
        vocabulary_is_public = spec.public if spec.start is None else not spec.start.depends_on_public_split
        return cls(run, name, facts, manifest, replace(spec, start=None, public=vocabulary_is_public), {})

    @property
    def title(self) -> str:
        return f"{self.run.root}: {self.name}"

    @property
    def refusal_reason(self) -> str | None:
        """Return why it has no finite epsilon, and therefore all models together have none."""
        return self.card["reasons"].get("epsilon_sound") if self.card else self.spec.refusal_reason

    @property
    def dedup_index(self) -> dict[str, Any] | None:
        return get_dedup_index(self.spec, self.manifest)

    @property
    def public_labels(self) -> tuple[str, ...]:
        """Return the labels whose spans are not secrets for this model."""
        return get_public_labels(self.manifest) if self.manifest and self.spec.trainer.uses_policy else ()

    @property
    def unit(self) -> str:
        """Return what its epsilon is about: an example, or a unit under a relation; one user is the same for all."""
        if not self.facts.trainer.has_units:
            return f"one {self.spec.exchanged_example}"
        by_user = self.spec.protected_unit is PrivacyUnit.USERS
        return self.spec.units_description + ("" if by_user else f" ({self.card['relation']})")

    @property
    def card_entries(self) -> dict[str, Any]:
        """Return the entries of the composed card about this model alone."""
        if self.card:
            return {"K": self.card.get("K")}
        rates, event = self.spec.rates, make_event_tree(EpsilonInputs.from_spec(self.spec).spendings)
        return {"event": event, "gamma_upper": rates.gamma, "delta_2_upper": rates.delta_2}


def make_composed_card(models: Sequence[tuple[RunFolder, str]], delta: float | None = None) -> dict[str, Any]:
    """Make the guarantee of ``models`` (run, name) together, as JSON, at ``delta`` or the one that all state.

    ``GuaranteeError`` if a ledger is invalid, a model is named twice, or no unit is protected by all of them. Models of
    different trainers are composed for a unit that each protects: an exchanged private example, or a null user. If one
    model has no finite epsilon, there is none for all.
    """
    models_read = [_ComposedModel.load(run, name) for run, name in _add_start_models(models)]
    of_units = _require_same_unit(models_read)
    stated = sorted({member.spec.delta for member in models_read})
    if delta is None and len(stated) > 1:
        delta_list = ", ".join(f"{value:g}" for value in stated)
        raise ConfigurationError(f"these models state their epsilons at different deltas ({delta_list}): give --delta")
    delta = stated[0] if delta is None else delta
    refusals = "; ".join(f"{member.title}: {member.refusal_reason}" for member in models_read if member.refusal_reason)
    seeded = [member.title for member in models_read if member.facts.seeded]
    reason = refusals or (f"{', '.join(seeded)}: {WORDS['seeded']}" if seeded else None)
    summaries = [
        {
            "run": str(member.run.root),
            "model": member.name,
            "trainer": member.facts.settings.trainer,
            "steps": member.facts.steps,
            "ledger": member.facts.chain_head,
            "parent": member.facts.parent,
            **member.card_entries,
        }
        for member in models_read
    ]
    composed = (_compose_unit_level_card if of_units else _compose_example_level_card)(models_read, delta, refusals)
    reason = reason or find_unproved_reason(composed["reasons"])
    return {**composed, "models": summaries, "holds": reason is None, "holds_reason": reason, "delta": delta}


def _add_start_models(models: Sequence[tuple[RunFolder, str]]) -> list[tuple[RunFolder, str]]:
    """Return ``models`` and, once each, the models of their runs that they started from, which are in the weights."""
    models_with_starts = list(models)
    for run, name in models_with_starts:  # which grows
        start = (read_ledger_facts(run, run.get_model_folder(name)).base or {}).get(START_KEY)
        if start and all((run.root.resolve(), start) != (r.root.resolve(), n) for r, n in models_with_starts):
            models_with_starts.append((run, start))
    return models_with_starts


def _compose_example_level_card(members: Sequence[_ComposedModel], delta: float, refusals: str) -> dict[str, Any]:
    rates, first = _combine_miss_rates(members), members[0].spec
    noisy = [member.spec for member in members if member.spec.mechanism is not None]
    is_mixed = len({(spec.privacy_unit_description, spec.relation) for spec in noisy}) > 1
    uses_policy = all(spec.trainer.uses_policy for spec in noisy)
    unit = first.privacy_unit_description
    if is_mixed and not uses_policy:
        unit = f"one {first.exchanged_example}, {IN_PRIVATE_SPLIT}"
    has_counted = any(member.spec.selection_spendings for member in members)
    rows_moved = [_count_rows_changed_by_other_runs(member, members) for member in members]
    trained = [(member.spec.spending, moved) for member, moved in zip(members, rows_moved, strict=True)]
    # what was counted for a model, to write text by, is released beside it
    histograms = [
        histogram.compute_spending(member.spec.exchanged_row_count + moved)
        for member, moved in zip(members, rows_moved, strict=True)
        if (histogram := Histogram.read_model_histogram(member.run, member.name)) is not None
    ]
    # two models of one run share its selection
    beside = {m.spec.selection.id: m.spec.selection_spendings for m in members if m.spec.selection is not None}
    inputs = EpsilonInputs(
        spendings=(
            *(replace(spending, rows=spending.rows + moved) for spending, moved in trained if spending is not None),
            *chain.from_iterable(beside.values()),
            *histograms,
        ),
        delta=delta,
        group_sizes=tuple(sorted({size for m in members for size in m.facts.settings.group_sizes})),
        relation=Relation.SUBSTITUTION if has_counted or is_mixed else first.relation,
        gamma=rates.gamma,
        delta_2=rates.delta_2,
        uses_policy=uses_policy,
        is_cross_run=any(rows_moved),
        is_counted=has_counted,
    )
    metrics = make_null_metrics(EPSILON_NAMES, refusals, inputs.group_sizes) if refusals else compute_epsilons(inputs)
    coverage = rates.delta_2 if inputs.uses_policy and not refusals else None
    unknown = WORDS["recall_unknown" if uses_policy else "no_policies"]
    metrics.set_value("coverage_failure", coverage, None, refusals or unknown)
    require_reasons(metrics.values, metrics.reasons)
    public_labels = members[0].public_labels if uses_policy else ()
    return {
        "format": FORMAT,
        "unit": WORDS["counted"]["unit"] if has_counted else unit,
        "relation": inputs.relation.value,
        "relation_meaning": WORDS["counted" if has_counted else "relation"][inputs.relation.value],
        "event": make_event_tree(inputs.spendings),
        "miss_rates": {"gamma_upper": rates.gamma, "delta_2_upper": rates.delta_2},
        **metrics.values,
        "reasons": metrics.reasons,
        "accountants": describe_accountants(metrics),
        "assumptions": [
            *WORDS["assumptions"],
            WORDS["several_models"],
            *([WORDS["across_an_index"]] if any(rows_moved) else []),
            *([WORDS["different_trainers"]] if is_mixed else []),
            *filter(None, [format_public_label_note(public_labels)]),
        ],
        "public_labels": sorted(public_labels),
        "notes": WORDS["notes"],
    }


def _compose_unit_level_card(members: Sequence[_ComposedModel], delta: float, refusals: str) -> dict[str, Any]:
    metrics, trainers = Metrics(), {member.facts.settings.trainer for member in members if member.spec.mechanism}
    # a user whose examples are null is hidden by every trainer here; one who is absent, only by some
    fixed = [member.card for member in members if member.card["relation"].endswith(Adjacency.FIXED_GRAPH.value)]
    first = (fixed or [members[0].card])[0]
    spendings = tuple(spending for member in members if (spending := member.spec.spending) is not None)
    confirmed = (
        ConfirmedEpsilon(None, reason=refusals)
        if refusals
        else confirm_epsilon(compare_units(spendings, 1), delta, "epsilon_sound")
    )
    metrics.set_value("epsilon", confirmed.value, None, confirmed.reason or NO_FINITE_EPSILON)
    metrics.set_confirmed_epsilon("epsilon_sound", confirmed)
    if any(member.spec.selection for member in members):
        add_user_epsilon_with_public_texts(metrics, [member.spec for member in members if member.spec.mechanism], delta)
    return {
        "format": UNITS_FORMAT,
        **{key: first[key] for key in ("unit", "relation", "relation_meaning", "privacy_unit")},
        "event": make_event_tree(spendings),
        **metrics.values,
        "curve": {},
        "reasons": metrics.reasons,
        "accountants": describe_accountants(metrics, WORDS["second_accountant"]),
        "assumptions": [
            *WORDS["units"]["assumptions"],
            *([WORDS["units"]["different_trainers"]] if len(trainers) > 1 else []),
        ],
        **{key: WORDS["units"][key] for key in ("not_covered", "notes")},
    }


def _require_same_unit(members: Sequence[_ComposedModel]) -> bool:
    """Require one privacy unit, and no model twice; return whether the unit is users or entities."""
    heads = [member.facts.chain_head for member in members]
    if len(set(heads)) != len(heads):
        raise GuaranteeError("a model is named twice: each can be composed once")
    has_units = {member.facts.trainer.has_units for member in members}
    if len(has_units) > 1:
        raise GuaranteeError(
            "some of these models protect users or entities, the others secrets or examples, and nothing bounds both "
            "at once: removing a user changes the public split and which copies are kept, and exchanging an example "
            "can change which examples are kept of other users. These epsilons cannot be composed"
        )
    (of_units,) = has_units
    noisy = [member for member in members if member.spec.mechanism is not None]
    if of_units:
        uncomposable = sorted({m.facts.settings.trainer for m in noisy if m.spec.spending is None})
        if uncomposable:
            raise GuaranteeError(
                f"trainings with {', '.join(uncomposable)} have no dominating pair: they cannot be composed"
            )
        unknown = [member.title for member in noisy if member.facts.settings.units.file_keys]
        if len(noisy) > 1 and unknown:
            raise GuaranteeError(
                "the contents of lists in files are not recorded, so units cannot be compared: " + ", ".join(unknown)
            )
    by_policy = [m for m in noisy if m.spec.trainer.uses_policy]
    for property_name, values in (
        ("public labels", {get_kinds(m.public_labels) for m in by_policy}),
        ("units", {m.unit for m in noisy}),
        ("ways to decide what is public", {bool(m.spec.selection_spendings) for m in noisy}),
    ):
        if len(values) > 1:
            model_list = "; ".join(f"{m.title} ({m.facts.settings.trainer}): {m.unit}" for m in noisy)
            raise GuaranteeError(f"the {property_name} of these models differ and cannot be composed: {model_list}")
    return of_units


def _count_rows_changed_by_other_runs(member: _ComposedModel, members: Sequence[_ComposedModel]) -> int:
    """Count how many rows of ``member`` the exchanged examples of the other runs move, at most one each.

    Runs of one index leave out what earlier runs saw (``docs/guarantees.md``, "Earlier runs"), so an example
    exchanged in an earlier run exchanges a text of this one.
    """
    index = member.dedup_index
    if index is None:
        return 0
    other_runs = {other.run.root.resolve() for other in members if (other.dedup_index or {}).get("id") == index["id"]}
    return min(len(other_runs - {member.run.root.resolve()}), len(index["runs"]))


def _combine_miss_rates(members: Sequence[_ComposedModel]) -> MissRates:
    """Bound what is missed in any of the runs: in one run the largest rate of its models, over runs the sum.

    One pair of policies does not give one bound: a secret's decision depends on its whole example, and in another
    run it is in another example.
    """
    runs: dict[Path, list[MissRates]] = {}
    for member in members:
        runs.setdefault(member.run.root.resolve(), []).append(member.spec.rates)
    gamma = min(1.0, sum(max(rates.gamma for rates in run_rates) for run_rates in runs.values()))
    failures = [[rates.delta_2 for rates in run_rates if rates.delta_2 is not None] for run_rates in runs.values()]
    all_known = all(
        len(known_failures) == len(run_rates) for known_failures, run_rates in zip(failures, runs.values(), strict=True)
    )
    return MissRates(gamma, min(gamma, sum(map(max, failures))) if all_known else None)
