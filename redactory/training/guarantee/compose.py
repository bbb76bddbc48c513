"""Several models together: what may be promised of somebody who holds all of them.

Each ledger is checked as for its own card; the events of all are composed adaptively (``docs/guarantees.md``,
"Several models").  One unit has at most K_i points in training i; T_i steps of each are dominated by the
mixture of Gaussians of K_i points, and dominating pairs compose (``docs/explanation/uedp.md``).  What has no
such pair is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from redactory.detectors.settings import kinds_of, public_of, public_words
from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.redaction.folder import RunFolder
from redactory.training.accounting import event_tree
from redactory.training.accounting.second import NOT_FINITE, Stated
from redactory.training.counted import Selection
from redactory.training.guarantee import WORDS
from redactory.training.guarantee.card import accountants, index_of, units_card
from redactory.training.guarantee.figures import (
    EPSILONS,
    Claim,
    Figures,
    figures_of,
    one_removed,
    refused,
    require_reasons,
    with_public,
)
from redactory.training.guarantee.spec import (
    START,
    LedgerFacts,
    MissRates,
    TrainingSpec,
    ledger_facts,
    parent_manifest,
    spec_in,
)
from redactory.training.histogram import Histogram
from redactory.training.mechanism import Relation

FORMAT, FORMAT_OF_UNITS = "redactory-composed-guarantee/1", "redactory-composed-unit-guarantee/1"


@dataclass(frozen=True)
class _Member:
    """One model with what its ledger proves; ``card`` is its own under a user or entity relation."""

    run: RunFolder
    name: str
    facts: LedgerFacts
    manifest: dict[str, Any]
    spec: TrainingSpec
    card: dict[str, Any]

    @classmethod
    def of(cls, run: RunFolder, name: str) -> _Member:
        facts = ledger_facts(run, run.model(name))
        manifest = parent_manifest(run, facts)
        if facts.trainer.of_units:
            spec = facts.spec(selection=Selection.of_run(manifest))
            return cls(run, name, facts, {}, spec, units_card(name, facts, manifest))
        # what it started from is a member of its own
        spec = replace(spec_in(run, facts, facts.settings.detector_recall_file), start=None)
        return cls(run, name, facts, manifest, spec, {})

    @property
    def title(self) -> str:
        return f"{self.run.root}: {self.name}"

    @property
    def refusal(self) -> str | None:
        """Why there is no finite figure of it, and so of none together with it."""
        return self.card["reasons"].get("epsilon_sound") if self.card else self.spec.refusal

    @property
    def index(self) -> dict[str, Any] | None:
        return index_of(self.spec, self.manifest)

    @property
    def public(self) -> tuple[str, ...]:
        """The labels whose hits are no secrets to it."""
        return public_of(self.manifest) if self.manifest and self.spec.trainer.by_policy else ()

    @property
    def own(self) -> dict[str, Any]:
        """What the card of all says of this one alone."""
        if self.card:
            return {"K": self.card.get("K")}
        rates, event = self.spec.rates, event_tree(Claim.of(self.spec).spent)
        return {"event": event, "gamma_upper": rates.gamma, "delta_2_upper": rates.delta_2}


def composed_card(models: Sequence[tuple[RunFolder, str]], delta: float | None = None) -> dict[str, Any]:
    """The guarantee of ``models`` (run, name) together, as JSON, at ``delta`` or the one that all state.

    ``GuaranteeError`` where a ledger does not hold, where a model is named twice, or where units or
    relations differ: such figures cannot be added.  A model without a finite epsilon leaves none to all.
    """
    members = [_Member.of(run, name) for run, name in _with_starts(models)]
    of_units = _require_one(members)
    stated = sorted({member.spec.delta for member in members})
    if delta is None and len(stated) > 1:
        listed = ", ".join(f"{value:g}" for value in stated)
        raise ConfigurationError(f"these models state their epsilons at different deltas ({listed}): give --delta")
    delta = stated[0] if delta is None else delta
    refusals = "; ".join(f"{member.title}: {member.refusal}" for member in members if member.refusal)
    seeded = [member.title for member in members if member.facts.seeded]
    reason = refusals or (f"{WORDS['seeded']}: {', '.join(seeded)}" if seeded else None)
    summaries = [
        {
            "run": str(member.run.root),
            "model": member.name,
            "trainer": member.facts.settings.trainer,
            "steps": member.facts.steps,
            "ledger": member.facts.chain_head,
            "parent": member.facts.parent,
            **member.own,
        }
        for member in members
    ]
    found = (_of_units if of_units else _of_points)(members, delta, refusals)
    return {**found, "models": summaries, "holds": reason is None, "holds_reason": reason, "delta": delta}


def _with_starts(models: Sequence[tuple[RunFolder, str]]) -> list[tuple[RunFolder, str]]:
    """``models`` and, once each, those of their runs that they started from: those are in the weights."""
    found = list(models)
    for run, name in found:  # which grows
        start = (ledger_facts(run, run.model(name)).base or {}).get(START)
        if start and all((run.root.resolve(), start) != (r.root.resolve(), n) for r, n in found):
            found.append((run, start))
    return found


def _of_points(members: Sequence[_Member], delta: float, refusals: str) -> dict[str, Any]:
    rates, first = _joined_rates(members), members[0].spec
    counted = any(member.spec.beside for member in members)
    across = [_moved_by_others(member, members) for member in members]
    trained = [(member.spec.spending, moved) for member, moved in zip(members, across, strict=True)]
    # what was counted for a model, to write text by, is released beside it
    histograms = [
        histogram.spending(member.spec.rows + moved)
        for member, moved in zip(members, across, strict=True)
        if (histogram := Histogram.of_model(member.run, member.name)) is not None
    ]
    # two models of one run share its selection
    beside = {m.spec.selection.id: m.spec.beside for m in members if m.spec.selection is not None}
    claim = Claim(
        spent=(
            *(replace(one, rows=one.rows + moved) for one, moved in trained if one is not None),
            *chain.from_iterable(beside.values()),
            *histograms,
        ),
        delta=delta,
        group_sizes=tuple(sorted({size for m in members for size in m.facts.settings.group_sizes})),
        relation=Relation.SUBSTITUTION if counted else first.relation,
        gamma=rates.gamma,
        delta_2=rates.delta_2,
        by_policy=first.trainer.by_policy,
        across=any(across),
        counted=counted,
    )
    figures = refused(EPSILONS, refusals, claim.group_sizes) if refusals else figures_of(claim)
    coverage = rates.delta_2 if claim.by_policy and not refusals else None
    figures.put("coverage_failure", coverage, None, refusals or WORDS["recall_unknown"])
    require_reasons(figures.values, figures.reasons)
    return {
        "format": FORMAT,
        "unit": WORDS["counted"]["unit"] if counted else first.unit,
        "relation": claim.relation.value,
        "relation_meaning": WORDS["counted" if counted else "relation"][claim.relation.value],
        "event": event_tree(claim.spent),
        "miss_rates": {"gamma_upper": rates.gamma, "delta_2_upper": rates.delta_2},
        **figures.values,
        "reasons": figures.reasons,
        "accountants": accountants(figures),
        "assumptions": [
            *WORDS["assumptions"],
            WORDS["several_models"],
            *([WORDS["across_an_index"]] if any(across) else []),
            *filter(None, [public_words(members[0].public)]),
        ],
        "public_labels": sorted(members[0].public),
        "notes": WORDS["notes"],
    }


def _of_units(members: Sequence[_Member], delta: float, refusals: str) -> dict[str, Any]:
    found, first = Figures(), members[0].card
    spent = tuple(one for member in members if (one := member.spec.spending) is not None)
    stated = Stated(None, None, refusals) if refusals else one_removed(spent, delta, "epsilon_sound")
    found.put("epsilon", stated.value, None, stated.reason or NOT_FINITE)
    found.state("epsilon_sound", stated)
    if any(member.spec.selection for member in members):
        with_public(found, [member.spec for member in members if member.spec.mechanism], delta)
    return {
        "format": FORMAT_OF_UNITS,
        **{key: first[key] for key in ("unit", "relation", "relation_meaning", "privacy_unit")},
        "event": event_tree(spent),
        **found.values,
        "curve": {},
        "reasons": found.reasons,
        "accountants": accountants(found, WORDS["second_accountant_of_units"]),
        **{key: WORDS["units"][key] for key in ("assumptions", "not_covered", "notes")},
    }


def _require_one(members: Sequence[_Member]) -> bool:
    """One unit, one relation, no model twice; whether the unit is users or entities."""
    heads = [member.facts.chain_head for member in members]
    if len(set(heads)) != len(heads):
        raise GuaranteeError("a model is named twice: each can be composed once")
    kinds = {member.facts.trainer.of_units for member in members}
    if len(kinds) > 1:
        raise GuaranteeError(
            "some of these models protect users or entities, the others secrets or examples: their epsilons "
            "are under different relations and cannot be composed"
        )
    (of_units,) = kinds
    noisy = [member for member in members if member.spec.mechanism is not None]
    if of_units:
        alone = sorted({m.facts.settings.trainer for m in noisy if m.spec.spending is None})
        if alone:
            raise GuaranteeError(f"trainings with {', '.join(alone)} have no dominating pair: they cannot be composed")
        unknown = [member.title for member in noisy if member.facts.settings.units.lists]
        if len(noisy) > 1 and unknown:
            raise GuaranteeError(
                "the contents of lists in files are not recorded, so units cannot be compared: " + ", ".join(unknown)
            )
    for what, values in (
        ("public labels", {kinds_of(m.public) for m in noisy}),
        ("units", {f"{m.spec.unit} {m.card.get('relation')}" for m in noisy}),
        ("relations", {member.spec.relation for member in noisy}),
        ("ways to decide what is public", {bool(member.spec.beside) for member in noisy}),
    ):
        if len(values) > 1:
            listed = ", ".join(f"{m.title} ({m.facts.settings.trainer})" for m in noisy)
            raise GuaranteeError(f"the {what} of these models differ and cannot be composed: {listed}")
    return of_units


def _moved_by_others(member: _Member, members: Sequence[_Member]) -> int:
    """How many rows of ``member`` the exchanged points of the other runs move, one each at most.

    What runs of one index saw before is left out (``docs/guarantees.md``, "Earlier runs"), so that a point
    exchanged in an earlier run exchanges a text of this one.
    """
    index = member.index
    if index is None:
        return 0
    others = {other.run.root.resolve() for other in members if (other.index or {}).get("id") == index["id"]}
    return min(len(others - {member.run.root.resolve()}), len(index["runs"]))


def _joined_rates(members: Sequence[_Member]) -> MissRates:
    """Bounds of what is missed in any of the runs: in one run the largest of its models', of runs the sum.

    One pair of policies does not make it one bound: a secret's fate follows from the whole point that it
    stands in, and in another run it stands in another one.
    """
    runs: dict[Path, list[MissRates]] = {}
    for member in members:
        runs.setdefault(member.run.root.resolve(), []).append(member.spec.rates)
    gamma = min(1.0, sum(max(rates.gamma for rates in own) for own in runs.values()))
    failures = [[rates.delta_2 for rates in own if rates.delta_2 is not None] for own in runs.values()]
    known = all(len(found) == len(own) for found, own in zip(failures, runs.values(), strict=True))
    return MissRates(gamma, min(gamma, sum(map(max, failures))) if known else None)
