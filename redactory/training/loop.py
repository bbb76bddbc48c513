"""The training loop: objects shared by the steps, the order of the steps, and resuming from a checkpoint."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import CheckFailed
from redactory.foundation.files import commit_file
from redactory.foundation.progress import Progress
from redactory.foundation.stream import RandomStream
from redactory.redaction.folder import RunFolder
from redactory.training.clipping.engine import get_trainable_parameters
from redactory.training.data import IntArray, PublicText, TokenizedExamples, encode_classes, read_classes, read_texts
from redactory.training.held_out import NO_ROWS, HeldOutCurve
from redactory.training.mechanisms.ledger import Admission
from redactory.training.mechanisms.mechanism import Mechanism
from redactory.training.models.frozen_encoder import AnyCodec
from redactory.training.models.network import Network
from redactory.training.numerics import limit_batch_tokens
from redactory.training.settings import TRAINERS, TrainSettings
from redactory.training.steps import (
    BestWeights,
    NoiseFreeSteps,
    NoisySteps,
    ScheduledOptimizer,
    StepKind,
    make_optimizer,
    set_flat_parameters,
)
from redactory.training.uedp.units import EncodedExamples, OriginalExamples, encode_examples, encode_public_text

MAX_PUBLIC_PASSES = 10
"""Maximum passes over a small public split in an epoch: an LSTM overfits a few texts after tens of them."""


@dataclass(frozen=True)
class TrainingContext:
    """Objects shared by all steps of one training on ``run``; trainers make their steps from it.

    ``original_examples`` are the examples of a trainer with privacy units, ``public_text`` the pretraining text.
    No step learns from ``held_out_rows``, rows of the public split or otherwise of the public text.
    """

    run: RunFolder
    settings: TrainSettings
    network: Network
    tokenizer: AnyCodec
    stream: RandomStream
    original_examples: OriginalExamples | None = None
    public_text: PublicText | None = None
    held_out_rows: IntArray = field(default_factory=NO_ROWS.copy)

    def make_pretraining_steps(self) -> NoiseFreeSteps | None:
        """Make the passes over public text before all other steps, with a separate optimizer, or None."""
        settings = self.settings
        if self.public_text is None or not settings.pretraining_epochs:
            return None
        examples = encode_public_text(self.public_text, settings, self.tokenizer)
        return self.make_noise_free_steps(
            self.make_optimizer(settings.learning_rate),
            examples.examples,
            examples.included_rows,
            purpose="pretraining",
        )

    def make_optimizer(self, learning_rate: float) -> ScheduledOptimizer:
        """Make an optimizer with a separate state."""
        settings = self.settings
        return ScheduledOptimizer(
            make_optimizer(self.network, settings.optimizer, settings.weight_decay), learning_rate
        )

    def make_step_kinds(self, mechanism: Mechanism | None, ledger: Admission | None) -> StepKinds:
        """Make the trainer's kinds of step; without ``mechanism`` none with noise."""
        settings, trainer = self.settings, TRAINERS[self.settings.trainer]
        noise_free, noisy = trainer.make_noise_free_steps(self, self.make_optimizer(settings.learning_rate)), None
        if mechanism is not None and ledger is not None:
            noisy = trainer.make_noisy_steps(self, self.make_optimizer(settings.dp_learning_rate), mechanism, ledger)
        return StepKinds(self.make_pretraining_steps(), noise_free, noisy)

    def encode_data_folders(self, *folders: Path) -> EncodedExamples:
        """Encode the examples of the run's data folders for the task, one folder after the other.

        A trainer with privacy units has the vault alone, and of it the selected original examples.
        """
        settings, original_examples = self.settings, self.original_examples
        if original_examples is not None:
            return encode_examples(
                original_examples.read_texts(),
                settings,
                self.tokenizer,
                lambda: original_examples.read_classes(settings.classes),
            )
        return encode_examples(
            (text for folder in folders for text in read_texts(self.run, folder, settings.example_format)),
            settings,
            self.tokenizer,
            lambda: encode_classes(
                (name for folder in folders for name in read_classes(self.run, folder)), settings.classes
            ),
            TRAINERS[settings.trainer].drops_masked,
        )

    def make_noise_free_steps(
        self,
        scheduled_optimizer: ScheduledOptimizer,
        examples: TokenizedExamples,
        rows: IntArray,
        purpose: str = "plain",
    ) -> NoiseFreeSteps:
        """Make steps without noise over ``rows`` of ``examples``."""
        if purpose == (
            "plain" if TRAINERS[self.settings.trainer].noise_free_folders[:1] == ("public",) else "pretraining"
        ):
            rows = rows[~np.isin(rows, self.held_out_rows)]
        settings, arguments = self.settings, (self.network, scheduled_optimizer, examples, rows)
        return NoiseFreeSteps(
            *arguments, settings.public_batch_size, self.stream, purpose=purpose, precision=settings.precision
        )

    @property
    def max_physical_batch_tokens(self) -> int:
        """The setting, or fewer tokens if the network keeps the logits of a large vocabulary."""
        return limit_batch_tokens(self.network, self.settings.max_physical_batch_tokens)

    def make_noisy_steps(
        self,
        scheduled_optimizer: ScheduledOptimizer,
        examples: EncodedExamples,
        mechanism: Mechanism,
        ledger: Admission,
    ) -> NoisySteps:
        """Make steps with noise on samples of ``examples``."""
        return NoisySteps(
            self.network,
            scheduled_optimizer,
            examples.examples,
            mechanism,
            self.max_physical_batch_tokens,
            self.stream,
            ledger,
            examples.excluded_mask,
        )


class StepKinds(NamedTuple):
    """The kinds of step of one training; None if it has none of a kind."""

    pretraining: NoiseFreeSteps | None
    noise_free: NoiseFreeSteps | None
    noisy: StepKind | None


class ScheduledStep(NamedTuple):
    """One step of the training: its ``kind``, ``number`` within the kind, and values for the progress line.

    After it the loss on held-out text is measured if ``is_measured``. It is left out if ``is_skippable`` and noise-free
    steps no longer lower that loss (:func:`ends_noise_free_steps`).
    """

    kind: StepKind
    number: int
    label: str
    position: int
    total: int
    is_noisy: bool
    ends_epoch: bool
    is_measured: bool = False
    is_skippable: bool = False


def schedule_steps(settings: TrainSettings, step_kinds: StepKinds, stream: RandomStream) -> list[ScheduledStep]:
    """Put all steps in order, and set the learning rate schedules of their kinds.

    First pretraining and ``public_pretraining_epochs`` passes over public examples, then the epochs. Each has its
    noise-free steps first (CRT, Algorithm 1, lines 6 and 7), or, with ``public_share``, both kinds in an order drawn
    for that epoch. Unless ``min_public_steps`` is set, ``recipe`` auto passes over a small split at most
    :data:`MAX_PUBLIC_PASSES` times an epoch.

    Formal guarantees: the number of noisy steps and their positions are functions of constants, the size of the public
    split and random draws, so they are equal in two neighbouring worlds (``docs/guarantees.md``, "Sampling and
    constants").
    """
    pretraining, noise_free, noisy = step_kinds
    public_share = settings.public_share if noisy is not None else None
    noisy_steps = 0 if noisy is None else TRAINERS[settings.trainer].count_noisy_steps(settings) // settings.epochs
    pretraining_steps = 0 if pretraining is None else settings.pretraining_epochs * pretraining.steps_per_pass
    noise_free_steps, public_first_steps = 0, 0
    if noise_free is not None and len(noise_free.rows):
        public_first_steps = settings.public_pretraining_epochs * noise_free.steps_per_pass
        passes = math.ceil(settings.min_public_steps / noise_free.steps_per_pass)
        if settings.is_chosen("min_public_steps"):
            passes = min(passes, MAX_PUBLIC_PASSES)
        noise_free_steps = noise_free.steps_per_pass * passes
        if public_share is not None:
            noise_free_steps = round(noisy_steps * public_share / (1.0 - public_share))
    steps = list[ScheduledStep]()
    kind: StepKind | None
    for kind, count, label in (
        (pretraining, pretraining_steps, "pretraining"),
        (noise_free, public_first_steps, "public first"),
    ):
        for number in range(count):
            assert kind is not None
            is_last = number + 1 == count
            # only weights after noisy steps, if there are any, are candidates for the best ones
            ends_epoch = is_last and not noisy_steps
            steps.append(ScheduledStep(kind, number, label, number + 1, count, False, ends_epoch, is_last))
    is_limited = settings.recipe == "auto" and noisy_steps > 0 and public_share is None
    for epoch in range(settings.epochs):
        is_noisy_order = np.arange(noise_free_steps + noisy_steps) >= noise_free_steps
        if public_share is not None:
            is_noisy_order = is_noisy_order[stream.permutation("order of steps", epoch, len(is_noisy_order))]
        finished = [0, 0]
        for position, is_noisy in enumerate(is_noisy_order.tolist(), 1):
            kind, count, first = (
                (noisy, noisy_steps, 0) if is_noisy else (noise_free, noise_free_steps, public_first_steps)
            )
            assert kind is not None
            number, ends_epoch = first + epoch * count + finished[is_noisy], position == len(is_noisy_order)
            finished[is_noisy] += 1
            label = f"epoch {epoch + 1}, {'with' if is_noisy else 'without'} noise"
            is_skippable = is_limited and not is_noisy
            is_measured = ends_epoch or (is_skippable and finished[is_noisy] == count)
            place = (finished[is_noisy], count, is_noisy, ends_epoch, is_measured, is_skippable)
            steps.append(ScheduledStep(kind, number, label, *place))
    if settings.learning_rate_schedule != "constant" or settings.warm_up:
        for kind in filter(None, step_kinds):
            optimizer = kind.scheduled_optimizer
            optimizer.steps = sum(step.kind is kind for step in steps)
            optimizer.schedule, optimizer.warm_up = settings.learning_rate_schedule, settings.warm_up
    return steps


def ends_noise_free_steps(schedule: Sequence[ScheduledStep], rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether an epoch's noise-free steps ended with a larger loss on held-out text than the one measured before them.

    Formal guarantees: a function of public losses of released weights; the noisy steps stay the same.
    """
    losses = [(math.inf if row["loss"] is None else row["loss"], schedule[max(row["step"], 1) - 1]) for row in rows]
    return any(step.is_skippable and loss > earlier for (earlier, _), (loss, step) in pairwise(losses))


CHECKPOINT_SECONDS, CHECKPOINT_STEPS = 30.0, 500
"""Maximum time, unless writing is slow, and maximum number of steps between checkpoints."""
_WRITE_TIME_FACTOR = 20.0
"""Minimum time between checkpoints, in multiples of the last write time: large models are written less often."""


@dataclass(frozen=True)
class Checkpoint:
    """The file with the state of one training: trainable parameters and the memory of ``optimizers``.

    ``binding`` identifies the training. Frozen parameters are not written: they can be read from their source. Draws
    are keyed by step, so the only counter is the number of finished steps.

    Formal guarantees: the file contains no key and no text. Everything in it was released by noisy steps or follows
    from public examples.
    """

    path: Path
    binding: str
    network: nn.Module
    optimizers: Sequence[Optimizer]
    kept: BestWeights | None = None

    def write(self, steps: int) -> None:
        """Commit the state after ``steps`` steps."""
        network = {name: p.detach().cpu() for name, p in get_trainable_parameters(self.network).items()}
        memory = [
            {
                index: {key: value.cpu() if isinstance(value, torch.Tensor) else value for key, value in one.items()}
                for index, one in optimizer.state_dict()["state"].items()
            }
            for optimizer in self.optimizers
        ]
        state = {"binding": self.binding, "steps": steps, "network": network, "memory": memory}
        if self.kept is not None and self.kept.weights is not None:
            state |= {"kept": self.kept.weights.cpu(), "kept_loss": self.kept.loss}
        with commit_file(self.path) as temporary, temporary.open("wb") as file:
            torch.save(state, file)

    @torch.no_grad()
    def restore(self) -> int:
        """Load the state and return the number of finished steps; 0 if the file is missing or of another training."""
        if not self.path.exists():
            return 0
        state = torch.load(self.path, map_location="cpu", weights_only=True)
        if state["binding"] != self.binding:
            return 0
        for name, parameter in get_trainable_parameters(self.network).items():
            parameter.copy_(state["network"][name])
        for optimizer, optimizer_state in zip(self.optimizers, state["memory"], strict=True):
            optimizer.load_state_dict({**optimizer.state_dict(), "state": optimizer_state})
        if self.kept is not None and "kept" in state:
            self.kept.weights = state["kept"].to(next(self.network.parameters()).device)
            self.kept.loss = state["kept_loss"]
        return int(state["steps"])


class Tracker(Protocol):
    """Receives the public metrics of a training after each step."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send the ``metrics`` after ``step`` steps."""


def collect_step_metrics(step: ScheduledStep, epsilon: float | None) -> dict[str, float]:
    """Return what may be shown of a finished step of a training with a guarantee.

    ``loss``: the mean loss of a noise-free step (nats a token, or an example for classes); ``epsilon``: an upper bound
    so far.

    Formal guarantees: nothing comes from a noisy step but its number. A training with a guarantee takes noise-free
    steps on public examples only, so their loss is a function of those and of released weights: post-processing.
    """
    metrics = {} if epsilon is None else {"epsilon": epsilon}
    if isinstance(step.kind, NoiseFreeSteps) and step.kind.last_loss is not None:
        metrics["loss"] = float(step.kind.last_loss)
    return metrics


def iterate_remaining_steps(
    schedule: Sequence[ScheduledStep],
    checkpoint: Checkpoint,
    recorded_steps: int,
    progress: Progress,
    compute_epsilon: Callable[[int], float | None] = lambda steps: None,
    curve: HeldOutCurve | None = None,
    trackers: Sequence[Tracker] = (),
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[int, ScheduledStep]]:
    """Yield the remaining steps with their numbers from 1; the caller carries each out before the next.

    A checkpoint follows every epoch, :data:`CHECKPOINT_STEPS` steps and :data:`CHECKPOINT_SECONDS`. ``recorded_steps``
    is the number of noisy steps in the ledger; ``compute_epsilon`` returns the epsilon spent so far. ``curve`` is
    measured before the checkpoint, so that no measurement is lost; it decides which weights are kept, and when
    noise-free steps end (:func:`ends_noise_free_steps`). The ``trackers`` get the metrics of each step, which must be
    public (:func:`collect_step_metrics`). The clock only affects checkpoint times and the estimated time left. Raises
    ``CheckFailed`` if the checkpoint has more noisy steps than the ledger.
    """
    finished_steps = checkpoint.restore()
    if sum(step.is_noisy for step in schedule[:finished_steps]) > recorded_steps:
        raise CheckFailed("the ledger lacks steps that are in the checkpoint: remove the model's folder")
    kept, curve_text = checkpoint.kept, curve.load_or_measure(finished_steps) if curve else ""
    is_noise_free_over = curve is not None and ends_noise_free_steps(schedule, curve.rows)
    time_left = RemainingTimeEstimator(schedule[finished_steps:])
    written_at, write_seconds = clock(), 0.0
    last_step_at = written_at
    for step_number, step in enumerate(schedule[finished_steps:], finished_steps + 1):
        if is_noise_free_over and step.is_skippable:
            continue
        yield step_number, step
        held_out_loss: float | None = None
        if curve is not None and step.is_measured:
            curve_text = curve.measure_loss(step_number, not step.ends_epoch)
            held_out_loss = curve.rows[-1]["loss"]
            is_noise_free_over = ends_noise_free_steps(schedule, curve.rows)
        if kept is not None and step.ends_epoch and held_out_loss is not None:
            # at the end of an epoch: public text alone would prefer weights before its noisy steps
            kept.add_weights(held_out_loss)
        is_due = clock() - written_at >= max(CHECKPOINT_SECONDS, _WRITE_TIME_FACTOR * write_seconds)
        if step_number % CHECKPOINT_STEPS == 0 or step.is_measured or is_due:
            previous = clock()
            checkpoint.write(step_number)
            written_at = clock()
            write_seconds = written_at - previous
        epsilon = compute_epsilon(step.number + 1) if step.is_noisy else None
        epsilon_text = "" if epsilon is None else f", ε ≤ {format_upper(epsilon, 3)}"
        last_step_at, previous = clock(), last_step_at
        progress(
            step.label,
            step.position,
            step.total,
            f"steps{epsilon_text}{curve_text}{time_left.format_time_left(step, last_step_at - previous)}",
        )
        for tracker in trackers:
            rate_name = "learning_rate" if step.is_noisy else "noise_free_learning_rate"
            rate = step.kind.scheduled_optimizer.get_learning_rate(step.number)
            loss = {} if held_out_loss is None else {"held_out_loss": held_out_loss}
            tracker.log({**collect_step_metrics(step, epsilon), rate_name: rate, **loss}, step_number)
    if kept is not None and kept.weights is not None:
        set_flat_parameters(checkpoint.network, kept.weights)


class RemainingTimeEstimator:
    """Estimates the time left from the mean duration of finished steps of each kind."""

    def __init__(self, steps: Iterable[ScheduledStep]) -> None:
        self._remaining = Counter((step.label == "pretraining", step.is_noisy) for step in steps)
        self._finished, self._seconds = Counter[tuple[bool, bool]](), defaultdict[tuple[bool, bool], float](float)

    def format_time_left(self, step: ScheduledStep, seconds: float) -> str:
        """Return the progress text after ``step``, which took ``seconds``; empty while a remaining kind has no mean."""
        kind = step.label == "pretraining", step.is_noisy
        self._remaining[kind] -= 1
        self._finished[kind] += 1
        self._seconds[kind] += seconds
        if any(count and not self._finished[name] for name, count in self._remaining.items()):
            return ""
        seconds_left = sum(
            self._remaining[name] * self._seconds[name] / self._finished[name] for name in self._finished
        )
        if not seconds_left:
            return ""
        hours, minutes = divmod(math.ceil(seconds_left / 60.0), 60)
        return f", {hours} h {minutes} min left" if hours else f", {minutes} min left"
