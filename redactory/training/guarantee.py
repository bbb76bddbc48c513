"""The guarantee card: figures that are theorems about the code that ran, from the ledger and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redactory.dedup import RULES
from redactory.detectors.fitted import side_channel
from redactory.foundation.errors import GuaranteeError
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import read_manifest
from redactory.training import guarantee_text as words
from redactory.training.accounting import epsilon, group_epsilon
from redactory.training.confidentiality import MissRates, bayesian_epsilon
from redactory.training.ledgerfacts import LedgerFacts, ledger_facts
from redactory.training.mechanism import PoissonGaussian, Relation
from redactory.training.settings import RecallMeasurement

FORMAT = "redactory-guarantee/1"
STABLE_RULES = {(rule.name, rule.group_size) for rule in RULES.values() if rule.group_size is not None}
"""The rules that have a stability proof, and how many texts one exchanged point exchanges under each."""
_NOT_FINITE = "no finite epsilon at this delta: the noise is too small for so many steps"
_NO_GROUP_FIGURE = "where a size has no figure, none below 500 was found: the noise protects no such group"
_FIGURES = (
    "epsilon_confidentiality",
    "epsilon_bayesian",
    "coverage_failure",
    "epsilon_substitution",
    "epsilon_add_remove",
)


def guarantee_card(run: RunFolder, name: str, recall: RecallMeasurement | None = None) -> dict[str, Any]:
    """The guarantee of model ``name`` of ``run`` as JSON, derived again each time.

    ``recall`` replaces the measurement that the training's settings hold.  A figure that cannot be
    stated is ``None``, and ``reasons`` says why (``docs/guarantees.md``, "The card").  Raises
    ``GuaranteeError`` where the ledger does not match the weights, the run or itself.
    """
    facts = ledger_facts(run, run.model(name))
    manifest = read_manifest(run)
    measured = recall or facts.settings.recall
    exchanged = _exchanged(facts, manifest)
    card = {**_identity(name, facts), **_mechanism(facts, exchanged), **_coverage(facts, measured, manifest)}
    figures, reasons = _figures(facts, card["miss_rates"], manifest)
    card.update(figures)
    card["reasons"] = {**card["reasons"], **reasons}
    card.update(_words(facts, manifest, _recall_words(measured, card["coverage_failure"])))
    missing = [name for name in _FIGURES if card[name] is None and name not in card["reasons"]]
    if missing:
        raise GuaranteeError(f"no reason is given for {', '.join(missing)}")
    return card


def _identity(name: str, facts: LedgerFacts) -> dict[str, Any]:
    reason = words.NO_NOISE if facts.mechanism is None else words.SEEDED if facts.seeded else None
    return {
        "format": FORMAT,
        "model": name,
        "trainer": facts.settings.trainer,
        "holds": reason is None,
        "holds_reason": reason,
        "seeded": facts.seeded,
        "unit": words.UNIT_OF_DPSGD if facts.settings.trainer == "dpsgd" else words.UNIT,
        "relation": Relation.SUBSTITUTION.value,
        "relation_meaning": words.RELATION,
        "ledger": {"head": facts.chain_head, "steps": facts.steps, "parent": facts.parent},
        "versions": facts.versions,
    }


def _exchanged(facts: LedgerFacts, manifest: dict[str, Any]) -> int:
    """How many rows that are trained on one exchanged point exchanges; 1 where no rule says."""
    if facts.settings.trainer != "crt":
        return 1  # originals, every one a row of its own
    return int(manifest["dedup"]["group_size"] or 1)


def _mechanism(facts: LedgerFacts, exchanged: int) -> dict[str, Any]:
    mechanism = facts.mechanism
    return {
        "sampler_run": "poisson" if mechanism else None,
        "sampler_accounted": "poisson" if mechanism else None,
        "accountant": "privacy loss distributions, pessimistic (dp_accounting)" if mechanism else None,
        "sensitivity": exchanged * mechanism.sensitivity(Relation.SUBSTITUTION) if mechanism else None,
        "clip_norm": mechanism.clip_norm if mechanism else None,
        "sampling_rate": mechanism.sampling_rate if mechanism else None,
        "noise_multiplier": mechanism.noise_multiplier if mechanism else None,
        "normaliser": mechanism.normaliser if mechanism else None,
        "steps": facts.steps,
        "delta": facts.settings.delta,
    }


def _coverage(
    facts: LedgerFacts, recall: RecallMeasurement | None, manifest: dict[str, Any]
) -> dict[str, Any]:
    """``coverage_failure`` and what it was computed from; only ``crt`` relies on the policies."""
    rates = MissRates(1.0, None) if recall is None else MissRates.measured(recall)
    if manifest["policies"]["conservative"].get("flags_everything") is True:
        rates = MissRates(rates.gamma, 0.0)
    reasons: dict[str, str] = {}
    if facts.mechanism is None:
        reasons["coverage_failure"] = words.NO_NOISE
    elif facts.settings.trainer == "dpsgd":
        reasons["coverage_failure"] = "not applicable: every point is noised, the policies decide nothing"
    elif rates.delta_2 is None:
        reasons["coverage_failure"] = words.NOT_MEASURED
    return {
        "coverage_failure": None if reasons else rates.delta_2,
        "miss_rates": {
            "gamma_upper": rates.gamma,
            "delta_2_upper": rates.delta_2,
            "measured": None if recall is None else recall.model_dump(mode="json", exclude_none=True),
        },
        "reasons": reasons,
    }


def _figures(
    facts: LedgerFacts, rates: dict[str, Any], manifest: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Every epsilon, and a reason for each that is ``None``."""
    delta, groups = facts.settings.delta, [str(size) for size in facts.settings.group_sizes]
    refusal = _refusal(facts, manifest)
    if facts.mechanism is None or refusal:
        names = [name for name in (*_FIGURES, "epsilon_group") if name != "coverage_failure"]
        none: dict[str, Any] = dict.fromkeys(names)
        return {**none, "epsilon_group": dict.fromkeys(groups)}, dict.fromkeys(names, refusal or "")
    exchanged = _exchanged(facts, manifest)
    curve = _curve(facts.mechanism, facts.steps, exchanged)
    # under rule S2 a point that goes leaves its place to another: one row is exchanged, none just gone
    alone = Relation.ADD_OR_REMOVE if exchanged == 1 else Relation.SUBSTITUTION
    figures: dict[str, Any] = {
        "epsilon_substitution": curve(delta),
        "epsilon_add_remove": epsilon(facts.mechanism, facts.steps, delta, alone),
        "epsilon_group": {
            size: group_epsilon(facts.mechanism, facts.steps, delta, exchanged * int(size)) for size in groups
        },
    }
    reasons = {name: _NOT_FINITE for name, value in figures.items() if value is None}
    if None in figures["epsilon_group"].values():
        reasons["epsilon_group"] = _NO_GROUP_FIGURE
    redaction, why = _redaction_figures(facts, rates, curve)
    return {**figures, **redaction}, {**reasons, **why}


def _redaction_figures(
    facts: LedgerFacts, rates: dict[str, Any], curve: Callable[[float], float | None]
) -> tuple[dict[str, Any], dict[str, str]]:
    """``epsilon_confidentiality`` (every secret) and ``epsilon_bayesian`` (secrets that a policy catches)."""
    names = ("epsilon_confidentiality", "epsilon_bayesian")
    if facts.settings.trainer == "dpsgd":
        why = (
            "the policies are not used by this trainer: epsilon_substitution is the figure for a secret in a "
            "point of the private side; the vocabulary, taken from public/, is outside of it"
        )
        return dict.fromkeys(names), dict.fromkeys(names, why)
    delta, gamma, delta_2 = facts.settings.delta, rates["gamma_upper"], rates["delta_2_upper"]
    caught = bayesian_epsilon(curve, delta, gamma, 0.0)
    every = None if delta_2 is None else bayesian_epsilon(curve, delta, gamma, delta_2)
    reasons = {} if caught is not None else {"epsilon_bayesian": _NOT_FINITE}
    if delta_2 is None:
        reasons["epsilon_confidentiality"] = f"{words.NOT_MEASURED}: delta_2 may be above delta"
    elif delta <= delta_2:
        reasons["epsilon_confidentiality"] = (
            f"delta {delta:g} is not above {delta_2:.3g}, the upper bound of the share of secrets that both "
            "policies miss: for those there is no guarantee"
        )
    elif every is None:
        reasons["epsilon_confidentiality"] = _NOT_FINITE
    return {"epsilon_confidentiality": every, "epsilon_bayesian": caught}, reasons


def _refusal(facts: LedgerFacts, manifest: dict[str, Any]) -> str | None:
    """Why no epsilon at all can be stated, or ``None`` (``docs/guarantees.md``, "Deduplication")."""
    if facts.mechanism is None:
        return words.NO_NOISE
    if facts.settings.trainer != "crt":
        return None
    dedup = manifest["dedup"]
    rule = dedup["rule"]
    if rule in words.LOST:
        return f"no finite epsilon: {words.LOST[rule]}"
    if (rule, dedup["group_size"]) not in STABLE_RULES:
        return f"no finite epsilon: deduplication rule {rule} is not on the list of stable rules"
    return None


def _curve(mechanism: PoissonGaussian, steps: int, exchanged: int) -> Callable[[float], float | None]:
    def at(delta: float) -> float | None:
        if delta >= 1.0:
            return 0.0
        if exchanged > 1:
            return group_epsilon(mechanism, steps, delta, exchanged)
        return epsilon(mechanism, steps, delta, Relation.SUBSTITUTION)

    return at


def _words(facts: LedgerFacts, manifest: dict[str, Any], recall: tuple[str, ...]) -> dict[str, Any]:
    rule = words.DEDUPLICATION.get(manifest["dedup"]["rule"])
    of_crt = (*((rule,) if rule else ()), *words.ASSUMPTIONS_OF_CRT, *recall)
    own = {"crt": of_crt, "dpsgd": words.ASSUMPTIONS_OF_DPSGD, "sgd": ()}[facts.settings.trainer]
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
    return {
        "assumptions": [*words.ASSUMPTIONS_OF_ALL, *own, *instead.values()] if noisy else [],
        "side_channels": channels if noisy else [],
        "not_covered": [*words.NOT_COVERED, *together] if noisy else ["everything: nothing is guaranteed"],
        "recall": " ".join(recall) if noisy and facts.settings.trainer == "crt" else None,
        "notes": words.NOTES,
    }


def _of_index(facts: LedgerFacts, manifest: dict[str, Any]) -> dict[str, str]:
    """The index that decided which private texts are trained on, and how many runs it held; else nothing."""
    dedup = manifest["dedup"]
    index = dedup.get("index")
    if index is None or facts.settings.trainer != "crt" or dedup["rule"] == "none":
        return {}
    number = len(index["runs"])
    return {"index": index["id"], "runs": f"{number} earlier run{'' if number == 1 else 's'}"}


def _recall_words(recall: RecallMeasurement | None, coverage_failure: float | None) -> tuple[str, ...]:
    """What recall rests on: its source, size and date, or what follows where there is none."""
    if recall is None:
        unknown = (words.COVERAGE_UNKNOWN,) if coverage_failure is None else ()
        return (words.RECALL_NOT_MEASURED, *unknown)
    if recall.sample is None:
        return (words.RECALL_OF_COUNTS.format(labels=recall.labels),)
    sample = recall.sample.model_dump(mode="json", include={"name", "date", "texts"})
    return (words.RECALL_OF_SAMPLE.format(labels=recall.labels, **sample),)
