"""Train one model: from a finished run to a sealed model folder with its guarantee."""

from __future__ import annotations

import platform
import resource
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from redactory.foundation.bounds import format_upper
from redactory.foundation.canonical import file_sha256, get_package_version, json_sha256
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.files import make_private_folder, remove_leftovers, write_json, write_text
from redactory.foundation.progress import Progress, ignore_progress, report_start_and_end
from redactory.foundation.records import RecordLog, compute_chain_head, read_records
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import ModelFolder, RunFolder
from redactory.redaction.sealing import find_release, is_finished, read_manifest, seal_folder
from redactory.redaction.shards import CLASS
from redactory.training.chat import ChatCodec
from redactory.training.clipping.engine import get_trainable_parameters
from redactory.training.count_selection import CountSelection
from redactory.training.data import PublicText, open_public_text, read_manifest_digest, require_unchanged_parts
from redactory.training.guarantee.budget import Budget
from redactory.training.guarantee.card import make_guarantee_card, render_guarantee_page
from redactory.training.guarantee.expected_accuracy import choose_lora_rank
from redactory.training.guarantee.metrics import make_epsilon_function
from redactory.training.guarantee.remarks import count_noised_examples
from redactory.training.guarantee.spec import (
    START_KEY,
    TrainingSpec,
    has_only_public_sources,
    read_ledger_facts,
    read_training_spec,
)
from redactory.training.held_out import NO_ROWS, HeldOutCurve, HeldOutText
from redactory.training.loop import (
    Checkpoint,
    ScheduledStep,
    StepKinds,
    Tracker,
    TrainingContext,
    iterate_remaining_steps,
    schedule_steps,
)
from redactory.training.mechanisms.ledger import END, NOISY_STEP, StepLedger, begin_or_resume_stream, require_same_head
from redactory.training.mechanisms.ledger import FORMAT as LEDGER
from redactory.training.model import (
    LanguageModel,
    TextClassifier,
    build_classifier,
    build_language_network,
    count_parameters,
    describe_base_weights,
    require_clippable_network,
    save_model,
)
from redactory.training.models.frozen_encoder import AnyCodec, FrozenEncoder
from redactory.training.models.hugging_face import read_model_type
from redactory.training.numerics import require_device, resolve_device, use_deterministic_numerics
from redactory.training.settings import TrainSettings, settings_to_json
from redactory.training.steps import BestWeights
from redactory.training.trainers import get_trainer
from redactory.training.uedp.units import OriginalExamples
from redactory.training.vocabulary import Vocabulary, build_vocabulary, measure_vocabulary_fit, read_public_sources

FORMAT = "redactory-model/1"
_PACKAGES = (
    "redactory",
    "torch",
    "numpy",
    "dp-accounting",
    "scipy",
    "safetensors",
    "transformers",
    "tokenizers",
    "peft",
)
AnyModel = LanguageModel | TextClassifier


def train_model(
    run: RunFolder, settings: TrainSettings, progress: Progress = ignore_progress, trackers: Sequence[Tracker] = ()
) -> dict[str, Any]:
    """Train a language model on the finished ``run``, seal it in ``models/NAME`` and return the summary.

    An interrupted training resumes from its last checkpoint, with the same bits as without the interruption; a finished
    one with the same settings returns its summary. ``trackers`` get public metrics of each step. Raises
    ``RunStateError`` if the run is unfinished or the name belongs to a training with other settings, ``CheckFailed`` if
    the run's parts changed or a replayed step has another sum, and ``ConfigurationError`` for trackers of a training
    without a guarantee.
    """
    folder, manifest_digest = run.get_model_folder(settings.model_name), read_manifest_digest(run)
    settings = resolve_device(settings, folder)
    if is_finished(folder):
        return load_finished_summary(folder, settings, manifest_digest)
    require_unchanged_sources(run, settings)
    started_at = time.monotonic()
    with open_training_ledger(run, settings) as log:
        _run_training(run, settings, manifest_digest, log, progress, trackers)
    return seal_model(run, settings, manifest_digest, time.monotonic() - started_at, progress)


def require_unchanged_sources(run: RunFolder, settings: TrainSettings) -> None:
    """Raise ``CheckFailed`` if a training source changed since sealing; also checks that the device exists."""
    require_device(settings.device)
    classes = {run.vault} if settings.task == "classify" or settings.prefix == CLASS else set()
    for data in {run.public, run.examples, *classes, *get_trainer(settings).list_data_folders(run)}:
        require_unchanged_parts(run, data)


@contextmanager
def open_training_ledger(run: RunFolder, settings: TrainSettings) -> Iterator[RecordLog]:
    """Open the training's ledger with fixed numerics; remove the folder if the training is refused at once."""
    folder = run.get_model_folder(settings.model_name)
    make_private_folder(run.models)
    make_private_folder(folder.root)
    with RecordLog(folder.ledger) as log, use_deterministic_numerics(settings.threads):
        remove_leftovers(folder.root)
        remove_leftovers(run.state, f"train-{settings.model_name}.*")
        try:
            yield log
        except BaseException:
            if not log.records:
                # refused before its first record: remove the folder, unless it contains other files
                folder.ledger.unlink(missing_ok=True)
                with suppress(OSError):
                    folder.root.rmdir()
            raise


def _run_training(
    run: RunFolder,
    settings: TrainSettings,
    manifest_digest: str,
    log: RecordLog,
    progress: Progress,
    trackers: Sequence[Tracker],
) -> None:
    """Train up to the ledger's ``end`` record, which holds the digest of the weights."""
    trainer, folder = get_trainer(settings), run.get_model_folder(settings.model_name)
    public_text = open_public_text(run, settings.public_text, is_chat=settings.chat is not None)
    spec, head, vocabulary = plan_training(run, settings, manifest_digest, public_text, progress)
    mechanism = spec.mechanism
    require_public_metrics(spec, trackers)
    if log.records and log.records[-1].type == END:
        require_same_head(log, head)
        return
    if not log.records:
        run.get_checkpoint_path(settings.model_name).unlink(missing_ok=True)  # left by a training whose ledger is gone
    # before anything is booked or recorded: a network that cannot be built costs no budget and can be fixed
    model = build_model(settings, vocabulary)
    if trainer.noised_folder is not None and not trainer.samples_users:
        require_clippable_network(model, settings.max_tokens)
    original_examples, stream, binding = begin_or_resume_ledger(run, spec, log, head, progress)
    model.network.initialise(stream)
    initial_weights = {name: p.detach().clone() for name, p in get_trainable_parameters(model.network).items()}
    model.network.to(settings.device)
    held_out = HeldOutText.from_settings(run, settings, stream, public_text)
    curve = HeldOutCurve(folder.held_out, model, held_out) if held_out else None
    held_out_rows = held_out.rows if held_out else NO_ROWS
    inputs = (run, settings, model.network, model.tokenizer, stream, original_examples, public_text)
    context = TrainingContext(*inputs, held_out_rows)
    with report_start_and_end(progress, "encode the texts"):
        step_kinds = context.make_step_kinds(mechanism, StepLedger(log, mechanism, stream) if mechanism else None)
    require_unchanged_public_text(public_text, head)
    optimizers = [kind.scheduled_optimizer.optimizer for kind in step_kinds if kind]
    _, remaining_steps = schedule_remaining_steps(
        context, spec, step_kinds, optimizers, binding, log, progress, curve, trackers
    )
    for _, step in remaining_steps:
        step.kind.step(step.number)
    if curve is not None and settings.keeps_best_weights:
        curve.calibrate_classifier()
    require_unchanged_public_text(public_text, head)
    record_trained_model(log, folder, spec, model, initial_weights, [folder.held_out.name] if curve else [])


def require_public_metrics(spec: TrainingSpec, trackers: Sequence[Tracker]) -> None:
    """Raise ``ConfigurationError`` if there are ``trackers``, but the training has no guarantee."""
    if trackers and spec.failure_reason:
        raise ConfigurationError(
            f"trackers: nothing is guaranteed ({spec.failure_reason}), so no metric is public; train without a tracker"
        )


def schedule_remaining_steps(
    context: TrainingContext,
    spec: TrainingSpec,
    step_kinds: StepKinds,
    optimizers: Sequence[Optimizer],
    binding: str,
    log: RecordLog,
    progress: Progress,
    curve: HeldOutCurve | None = None,
    trackers: Sequence[Tracker] = (),
) -> tuple[int, Iterator[tuple[int, ScheduledStep]]]:
    """Reserve the training's budget; return the number of all steps, and the iterator of those after the checkpoint.

    Raises ``BudgetExceeded`` if another training took the rest of the budget since this one began.
    """
    settings, network = context.settings, context.network
    budget = Budget.from_settings(settings)
    if budget and spec.spending:
        # here, where nothing but the steps can fail any more: an error before costs nothing
        name = f"{context.run.root.name}/{settings.model_name}"
        budget.reserve_spending(json_sha256(log.records[0].body), name, spec.spending)
    schedule = schedule_steps(settings, step_kinds, context.stream)
    kept = BestWeights(network) if curve is not None and settings.keeps_best_weights else None
    checkpoint_path = context.run.get_checkpoint_path(settings.model_name)
    checkpoint = Checkpoint(checkpoint_path, binding, network, optimizers, kept)
    is_quiet = progress is ignore_progress and not trackers
    epsilon = (lambda steps: None) if is_quiet else make_epsilon_function(spec)
    recorded = sum(record.type == NOISY_STEP for record in log.records)
    return len(schedule), iterate_remaining_steps(schedule, checkpoint, recorded, progress, epsilon, curve, trackers)


def record_trained_model(
    log: RecordLog,
    folder: ModelFolder,
    spec: TrainingSpec,
    model: AnyModel,
    initial_weights: Mapping[str, Tensor],
    other_files: Sequence[str] = (),
) -> None:
    """Save the model and append the ledger's ``end`` record, which also names the other trainings on this run."""
    files = [path.relative_to(folder.root).as_posix() for path in save_model(folder, model)]
    ledgers = folder.root.parent.glob(f"*/{folder.ledger.name}")
    body = {
        "steps": spec.steps,
        "weights": file_sha256(folder.weights),
        "files": [*files, *other_files],
        "update_norms": compute_update_norms(initial_weights, model.network),
        "trainable_parameters": sum(p.numel() for p in model.network.parameters() if p.requires_grad),
        "other_trainings": sorted(path.parent.name for path in ledgers if path != folder.ledger),
    }
    log.append(END, body)


def plan_training(
    run: RunFolder, settings: TrainSettings, manifest_digest: str, public_text: PublicText | None, progress: Progress
) -> tuple[TrainingSpec, dict[str, Any], Vocabulary]:
    """Compute the training's spec, its ledger head without key-dependent values, and its vocabulary."""
    trainer, base = get_trainer(settings), _describe_base_model(run, settings)
    with report_start_and_end(progress, "account noise") if trainer.noised_folder else nullcontext():
        has_public_vocabulary, manifest = has_only_public_sources(settings.vocabulary_sources), read_manifest(run)
        base_spec, selection = load_base_spec(run, settings), CountSelection.from_manifest(manifest)
        spec = TrainingSpec.from_settings(
            settings,
            manifest.get("dedup"),
            public=has_public_vocabulary and base_spec is None,
            known_in=manifest.get("known_in"),
            start=base_spec,
            selection=selection,
        )
    if base_spec is not None and spec.refusal_reason and trainer.noised_folder:
        raise ConfigurationError(f"train.model.folder: {spec.refusal_reason}; give public weights")
    examples = count_noised_examples(spec, manifest.get("counts", {}))
    if examples is not None and settings.max_examples is not None and examples > settings.max_examples:
        raise ConfigurationError(
            f"train.max_examples is {settings.max_examples:,}, but noisy steps draw from {examples:,} examples: "
            "raise it, or curate fewer"
        )
    mechanism = spec.mechanism
    head: dict[str, Any] = {
        "format": LEDGER,
        "relation": spec.relation.value,
        "mechanism": mechanism and mechanism.to_json(),
        "sampler": mechanism and mechanism.sampler,
        "steps": spec.steps,
        "settings": settings_to_json(settings),
        "base": base,
        "parent": manifest_digest,
        "versions": _read_package_versions(),
    }
    if trainer.has_units or public_text is not None:
        head["public_text"] = public_text and public_text.sha256
    with report_start_and_end(progress, "learn the vocabulary"):
        lora_rank = choose_lora_rank(spec, examples)
        vocabulary = build_vocabulary(run, settings, public_text, lora_rank)
        # an epsilon that covers public examples covers no measurement on them
        is_public = spec.depends_on_public_split or public_text is not None
        texts = read_public_sources(run, settings, public_text) if is_public else ()
        fit = measure_vocabulary_fit(vocabulary, texts, settings.max_tokens)
    head["vocabulary"] = {**vocabulary.to_record(), "fit": fit}
    if settings.budget is not None:
        # the ledger is published with the model; the budget file's path must not be
        head["budget"] = json_sha256(settings.budget.to_record())
    return spec, head, vocabulary


def begin_or_resume_ledger(
    run: RunFolder, spec: TrainingSpec, log: RecordLog, head: dict[str, Any], progress: Progress
) -> tuple[OriginalExamples | None, RandomStream, str]:
    """Check the budget and write or verify the ledger's ``head``; return originals, stream and checkpoint binding.

    Raises ``BudgetExceeded`` before anything is recorded if the budget has no room.
    """
    settings, base, name = spec.settings, head["base"], spec.settings.model_name
    budget, qualified_name = Budget.from_settings(settings), f"{run.root.name}/{name}"
    if budget and spec.selection:
        # drawn noise counts as spent, whoever booked it
        budget.reserve_selection(spec.selection, run.root.name)
    if budget and (spec.failure_reason or not log.records):
        with report_start_and_end(progress, "account budget"):
            if base and START_KEY in base:
                base_head = read_records(run.get_model_folder(base[START_KEY]).ledger)[0].body
                budget.require_reservation(json_sha256(base_head), f"{run.root.name}/{base[START_KEY]}")
            budget.require_available_budget(qualified_name, spec.spending, spec.failure_reason)
    original_examples = spec.trainer.read_original_examples(run, settings)
    stream = begin_or_resume_stream(log, head, run.get_root_key_path(name), settings.seed)
    binding = json_sha256(log.records[0].body)
    return (
        original_examples,
        stream,
        binding if original_examples is None else f"{binding} {original_examples.compute_fingerprint(stream)}",
    )


def _describe_base_model(run: RunFolder, settings: TrainSettings) -> dict[str, Any] | None:
    """Describe the initial weights: a public folder's content, or a model of this run by its ledger."""
    name = find_base_model_name(run, settings)
    if name is None:
        return describe_base_weights(settings.model)
    model = run.get_model_folder(name)
    return {START_KEY: name, "ledger": compute_chain_head(model.ledger), "model_type": read_model_type(model.root)}


def find_base_model_name(run: RunFolder, settings: TrainSettings) -> str | None:
    """Find this run's finished model that training starts from, or None; ``ConfigurationError`` if unusable."""
    folder: Path | None = getattr(settings.model, "folder", None)
    if folder is None or not any(path.exists() for path in (ModelFolder(folder).ledger, ModelFolder(folder).guarantee)):
        return None
    if folder.resolve().parent != run.models.resolve():
        raise ConfigurationError(
            f"train.model.folder: {folder.name} is a model of another run, so trained on its text, and its "
            "epsilon cannot be added to this one's: give public weights, or a model of this run"
        )
    if not is_finished(run.get_model_folder(folder.resolve().name)):
        raise ConfigurationError(f"train.model.folder: models/{folder.resolve().name} is not finished")
    return folder.resolve().name


def load_base_spec(run: RunFolder, settings: TrainSettings) -> TrainingSpec | None:
    """Load the spec of this run's model that the training starts from, checked against its ledger."""
    name = find_base_model_name(run, settings)
    if name is None:
        return None
    facts = read_ledger_facts(run, run.get_model_folder(name))
    if facts.parent != read_manifest_digest(run):
        raise ConfigurationError(
            f"train.model.folder: models/{name} was trained on an earlier release of this run; give public "
            "weights, or a model of the current release"
        )
    if facts.trainer.has_units:
        raise ConfigurationError(
            f"train.model.folder: models/{name} was trained with {facts.settings.trainer}, which cannot be "
            "a starting point; give public weights"
        )
    return read_training_spec(run, facts, facts.settings.detector_recall_file)


def require_unchanged_public_text(public_text: PublicText | None, head: dict[str, Any]) -> None:
    """Raise ``CheckFailed`` if the public text file differs from the digest in the ledger."""
    if public_text is not None and public_text.sha256 != head["public_text"]:
        raise CheckFailed(
            f"train.public_text: {public_text.path.name} changed during training: restore it, or remove the "
            "model's folder and train again"
        )


def seal_model(
    run: RunFolder, settings: TrainSettings, manifest_digest: str, seconds: float, progress: Progress
) -> dict[str, Any]:
    """Write guarantee, model card, manifest and seal; return the summary in the manifest with the guarantee."""
    name = settings.model_name
    for leftover in (run.get_root_key_path(name), run.get_checkpoint_path(name), run.get_initial_weights_path(name)):
        leftover.unlink(missing_ok=True)
    folder = run.get_model_folder(name)
    end_record = read_records(folder.ledger)[-1].body
    with report_start_and_end(progress, "account guarantee"):
        card = make_guarantee_card(run, name)
    write_json(folder.guarantee, card)
    write_text(folder.card, render_guarantee_page(card))
    summary = {
        "model": name,
        "trainer": settings.trainer,
        "parameters": count_parameters(folder),
        "steps": card["steps"],
        "update_norms": end_record["update_norms"],
        "seconds": round(seconds, 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    body = {
        "format": FORMAT,
        "parent": manifest_digest,
        "settings": settings_to_json(settings),
        "versions": _read_package_versions(),
    }
    files = [folder.root / name for name in end_record["files"]]
    files += [folder.ledger, folder.guarantee, folder.card]
    budget_record = {} if settings.budget is None else {"budget": settings.budget.to_record()}
    seal_folder(folder, {**body, **budget_record, "summary": summary}, files)
    return {**summary, "guarantee": card}


def load_finished_summary(
    folder: ModelFolder, settings: TrainSettings, manifest_digest: str, is_private_loop: bool = False
) -> dict[str, Any]:
    """Load the summary of a finished training; ``RunStateError`` if it had other settings, sources or loop."""
    manifest, run = read_manifest(folder), RunFolder(folder.root.parent.parent)
    is_same_run, name = manifest["parent"] == manifest_digest, folder.root.name
    if not is_same_run and find_release(run, manifest["parent"]) is not None:
        raise RunStateError(
            f"models/{name} was trained on an earlier release of this run, before an erasure or purge: give "
            "this training another name (train.name)"
        )
    if manifest["settings"] != settings_to_json(settings) or not is_same_run:
        raise RunStateError(
            f"models/{name} is finished, with other settings or of another run: "
            "give this training another name (train.name), or remove that folder"
        )
    if settings.budget is not None and settings.budget.to_record() != manifest.get("budget"):
        raise ConfigurationError(
            f"train.budget: expected {_format_budget(manifest.get('budget'))}, under which models/{name} was "
            f"trained, got {_format_budget(settings.budget.to_record())}: name the same, or give this training "
            "another name (train.name)"
        )
    # a public source that no longer exists is not needed
    head, changed_source = read_records(folder.ledger)[0].body, None
    if ("own_loop" in head) is not is_private_loop:
        changed_source = "loop around its steps"
    path, weights = settings.public_text, getattr(settings.model, "folder", None)
    if weights is not None and weights.is_dir() and _describe_base_model(run, settings) != head["base"]:
        changed_source = f"{weights.name} (train.model.folder)"
    if path is not None and path.is_file() and file_sha256(path) != head.get("public_text"):
        changed_source = f"{path.name} (train.public_text)"
    if changed_source is not None:
        raise RunStateError(
            f"models/{name} is finished, with another {changed_source}: "
            "give this training another name, or remove that folder"
        )
    summary: dict[str, Any] = manifest["summary"]
    return {**summary, "guarantee": make_guarantee_card(run, name)}


def _format_budget(budget: Mapping[str, Any] | None) -> str:
    return (
        f"{budget['path']} with limit {format_upper(budget['epsilon'])} at delta {format_upper(budget['delta'])}"
        if budget
        else "none"
    )


def _read_package_versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = get_package_version(name)
    return versions


def make_codec(settings: TrainSettings, vocabulary: Vocabulary) -> AnyCodec:
    """Make the codec of texts, or of conversations in their template."""
    if settings.chat is None:
        return vocabulary.tokenizer
    assert not isinstance(vocabulary.tokenizer, FrozenEncoder)
    return ChatCodec.from_template(vocabulary.tokenizer, settings.chat.template, settings.chat.loss_on)


def build_model(settings: TrainSettings, vocabulary: Vocabulary) -> AnyModel:
    """Build the model without any random draw; ``ConfigurationError`` if ``max_tokens`` is too large for it."""
    tokenizer = make_codec(settings, vocabulary)
    is_classifier, model = settings.task == "classify", settings.model
    built_model: AnyModel
    if is_classifier:
        network = build_classifier(model, tokenizer, settings.classes)
        built_model = TextClassifier(tokenizer, network, settings.max_tokens)
    else:
        assert not isinstance(tokenizer, FrozenEncoder)
        built_model = LanguageModel(tokenizer, build_language_network(model, tokenizer))
    # a classifier also reads the begin token
    context, required_tokens = built_model.network.context, settings.max_tokens + is_classifier
    if context is not None and required_tokens > context:
        raise ConfigurationError(
            f"train.max_tokens: the model reads {context} tokens, but needs {required_tokens}: lower it, or raise "
            "train.model.context"
        )
    return built_model


def compute_update_norms(initial_weights: Mapping[str, Tensor], network: nn.Module) -> dict[str, float]:
    """Compute the L2 norm of each trainable layer's change, by layer name.

    ``initial_weights`` are the weights after initialisation. Raises ``CheckFailed`` if no layer moved (adapters that
    did not change are a failure, not a result) or a weight is not finite. The norms are functions of the released and
    the initial weights.
    """
    squared_norms: defaultdict[str, float] = defaultdict(float)
    for name, parameter in network.named_parameters():
        if parameter.requires_grad:
            difference = parameter.detach().cpu().double() - initial_weights[name].detach().cpu().double()
            squared_norms[name.rpartition(".")[0]] += float(difference.square().sum())
    norms = {layer: value**0.5 for layer, value in squared_norms.items()}
    if not all(value < float("inf") for value in norms.values()):
        raise CheckFailed("non-finite weight: train again with smaller learning rates")
    if norms and not any(norms.values()):
        raise CheckFailed("no parameter changed: nothing was trained")
    return norms
