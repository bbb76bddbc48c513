"""Audit one training: compare the epsilon that a model proves with the epsilon of its guarantee."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from redactory.evaluation.one_run_audit import (
    AuditCoins,
    CanaryForm,
    audit_scores,
    compute_curve_p_value,
    get_coins_path,
    make_curve_level_function,
    read_coins,
)
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.progress import Progress, ignore_progress
from redactory.pipelines.measure.evaluate import ModelEvaluation, Result, read_texts
from redactory.redaction import RunFolder, read_manifest
from redactory.training.settings import TRAINERS

if TYPE_CHECKING:
    from redactory.training import LanguageModel


def evaluate_audit(
    run: str | Path,
    model: str | None = None,
    *,
    coins: str | Path | None = None,
    confidence: float = 0.95,
    progress: Progress = ignore_progress,
) -> Result:
    """Guess the coins of the planted canaries from a model, and compute a lower bound of its epsilon.

    ``coins`` is the file of ``plant_canaries`` (default: the one beside the run's input). Returns {form, planted,
    standing, public, epsilon_upper, upper_field, comparable, reason, holds, guarantee_p_value} and
    :func:`redactory.evaluation.one_run_audit.audit_scores`. ``holds`` is false if ``epsilon_lower`` exceeds
    ``epsilon_upper``, the card's epsilon; for a true guarantee this has probability at most 1 - ``confidence``.
    ``guarantee_p_value`` is a sharper test with the whole privacy curve of the ledger's mechanism; null if it has no
    curve of one row. ``InputError`` if no planted sentence occurs in the run.
    """
    evaluation = ModelEvaluation.open(run, model)
    if coins is None:
        paths = evaluation.run_manifest["configuration"]["input"]["path"]
        coin_files = [file for path in paths if (file := get_coins_path(Path(path))).is_file()]
        if len(coin_files) != 1:
            number = len(coin_files) or "no"
            raise ConfigurationError(
                f"coins: {number} .coins.json files beside the run's input; choose one with --coins"
            )
        coins = coin_files[0]
    planted = read_coins(Path(coins))

    def run_audit() -> Result:
        from redactory.training import make_guarantee_card

        card, sentences = make_guarantee_card(evaluation.run, evaluation.name), list(planted.iter_planted_sentences())
        vault_sentences, public_sentences = (
            set(sentences).intersection(read_texts(f)) for f in (evaluation.run.vault, evaluation.run.public)
        )
        if not vault_sentences:
            raise InputError("coins: this run contains none of the planted sentences; was the planted copy curated?")
        placement = {
            "planted": len(sentences),
            "standing": sum(sentence in vault_sentences for sentence in sentences),
            "public": sum(sentence in public_sentences for sentence in sentences),
        }
        scores = _score_canaries(evaluation.load_language_model(), planted, progress)
        scores_summary = audit_scores(scores, np.array(planted.coins), card["delta"], confidence)
        upper = find_epsilon_upper_bound(card, planted.form, placement["public"])
        return {
            "form": planted.form,
            **placement,
            **scores_summary,
            **upper,
            "holds": not upper["comparable"] or scores_summary["epsilon_lower"] <= upper["epsilon_upper"],
            "guarantee_p_value": compute_audit_p_value(
                evaluation.run, evaluation.name, scores_summary, upper["upper_field"]
            ),
        }

    return evaluation.measure_and_seal("audit", run_audit)


def _score_canaries(model: LanguageModel, coins: AuditCoins, progress: Progress) -> NDArray[np.float64]:
    """Score each canary, positive if the model favours a true coin: float64 [m].

    ``pair``: the log likelihood of the first number's sentence minus the second's. Otherwise: that of the number's
    sentence minus the median over all numbers, about half of which were planted.
    """
    texts = [coins.render_sentence(digits) for pair in coins.numbers for digits in pair]
    log_likelihoods = np.array([log_probs.sum() for log_probs in model.compute_token_log_probs(texts)])
    progress("audit", len(texts), len(texts), "sentences")
    first, second = log_likelihoods[0::2], log_likelihoods[1::2]
    scores = np.asarray(first - (second if coins.form == "pair" else np.median(first)))
    if not np.isfinite(scores).all():
        raise InputError("audit: the model assigns a canary a probability too small for a float")
    return scores


def find_epsilon_upper_bound(card: Mapping[str, Any], form: CanaryForm, public: int) -> Result:
    """Return {epsilon_upper, upper_field, comparable, reason} of a guarantee card for canaries of this ``form``.

    For secrets the two worlds exchange numbers (``epsilon_substitution``) or mask one (``epsilon``); for users they add
    or remove the user (``epsilon_sound``). ``public`` is the number of canaries in public examples of the run.
    """
    field = {"pair": "epsilon_substitution", "masked": "epsilon", "absent": "epsilon_sound"}[form]
    protects_units, reason = "epsilon_sound" in card, None
    if card.get(field if field in card else "epsilon") is None:
        reason = card["reasons"].get(field) or card["reasons"].get("epsilon") or "the card states no epsilon"
    elif protects_units and (form != "absent" or card["privacy_unit"] not in ("users", "both", "either")):
        reason = "the guarantee compares a unit with its absence: plant form absent, for users"
    elif not protects_units and form == "absent":
        reason = "the guarantee compares a secret with another or with its mask: plant form pair or masked"
    elif public and TRAINERS[card["trainer"]].uses_policy:
        reason = f"{public} canaries are in public examples, which no guarantee covers"
    return {
        "epsilon_upper": None if reason else card.get(field),
        "upper_field": None if reason else field,
        "comparable": reason is None,
        "reason": reason,
    }


def compute_audit_p_value(run: RunFolder, name: str, audit: Mapping[str, Any], upper_field: str | None) -> float | None:
    """Return the best p-value over all shares times their number; None without a curve of one row."""
    from redactory.training.accounting import Spending
    from redactory.training.accounting.epsilons import compute_privacy_curve
    from redactory.training.guarantee.spec import START_KEY, read_ledger_facts
    from redactory.training.mechanisms.mechanism import PoissonGaussian, Relation

    facts, manifest = read_ledger_facts(run, run.get_model_folder(name)), read_manifest(run)
    rows = facts.make_spec(manifest["dedup"]).exchanged_row_count
    if START_KEY in (facts.base or {}) or "route" in manifest:
        return None  # of these steps alone the curve would be too low
    protects_secrets = upper_field in ("epsilon_substitution", "epsilon")
    if not protects_secrets or not isinstance(facts.mechanism, PoissonGaussian) or rows > 1:
        return None
    relation = Relation.SUBSTITUTION if upper_field == "epsilon_substitution" else facts.trainer.relation
    level = make_curve_level_function(compute_privacy_curve((Spending(facts.mechanism, facts.steps),), relation))
    p_values = [compute_curve_p_value(audit["canaries"], s["guesses"], s["correct"], level) for s in audit["by_share"]]
    return min(1.0, len(p_values) * min(p_values))
