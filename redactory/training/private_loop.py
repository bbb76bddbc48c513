"""A training loop of one's own, with the sampler, noise, ledger and card of ``redactory train``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from redactory.foundation.canonical import file_sha256
from redactory.foundation.errors import ConfigurationError, RunStateError
from redactory.foundation.files import commit
from redactory.foundation.progress import Progress, no_progress
from redactory.foundation.records import RecordLog
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import is_finished
from redactory.training.custom_network import (
    LossFunction,
    describe_network,
    get_qualified_name,
    require_trainable_network,
    wrap_network,
)
from redactory.training.data import Batch, open_public_text, read_manifest_digest
from redactory.training.guarantee.metrics import make_empty_remark, make_epsilon_remark
from redactory.training.loop import Checkpoint, ScheduledStep, StepSchedule, TrainingContext, iterate_remaining_steps
from redactory.training.mechanisms.ledger import END, NOISY_STEP, StepLedger, require_same_head
from redactory.training.model import LanguageModel, TextClassifier, save_model
from redactory.training.models.hugging_face import SequenceClassifier, has_adapters
from redactory.training.models.network import Network
from redactory.training.numerics import resolve_device
from redactory.training.optimizer_guard import OptimizerGuard, get_world_size
from redactory.training.settings import TrainSettings
from redactory.training.steps import NoiseFreeSteps, ScheduledOptimizer, WeightAverage, make_optimizer
from redactory.training.tokenizer import TextCodec
from redactory.training.train import (
    compute_update_norms,
    load_summary,
    open_ledger,
    open_training,
    plan_training,
    require_unchanged_sources,
    require_unchanged_text,
    seal_model,
)
from redactory.training.trainers import get_trainer


class PrivateLoop:
    """The steps of one training on the finished ``run``, for a network and an optimizer of one's own::

        with PrivateLoop("run", TrainSettings(trainer="crt", epsilon=8.0)) as loop:
            network = MyNetwork(loop.tokenizer.size)
            optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
            for step in loop.begin(network, optimizer, losses=my_losses):
                step.backward()
                optimizer.step()
            summary = loop.finish()

    How many steps there are, which have noise, and what they draw are those of ``redactory train`` with the
    same ``settings``; the model's folder is ``train.name``.  What those say of the network, of optimizers
    and step sizes is for the loop to follow or not (``step.learning_rate``).  Begun again after an
    interruption, the loop goes on from its last checkpoint.  With ``public_steps``, a sentence that the
    card prints, steps without noise may learn from any public text, in any way.

    Formal guarantees: let the weights, and all else that the loop's author holds, be after each step a function of what
    they were before it, of public text, of coins that look at no data, and, with noise, of the gradient that the step
    laid on the parameters.  Then they follow from the releases of ``spec.mechanism``, adaptively composed, which is
    what the ledger holds and the card accounts for. Private points are read inside ``step.backward`` alone, and leave
    it in the clipped, admitted, noised sum of a sample that the loop draws.

    Checked, and refused where it is not so: the network clips exactly, as far as
    :func:`redactory.training.clipping.check_exact` can tell; the data are those that the run was sealed with,
    when training begins, goes on and ends; in steps with noise, and in all unless there are ``public_steps``,
    weights, buffers and gradients are what :class:`redactory.training.optimizer_guard.OptimizerGuard` allows.

    The author's word: that the first weights, the network, its loss, step sizes and optimizers come from
    public knowledge; that network and loss hand nothing of a point to anything but their result, and remember
    nothing in an attribute; that nothing else read private text; and what ``public_steps`` learnt from.
    """

    def __init__(
        self,
        run: RunFolder | Path | str,
        settings: TrainSettings,
        public_steps: str | None = None,
        progress: Progress = no_progress,
    ) -> None:
        self._run = run if isinstance(run, RunFolder) else RunFolder(Path(run))
        self._manifest_digest = read_manifest_digest(self._run)
        self._folder = self._run.model(settings.model_name)
        self._settings = resolve_device(settings, self._folder)
        _require_supported(self._settings)
        self._progress, self._public_steps, self._started_at = progress, public_steps, time.monotonic()
        self._public_text = open_public_text(self._run, settings.public_text)
        self.spec, self._head, self._vocabulary = plan_training(
            self._run, self._settings, self._manifest_digest, self._public_text, progress
        )
        self._resources, self._guard = ExitStack(), OptimizerGuard()
        self._log: RecordLog | None = None
        self._remaining_steps: Iterator[tuple[int, ScheduledStep]] = iter(())
        self._next_step: tuple[int, ScheduledStep] | None = None
        self._remaining_count = 0

    @property
    def tokenizer(self) -> TextCodec:
        """What texts are made ids by: the network must know ``tokenizer.size`` of them."""
        return self._vocabulary.tokenizer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the ledger, the network and the optimizers; what is not finished can be begun again."""
        self._resources.close()

    def begin(self, network: nn.Module, *optimizers: Optimizer, losses: LossFunction | None = None) -> Self:
        """The steps that are not done, to be carried out one after the other; ``len`` counts them.

        ``network`` may be one of Hugging Face, or any module with ``losses``, which gives the loss of each
        point of a batch, [B] (nats; the sum over its ``real`` targets where it predicts words).
        ``ConfigurationError`` where it is not clipped exactly (dropout, batch normalisation, places that see
        other points), or ``optimizers`` together do not move exactly its trainable parameters.
        """
        if self._log is not None:
            raise RunStateError("this loop was already started: create a new one")
        if is_finished(self._folder):
            return self
        require_unchanged_sources(self._run, self._settings)
        with ExitStack() as stack:
            stack.callback(self._guard.detach)
            log = stack.enter_context(open_training(self._run, self._settings))
            if log.records and log.records[-1].type == END:
                head = log.records[0].body
                require_same_head(log, {**self._head, "own_loop": head.get("own_loop")})
            else:
                self._prepare_steps(log, wrap_network(network, self._settings.task, losses), optimizers)
            self._log, self._resources = log, stack.pop_all()
        return self

    def _prepare_steps(self, log: RecordLog, network: Network, optimizers: tuple[Optimizer, ...]) -> None:
        """Everything between the ledger's head and the first step that is left."""
        run, settings, name = self._run, self._settings, self._settings.model_name
        self._network = network
        require_trainable_network(network, self.tokenizer, settings)
        self._guard.attach(network, optimizers)
        moved = self._guard.optimizers
        loop = {
            "optimizers": [get_qualified_name(optimizer) for optimizer in moved],
            "public_steps": self._public_steps,
        }
        head = {**self._head, "own_loop": {**describe_network(network), "frozen": self._guard.frozen_sha256, **loop}}
        path = run.first_weights(name)
        if not log.records:
            for leftover in (path, run.checkpoint(name)):
                leftover.unlink(missing_ok=True)  # of a training whose ledger is gone
        originals, stream, binding = open_ledger(run, self.spec, log, head, self._progress)
        _save_or_restore_first_weights(network, path)
        mechanism = self.spec.mechanism
        assert mechanism is not None
        context = _PrivateLoopContext(run, settings, network, self.tokenizer, stream, originals, self._public_text)
        step_kinds = context.make_step_kinds(mechanism, _GuardedLedger(StepLedger(log, mechanism, stream), self._guard))
        require_unchanged_text(self._public_text, head)
        noisy: Any = step_kinds.noisy
        for values in (noisy.examples.ids, noisy.examples.offsets, noisy.examples.labels):
            if values is not None:
                values.setflags(write=False)  # they stay as they are, in memory too
        schedule = StepSchedule.from_settings(settings, step_kinds, stream)
        start = len(schedule) - round(settings.weight_averaging_fraction * len(schedule)) + 1
        average = WeightAverage(network, start) if settings.weight_averaging_fraction else None
        self._remaining_steps = iterate_remaining_steps(
            schedule,
            Checkpoint(run.checkpoint(name), binding, network, moved, step_kinds.correlated_steps, average),
            settings.checkpoint_steps,
            sum(record.type == NOISY_STEP for record in log.records),
            self._progress,
            make_empty_remark
            if self._progress is no_progress or self.spec.failure_reason
            else make_epsilon_remark(self.spec),
        )
        self._next_step = next(self._remaining_steps, None)  # which reads the checkpoint
        self._remaining_count = 0 if self._next_step is None else len(schedule) - self._next_step[0] + 1
        self._guard.record_state()

    def __len__(self) -> int:
        """Steps that are left, the one at work not among them."""
        return self._remaining_count

    def __iter__(self) -> Iterator[PrivateLoopStep]:
        return self

    def __next__(self) -> PrivateLoopStep:
        """The next step, after a look at how the last one ended."""
        self._finish_step()
        if self._next_step is None:
            raise StopIteration
        number, step = self._next_step
        self._next_step, self._remaining_count = None, self._remaining_count - 1
        is_guarded = step.is_noisy or self._public_steps is None
        self._guard.open_step(number, is_guarded)
        return PrivateLoopStep(number, step, self._guard, self._network)

    def _finish_step(self) -> None:
        """Close the step at work, if any, which writes its checkpoint, and look up the next one."""
        if self._guard.close_step():
            self._next_step = next(self._remaining_steps, None)
            self._guard.record_state()  # at the end the mean of the last weights may take their place

    def finish(self) -> dict[str, Any]:
        """Save the model, and seal it with its guarantee; the summary that ``redactory train`` prints.

        The folder holds what that command's has: a network of Hugging Face as its library reads it, another
        one's ``state_dict`` as ``model.safetensors``.  ``RunStateError`` where steps are left.
        """
        run, settings = self._run, self._settings
        if is_finished(self._folder):
            return load_summary(self._folder, settings, self._manifest_digest, is_private_loop=True)
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
            require_unchanged_text(self._public_text, self._log.records[0].body)
            self._save_model(self._log)
        self.close()
        return seal_model(run, settings, self._manifest_digest, time.monotonic() - self._started_at, self._progress)

    def _save_model(self, log: RecordLog) -> None:
        """The model's files, and the ledger's ``detach``."""
        settings, folder, network = self._settings, self._folder, self._network
        model: Any = LanguageModel(self.tokenizer, network)  # type: ignore[arg-type]
        if isinstance(network, SequenceClassifier):
            model = TextClassifier(self.tokenizer, network, settings.max_tokens)
        inner: Any = getattr(network, "model", None)
        for adapters in inner.peft_config.values() if has_adapters(inner) else ():
            # its name, and not where it lies
            adapters.base_model_name_or_path = Path(adapters.base_model_name_or_path or "").name
        norms = compute_update_norms(load_file(self._run.first_weights(settings.model_name)), network)
        files = [path.relative_to(folder.root).as_posix() for path in save_model(folder, model)]
        weights = file_sha256(folder.weights)
        log.append(END, {"steps": self.spec.steps, "weights": weights, "files": files, "update_norms": norms})


@dataclass(frozen=True)
class PrivateLoopStep:
    """Step ``number`` of all, from 1: ``noisy``, or over public points; to be carried out before the next."""

    number: int
    _step: ScheduledStep
    _guard: OptimizerGuard
    _network: Network

    @property
    def noisy(self) -> bool:
        """Whether its gradient is that of private points, clipped and with noise."""
        return self._step.is_noisy

    @property
    def learning_rate(self) -> float:
        """The step size that the settings give this step, for whoever follows them."""
        return self._step.kind.scheduled_optimizer.get_learning_rate(self._step.number)

    @property
    def batch(self) -> Batch:
        """The public points of a step without noise; ``CheckFailed`` in a step with it."""
        kind = self._step.kind
        if not isinstance(kind, NoiseFreeSteps):
            self._guard.refuse("the examples of a step with noise are private, and not available")
        return kind.examples.make_batch(kind.select_rows(self._step.number)).to(self._network.device)

    def backward(self) -> None:
        """Lay the step's gradient on the parameters, in place of ``loss.backward()``.

        With noise it is the noisy sum over the settings' ``expected_batch_size``; without it the gradient of
        the mean loss of the public points.
        """
        self._guard.set_gradient(
            self.number, partial(self._step.kind.step, self._step.number), by_autograd=not self.noisy
        )


@dataclass(frozen=True)
class _GuardedLedger:
    """The ``ledger``, which admits no sum whose computation did something else beside it."""

    ledger: StepLedger
    guard: OptimizerGuard

    def admit(self, step: int, clipped_sum: Tensor) -> None:
        """See :meth:`redactory.training.mechanisms.ledger.Admission.admit`."""
        self.guard.require_no_side_effects()
        self.ledger.admit(step, clipped_sum)


@dataclass
class _ExternalOptimizer(ScheduledOptimizer):
    """The gradient stays where it is: the step along it is taken by the loop's own optimizer."""

    def step(self, number: int) -> None:
        """Nothing."""


@dataclass(frozen=True)
class _PrivateLoopContext(TrainingContext):
    def make_optimizer(self, learning_rate: float) -> ScheduledOptimizer:
        """No step; the optimizer is never asked for one."""
        return _ExternalOptimizer(make_optimizer(self.network, "sgd"), learning_rate)


def _require_supported(settings: TrainSettings) -> None:
    """``ConfigurationError`` for settings that a loop of one's own cannot follow."""
    trainer = get_trainer(settings)
    if trainer.noised_folder is None or trainer.samples_users:
        raise ConfigurationError(
            f"train.trainer: {settings.trainer} has no noisy steps on examples, which a custom loop could "
            "run; set crt, crt-drop, dpsgd or uedp-bounded, or use redactory train"
        )
    for key in ("held_out", "tensorboard"):
        if getattr(settings, key) is not None:
            raise ConfigurationError(f"train.{key}: a custom loop measures by itself; remove it")
    if settings.chat is not None or settings.precision != "float32":
        raise ConfigurationError("train.chat, train.precision: only redactory train supports them; remove them")
    if settings.workers > 1:
        raise ConfigurationError("train.workers: a custom loop has one process; remove it")
    if get_world_size() > 1:
        raise ConfigurationError("several processes would each step independently: start the loop in one process")


@torch.no_grad()
def _save_or_restore_first_weights(network: Network, path: Path) -> None:
    """Write down the first weights, or go back to those that are written down."""
    moving = {name: p for name, p in network.named_parameters() if p.requires_grad}
    if not path.exists():
        with commit(path) as temporary:
            save_file({name: p.detach().cpu().contiguous() for name, p in moving.items()}, temporary)
        return
    for name, value in load_file(path).items():
        moving[name].copy_(value)
