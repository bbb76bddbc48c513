"""Attack a trained model: membership inference, and extraction of secrets from the vault."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import partial
from pathlib import Path

from redactory.evaluation import plots
from redactory.evaluation.extraction import (
    ExtractionSettings,
    VaultSecret,
    collect_vault_secrets,
    make_control_values,
    run_extraction_attack,
)
from redactory.evaluation.labelled import read_labelled_rows, split_labelled_row
from redactory.evaluation.linkage import ValueSearch
from redactory.evaluation.membership import (
    SecretSentence,
    draw_member_texts,
    find_most_common_label,
    run_class_membership_attack,
    run_membership_attack,
)
from redactory.foundation.errors import ConfigurationError, InputError
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.stream import RandomStream
from redactory.pipelines.curation.policy import make_run_router
from redactory.pipelines.measure.evaluate import CLASSIFY, ModelEvaluation, Result, TextWithLabel, read_texts
from redactory.redaction.shards import read_column

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
    options = {"group_size": group_size, "confidence": confidence, "seed": seed}
    reference_model = _open_reference(evaluation, reference)

    def describe(label: str | None, fresh_values: str) -> Result:
        name = reference_model.name if reference_model else None
        return {"label": label, "fresh_values": fresh_values, "reference_model": name}

    def attack_language_model() -> Result:
        sentences = _find_secret_sentences(evaluation, Path(labelled), label)
        make_values = partial(_draw_unseen_values, evaluation, seed)
        if others is not None:
            make_values = partial(_read_unseen_values, evaluation, Path(others))
        texts = draw_member_texts(sentences, make_values, count, seed)
        loaded = reference_model.load_language_model() if reference_model else None
        trained = evaluation.load_language_model()
        result = run_membership_attack(trained, *texts, reference=loaded, progress=progress, **options)
        return describe(sentences[0].label, "drawn" if others is None else "file") | result

    def attack_classifier() -> Result:
        classifier, loaded = evaluation.load_classifier(), None
        if reference_model:
            loaded = reference_model.load_classifier()
            if set(loaded.classes) != set(classifier.classes):
                raise ConfigurationError(f"reference: {reference_model.name} was trained on other classes")
        members = _shuffle_rows(evaluation.read_training_rows(), classifier.classes, "members", seed)
        held_out = _shuffle_rows(_read_masked_alike(evaluation, paths), classifier.classes, "others", seed)
        trained_rows = set(members)
        non_members = [row for row in held_out if row not in trained_rows]
        rows = members[:count], non_members[:count]
        return describe(None, "file") | run_class_membership_attack(classifier, *rows, reference=loaded, **options)

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


def _read_masked_alike(evaluation: ModelEvaluation, paths: Sequence[str]) -> list[TextWithLabel]:
    """Read the rows of ``paths``, masked if the model was trained on masked text."""
    rows = [(text, name) for text, name, _ in evaluation.read_held_out_examples(paths)]
    if evaluation.run.vault in evaluation.list_training_folders():
        return rows
    masked = make_run_router(evaluation.run_manifest)([text for text, _ in rows])
    return [(text, name) for (_, text), (_, name) in zip(masked, rows, strict=True)]


def _shuffle_rows(
    rows: Iterable[TextWithLabel], classes: Collection[str], purpose: str, seed: int
) -> list[tuple[str, str]]:
    """Put the distinct rows with one of ``classes`` in a random order."""
    known = [(text, name) for text, name in dict.fromkeys(rows) if name is not None and name in classes]
    order = RandomStream.from_seed(seed).permutation(purpose, 0, len(known))
    return [known[index] for index in order.tolist()]


def _find_secret_sentences(evaluation: ModelEvaluation, labelled: Path, label: str | None) -> list[SecretSentence]:
    """Return the examples of the labelled rows that occur in the vault and hold a whole secret of ``label``."""
    sentences = [
        SecretSentence(text, span["start"], span["end"], span["label"])
        for row in read_labelled_rows(labelled)
        for text, spans in split_labelled_row(row, evaluation.segmenter)
        for span in spans
    ]
    vault_texts = {sentence.text for sentence in sentences}.intersection(read_texts(evaluation.run.vault))
    in_vault = [sentence for sentence in sentences if sentence.text in vault_texts]
    if not in_vault:
        raise InputError(f"{labelled.name}: none of its labelled secrets occurs in the originals of this run")
    kind = label or find_most_common_label(in_vault)
    selected = [sentence for sentence in in_vault if sentence.label == kind]
    if not selected:
        raise InputError(f"{labelled.name}: no secret labelled {kind} occurs in the originals of this run")
    return selected


def _draw_unseen_values(
    evaluation: ModelEvaluation, seed: int, secrets: Sequence[SecretSentence | VaultSecret]
) -> list[str | None]:
    """Make for each secret a value of the same form that the vault does not hold."""
    labelled_values = [(secret.label, secret.value) for secret in secrets]
    return make_control_values(labelled_values, partial(_find_values_in_vault, evaluation), seed)


def _read_unseen_values(
    evaluation: ModelEvaluation, labelled: Path, sentences: Sequence[SecretSentence]
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
        secrets = collect_vault_secrets(evaluation.run, evaluation.list_training_folders())
        controls = _draw_unseen_values(evaluation, seed, secrets)
        settings = ExtractionSettings(samples, tokens, temperature, top_k, completions, seed)
        texts = read_column(evaluation.run.public, "text")
        order = RandomStream.from_seed(seed).permutation("prompts", 0, len(texts))[:MAX_PROMPTS]
        prompts = [" ".join(texts[i].split()[:PROMPT_WORDS]) for i in order.tolist()]
        return run_extraction_attack(trained, secrets, controls, settings, prompts, progress)

    return evaluation.measure_and_seal("extraction", run_attack, "extraction.svg", plots.plot_extraction)
