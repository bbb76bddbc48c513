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
from redactory.foundation.progress import Progress, silent
from redactory.foundation.records import RecordLog
from redactory.redaction.folder import RunFolder
from redactory.redaction.sealing import is_finished
from redactory.training.data import Batch, parent_digest, public_text_of
from redactory.training.guarantee.figures import live_epsilon, no_remark
from redactory.training.ledger import END, NOISY_STEP, StepLedger, require_same_head
from redactory.training.loop import Checkpoint, Ingredients, Schedule, Step, steps_left
from redactory.training.model import LanguageModel, TextClassifier, save_model
from redactory.training.models.hugging_face import ClassifierNetwork, has_adapters
from redactory.training.models.network import Network
from redactory.training.numerics import settled
from redactory.training.own_network import Losses, class_of, described, own_network, require_own_clipped
from redactory.training.settings import TrainSettings
from redactory.training.steps import Average, Descent, PlainPhase, make_optimizer
from redactory.training.tokenizer import TextCodec
from redactory.training.train import (
    admitted,
    begun,
    finish,
    promised,
    require_same_text,
    require_sources,
    summary_of,
    update_norms,
)
from redactory.training.trainers import trainer_of
from redactory.training.watch import Watch, world_size


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

    Formal guarantees: let the weights, and all else that the loop's author holds, be after each step a
    function of what they were before it, of public text, of coins that look at no data, and, with noise, of
    the gradient that the step laid on the parameters.  Then they follow from the releases of
    ``spec.mechanism``, adaptively composed, which is what the ledger holds and the card accounts for.
    Private points are read inside ``step.backward`` alone, and leave it in the clipped, admitted, noised sum
    of a sample that the loop draws.

    Checked, and refused where it is not so: the network clips exactly, as far as
    :func:`redactory.training.clipping.check_exact` can tell; the data are those that the run was sealed with,
    when training begins, goes on and ends; in steps with noise, and in all unless there are ``public_steps``,
    weights, buffers and gradients are what :class:`redactory.training.watch.Watch` allows.

    The author's word: that the first weights, the network, its loss, step sizes and optimizers come from
    public knowledge; that network and loss hand nothing of a point to anything but their result, and remember
    nothing in an attribute; that nothing else read private text; and what ``public_steps`` learnt from.
    """

    def __init__(
        self,
        run: RunFolder | Path | str,
        settings: TrainSettings,
        public_steps: str | None = None,
        progress: Progress = silent,
    ) -> None:
        self._run = run if isinstance(run, RunFolder) else RunFolder(Path(run))
        self._parent = parent_digest(self._run)
        self._folder = self._run.model(settings.model_name)
        self._settings = settled(settings, self._folder)
        _require_possible(self._settings)
        self._progress, self._public_steps, self._started = progress, public_steps, time.monotonic()
        self._public_text = public_text_of(self._run, settings.public_text)
        self.spec, self._head, self._vocabulary = promised(
            self._run, self._settings, self._parent, self._public_text, progress
        )
        self._opened, self._watch = ExitStack(), Watch()
        self._log: RecordLog | None = None
        self._left: Iterator[tuple[int, Step]] = iter(())
        self._next: tuple[int, Step] | None = None
        self._steps_left = 0

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
        self._opened.close()

    def begin(self, network: nn.Module, *optimizers: Optimizer, losses: Losses | None = None) -> Self:
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
        require_sources(self._run, self._settings)
        with ExitStack() as stack:
            stack.callback(self._watch.end)
            log = stack.enter_context(begun(self._run, self._settings))
            if log.records and log.records[-1].type == END:
                head = log.records[0].body
                require_same_head(log, {**self._head, "own_loop": head.get("own_loop")})
            else:
                self._prepare(log, own_network(network, self._settings.task, losses), optimizers)
            self._log, self._opened = log, stack.pop_all()
        return self

    def _prepare(self, log: RecordLog, network: Network, optimizers: tuple[Optimizer, ...]) -> None:
        """Everything between the ledger's head and the first step that is left."""
        run, own, name = self._run, self._settings, self._settings.model_name
        self._network = network
        require_own_clipped(network, self.tokenizer, own)
        self._watch.begin(network, optimizers)
        moved = self._watch.optimizers
        loop = {"optimizers": [class_of(one) for one in moved], "public_steps": self._public_steps}
        head = {**self._head, "own_loop": {**described(network), "frozen": self._watch.frozen, **loop}}
        path = run.first_weights(name)
        if not log.records:
            for leftover in (path, run.checkpoint(name)):
                leftover.unlink(missing_ok=True)  # of a training whose ledger is gone
        originals, stream, binding = admitted(run, self.spec, log, head, self._progress)
        _keep_or_restore(network, path)
        mechanism = self.spec.mechanism
        assert mechanism is not None
        made = _OwnIngredients(run, own, network, self.tokenizer, stream, originals, self._public_text)
        phases = made.phases(mechanism, _Untouched(StepLedger(log, mechanism, stream), self._watch))
        require_same_text(self._public_text, head)
        noisy: Any = phases.noisy
        for values in (noisy.points.ids, noisy.points.offsets, noisy.points.labels):
            if values is not None:
                values.setflags(write=False)  # they stay as they are, in memory too
        schedule = Schedule.of(own, phases, stream)
        start = len(schedule) - round(own.weight_averaging_fraction * len(schedule)) + 1
        average = Average(network, start) if own.weight_averaging_fraction else None
        self._left = steps_left(
            schedule,
            Checkpoint(run.checkpoint(name), binding, network, moved, phases.correlated, average),
            own.checkpoint_steps,
            sum(record.type == NOISY_STEP for record in log.records),
            self._progress,
            no_remark if self._progress is silent or self.spec.broken else live_epsilon(self.spec),
        )
        self._next = next(self._left, None)  # which reads the checkpoint
        self._steps_left = 0 if self._next is None else len(schedule) - self._next[0] + 1
        self._watch.settle()

    def __len__(self) -> int:
        """Steps that are left, the one at work not among them."""
        return self._steps_left

    def __iter__(self) -> Iterator[OwnStep]:
        return self

    def __next__(self) -> OwnStep:
        """The next step, after a look at how the last one ended."""
        self._end_step()
        if self._next is None:
            raise StopIteration
        number, step = self._next
        self._next, self._steps_left = None, self._steps_left - 1
        watched = step.noisy or self._public_steps is None
        self._watch.open(number, watched)
        return OwnStep(number, step, self._watch, self._network)

    def _end_step(self) -> None:
        """Close the step at work, if any, which writes its checkpoint, and look up the next one."""
        if self._watch.close():
            self._next = next(self._left, None)
            self._watch.settle()  # at the end the mean of the last weights may take their place

    def finish(self) -> dict[str, Any]:
        """Save the model, and seal it with its guarantee; the summary that ``redactory train`` prints.

        The folder holds what that command's has: a network of Hugging Face as its library reads it, another
        one's ``state_dict`` as ``model.safetensors``.  ``RunStateError`` where steps are left.
        """
        run, own = self._run, self._settings
        if is_finished(self._folder):
            return summary_of(self._folder, own, self._parent, own_loop=True)
        if self._log is None:
            raise RunStateError("this loop was not started: nothing is trained")
        self._end_step()
        if self._next is not None:
            raise RunStateError(
                f"{self._steps_left} of the loop's steps are not done, but the guarantee is about all of them"
            )
        if self._log.records[-1].type != END:
            self._watch.finish()
            require_sources(run, own)
            require_same_text(self._public_text, self._log.records[0].body)
            self._save(self._log)
        self.close()
        return finish(run, own, self._parent, time.monotonic() - self._started, self._progress)

    def _save(self, log: RecordLog) -> None:
        """The model's files, and the ledger's ``end``."""
        own, folder, network = self._settings, self._folder, self._network
        model: Any = LanguageModel(self.tokenizer, network)  # type: ignore[arg-type]
        if isinstance(network, ClassifierNetwork):
            model = TextClassifier(self.tokenizer, network, own.max_tokens)
        inner: Any = getattr(network, "model", None)
        for adapters in inner.peft_config.values() if has_adapters(inner) else ():
            # its name, and not where it lies
            adapters.base_model_name_or_path = Path(adapters.base_model_name_or_path or "").name
        moved = update_norms(load_file(self._run.first_weights(own.model_name)), network)
        files = [path.relative_to(folder.root).as_posix() for path in save_model(folder, model)]
        weights = file_sha256(folder.weights)
        log.append(END, {"steps": self.spec.steps, "weights": weights, "files": files, "update_norms": moved})


@dataclass(frozen=True)
class OwnStep:
    """Step ``number`` of all, from 1: ``noisy``, or over public points; to be carried out before the next."""

    number: int
    _step: Step
    _watch: Watch
    _network: Network

    @property
    def noisy(self) -> bool:
        """Whether its gradient is that of private points, clipped and with noise."""
        return self._step.noisy

    @property
    def learning_rate(self) -> float:
        """The step size that the settings give this step, for whoever follows them."""
        return self._step.phase.descent.rate(self._step.number)

    @property
    def batch(self) -> Batch:
        """The public points of a step without noise; ``CheckFailed`` in a step with it."""
        phase = self._step.phase
        if not isinstance(phase, PlainPhase):
            self._watch.refuse("the examples of a step with noise are private, and not available")
        return phase.points.batch(phase.rows_of(self._step.number)).to(self._network.device)

    def backward(self) -> None:
        """Lay the step's gradient on the parameters, in place of ``loss.backward()``.

        With noise it is the noisy sum over the settings' ``expected_batch_size``; without it the gradient of
        the mean loss of the public points.
        """
        self._watch.lay(self.number, partial(self._step.phase.step, self._step.number), by_autograd=not self.noisy)


@dataclass(frozen=True)
class _Untouched:
    """The ``ledger``, which admits no sum whose computation did something else beside it."""

    ledger: StepLedger
    watch: Watch

    def admit(self, step: int, clipped_sum: Tensor) -> None:
        """See :meth:`redactory.training.ledger.Admission.admit`."""
        self.watch.require_untouched()
        self.ledger.admit(step, clipped_sum)


@dataclass
class _LeftToTheLoop(Descent):
    """The gradient stays where it is: the step along it is taken by the loop's own optimizer."""

    def step(self, number: int) -> None:
        """Nothing."""


@dataclass(frozen=True)
class _OwnIngredients(Ingredients):
    def descent(self, learning_rate: float) -> Descent:
        """No step; the optimizer is never asked for one."""
        return _LeftToTheLoop(make_optimizer(self.network, "sgd"), learning_rate)


def _require_possible(settings: TrainSettings) -> None:
    """``ConfigurationError`` for settings that a loop of one's own cannot follow."""
    trainer = trainer_of(settings)
    if trainer.noised is None or trainer.samples_users:
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
    if world_size() > 1:
        raise ConfigurationError("several processes would each step independently: start the loop in one process")


@torch.no_grad()
def _keep_or_restore(network: Network, path: Path) -> None:
    """Write down the first weights, or go back to those that are written down."""
    moving = {name: p for name, p in network.named_parameters() if p.requires_grad}
    if not path.exists():
        with commit(path) as temporary:
            save_file({name: p.detach().cpu().contiguous() for name, p in moving.items()}, temporary)
        return
    for name, value in load_file(path).items():
        moving[name].copy_(value)
