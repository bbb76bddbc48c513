"""Several models together: what may be promised of somebody who holds all of them.

Each ledger is checked as for its own card; the events of all are composed adaptively
(``docs/guarantees.md``, "Several models").
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redactory.foundation.errors import ConfigurationError, GuaranteeError
from redactory.redaction.folder import RunFolder
from redactory.training import guarantee_figures as words
from redactory.training.accounting import event_tree
from redactory.training.confidentiality import MissRates
from redactory.training.guarantee import claim_of, index_of, miss_rates, unit_of
from redactory.training.guarantee_figures import Claim, figures_of, refused, require_reasons
from redactory.training.ledgerfacts import LedgerFacts, ledger_facts, parent_manifest
from redactory.training.uedp.card import is_of_units
from redactory.training.uedp.composed import composed_units

FORMAT = "redactory-composed-guarantee/1"


@dataclass(frozen=True)
class _Member:
    """One model with what its ledger proves."""

    run: RunFolder
    name: str
    facts: LedgerFacts
    manifest: dict[str, Any]
    rates: MissRates
    claim: Claim

    @property
    def title(self) -> str:
        return f"{self.run.root}: {self.name}"


def composed_card(models: Sequence[tuple[RunFolder, str]], delta: float | None = None) -> dict[str, Any]:
    """The guarantee of ``models`` (run, name) together, as JSON, at ``delta`` or the one that all state.

    ``GuaranteeError`` where a ledger does not hold, where a model is named twice, or where units or
    relations differ: such figures cannot be added.  A model without a finite epsilon leaves none to all.
    """
    members = [_member(run, name) for run, name in models]
    _require_one(members)
    delta = _delta(members, delta)
    if is_of_units(members[0].facts.settings):
        return composed_units([(member.run, member.name, member.facts) for member in members], delta)
    rates = _joined_rates(members)
    first = members[0].claim
    across = [_moved_by_others(member, members) for member in members]
    claim = Claim(
        spent=tuple(
            dataclasses.replace(one, rows=one.rows + moved)
            for member, moved in zip(members, across, strict=True)
            for one in member.claim.spent
        ),
        delta=delta,
        group_sizes=tuple(sorted({size for member in members for size in member.claim.group_sizes})),
        relation=first.relation,
        gamma=rates.gamma,
        delta_2=rates.delta_2,
        by_policy=first.by_policy,
        across=any(across),
    )
    shared = (words.ACROSS_AN_INDEX,) if any(across) else ()
    refusals = [f"{m.title}: {why}" for m in members if (why := m.facts.refusal(m.manifest)) is not None]
    figures = refused(claim.group_sizes, "; ".join(refusals)) if refusals else figures_of(claim)
    broken = [m.title for m in members if m.facts.seeded]
    reason = "; ".join(refusals) or (f"{words.SEEDED}: {', '.join(broken)}" if broken else None)
    coverage = rates.delta_2 if claim.by_policy and not refusals else None
    reasons = {**figures.reasons}
    if coverage is None:
        reasons["coverage_failure"] = "; ".join(refusals) or words.NOT_MEASURED
    card = {
        "format": FORMAT,
        "models": [_told(member) for member in members],
        "holds": reason is None,
        "holds_reason": reason,
        "unit": unit_of(members[0].facts.settings),
        "relation": claim.relation.value,
        "relation_meaning": words.RELATIONS[claim.relation],
        "delta": delta,
        "event": event_tree(claim.spent),
        "coverage_failure": coverage,
        "miss_rates": {"gamma_upper": rates.gamma, "delta_2_upper": rates.delta_2},
        **figures.values,
        "reasons": reasons,
        "accountants": {
            "main": words.MAIN_ACCOUNTANT,
            "second": words.SECOND_ACCOUNTANT,
            "bounds": figures.second,
            "alone": figures.alone,
        },
        "assumptions": [*words.ASSUMPTIONS_OF_ALL, words.SEVERAL_MODELS, *shared],
        "notes": words.NOTES,
    }
    require_reasons(figures.values, reasons)
    return card


def _member(run: RunFolder, name: str) -> _Member:
    facts = ledger_facts(run, run.model(name))
    manifest = parent_manifest(run, facts)
    rates = miss_rates(facts.settings.recall, manifest)
    return _Member(run, name, facts, manifest, rates, claim_of(facts, manifest, rates))


def _require_one(members: Sequence[_Member]) -> None:
    """One unit, one relation, no model twice."""
    heads = [member.facts.chain_head for member in members]
    if len(set(heads)) != len(heads):
        raise GuaranteeError("a model is named twice: each is composed once")
    of_units = {is_of_units(member.facts.settings) for member in members}
    if len(of_units) > 1:
        raise GuaranteeError(
            "some of these models hide users or entities, the others secrets or points: their figures are "
            "under different relations and cannot be composed"
        )
    noisy = [member for member in members if member.facts.mechanism is not None]
    for what, values in (
        ("units", {unit_of(member.facts.settings) for member in noisy}),
        ("relations", {member.facts.relation.value for member in noisy}),
    ):
        if len(values) > 1:
            told = ", ".join(f"{m.title} ({m.facts.settings.trainer})" for m in noisy)
            raise GuaranteeError(f"the {what} of these models differ and cannot be composed: {told}")


def _delta(members: Sequence[_Member], delta: float | None) -> float:
    stated = {member.claim.delta for member in members}
    if delta is not None:
        return delta
    if len(stated) > 1:
        told = ", ".join(f"{value:g}" for value in sorted(stated))
        raise ConfigurationError(
            f"these models state their figures at different deltas ({told}): give --delta"
        )
    return stated.pop()


def _moved_by_others(member: _Member, members: Sequence[_Member]) -> int:
    """How many rows of ``member`` the exchanged points of the other runs move, one each at most.

    What runs of one index saw before is left out (``docs/guarantees.md``, "Earlier runs"), so that a point
    exchanged in an earlier run exchanges a text of this one.
    """
    index = index_of(member.facts, member.manifest)
    if index is None:
        return 0
    others = {
        other.run.root.resolve()
        for other in members
        if (index_of(other.facts, other.manifest) or {}).get("id") == index["id"]
    } - {member.run.root.resolve()}
    return min(len(others), len(index["runs"]))


def _joined_rates(members: Sequence[_Member]) -> MissRates:
    """Bounds of what is missed in any of the runs: in one run the largest of its models', of runs the sum.

    One pair of policies does not make it one bound: a secret's fate follows from the whole point that it
    stands in, and in another run it stands in another one.
    """
    runs: dict[Path, list[MissRates]] = {}
    for member in members:
        runs.setdefault(member.run.root.resolve(), []).append(member.rates)
    gamma = min(1.0, sum(max(rates.gamma for rates in own) for own in runs.values()))
    failures = [[rates.delta_2 for rates in own if rates.delta_2 is not None] for own in runs.values()]
    known = all(len(found) == len(own) for found, own in zip(failures, runs.values(), strict=True))
    return MissRates(gamma, min(gamma, sum(map(max, failures))) if known else None)


def _told(member: _Member) -> dict[str, Any]:
    return {
        "run": str(member.run.root),
        "model": member.name,
        "trainer": member.facts.settings.trainer,
        "steps": member.facts.steps,
        "event": event_tree(member.claim.spent),
        "ledger": member.facts.chain_head,
        "parent": member.facts.parent,
        "gamma_upper": member.rates.gamma,
        "delta_2_upper": member.rates.delta_2,
    }
