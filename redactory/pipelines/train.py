"""Train: a model on a finished run, as configured; and the guarantee of one or of several models."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from redactory.detectors.settings import public_of
from redactory.evaluation.report import write_report
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.files import read_json
from redactory.foundation.progress import Progress, silent
from redactory.pipelines.config import Config
from redactory.pipelines.keys import refuse_shredded
from redactory.pipelines.label import kept_recall
from redactory.pipelines.loading import Given, check, load_config
from redactory.pipelines.models import audited, named_model, require_training_packages
from redactory.pipelines.output_folder import check_keys
from redactory.pipelines.release_log import check_newest, check_released
from redactory.pipelines.sealed import sealed
from redactory.pipelines.share import check_store, publish_configured
from redactory.redaction import RunFolder, broken_files, is_finished, read_manifest
from redactory.training.settings import TRAINERS, RecallMeasurement, TrainSettings


def train(
    config: Given, *, output: str | Path | None = None, progress: Progress = silent, **changes: Any
) -> dict[str, Any]:
    """Train the configured model on the configuration's finished run; a summary with its guarantee.

    ``changes`` replace keys of the section ``train``.  An interrupted training goes on where it stopped.
    """
    require_training_packages()
    settings = _changed(config, output, changes)
    run = RunFolder(Path(settings.output))
    manifest = read_manifest(run)
    if settings.train.detector_recall_file is not None:
        settings.train.detector_recall_file.require_public(public_of(manifest))
    if not manifest["counts"]["points"]:
        raise RunStateError(f"{run.root} has no examples to train on; see why with redactory curate --dry-run")
    check_released(run)
    if not is_finished(run.model(settings.train.model_name)):
        refuse_shredded(run)
        check_device(settings)
    check_keys()
    check_store(settings.store, run)

    def work() -> dict[str, Any]:
        from redactory.training import train_model

        own = settings.train
        measured = recall_of(run, own.model_name)
        if own.detector_recall_file is None:
            own = own.model_copy(update={"detector_recall_file": measured})
        elif own.detector_recall_file.sample is not None and own.detector_recall_file != measured:
            raise ConfigurationError(
                "train.detector_recall_file.sample: the bounds must come from a sample that redactory label "
                "score keeps in the run, but these do not; omit train.detector_recall_file to use those"
            )
        result = train_model(run, own, progress)
        write_report(run)
        return {"run": str(run.root), **result}

    return publish_configured(settings.store, sealed(run.state, work), progress)


def _changed(config: Given, output: str | Path | None, changes: dict[str, Any]) -> Config:
    """The configuration that ``config`` stands for, with ``changes`` to its section ``train``."""
    settings = load_config(config, output=output)
    if not changes.keys() - {"name"}:
        require_section(settings)
    if not changes:
        return settings
    given = settings.model_dump(exclude_unset=True)
    return check({**given, "train": {**given.get("train", {}), **changes}})


def require_section(config: Config) -> None:
    """``ConfigurationError`` where the configuration does not say how to train."""
    if "train" not in config.model_fields_set:
        raise ConfigurationError(
            "train: the configuration has no such section; add one, such as train: {trainer: crt, epsilon: "
            "8.0, delta: 1.0e-5} (redactory plan shows its guarantee), or name a trainer (redactory train "
            "--trainer)"
        )


def train_remarks(config: Given, *, output: str | Path | None = None, **changes: Any) -> list[str]:
    """What is odd about the training that :func:`train` makes of the same, in words.

    From the settings and the numbers of points, which are the private part's; nothing where the run is not
    finished.
    """
    settings = _changed(config, output, changes)
    run = RunFolder(Path(settings.output))
    if not is_finished(run):
        return []
    require_training_packages()
    # the accountants are an extra, and whoever verifies may not have it
    from redactory.training.guarantee import WORDS
    from redactory.training.guarantee.remarks import Facts, remarks
    from redactory.training.guarantee.spec import DOCUMENT, TrainingSpec
    from redactory.training.model import parameters_at_most

    own, manifest = settings.train, read_manifest(run)
    trainer = TRAINERS[own.trainer]
    parts = not (trainer.of_units or own.whole_conversations)
    unstated = trainer.noised and parts and manifest.get("known_in") == DOCUMENT
    spec = TrainingSpec.of(own, manifest.get("dedup"))
    facts = Facts(*points_learnt(run, own), parameters=parameters_at_most(own))
    found = [*([WORDS["known_in_document"]] if unstated else []), *remarks(spec, facts)]
    return found if is_finished(run.model(own.model_name)) else [*found, *vocabulary_seen(settings)[1]]


def vocabulary_seen(config: Config) -> tuple[dict[str, Any] | None, list[str]]:
    """The vocabulary that a training as configured has, how it fits public text, and what is odd about it.

    None where it is made of the public side of a run that is not finished, or of a file yet to come.
    """
    own, folder = config.train, RunFolder(Path(config.output))
    run = folder if is_finished(folder) else None
    if run is None and "public" in own.vocabulary_sources:
        return None, []
    if run is None and own.public_text is not None and not own.public_text.is_file():
        return None, []  # a plan may come before the text
    require_training_packages()
    from redactory.training.data import PublicText, public_text_of
    from redactory.training.vocabulary import fit_of, fit_remarks, public_texts_of, vocabulary_of

    if run is not None or own.public_text is None:
        chat = own.chat is not None
        public = public_text_of(run, own.public_text, chat=chat) if run is not None else None
    else:
        columns = config.input.model_dump(mode="json")
        public = PublicText(own.public_text, columns.get("text") or "text", columns.get("label") or "label")
    found = vocabulary_of(run, own, public)
    fit = fit_of(found, public_texts_of(run, own, public), own.max_tokens)
    return {**found.record(), "fit": fit}, fit_remarks(fit, getattr(own.model, "folder", None) is not None)


def points_learnt(run: RunFolder, settings: TrainSettings) -> tuple[int | None, int | None]:
    """How many points of the finished ``run`` noisy steps draw from, and how many are learnt without noise.

    None where a trainer has none of the kind, or learns what its settings leave or make of them.
    """
    counts, known = read_manifest(run)["counts"], TRAINERS[settings.trainer]
    if known.of_units or settings.whole_conversations:
        return None, None
    sizes = {**counts, "vault": counts["points"] - counts["quarantined"]}
    noised = None if known.noised is None else int(sizes[known.noised])
    return noised, int(sum(sizes[name] for name in known.plain)) if known.plain else None


def check_device(config: Config) -> None:
    """``ConfigurationError`` where the configured training asks for a device that is not here."""
    if config.train.device != "cpu":
        from redactory.training.numerics import require_device, settled

        folder = RunFolder(Path(config.output)).model(config.train.model_name)
        require_device(settled(config.train, folder).device)


def recall_of(run: RunFolder, name: str) -> RecallMeasurement | None:
    """The misses that were measured last (``evaluate_recall``, ``label_score``); once finished, its own."""
    model = run.model(name)
    if is_finished(model):
        earlier = read_manifest(model)["settings"]["detector_recall_file"]
        return earlier and RecallMeasurement.model_validate(earlier)
    return measured_last(run)


def measured_last(run: RunFolder) -> RecallMeasurement | None:
    """The misses that were measured last, for a training that begins now."""
    found = kept_recall(run)
    return RecallMeasurement.model_validate(found) if found and found["misses"]["n"] else None


def train_summary(run: RunFolder, name: str) -> dict[str, Any]:
    """What ``train`` printed of a model that is finished."""
    model = run.model(name)
    summary: dict[str, Any] = read_manifest(model)["summary"]
    return {"run": str(run.root), **summary, "guarantee": read_json(model.guarantee)}


def guarantee(
    run: str | Path,
    model: str | Sequence[str] | None = None,
    *,
    also: Sequence[str | Path] = (),
    delta: float | None = None,
) -> dict[str, Any]:
    """The guarantee card of a trained model, derived again from its ledger and the run's manifest.

    Under ``audit``, where one was made, what the last one-run audit found. With a list of names, or with
    ``also``, further runs: what may be promised of somebody who holds all of these models together (those
    named, or every finished one of each run), at ``delta``, or the one that all of them state.
    """
    several = bool(also) or not (model is None or isinstance(model, str))
    if delta is not None and not 0.0 < delta < 1.0:
        raise ConfigurationError(f"--delta: must be between 0 and 1, got {delta}")
    if delta is not None and not several:
        raise ConfigurationError(
            "--delta: the card of a single model states its epsilons at the delta of its training; omit it"
        )
    asked = [model] if isinstance(model, str) else list(model or ())
    models: list[tuple[RunFolder, str]] = []
    for folder in (RunFolder(Path(own)) for own in (run, *also)):
        read_manifest(folder)
        check_newest(folder)
        # of several models that are not named, every finished one
        unnamed: Sequence[str | None] = folder.model_names() if several else [None]
        names = [named_model(folder, name) for name in asked or unnamed]
        if not names:
            raise RunStateError(f"{folder.root} has no finished model")
        models += [(folder, name) for name in names]
    require_training_packages()
    from redactory.training import guarantee_card
    from redactory.training.guarantee.compose import composed_card

    card = composed_card(models, delta) if several else guarantee_card(*models[0])
    for folder, name in models:
        # a ledger that is a chain in itself may still be another one than the model was sealed with
        if broken := broken_files(folder.model(name)):
            raise CheckFailed(
                f"{folder.root}: {name} changed after sealing ({broken[0]}), so no guarantee is stated; see "
                "redactory verify"
            )
    audit = None if several else audited(*models[0])
    return card if audit is None else {**card, "audit": audit}
