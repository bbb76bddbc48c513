"""A custom training loop with the sampler, noise, ledger and model card of ``redactory train``."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import IterableDataset, get_worker_info

from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import commit_file
from redactory.foundation.progress import Progress, ignore_progress
from redactory.foundation.records import RecordLog
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import is_finished
from redactory.training.clipping.distributed import is_distributed
from redactory.training.clipping.engine import get_trainable_parameters
from redactory.training.custom_network import (
    LossFunction,
    describe_network,
    get_qualified_class_name,
    require_trainable_network,
    wrap_network,
)
from redactory.training.data import Batch, TokenizedExamples, open_public_text, read_manifest_digest
from redactory.training.guarantee.metrics import make_epsilon_function
from redactory.training.loop import ScheduledStep, TrainingContext, collect_step_metrics
from redactory.training.mechanisms.ledger import END, StepLedger, require_same_head
from redactory.training.model import LanguageModel, TextClassifier
from redactory.training.models.frozen_encoder import FrozenEncoder
from redactory.training.models.hugging_face import has_adapters
from redactory.training.models.network import ClassifierNetwork, Network
from redactory.training.numerics import resolve_device
from redactory.training.optimizer_guard import OptimizerGuard
from redactory.training.settings import TrainSettings
from redactory.training.steps import NoiseFreeSteps, ScheduledOptimizer, make_optimizer
from redactory.training.tokenizer import TextCodec
from redactory.training.train import (
    begin_or_resume_ledger,
    load_finished_summary,
    make_codec,
    open_training_ledger,
    plan_training,
    record_trained_model,
    require_unchanged_public_text,
    require_unchanged_sources,
    schedule_remaining_steps,
    seal_model,
)
from redactory.training.trainers import get_trainer


class PrivateLoop(IterableDataset["PrivateLoopStep"]):
    """The steps of one training on the finished ``run``, for the caller's network and optimizer::

        with PrivateLoop("run", TrainSettings(trainer="crt", epsilon=8.0)) as loop:
            network = MyNetwork(loop.tokenizer.size)
            optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
            for step in loop.begin(network, optimizer, losses=my_losses):
                step.backward()
                optimizer.step()
            summary = loop.finish()

    The number of steps, their noise and their samples are those of ``redactory train`` with the same ``settings``; the
    model's folder is ``train.name``. The caller may follow or ignore the settings of network, optimizers and learning
    rates (``step.learning_rate``). After an interruption a new loop resumes from the last checkpoint. With
    ``public_steps``, a sentence for the model card, noise-free steps may learn from any public text in any way.

    As an ``IterableDataset`` it yields the steps of all phases in the order of the schedule, also through a
    ``DataLoader`` with ``batch_size=None`` and without workers. It never yields private examples.

    Formal guarantees: assume that after each step the weights, and everything else that the caller holds, are a
    function of their values before it, of public text, of data-independent random draws and, in a noisy step, of the
    gradient that the step set. Then they follow from the releases of ``spec.mechanism``, adaptively composed, which the
    ledger records and the card accounts for. Private examples are read only inside ``step.backward``, and leave it only
    in the clipped, admitted, noised sum of a sample that the loop draws.

    Checked, with an error otherwise: the network clips exactly, to the extent of
    :func:`redactory.training.clipping.check_exact_clipping`; the data equal the sealed run's when training begins,
    resumes and ends; in noisy steps, and in all steps without ``public_steps``, weights, buffers and gradients obey
    :class:`redactory.training.optimizer_guard.OptimizerGuard`.

    Not checked, the caller vouches for it: initial weights, network, loss, learning rates and optimizers come from
    public knowledge; network and loss pass data of an example only to their result, and store none in an attribute;
    nothing else read private text; ``public_steps`` describes truly which text was learned from.
    """

    def __init__(
        self,
        run: RunFolder | Path | str,
        settings: TrainSettings,
        public_steps: str | None = None,
        progress: Progress = ignore_progress,
    ) -> None:
        self._run = run if isinstance(run, RunFolder) else RunFolder(Path(run))
        self._manifest_digest = read_manifest_digest(self._run)
        self._folder = self._run.get_model_folder(settings.model_name)
        if settings.is_chosen("held_out"):
            # the recipe's share; this loop measures nothing
            settings = settings.model_copy(update={"held_out": None})
        self._settings = resolve_device(settings, self._folder)
        _require_supported_settings(self._settings)
        self._progress, self._public_steps, self._started_at = progress, public_steps, time.monotonic()
        self._public_text = open_public_text(self._run, settings.public_text, is_chat=settings.chat is not None)
        self.spec, self._head, self._vocabulary = plan_training(
            self._run, self._settings, self._manifest_digest, self._public_text, progress
        )
        self._head["vocabulary"].pop("added_rows", None)  # the network is the caller's
        self._resources, self._guard = ExitStack(), OptimizerGuard()
        self._log: RecordLog | None = None
        self._remaining_steps: Iterator[tuple[int, ScheduledStep]] = iter(())
        self._next_step: tuple[int, ScheduledStep] | None = None
        self._remaining_count, self._step_count = 0, 0
        tokenizer = make_codec(self._settings, self._vocabulary)
        assert not isinstance(tokenizer, FrozenEncoder)
        self.tokenizer: TextCodec = tokenizer
        """The tokenizer of the texts or conversations; the network must accept ``tokenizer.size`` ids."""
        self._compute_epsilon = make_epsilon_function(self.spec)

    @property
    def finished_steps(self) -> int:
        """Number of steps up to the current one, with those of earlier loops that were interrupted."""
        return self._step_count - self._remaining_count

    def collate(self, rows: Sequence[str | Mapping[str, Any]]) -> Batch:
        """Make a batch of public texts, or rows with a ``text``, for steps with ``public_steps``: a ``collate_fn``."""
        texts = (row if isinstance(row, str) else row["text"] for row in rows)
        examples = TokenizedExamples.from_texts(texts, self.tokenizer, self._settings.max_tokens)
        return examples.make_batch(range(len(examples)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the ledger, the network and the optimizers; an unfinished training can be resumed."""
        self._resources.close()

    def begin(self, network: nn.Module, *optimizers: Optimizer, losses: LossFunction | None = None) -> Self:
        """Start or resume the training; return the iterator of the remaining steps, with ``len``.

        ``network`` is a Hugging Face model, or any module with ``losses``, which returns the loss of each example of a
        batch, [B] (nats; the sum over its ``real`` targets if it predicts words). Raises ``ConfigurationError`` if the
        network is not clipped exactly (dropout, batch normalisation, positions that read other examples), or if the
        ``optimizers`` together do not hold exactly its trainable parameters.
        """
        if self._log is not None:
            raise RunStateError("this loop was already started: create a new one")
        if is_finished(self._folder):
            return self
        require_unchanged_sources(self._run, self._settings)
        with ExitStack() as stack:
            stack.callback(self._guard.detach)
            log = stack.enter_context(open_training_ledger(self._run, self._settings))
            if log.records and log.records[-1].type == END:
                head = log.records[0].body
                require_same_head(log, {**self._head, "own_loop": head.get("own_loop")})
            else:
                self._prepare_steps(log, wrap_network(network, self._settings.task, losses), optimizers)
            self._log, self._resources = log, stack.pop_all()
        return self

    def _prepare_steps(self, log: RecordLog, network: Network, optimizers: tuple[Optimizer, ...]) -> None:
        """Write or verify the ledger's head, restore the checkpoint and find the first remaining step."""
        run, settings, name = self._run, self._settings, self._settings.model_name
        self._network = network
        require_trainable_network(network, self.tokenizer, settings)
        self._guard.attach(network, optimizers)
        guarded_optimizers = self._guard.optimizers
        loop_record = {
            **describe_network(network),
            "frozen": self._guard.frozen_sha256,
            "optimizers": [get_qualified_class_name(optimizer) for optimizer in guarded_optimizers],
            "public_steps": self._public_steps,
        }
        head = {**self._head, "own_loop": loop_record}
        path = run.get_initial_weights_path(name)
        if not log.records:
            for leftover in (path, run.get_checkpoint_path(name)):
                leftover.unlink(missing_ok=True)  # left by a training whose ledger is gone
        original_examples, stream, binding = begin_or_resume_ledger(run, self.spec, log, head, self._progress)
        _save_or_restore_first_weights(network, path)
        mechanism = self.spec.mechanism
        assert mechanism is not None
        context = _PrivateLoopContext(
            run, settings, network, self.tokenizer, stream, original_examples, self._public_text
        )
        step_kinds = context.make_step_kinds(mechanism, _GuardedLedger(StepLedger(log, mechanism, stream), self._guard))
        require_unchanged_public_text(self._public_text, head)
        noisy_steps: Any = step_kinds.noisy
        for array in (noisy_steps.examples.ids, noisy_steps.examples.offsets, noisy_steps.examples.labels):
            if array is not None:
                array.setflags(write=False)  # read-only in memory too
        self._step_count, self._remaining_steps = schedule_remaining_steps(
            context, self.spec, step_kinds, guarded_optimizers, binding, log, self._progress
        )
        self._next_step = next(self._remaining_steps, None)  # reads the checkpoint
        self._remaining_count = 0 if self._next_step is None else self._step_count - self._next_step[0] + 1
        self._guard.record_state()

    def __len__(self) -> int:
        """Number of steps after the current one."""
        return self._remaining_count

    def __iter__(self) -> Iterator[PrivateLoopStep]:
        if get_worker_info() is not None:
            raise ConfigurationError("num_workers: a worker's copy of the loop would train nothing; set it to 0")
        return self

    def __reduce__(self) -> Any:
        raise ConfigurationError("a private loop cannot be copied to another process; set num_workers to 0")

    def __next__(self) -> PrivateLoopStep:
        """Check how the last step ended and return the next one."""
        self._finish_step()
        if self._next_step is None:
            raise StopIteration
        number, step = self._next_step
        self._next_step, self._remaining_count = None, self._remaining_count - 1
        is_guarded = step.is_noisy or self._public_steps is None
        self._guard.open_step(number, is_guarded)
        return PrivateLoopStep(number, step, self._guard, self._network, self._collect_metrics)

    def _collect_metrics(self, step: ScheduledStep) -> dict[str, float]:
        """Return what may be shown of ``step``; nothing without a guarantee."""
        epsilon = self._compute_epsilon(step.number + 1) if step.is_noisy else None
        return {} if self.spec.failure_reason else collect_step_metrics(step, epsilon)

    def _finish_step(self) -> None:
        """Close the current step, if any, write its checkpoint, and fetch the next one."""
        if self._guard.close_step():
            self._next_step = next(self._remaining_steps, None)
            self._guard.record_state()  # after the last step the weight average may have replaced the weights

    def finish(self) -> dict[str, Any]:
        """Save the model, seal it with its guarantee, and return the summary that ``redactory train`` prints.

        The folder is as that command writes it: a Hugging Face network in its library's format, any other network's
        ``state_dict`` as ``model.safetensors``. Raises ``RunStateError`` if steps remain.
        """
        run, settings = self._run, self._settings
        if is_finished(self._folder):
            return load_finished_summary(self._folder, settings, self._manifest_digest, is_private_loop=True)
        if self._log is None:
            raise RunStateError("this loop was not started: nothing is trained")
        self._finish_step()
        if self._next_step is not None:
            raise RunStateError(
                f"{self._remaining_count} of the loop's steps are not done, but the guarantee is about all of them"
            )
        if self._log.records[-1].type != END:
            self._guard.require_frozen_unchanged()
            require_unchanged_sources(run, settings)
            require_unchanged_public_text(self._public_text, self._log.records[0].body)
            self._save_model(self._log)
        self.close()
        return seal_model(run, settings, self._manifest_digest, time.monotonic() - self._started_at, self._progress)

    def _save_model(self, log: RecordLog) -> None:
        """Write the model's files and the ledger's ``end`` record."""
        settings, folder, network = self._settings, self._folder, self._network
        model: Any = LanguageModel(self.tokenizer, network)  # type: ignore[arg-type]
        if isinstance(network, ClassifierNetwork):
            model = TextClassifier(self.tokenizer, network, settings.max_tokens)
        library_model: Any = getattr(network, "model", None)
        for adapter_config in library_model.peft_config.values() if has_adapters(library_model) else ():
            # the name only, not the path
            adapter_config.base_model_name_or_path = Path(adapter_config.base_model_name_or_path or "").name
        initial_weights = load_file(self._run.get_initial_weights_path(settings.model_name))
        record_trained_model(log, folder, self.spec, model, initial_weights)


@dataclass(frozen=True)
class PrivateLoopStep:
    """Step ``number`` of all, from 1, noisy or on public examples; finish it before requesting the next."""

    number: int
    _step: ScheduledStep
    _guard: OptimizerGuard
    _network: Network
    _collect_metrics: Callable[[ScheduledStep], dict[str, float]]

    @property
    def noisy(self) -> bool:
        """Whether its gradient is from private examples, clipped and with noise."""
        return self._step.is_noisy

    @property
    def phase(self) -> str:
        """What it learns from: ``pretraining`` (``public_text``), ``public`` or, with noise, ``private`` examples."""
        return "private" if self.noisy else "pretraining" if self._step.label == "pretraining" else "public"

    @property
    def learning_rate(self) -> float:
        """The learning rate of this step by the settings; following it is optional."""
        return self._step.kind.scheduled_optimizer.get_learning_rate(self._step.number)

    @property
    def batch(self) -> Batch:
        """The public examples of a noise-free step; ``CheckFailed`` in a noisy step."""
        kind = self._step.kind
        if not isinstance(kind, NoiseFreeSteps):
            self._guard.refuse_training("the examples of a step with noise are private, and not available")
        return kind.examples.make_batch(kind.select_rows(self._step.number)).to(self._network.device)

    def backward(self) -> None:
        """Set the gradient: noisy sum over ``expected_batch_size``, or that of the public examples' mean loss."""
        self._guard.compute_gradient(
            self.number, partial(self._step.kind.step, self._step.number), by_autograd=not self.noisy
        )

    @property
    def metrics(self) -> dict[str, float]:
        """What may be shown of this step after :meth:`backward`; empty if the training has no guarantee.

        A noisy step has ``epsilon``, a noise-free one ``loss``
        (:func:`redactory.training.loop.collect_step_metrics`).
        """
        return self._collect_metrics(self._step)


@dataclass(frozen=True)
class _GuardedLedger:
    """Admits a sum to ``ledger`` only if its computation had no side effects."""

    ledger: StepLedger
    guard: OptimizerGuard

    def authorize_noisy_step(self, step: int, clipped_sum: Tensor) -> None:
        self.guard.require_no_side_effects()
        self.ledger.authorize_noisy_step(step, clipped_sum)


@dataclass
class _ExternalOptimizer(ScheduledOptimizer):
    """Leaves the gradient in place: the caller's optimizer takes the step."""

    def step(self, number: int) -> None:
        """Nothing."""


@dataclass(frozen=True)
class _PrivateLoopContext(TrainingContext):
    def make_optimizer(self, learning_rate: float) -> ScheduledOptimizer:
        return _ExternalOptimizer(make_optimizer(self.network, "sgd"), learning_rate)


def _require_supported_settings(settings: TrainSettings) -> None:
    trainer = get_trainer(settings)
    if trainer.noised_folder is None or trainer.samples_users:
        raise ConfigurationError(
            f"train.trainer: {settings.trainer} has no noisy steps on examples, which a custom loop could "
            "run; set crt, crt-drop, dpsgd or uedp-bounded, or use redactory train"
        )
    if settings.held_out is not None:
        raise ConfigurationError("train.held_out: a custom loop measures by itself; remove it")
    if settings.model.kind == "encoder":
        raise ConfigurationError(
            "train.model.kind: a custom loop gives its network tokens, not vectors; set another kind (bag), whose "
            "size does not matter here"
        )
    if is_distributed():
        raise ConfigurationError("several processes would each step independently: start the loop in one process")


@torch.no_grad()
def _save_or_restore_first_weights(network: Network, path: Path) -> None:
    """Save the initial weights, or restore them if already saved."""
    trainable_parameters = get_trainable_parameters(network)
    if not path.exists():
        with commit_file(path) as temporary:
            save_file({name: p.detach().cpu().contiguous() for name, p in trainable_parameters.items()}, temporary)
        return
    for name, value in load_file(path).items():
        trainable_parameters[name].copy_(value)
