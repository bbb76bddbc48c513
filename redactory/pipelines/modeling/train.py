"""Train a model on a finished run as configured, and state the guarantee of one or several models."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from redactory import training
from redactory.detectors.settings import get_public_labels
from redactory.evaluation.report import write_report
from redactory.foundation.errors import CheckFailed, ConfigurationError, RedactoryError, RunStateError, join_words
from redactory.foundation.files import read_json
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.records import read_records
from redactory.pipelines.curation.config import Config
from redactory.pipelines.curation.error_sealing import run_with_sealed_traceback
from redactory.pipelines.curation.keys import require_not_shredded
from redactory.pipelines.curation.loading import ConfigLike, expand_dotted_keys, load_config, validate_config
from redactory.pipelines.curation.models import load_audit, require_training_packages, resolve_model_name
from redactory.pipelines.curation.output_folder import check_environment_keys
from redactory.pipelines.curation.release_log import check_not_rolled_back, check_released
from redactory.pipelines.curation.share import check_store, publish_if_configured
from redactory.pipelines.measure.label import load_recall_measurement
from redactory.redaction import RunFolder, is_finished, list_broken_files, read_manifest
from redactory.training.settings import TRAINERS, RecallMeasurement, TrainSettings


def train(
    config: ConfigLike,
    *,
    output: str | Path | None = None,
    trackers: Sequence[str] = (),
    progress: Progress = ignore_progress,
    **changes: Any,
) -> dict[str, Any]:
    """Train the configured model on the configuration's finished run; return a summary with its guarantee.

    ``changes`` replace keys of the section ``train`` (``federated.users``). An interrupted training resumes.
    ``trackers`` (tensorboard, mlflow, wandb) get its public metrics.
    """
    require_training_packages()
    settings = _load_train_config(config, output, changes)
    run = RunFolder(Path(settings.output))
    manifest = read_manifest(run)
    if settings.train.detector_recall_file is not None:
        settings.train.detector_recall_file.require_public_labels(get_public_labels(manifest))
    if not manifest["counts"]["examples"]:
        raise RunStateError(f"{run.root} has no examples to train on; see why with redactory curate --dry-run")
    check_released(run)
    if not is_finished(run.get_model_folder(settings.train.model_name)):
        require_not_shredded(run)
        check_device(settings)
    check_environment_keys()
    check_store(settings.store, run)

    def run_training() -> dict[str, Any]:
        train_settings = settings.train
        measured = find_recall_measurement(run, train_settings.model_name)
        if train_settings.detector_recall_file is None:
            train_settings = train_settings.model_copy(update={"detector_recall_file": measured})
        elif train_settings.detector_recall_file.sample is not None and train_settings.detector_recall_file != measured:
            raise ConfigurationError(
                "train.detector_recall_file.sample: the bounds must come from a sample that redactory label "
                "score keeps in the run, but these do not; omit train.detector_recall_file to use those"
            )
        with training.integrations.open_trackers(trackers, train_settings) as open_trackers:
            result = training.train_model(run, train_settings, progress, open_trackers)
        write_report(run)
        return {"run": str(run.root), **result}

    return publish_if_configured(settings.store, run_with_sealed_traceback(run.state, run_training), progress)


def _load_train_config(config: ConfigLike, output: str | Path | None, changes: dict[str, Any]) -> Config:
    settings = load_config(config, output=output)
    if not changes.keys() - {"name"}:
        require_train_section(settings)
    if not changes:
        return settings
    qualified = {f"train.{key.removeprefix('train.')}": value for key, value in changes.items()}
    return validate_config(expand_dotted_keys(qualified, settings.model_dump(exclude_unset=True)))


def require_train_section(config: Config) -> None:
    """Raise ``ConfigurationError`` if the configuration has no section ``train``."""
    if "train" not in config.model_fields_set:
        raise ConfigurationError(
            "train: the configuration has no such section; add one, such as train: {trainer: crt, epsilon: "
            "8.0, delta: 1.0e-5} (redactory plan shows its guarantee), or name a trainer (redactory train "
            "--trainer)"
        )


def collect_remarks(config: ConfigLike, *, output: str | Path | None = None, **changes: Any) -> list[str]:
    """Return warnings about the training that :func:`train` would run with these arguments.

    They follow from the settings, and from counts and classes of the private part; empty if the run is not finished.
    """
    settings = _load_train_config(config, output, changes)
    run = RunFolder(Path(settings.output))
    if not is_finished(run):
        return []
    require_training_packages()
    train_settings, manifest = settings.train, read_manifest(run)
    trainer = TRAINERS[train_settings.trainer]
    parts = not (trainer.has_units or train_settings.has_whole_conversations)
    specs = training.guarantee.spec
    is_unstated = trainer.noised_folder and parts and manifest.get("known_in") == specs.KNOWN_IN_DOCUMENT
    spec = specs.TrainingSpec.from_settings(train_settings, manifest.get("dedup"))
    facts = training.guarantee.remarks.TrainingFacts(
        *count_training_examples(run, train_settings),
        parameters=training.parameter_counts.count_max_parameters(train_settings),
    )
    messages = [training.guarantee.WORDS["known_in_document"]] if is_unstated else []
    messages += training.guarantee.remarks.make_remarks(spec, facts)
    if not is_finished(run.get_model_folder(train_settings.model_name)):
        messages += [*_find_missing_classes(run, train_settings.classes), *preview_vocabulary(settings)[1]]
    return messages


def _find_missing_classes(run: RunFolder, classes: Sequence[str]) -> list[str]:
    """Name the configured classes that no example of the run has: probably misspelt."""
    missing = list[str]()
    with suppress(RedactoryError):  # the training itself says why the vault cannot be read
        missing = sorted(set(classes) - set(training.data.read_folder_classes(run.vault))) if classes else []
    return [f"train.classes: no example has the class {join_words(missing)}; check the spelling"] if missing else []


def preview_vocabulary(config: Config) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the vocabulary of the configured training with its fit to public text, and warnings about it.

    None if it depends on the public split of an unfinished run, or on a file that does not exist yet.
    """
    train_settings, folder = config.train, RunFolder(Path(config.output))
    run, path = folder if is_finished(folder) else None, train_settings.public_text
    if run is None and "public" in train_settings.vocabulary_sources:
        return None, []
    if run is None and path is not None and not path.is_file():
        return None, []  # a plan may come before the text
    require_training_packages()
    public = None
    if run is not None:
        public = training.data.open_public_text(run, path, is_chat=train_settings.chat is not None)
    elif path is not None:
        columns = config.input.model_dump(mode="json")
        public = training.data.PublicText(path, columns.get("text") or "text", columns.get("label") or "label")
    vocabulary = training.vocabulary.build_vocabulary(run, train_settings, public)
    vocabulary_fit = training.vocabulary.measure_vocabulary_fit(
        vocabulary, training.vocabulary.read_public_sources(run, train_settings, public), train_settings.max_tokens
    )
    return {**vocabulary.to_record(), "fit": vocabulary_fit}, training.vocabulary.describe_fit_problems(
        vocabulary_fit, getattr(train_settings.model, "folder", None) is not None
    )


def count_training_examples(run: RunFolder, settings: TrainSettings) -> tuple[int | None, int | None]:
    """Return how many examples of the finished ``run`` noisy steps draw from, and how many train without noise.

    None if a trainer has no such steps, or its settings filter or transform the examples.
    """
    counts, trainer = read_manifest(run)["counts"], TRAINERS[settings.trainer]
    if trainer.has_units or settings.has_whole_conversations:
        return None, None
    sizes = {**counts, "vault": counts["examples"] - counts["quarantined"]}
    noisy_count = None if trainer.noised_folder is None else int(sizes[trainer.noised_folder])
    noise_free_counts = [int(sizes[name]) for name in trainer.noise_free_folders]
    return noisy_count, sum(noise_free_counts) if noise_free_counts else None


def check_device(config: Config) -> None:
    """Raise ``ConfigurationError`` if the configured training needs a device that is not available."""
    if config.train.device != "cpu":
        folder = RunFolder(Path(config.output)).get_model_folder(config.train.model_name)
        training.numerics.require_device(training.numerics.resolve_device(config.train, folder).device)


def find_recall_measurement(run: RunFolder, name: str) -> RecallMeasurement | None:
    """Return the latest measured misses (``evaluate_recall``, ``label_score``); for a begun training, those it used."""
    model = run.get_model_folder(name)
    if records := read_records(model.ledger) if model.ledger.is_file() else []:
        earlier = records[0].body["settings"]["detector_recall_file"]
        return earlier and RecallMeasurement.model_validate(earlier)
    return load_latest_recall_measurement(run)


def load_latest_recall_measurement(run: RunFolder) -> RecallMeasurement | None:
    """Return the latest measured misses, for a new training."""
    measurement = load_recall_measurement(run)
    return RecallMeasurement.model_validate(measurement) if measurement and measurement["misses"]["n"] else None


def read_train_summary(run: RunFolder, name: str) -> dict[str, Any]:
    """Return the summary that ``train`` printed for a finished model."""
    model = run.get_model_folder(name)
    summary: dict[str, Any] = read_manifest(model)["summary"]
    return {"run": str(run.root), **summary, "guarantee": read_json(model.guarantee)}


def guarantee(
    run: str | Path,
    model: str | Sequence[str] | None = None,
    *,
    also: Sequence[str | Path] = (),
    delta: float | None = None,
) -> dict[str, Any]:
    """Return the guarantee card of a trained model, recomputed from its ledger and the run's manifest.

    ``audit`` holds the result of the latest one-run audit, if any. With a list of names, or with further runs in
    ``also``, returns the joint guarantee against somebody who holds all of these models (the named ones, or every
    finished one of each run), at ``delta`` or the delta that they all state.
    """
    several = bool(also) or not (model is None or isinstance(model, str))
    if delta is not None and not 0.0 < delta < 1.0:
        raise ConfigurationError(f"--delta: must be between 0 and 1, got {delta}")
    if delta is not None and not several:
        raise ConfigurationError(
            "--delta: the card of a single model states its epsilons at the delta of its training; omit it"
        )
    requested_names = [model] if isinstance(model, str) else list(model or ())
    models: list[tuple[RunFolder, str]] = []
    for folder in (RunFolder(Path(place)) for place in (run, *also)):
        read_manifest(folder)
        check_not_rolled_back(folder)
        # without names, use every finished model
        unnamed: Sequence[str | None] = folder.list_model_names() if several else [None]
        names = [resolve_model_name(folder, name) for name in requested_names or unnamed]
        if not names:
            raise RunStateError(f"{folder.root} has no finished model")
        models += [(folder, name) for name in names]
    require_training_packages()
    compose = training.guarantee.compose
    card = compose.make_composed_card(models, delta) if several else training.make_guarantee_card(*models[0])
    for folder, name in models:
        # a valid ledger may still differ from the one that the model was sealed with
        if problems := list_broken_files(folder.get_model_folder(name)):
            raise CheckFailed(
                f"{folder.root}: {name} changed after sealing ({problems[0]}), so no guarantee is stated; see "
                "redactory verify"
            )
    audit = None if several else load_audit(*models[0])
    return card if audit is None else {**card, "audit": audit}
