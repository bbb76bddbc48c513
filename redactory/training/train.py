"""One training, from a finished run to a sealed model with its guarantee."""

from __future__ import annotations

import platform
import resource
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from redactory.foundation.bounds import format_upper
from redactory.foundation.canonical import file_sha256, hash_of, version_of
from redactory.foundation.errors import CheckFailed, ConfigurationError, RunStateError
from redactory.foundation.files import make_private_folder, remove_leftovers, write_json, write_text
from redactory.foundation.progress import Progress, silent, waiting
from redactory.foundation.records import RecordLog, chain_head, read_records
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import ModelFolder, RunFolder
from redactory.redaction.sealing import is_finished, read_manifest, release_with, seal
from redactory.redaction.shards import CLASS
from redactory.training.chat import ChatCodec
from redactory.training.counted import Selection
from redactory.training.data import PublicText, parent_digest, public_text_of, require_unchanged
from redactory.training.guarantee.budget import Budget
from redactory.training.guarantee.card import guarantee_card, guarantee_page
from redactory.training.guarantee.figures import live_epsilon, no_remark
from redactory.training.guarantee.spec import START, TrainingSpec, ledger_facts, spec_in
from redactory.training.held_out import NO_ROWS, Curve, HeldOutText, event_writer
from redactory.training.ledger import END, NOISY_STEP, StepLedger, begin_or_resume, require_same_head
from redactory.training.ledger import FORMAT as LEDGER
from redactory.training.loop import Checkpoint, Ingredients, Phases, Schedule, steps_left
from redactory.training.mechanism import AnyMechanism
from redactory.training.model import (
    LanguageModel,
    TextClassifier,
    classifier_of,
    identity_of,
    network_of,
    parameters_in,
    require_clippable,
    save_model,
)
from redactory.training.models.hugging_face import kind_of
from redactory.training.numerics import fixed_numerics, require_device, settled
from redactory.training.parallel import piece_map
from redactory.training.settings import TrainSettings, settings_json
from redactory.training.steps import Average
from redactory.training.trainers import trainer_of
from redactory.training.uedp.local_update import update_map
from redactory.training.uedp.units import Originals
from redactory.training.vocabulary import Vocabulary, fit_of, is_public, public_texts_of, vocabulary_of

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
Model = LanguageModel | TextClassifier


def train_model(run: RunFolder, settings: TrainSettings, progress: Progress = silent) -> dict[str, Any]:
    """Train a language model on the finished ``run`` and seal it in ``models/NAME``; the JSON summary.

    An interrupted training is resumed from its last checkpoint, with the same bits as if it had not been
    interrupted; a finished one with the same settings returns its summary.  Raises ``RunStateError``
    where the run is unfinished or the name is taken by a training with other settings, and
    ``CheckFailed`` where the run's parts changed or a replayed step has another sum.
    """
    folder, parent = run.model(settings.model_name), parent_digest(run)
    settings = settled(settings, folder)
    if is_finished(folder):
        return summary_of(folder, settings, parent)
    require_sources(run, settings)
    started = time.monotonic()
    with begun(run, settings) as log:
        _train(run, settings, parent, log, progress)
    return finish(run, settings, parent, time.monotonic() - started, progress)


def require_sources(run: RunFolder, settings: TrainSettings) -> None:
    """``CheckFailed`` unless all that is learnt from is as it was sealed; the device must be there too."""
    require_device(settings.device)
    classes = {run.vault} if settings.task == "classify" or settings.prefix == CLASS else set()
    for data in {run.public, run.points, *classes, *trainer_of(settings).learns(run)}:
        require_unchanged(run, data)


@contextmanager
def begun(run: RunFolder, settings: TrainSettings) -> Iterator[RecordLog]:
    """The ledger of the training, with numerics fixed; of one that is refused at once nothing stays."""
    folder = run.model(settings.model_name)
    make_private_folder(run.models)
    make_private_folder(folder.root)
    with RecordLog(folder.ledger) as log, fixed_numerics(settings.threads):
        remove_leftovers(folder.root)
        remove_leftovers(run.state, f"train-{settings.model_name}.*")
        try:
            yield log
        except BaseException:
            if not log.records:
                # refused before its first record: nothing of it stays, unless something else lies there
                folder.ledger.unlink(missing_ok=True)
                with suppress(OSError):
                    folder.root.rmdir()
            raise


def _train(run: RunFolder, settings: TrainSettings, parent: str, log: RecordLog, progress: Progress) -> None:
    """Everything up to the ledger's ``end`` record, which holds the digest of the weights."""
    trainer, name = trainer_of(settings), settings.model_name
    public_text = public_text_of(run, settings.public_text, chat=settings.chat is not None)
    spec, head, vocabulary = promised(run, settings, parent, public_text, progress)
    mechanism = spec.mechanism
    if log.records and log.records[-1].type == END:
        require_same_head(log, head)
        return
    if not log.records:
        run.checkpoint(name).unlink(missing_ok=True)  # of a training whose ledger is gone
    # before anything is booked or recorded: what cannot be built costs nothing, and may be mended
    model = _built(settings, vocabulary)
    if trainer.in_pieces(settings):
        require_clippable(model, settings.max_tokens)
    events = event_writer(settings.tensorboard)
    originals, stream, binding = admitted(run, spec, log, head, progress)
    model.network.initialise(stream)
    model.network.to(settings.device)
    shared_out = settings.workers if trainer.in_pieces(settings) else 1
    with (
        update_map(settings.workers if trainer.samples_users else 1) as every,
        piece_map(shared_out, model.network, settings.threads) as pieces,
    ):
        held_out, own = HeldOutText.of(run, settings, stream, public_text), run.model(name)
        curve = Curve(own.held_out, model, held_out, events) if held_out else None
        left_out = held_out.rows if held_out else NO_ROWS
        made = Ingredients(
            *(run, settings, model.network, model.tokenizer, stream, originals, public_text, every, pieces), left_out
        )
        phases = made.phases(mechanism, StepLedger(log, mechanism, stream) if mechanism else None)
        require_same_text(public_text, head)
        if curve:
            curve.beside = partial(_constants, mechanism, phases)
        optimizers = [phase.descent.optimizer for phase in phases if phase]
        schedule = Schedule.of(settings, phases, stream)
        first = len(schedule) - round(settings.weight_averaging_fraction * len(schedule)) + 1
        average = Average(model.network, first) if settings.weight_averaging_fraction else None
        for _, step in steps_left(
            schedule,
            Checkpoint(run.checkpoint(name), binding, model.network, optimizers, phases.correlated, average),
            settings.checkpoint_steps,
            sum(record.type == NOISY_STEP for record in log.records),
            progress,
            no_remark if progress is silent or spec.broken else live_epsilon(spec),
            curve,
        ):
            step.phase.step(step.number)
    require_same_text(public_text, head)
    before, folder = fresh_model(settings, stream, vocabulary), run.model(name)
    files = [path.relative_to(folder.root).as_posix() for path in save_model(folder, model)]
    files += [folder.held_out.name] if curve else []
    moved = update_norms(dict(before.network.named_parameters()), model.network)
    weights = file_sha256(folder.weights)
    log.append(END, {"steps": spec.steps, "weights": weights, "files": files, "update_norms": moved})


def promised(
    run: RunFolder, settings: TrainSettings, parent: str, public_text: PublicText | None, progress: Progress
) -> tuple[TrainingSpec, dict[str, Any], Vocabulary]:
    """What the training will be, its ledger's head without what depends on the key, and its vocabulary."""
    trainer, base = trainer_of(settings), _base_of(run, settings)
    with waiting(progress, "account noise") if trainer.noised else nullcontext():
        public, manifest = is_public(settings.vocabulary_sources), read_manifest(run)
        start, selection = start_of(run, settings), Selection.of_run(manifest)
        spec = TrainingSpec.of(
            settings,
            manifest.get("dedup"),
            public=public and start is None,
            known_in=manifest.get("known_in"),
            start=start,
            selection=selection,
        )
    if start is not None and spec.refusal and trainer.noised:
        raise ConfigurationError(f"train.model.folder: {spec.refusal}; give public weights")
    own = spec.mechanism
    head: dict[str, Any] = {
        "format": LEDGER,
        "relation": spec.relation.value,
        "mechanism": own and own.to_json(),
        "sampler": own and own.sampler,
        "steps": spec.steps,
        "settings": settings_json(settings),
        "base": base,
        "parent": parent,
        "versions": _versions(),
    }
    if trainer.of_units or public_text is not None:
        head["public_text"] = public_text and public_text.sha256
    with waiting(progress, "learn the vocabulary"):
        vocabulary = vocabulary_of(run, settings, public_text)
        fit = fit_of(vocabulary, public_texts_of(run, settings, public_text), settings.max_tokens)
    head["vocabulary"] = {**vocabulary.record(), "fit": fit}
    if settings.budget is not None:
        # the ledger leaves with the model, and the path of the file does not
        head["budget"] = hash_of(settings.budget.to_record())
    return spec, head, vocabulary


def admitted(
    run: RunFolder, spec: TrainingSpec, log: RecordLog, head: dict[str, Any], progress: Progress
) -> tuple[Originals | None, RandomStream, str]:
    """The originals, the stream, and what checkpoints are bound to; the ledger has its ``head``.

    ``BudgetExceeded`` where the budget has no room, before anything is recorded.
    """
    settings, base, name = spec.settings, head["base"], spec.settings.model_name
    budget, named = Budget.of(settings), f"{run.root.name}/{name}"
    if budget and spec.selection:
        # noise that was drawn was spent, whoever booked it
        budget.reserve_selection(spec.selection, run.root.name)
    if budget and (spec.broken or not log.records):
        with waiting(progress, "account budget"):
            if base and START in base:
                head_of_start = read_records(run.model(base[START]).ledger)[0].body
                budget.require_booked(hash_of(head_of_start), f"{run.root.name}/{base[START]}")
            budget.require_room(named, spec.spending, spec.broken)
    originals = spec.trainer.originals(run, settings)
    stream = begin_or_resume(log, head, run.root_key(name), settings.seed)
    binding = hash_of(log.records[0].body)
    if budget and spec.spending:
        budget.reserve(binding, named, spec.spending)
    return originals, stream, binding if originals is None else f"{binding} {originals.fingerprint(stream)}"


def _constants(mechanism: AnyMechanism | None, phases: Phases) -> dict[str, float]:
    """What is drawn beside a curve: the noise, and the step sizes as they are."""
    found = {} if mechanism is None else {"noise multiplier": mechanism.noise_multiplier}
    for kind, phase in zip(Phases._fields, phases, strict=True):
        if phase is not None:
            found[f"step size/{kind}"] = float(phase.descent.optimizer.param_groups[0]["lr"])
    return found


def _base_of(run: RunFolder, settings: TrainSettings) -> dict[str, Any] | None:
    """What the first weights are: those of a public folder, or of a model of this run, by its ledger."""
    name = stage_of(run, settings)
    if name is None:
        return identity_of(settings.model)
    model = run.model(name)
    return {START: name, "ledger": chain_head(model.ledger), "model_type": kind_of(model.root)}


def stage_of(run: RunFolder, settings: TrainSettings) -> str | None:
    """The name of the model of this run that the training starts from; None where it starts from none.

    ``ConfigurationError`` where it was trained on another run, whose text is none of this one's.
    """
    own: Path | None = getattr(settings.model, "folder", None)
    if own is None or not any(path.exists() for path in (ModelFolder(own).ledger, ModelFolder(own).guarantee)):
        return None
    if own.resolve().parent != run.models.resolve():
        raise ConfigurationError(
            f"train.model.folder: {own.name} is a model of another run, so trained on its text, and its "
            "epsilon cannot be added to this one's: give public weights, or a model of this run"
        )
    if not is_finished(run.model(own.resolve().name)):
        raise ConfigurationError(f"train.model.folder: models/{own.resolve().name} is not finished")
    return own.resolve().name


def start_of(run: RunFolder, settings: TrainSettings) -> TrainingSpec | None:
    """The spec of the model of this run that the training starts from, checked against its ledger."""
    name = stage_of(run, settings)
    if name is None:
        return None
    facts = ledger_facts(run, run.model(name))
    if facts.parent != parent_digest(run):
        raise ConfigurationError(
            f"train.model.folder: models/{name} was trained on an earlier release of this run; give public "
            "weights, or a model of the current release"
        )
    if facts.trainer.of_units:
        raise ConfigurationError(
            f"train.model.folder: models/{name} was trained with {facts.settings.trainer}, which cannot be "
            "a starting point; give public weights"
        )
    return spec_in(run, facts, facts.settings.detector_recall_file)


def require_same_text(public_text: PublicText | None, head: dict[str, Any]) -> None:
    """``CheckFailed`` where the file is no longer the one that the ledger names."""
    if public_text is not None and public_text.sha256 != head["public_text"]:
        raise CheckFailed(
            f"train.public_text: {public_text.path.name} changed during training: restore it, or remove the "
            "model's folder and train again"
        )


def finish(run: RunFolder, settings: TrainSettings, parent: str, seconds: float, progress: Progress) -> dict[str, Any]:
    """Guarantee, model card, manifest and seal; the summary that the manifest holds."""
    name = settings.model_name
    for leftover in (run.root_key(name), run.checkpoint(name), run.first_weights(name)):
        leftover.unlink(missing_ok=True)
    folder = run.model(name)
    end = read_records(folder.ledger)[-1].body
    with waiting(progress, "account guarantee"):
        card = guarantee_card(run, name)
    write_json(folder.guarantee, card)
    write_text(folder.card, guarantee_page(card))
    summary = {
        "model": name,
        "trainer": settings.trainer,
        "parameters": parameters_in(folder),
        "steps": card["steps"],
        "update_norms": end["update_norms"],
        "seconds": round(seconds, 3),
        "peak_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
    }
    body = {"format": FORMAT, "parent": parent, "settings": settings_json(settings), "versions": _versions()}
    files = [folder.root / name for name in end["files"]]
    files += [folder.ledger, folder.guarantee, folder.card]
    booked = {} if settings.budget is None else {"budget": settings.budget.to_record()}
    seal(folder, {**body, **booked, "summary": summary}, files)
    return {**summary, "guarantee": card}


def summary_of(folder: ModelFolder, settings: TrainSettings, parent: str, own_loop: bool = False) -> dict[str, Any]:
    """The summary of a finished training with these settings, of an ``own_loop`` or not.

    ``RunStateError`` where another training has the name.
    """
    manifest, run = read_manifest(folder), RunFolder(folder.root.parent.parent)
    same_run, name = manifest["parent"] == parent, folder.root.name
    if not same_run and release_with(run, manifest["parent"]) is not None:
        raise RunStateError(
            f"models/{name} was trained on an earlier release of this run, before an erasure or purge: give "
            "this training another name (train.name)"
        )
    if manifest["settings"] != settings_json(settings) or not same_run:
        raise RunStateError(
            f"models/{name} is finished, with other settings or of another run: "
            "give this training another name (train.name), or remove that folder"
        )
    if settings.budget is not None and settings.budget.to_record() != manifest.get("budget"):
        raise ConfigurationError(
            f"train.budget: expected {_named(manifest.get('budget'))}, under which models/{name} was "
            f"trained, got {_named(settings.budget.to_record())}: name the same, or give this training "
            "another name (train.name)"
        )
    # a public source that is gone is needed no more
    head, changed = read_records(folder.ledger)[0].body, None
    if ("own_loop" in head) is not own_loop:
        changed = "loop around its steps"
    path, weights = settings.public_text, getattr(settings.model, "folder", None)
    if weights is not None and weights.is_dir() and _base_of(run, settings) != head["base"]:
        changed = f"{weights.name} (train.model.folder)"
    if path is not None and path.is_file() and file_sha256(path) != head.get("public_text"):
        changed = f"{path.name} (train.public_text)"
    if changed is not None:
        raise RunStateError(
            f"models/{name} is finished, with another {changed}: give this training another name, or remove that folder"
        )
    summary: dict[str, Any] = manifest["summary"]
    return {**summary, "guarantee": guarantee_card(run, name)}


def _named(budget: Mapping[str, Any] | None) -> str:
    return (
        f"{budget['path']} with limit {format_upper(budget['epsilon'])} at delta {format_upper(budget['delta'])}"
        if budget
        else "none"
    )


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[name] = version_of(name)
    return found


# A model before its first step: its vocabulary and its weights, from public text, constants and coins.


def fresh_model(settings: TrainSettings, stream: RandomStream, vocabulary: Vocabulary) -> Model:
    """A network for the ids of ``vocabulary`` as it is before the first step.

    ``ConfigurationError`` where ``max_tokens`` is more than the network reads.
    """
    model = _built(settings, vocabulary)
    model.network.initialise(stream)
    model.network.to(settings.device)
    return model


def _built(settings: TrainSettings, vocabulary: Vocabulary) -> Model:
    """The same, before any coin is thrown: what cannot be built is refused here."""
    tokenizer = vocabulary.tokenizer
    if settings.chat is not None:
        tokenizer = ChatCodec.of(tokenizer, settings.chat.template, settings.chat.loss_on)
    classify, model = settings.task == "classify", settings.model
    found: Model
    if classify:
        network = classifier_of(model, tokenizer, settings.classes)
        found = TextClassifier(tokenizer, network, settings.max_tokens)
    else:
        found = LanguageModel(tokenizer, network_of(model, tokenizer))
    # a classifier reads the begin token beside them
    context, needed = found.network.context, settings.max_tokens + classify
    if context is not None and needed > context:
        raise ConfigurationError(
            f"train.max_tokens: the model reads {context} tokens, but needs {needed}: lower it, or raise "
            "train.model.context"
        )
    return found


def update_norms(first: Mapping[str, Tensor], after: nn.Module) -> dict[str, float]:
    """L2 norm of what training changed in each layer that it could change, by the layer's name.

    ``first`` are the weights as they were initialised.  ``CheckFailed`` where no layer moved (adapters that
    stay where they were are a failure, not a result) or a weight is no number.  The norms are functions of
    the released weights and of the first ones.
    """
    squared: defaultdict[str, float] = defaultdict(float)
    for name, parameter in after.named_parameters():
        if parameter.requires_grad:
            change = parameter.detach().cpu().double() - first[name].detach().cpu().double()
            squared[name.rpartition(".")[0]] += float(change.square().sum())
    norms = {layer: value**0.5 for layer, value in squared.items()}
    if not all(value < float("inf") for value in norms.values()):
        raise CheckFailed("non-finite weight: train again with smaller learning rates")
    if norms and not any(norms.values()):
        raise CheckFailed("no parameter changed: nothing was trained")
    return norms
