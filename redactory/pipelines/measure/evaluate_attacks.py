"""Attack a trained model: membership inference, extraction of secrets from the vault, and the one-run audit."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from redactory import training
from redactory.evaluation import extraction, membership, one_run_audit, plots
from redactory.evaluation.labelled import read_labelled_rows, split_labelled_row
from redactory.evaluation.linkage import ValueSearch
from redactory.evaluation.synthetic import ClassedText
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.stream import RandomStream
from redactory.pipelines.curation.policy import make_run_router
from redactory.pipelines.measure.evaluate import CLASSIFY, ModelEvaluation, Result, read_texts, read_trainer_texts
from redactory.redaction import RunFolder, read_manifest
from redactory.redaction.shards import read_column
from redactory.training.mechanisms.mechanism import Relation
from redactory.training.settings import TRAINERS

PROMPT_WORDS, MAX_PROMPTS = 4, 1_000


def evaluate_membership(
    run: str | Path,
    model: str | None = None,
    *,
    secrets: str | Path | None = None,
    others: str | Path | None = None,
    label: str | None = None,
    reference: str | Path | None = None,
    count: int = 1_000,
    group_size: int = 20,
    confidence: float = 0.95,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> Result:
    """Run individual and group membership inference (CRT, appendix A.5) on a model of a finished run.

    A classifier is asked about whole texts, by the probability of their class: ``others`` (default: the run's
    ``evaluate.test``) has rows with a class that were not trained on; ``secrets`` and ``label`` do not apply.

    A language model is asked about secrets. ``secrets`` holds labelled rows of this corpus (default: the run's
    ``evaluate.labelled``); ``label`` is the kind of secret (default: the one with the most values). ``others`` is a
    labelled file of values never trained on; by default values of the same form are drawn. No value that occurs in the
    originals is used.

    ``reference`` is another model of this run, or a run with a model of the same name. Returns
    :func:`redactory.evaluation.membership.run_membership_attack` with {label, fresh_values, reference_model}; ``label``
    is None for a classifier; no text.
    """
    evaluation = ModelEvaluation.open(run, model)
    if count < 4 or group_size < 1:
        raise ConfigurationError("count must be at least 4, group_size at least 1")
    options: dict[str, Any] = {"group_size": group_size, "confidence": confidence, "seed": seed}
    reference_model = _open_reference(evaluation, reference)

    def describe(label: str | None, fresh_values: str) -> Result:
        name = reference_model.name if reference_model else None
        return {"label": label, "fresh_values": fresh_values, "reference_model": name}

    def attack_language_model() -> Result:
        sentences = _find_secret_sentences(evaluation, Path(labelled), label)
        make_values = partial(_draw_unseen_values, evaluation, seed)
        if others is not None:
            make_values = partial(_read_unseen_values, evaluation, Path(others))
        texts = membership.draw_member_texts(sentences, make_values, count, seed)
        loaded = reference_model.load_language_model() if reference_model else None
        trained = evaluation.load_language_model()
        result = membership.run_membership_attack(trained, *texts, reference=loaded, progress=progress, **options)
        return describe(sentences[0].label, "drawn" if others is None else "file") | result

    def attack_classifier() -> Result:
        classifier, loaded = evaluation.load_classifier(), None
        if reference_model:
            loaded = reference_model.load_classifier()
            if set(loaded.classes) != set(classifier.classes):
                raise ConfigurationError(f"reference: {reference_model.name} was trained on other classes")
        folders = evaluation.list_training_folders()
        members = _shuffle_rows(read_trainer_texts(evaluation.run, folders), classifier.classes, "members", seed)
        held_out = [(text, name) for text, name, _ in evaluation.read_held_out_examples(paths)]
        if evaluation.run.vault not in folders:
            # the model was trained on masked text
            masked = make_run_router(evaluation.run_manifest)([text for text, _ in held_out])
            held_out = [(text, name) for (_, text), (_, name) in zip(masked, held_out, strict=True)]
        trained_rows = set(members)
        shuffled = _shuffle_rows(held_out, classifier.classes, "others", seed)
        non_members = [row for row in shuffled if row not in trained_rows]
        rows = members[:count], non_members[:count]
        return describe(None, "file") | membership.run_class_membership_attack(
            classifier, *rows, reference=loaded, **options
        )

    if evaluation.task == CLASSIFY:
        if secrets or label:
            raise ConfigurationError("secrets, label: a classifier is asked about whole texts; give others instead")
        paths = evaluation.require_setting("test", others and [str(others)], "rows not trained on, or with --others")
        run_attack = attack_classifier
    else:
        labelled = evaluation.require_setting("labelled", secrets, "a file of labelled rows there, or with --secrets")
        run_attack = attack_language_model
    return evaluation.measure_and_seal("membership", run_attack, "roc.svg", plots.plot_membership)


def _open_reference(evaluation: ModelEvaluation, reference: str | Path | None) -> ModelEvaluation | None:
    """Open another model of the run, or of the run in the folder ``reference`` the model of the same name."""
    if reference is None:
        return None
    if str(reference) == evaluation.name:
        raise ConfigurationError("reference: give a model other than the attacked one")
    if Path(reference).is_dir():
        return ModelEvaluation.open(reference, evaluation.name)
    return ModelEvaluation.open(evaluation.run.root, str(reference))


def _shuffle_rows(
    rows: Iterable[ClassedText], classes: Collection[str], purpose: str, seed: int
) -> list[tuple[str, str]]:
    """Put the distinct rows with one of ``classes`` in a random order."""
    known = [(text, name) for text, name in dict.fromkeys(rows) if name is not None and name in classes]
    order = RandomStream.from_seed(seed).permutation(purpose, 0, len(known))
    return [known[index] for index in order.tolist()]


def _find_secret_sentences(
    evaluation: ModelEvaluation, labelled: Path, label: str | None
) -> list[membership.SecretSentence]:
    """Return the examples of the labelled rows that occur in the vault and hold a whole secret of ``label``."""
    sentences = [
        membership.SecretSentence(text, span["start"], span["end"], span["label"])
        for row in read_labelled_rows(labelled)
        for text, spans in split_labelled_row(row, evaluation.segmenter)
        for span in spans
    ]
    vault_texts = {sentence.text for sentence in sentences}.intersection(read_texts(evaluation.run.vault))
    in_vault = [sentence for sentence in sentences if sentence.text in vault_texts]
    if not in_vault:
        raise InputError(f"{labelled.name}: none of its labelled secrets occurs in the originals of this run")
    kind = label or membership.find_most_common_label(in_vault)
    selected = [sentence for sentence in in_vault if sentence.label == kind]
    if not selected:
        raise InputError(f"{labelled.name}: no secret labelled {kind} occurs in the originals of this run")
    return selected


def _draw_unseen_values(
    evaluation: ModelEvaluation, seed: int, secrets: Sequence[membership.SecretSentence | extraction.VaultSecret]
) -> list[str | None]:
    """Make for each secret a value of the same form that the vault does not hold."""
    labelled_values = [(secret.label, secret.value) for secret in secrets]
    return extraction.make_control_values(labelled_values, partial(_find_values_in_vault, evaluation), seed)


def _read_unseen_values(
    evaluation: ModelEvaluation, labelled: Path, sentences: Sequence[membership.SecretSentence]
) -> list[str | None]:
    """Read for each sentence a value with its label that the vault does not hold; all have the same label."""
    labels = {sentence.label for sentence in sentences}
    spans = ((row["text"], s) for row in read_labelled_rows(labelled) for s in row["spans"] if s["label"] in labels)
    values = list(dict.fromkeys(text[span["start"] : span["end"]] for text, span in spans))
    present = _find_values_in_vault(evaluation, values)
    unused_values = (value for value in values if value not in present)
    return [next(unused_values, None) for _ in sentences]


def _find_values_in_vault(evaluation: ModelEvaluation, values: list[str]) -> Collection[str]:
    counts = ValueSearch(values).count_occurrences(read_texts(evaluation.run.vault))
    present = {values[index].casefold() for index in counts}
    return {value for value in values if value.casefold() in present}


def evaluate_extraction(
    run: str | Path,
    model: str | None = None,
    samples: int = 1_000,
    tokens: int = 64,
    temperature: float = 1.0,
    top_k: int | None = None,
    completions: int = 500,
    seed: int = 0,
    progress: Progress = ignore_progress,
) -> Result:
    """Search texts that the model writes for secrets of the run's vault, and for control values that it never saw.

    ``samples`` texts of at most ``tokens`` tokens are drawn at ``temperature`` from the ``top_k`` most likely tokens
    (default: all): half without a prompt, half after the first words of public examples. For ``completions`` secrets,
    the prompt is the preceding words. Returns the counts of
    :func:`redactory.evaluation.extraction.run_extraction_attack`; no text.
    """
    if samples < 1 or completions < 0 or tokens < 1:
        raise ConfigurationError("extraction: samples and tokens must be at least 1, completions at least 0")
    evaluation = ModelEvaluation.open(run, model)

    def run_attack() -> Result:
        trained = evaluation.load_language_model()
        secrets = extraction.collect_vault_secrets(evaluation.run, evaluation.list_training_folders())
        controls = _draw_unseen_values(evaluation, seed, secrets)
        settings = extraction.ExtractionSettings(samples, tokens, temperature, top_k, completions, seed)
        texts = read_column(evaluation.run.public, "text")
        order = RandomStream.from_seed(seed).permutation("prompts", 0, len(texts))[:MAX_PROMPTS]
        prompts = [" ".join(texts[i].split()[:PROMPT_WORDS]) for i in order.tolist()]
        return extraction.run_extraction_attack(trained, secrets, controls, settings, prompts, progress)

    return evaluation.measure_and_seal("extraction", run_attack, "extraction.svg", plots.plot_extraction)


# The one-run audit: the epsilon that a model proves against that of its guarantee.


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
        coin_files = [file for path in paths if (file := one_run_audit.get_coins_path(Path(path))).is_file()]
        if len(coin_files) != 1:
            number = len(coin_files) or "no"
            raise ConfigurationError(
                f"coins: {number} .coins.json files beside the run's input; choose one with --coins"
            )
        coins = coin_files[0]
    planted = one_run_audit.read_coins(Path(coins))

    def run_audit() -> Result:
        card = training.make_guarantee_card(evaluation.run, evaluation.name)
        sentences = list(planted.iter_planted_sentences())
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
        scores_summary = one_run_audit.audit_scores(scores, np.array(planted.coins), card["delta"], confidence)
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


def _score_canaries(
    model: training.LanguageModel, coins: one_run_audit.AuditCoins, progress: Progress
) -> NDArray[np.float64]:
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


def find_epsilon_upper_bound(card: Mapping[str, Any], form: one_run_audit.CanaryForm, public: int) -> Result:
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
    facts, manifest = training.guarantee.spec.read_ledger_facts(run, run.get_model_folder(name)), read_manifest(run)
    rows = facts.make_spec(manifest["dedup"]).exchanged_row_count
    if training.guarantee.spec.START_KEY in (facts.base or {}) or "route" in manifest:
        return None  # of these steps alone the curve would be too low
    protects_secrets = upper_field in ("epsilon_substitution", "epsilon")
    if not protects_secrets or facts.mechanism is None or rows > 1:
        return None
    relation = Relation.SUBSTITUTION if upper_field == "epsilon_substitution" else facts.trainer.relation
    spending = training.accounting.Spending(facts.mechanism, facts.steps)
    compared = training.accounting.compare_examples((spending,), relation)
    level = one_run_audit.make_curve_level_function(compared.estimate_curve())
    p_values = [
        one_run_audit.compute_curve_p_value(audit["canaries"], s["guesses"], s["correct"], level)
        for s in audit["by_share"]
    ]
    return min(1.0, len(p_values) * min(p_values))
