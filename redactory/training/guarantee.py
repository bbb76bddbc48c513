"""The guarantee card: figures that are theorems about the code that ran, from the ledger and nothing else."""

from __future__ import annotations

from typing import Any

from redactory.detectors import blind_of, blind_words
from redactory.detectors.settings import side_channel
from redactory.foundation.errors import some
from redactory.redaction.folder import RunFolder
from redactory.training import guarantee_figures as words
from redactory.training.accounting import Spending, event_tree
from redactory.training.accounting.published import crt_published
from redactory.training.confidentiality import MissRates
from redactory.training.guarantee_figures import Claim, Figures, figures_of, refused, require_reasons
from redactory.training.ledgerfacts import BY_POLICY, LedgerFacts, ledger_facts, noise_of, parent_manifest
from redactory.training.mechanism import PoissonGaussian, Relation
from redactory.training.settings import RecallMeasurement, TrainSettings
from redactory.training.uedp.card import is_of_units, unit_in_words, units_card

FORMAT = "redactory-guarantee/2"


def guarantee_card(run: RunFolder, name: str, recall: RecallMeasurement | None = None) -> dict[str, Any]:
    """The guarantee of model ``name`` of ``run`` as JSON, derived again each time by two accountants.

    ``recall`` replaces the measurement that the training's settings hold.  A figure that cannot be
    stated is ``None``, and ``reasons`` says why (``docs/guarantees.md``, "The card").  Raises
    ``GuaranteeError`` where the ledger does not match the weights, the run or itself, or where the
    accountants disagree.
    """
    facts = ledger_facts(run, run.model(name))
    manifest = parent_manifest(run, facts)
    if is_of_units(facts.settings):
        return units_card(name, facts)
    blind = blind_words(blind_of(manifest)) if facts.settings.trainer in BY_POLICY else None
    measured = None if blind else recall or facts.settings.recall
    rates = miss_rates(measured, manifest)
    claim = claim_of(facts, manifest, rates)
    refusal = facts.refusal(manifest)
    figures = refused(claim.group_sizes, refusal) if refusal else figures_of(claim)
    coverage, why = _coverage(facts, rates, blind)
    card = {
        **_identity(name, facts, facts.broken_by(manifest)),
        "blind": blind,
        **_mechanism(facts, claim),
        "coverage_failure": coverage,
        "miss_rates": _rates_json(rates, measured),
        **figures.values,
        "reasons": {**why, **figures.reasons},
        "accountants": _accountants(facts, figures),
        "as_published": _as_published(facts, claim),
        **_words(facts, manifest, (blind,) if blind else _recall_words(measured, coverage)),
    }
    require_reasons({**figures.values, "coverage_failure": coverage}, card["reasons"])
    return card


def claim_of(facts: LedgerFacts, manifest: dict[str, Any], rates: MissRates) -> Claim:
    """What the figures of one model are computed from."""
    spent = (Spending(facts.mechanism, facts.steps, _exchanged(facts, manifest)),) if facts.mechanism else ()
    return Claim(
        spent=spent,
        delta=facts.settings.delta,
        group_sizes=facts.settings.group_sizes,
        relation=facts.relation,
        gamma=rates.gamma,
        delta_2=rates.delta_2,
        by_policy=facts.settings.trainer in BY_POLICY,
    )


def miss_rates(recall: RecallMeasurement | None, manifest: dict[str, Any]) -> MissRates:
    """The upper bounds of γ and δ₂; δ₂ is 0 where every point is made private.

    Of a run that is blind to some kind of names nothing is known, whatever was measured on labels.
    """
    if blind_of(manifest)["kinds"]:
        return MissRates(1.0, None)
    rates = MissRates(1.0, None) if recall is None else MissRates.measured(recall)
    if manifest["policies"]["conservative"].get("flags_everything") is True:
        return MissRates(rates.gamma, 0.0)
    return rates


def unit_of(settings: TrainSettings) -> str:
    """What is protected, in words; two cards with different units say different things."""
    if is_of_units(settings):
        return f"{unit_in_words(settings)} ({settings.trainer})"
    return words.UNIT_OF_DPSGD if settings.trainer == "dpsgd" else words.UNIT


def _identity(name: str, facts: LedgerFacts, reason: str | None) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "model": name,
        "kind": facts.settings.model.kind,
        "trainer": facts.settings.trainer,
        "holds": reason is None,
        "holds_reason": reason,
        "seeded": facts.seeded,
        "unit": unit_of(facts.settings),
        "relation": facts.relation.value,
        "relation_meaning": words.RELATIONS[facts.relation],
        "ledger": {"head": facts.chain_head, "steps": facts.steps, "parent": facts.parent},
        "versions": facts.versions,
        **words.place_of(facts.settings.device),
    }


def _exchanged(facts: LedgerFacts, manifest: dict[str, Any]) -> int:
    """How many rows that are trained on one exchanged point exchanges; 1 where no rule says."""
    if facts.settings.trainer not in BY_POLICY:
        return 1  # originals, every one a row of its own
    return int(manifest["dedup"]["group_size"] or 1)


def _mechanism(facts: LedgerFacts, claim: Claim) -> dict[str, Any]:
    mechanism = facts.mechanism
    relation = Relation.ADD_OR_REMOVE if claim.dropped else Relation.SUBSTITUTION
    return {
        "sampler_run": mechanism.sampler if mechanism else None,
        "sampler_accounted": mechanism.sampler if mechanism else None,
        "event": event_tree(claim.spent) if mechanism else None,
        "sensitivity": claim.rows * mechanism.sensitivity(relation) if mechanism else None,
        **noise_of(facts),
    }


def _coverage(facts: LedgerFacts, rates: MissRates, blind: str | None) -> tuple[float | None, dict[str, str]]:
    """``coverage_failure``, or the reason why there is none; only CRT relies on the policies."""
    reason = None
    if facts.mechanism is None:
        reason = words.NO_NOISE[facts.settings.trainer]
    elif facts.settings.trainer not in BY_POLICY:
        reason = "not applicable: every point is noised, the policies decide nothing"
    elif rates.delta_2 is None:
        reason = blind or words.NOT_MEASURED
    return (None, {"coverage_failure": reason}) if reason else (rates.delta_2, {})


def _rates_json(rates: MissRates, recall: RecallMeasurement | None) -> dict[str, Any]:
    return {
        "gamma_upper": rates.gamma,
        "delta_2_upper": rates.delta_2,
        "measured": None if recall is None else recall.model_dump(mode="json", exclude_none=True),
    }


def _accountants(facts: LedgerFacts, figures: Figures) -> dict[str, Any] | None:
    if facts.mechanism is None:
        return None
    return {
        "main": words.MAIN_ACCOUNTANT,
        "second": words.SECOND_ACCOUNTANT,
        "bounds": figures.second,
        "alone": figures.alone,
    }


def _as_published(facts: LedgerFacts, claim: Claim) -> dict[str, Any] | None:
    """What the paper's formulas would say, for CRT's own mechanism only."""
    if facts.settings.trainer != "crt" or not isinstance(facts.mechanism, PoissonGaussian) or claim.rows > 1:
        return None
    return crt_published(claim.spent, claim.delta, claim.gamma, claim.delta_2, claim.group_sizes)


def _words(facts: LedgerFacts, manifest: dict[str, Any], recall: tuple[str, ...]) -> dict[str, Any]:
    rule = words.DEDUPLICATION.get(manifest["dedup"]["rule"])
    by_policy = facts.settings.trainer in BY_POLICY
    drop = (words.DROPPED,) if facts.settings.trainer == "crt-drop" else ()
    of_crt = (*((rule,) if rule else ()), *drop, *words.ASSUMPTIONS_OF_CRT, *recall)
    tuned = side_channel(manifest["policies"])
    indexed = _of_index(facts, manifest)
    instead = {words.POLICIES_TUNED: tuned} if tuned else {}
    if indexed:
        instead[words.EARLIER_RUNS] = words.INDEXED.format(**indexed)
    together = (words.MODELS_OF_AN_INDEX.format(**indexed),) if indexed else ()
    channels = [
        {"item": number, "channel": channel, "ensured_by": instead.get(channel, ensured)}
        for number, (channel, ensured) in enumerate(words.SIDE_CHANNELS, 1)
    ]
    noisy = facts.mechanism is not None
    own = (
        (
            *(of_crt if by_policy else words.ASSUMPTIONS_OF_DPSGD),
            words.NOISE[facts.mechanism.noise],
            *words.resting_on(facts.settings.device),
        )
        if facts.mechanism
        else ()
    )
    return {
        "assumptions": [*words.ASSUMPTIONS_OF_ALL, *own, *instead.values()] if noisy else [],
        "pre_steps": words.pre_steps(by_policy) if noisy else [],
        "side_channels": channels if noisy else [],
        "not_covered": [*words.NOT_COVERED, *together] if noisy else ["everything: nothing is guaranteed"],
        "recall": " ".join(recall) if noisy and by_policy else None,
        "notes": words.NOTES,
    }


def index_of(facts: LedgerFacts, manifest: dict[str, Any]) -> dict[str, Any] | None:
    """The index that decided which private texts are trained on: its ``id``, and the ``runs`` before."""
    dedup = manifest["dedup"]
    if facts.settings.trainer not in BY_POLICY or dedup["rule"] == "none":
        return None
    index: dict[str, Any] | None = dedup.get("index")
    return index


def _of_index(facts: LedgerFacts, manifest: dict[str, Any]) -> dict[str, str]:
    """In words: which index, and how many runs it held; nothing without one."""
    index = index_of(facts, manifest)
    if index is None:
        return {}
    number = len(index["runs"])
    return {"index": index["id"], "runs": f"{number} earlier run{'' if number == 1 else 's'}"}


def _recall_words(recall: RecallMeasurement | None, coverage_failure: float | None) -> tuple[str, ...]:
    """What recall rests on: its source, size and date, or what follows where there is none."""
    if recall is None:
        unknown = (words.COVERAGE_UNKNOWN,) if coverage_failure is None else ()
        return (words.RECALL_NOT_MEASURED, *unknown)
    if recall.sample is None:
        labels = some(recall.labels, "labelled secret")
        when = words.MEASURED_ON if recall.date else words.MEASURED_SOME_DAY
        return (words.RECALL_OF_COUNTS.format(labels=labels, when=when.format(date=recall.date)),)
    sample = recall.sample
    texts, labels = some(sample.texts, "text"), some(recall.labels, "secret")
    told = words.RECALL_OF_SAMPLE.format(name=sample.name, texts=texts, labels=labels, date=sample.date)
    return (told,)
