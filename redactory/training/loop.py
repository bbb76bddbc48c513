"""The training loop: what the steps of one training are made of, their order, and how it is resumed."""

from __future__ import annotations

import io
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from redactory.foundation.errors import CheckFailed
from redactory.foundation.files import commit
from redactory.foundation.progress import Progress
from redactory.foundation.stream import RandomStream
from redactory.redaction.encryption import read_secret, write_secret
from redactory.redaction.folder import RunFolder
from redactory.training.clipping import clipped_sum
from redactory.training.data import EncodedPoints, Ids, PieceMap, PublicText, alone, class_numbers, classes_of, texts
from redactory.training.held_out import NO_ROWS, Curve
from redactory.training.ledger import Admission
from redactory.training.mechanism import AnyMechanism, BandedGaussian, PoissonUsersGaussian
from redactory.training.models.network import Network
from redactory.training.settings import TRAINERS, TrainSettings
from redactory.training.steps import Average, BandedPhase, Descent, NoisyPhase, Phase, PlainPhase, load, make_optimizer
from redactory.training.tokenizer import TextCodec
from redactory.training.uedp.local_update import UpdateMap
from redactory.training.uedp.units import Learnt, Originals, learnt, pretraining_of
from redactory.training.widths import lengthened


@dataclass(frozen=True)
class Ingredients:
    """What every step of one training on ``run`` shares: what a trainer makes its phases of.

    ``originals`` are the points of a trainer with units, ``public_text`` what it is pretrained on; ``every``
    is the map that users' local updates are computed by, ``pieces`` that of the pieces of all other steps.
    ``held_out`` are rows of the public side, or else of the public text, that no step learns from.
    """

    run: RunFolder
    settings: TrainSettings
    network: Network
    tokenizer: TextCodec
    stream: RandomStream
    originals: Originals | None = None
    public_text: PublicText | None = None
    every: UpdateMap = map
    pieces: PieceMap = alone
    held_out: Ids = field(default_factory=NO_ROWS.copy)

    def pretraining(self) -> PlainPhase | None:
        """Passes over public text before all other steps, with an optimizer of their own; None without."""
        own = self.settings
        if self.public_text is None or not own.pretraining_epochs:
            return None
        found = pretraining_of(self.public_text, own, self.tokenizer)
        return self.plain_phase(self.descent(own.learning_rate), found.points, found.rows, purpose="pretraining")

    def descent(self, learning_rate: float) -> Descent:
        """An optimizer with a state of its own."""
        own = self.settings
        return Descent(make_optimizer(self.network, own.optimizer, own.weight_decay), learning_rate)

    def phases(self, mechanism: AnyMechanism | None, ledger: Admission | None) -> Phases:
        """The kinds of step, as far as the trainer has them; without ``mechanism`` none with noise."""
        own, trainer = self.settings, TRAINERS[self.settings.trainer]
        plain, noisy = trainer.plain_steps(self, self.descent(own.learning_rate)), None
        if mechanism is not None and ledger is not None:
            noisy = trainer.noisy_steps(self, self.descent(own.dp_learning_rate), mechanism, ledger)
        return Phases(self.pretraining(), plain, noisy)

    def encode(self, *folders: Path) -> EncodedPoints:
        """The points of data folders, one after the other."""
        every = (text for folder in folders for text in texts(self.run, folder, self.settings.reading))
        return EncodedPoints.from_texts(every, self.tokenizer, self.settings.max_tokens)

    def read(self, folder: Path) -> Learnt:
        """The points of one of the run's data folders as the task reads them."""
        own = self.settings
        return learnt(
            texts(self.run, folder, own.reading),
            own,
            self.tokenizer,
            lambda: class_numbers(classes_of(self.run, folder), own.classes),
            TRAINERS[own.trainer].drops_masked,
        )

    def learnt(self) -> Learnt:
        """The originals as the task reads them."""
        own, found = self.settings, self.originals
        assert found is not None
        return learnt(found.texts(), own, self.tokenizer, lambda: found.classes(own.classes))

    def plain_phase(
        self, descent: Descent, points: EncodedPoints, rows: Ids | None = None, purpose: str = "plain"
    ) -> PlainPhase:
        """Steps without noise over ``rows`` of ``points``: over each once, where none are given."""
        rows = np.arange(len(points), dtype=np.int64) if rows is None else rows
        if purpose == ("plain" if TRAINERS[self.settings.trainer].plain[:1] == ("public",) else "pretraining"):
            rows = rows[~np.isin(rows, self.held_out)]
        own, parts = self.settings, (self.network, descent, points, rows)
        return PlainPhase(*parts, own.public_batch_size, self.stream, purpose=purpose, precision=own.precision)

    def noisy_phase(self, descent: Descent, found: Learnt, mechanism: AnyMechanism, ledger: Admission) -> NoisyPhase:
        """Steps with noise on samples of ``found``."""
        assert not isinstance(mechanism, PoissonUsersGaussian)
        kind = NoisyPhase
        if isinstance(mechanism, BandedGaussian):
            kind = BandedPhase
            if self.settings.optimizer != "sgd":
                # it divides by the noise of one step, which the steps after it take back in part
                relation = TRAINERS[self.settings.trainer].relation
                descent.learning_rate *= lengthened(self.settings, mechanism, relation)
        return kind(
            self.network,
            descent,
            found.points,
            mechanism,
            self.settings.max_physical_batch_tokens,
            self.stream,
            ledger,
            found.silent,
            clipped_sum=partial(clipped_sum, every=self.pieces),
        )


# The order of all steps: a function of public constants and the stream.


class Phases(NamedTuple):
    """The kinds of step of one training; None where it has none of a kind."""

    pretraining: PlainPhase | None
    plain: PlainPhase | None
    noisy: Phase | None

    @property
    def correlated(self) -> BandedPhase | None:
        """The steps with noise, where theirs is correlated."""
        return self.noisy if isinstance(self.noisy, BandedPhase) else None


class Step(NamedTuple):
    """One step of all: by which ``phase``, its ``number`` of that kind, and what the progress line says."""

    phase: Phase
    number: int
    work: str
    place: int
    of: int
    noisy: bool
    ends_epoch: bool


@dataclass(frozen=True)
class Schedule:
    """Passes over public text, then ``epochs`` epochs of ``plain`` steps without noise and ``noisy`` with it.

    Before the first epoch come ``first`` plain steps.  Plain steps come first in every epoch (CRT,
    Algorithm 1, lines 6 and 7), or, ``mixed``, the two kinds in an order drawn for each epoch.

    Formal guarantees: the number of noisy steps and their places are functions of constants, of the public
    side's size and of coins: the same in two neighbouring worlds (``docs/guarantees.md``, "Sampling and
    constants").
    """

    phases: Phases
    epochs: int
    before: int
    plain: int
    noisy: int
    mixed: bool
    stream: RandomStream
    first: int = 0

    @classmethod
    def of(cls, settings: TrainSettings, phases: Phases, stream: RandomStream) -> Schedule:
        """The order that ``settings`` give; step sizes follow it where they are to fall."""
        pretraining, plain, noisy = phases
        share = settings.public_share if noisy is not None else None
        with_noise = 0 if noisy is None else TRAINERS[settings.trainer].steps(settings) // settings.epochs
        without, first = 0, 0
        if plain is not None and len(plain.rows):
            first = settings.public_pretraining_epochs * plain.steps_a_pass
            without = plain.steps_a_pass * math.ceil(settings.min_public_steps / plain.steps_a_pass)
            if share is not None:
                without = round(with_noise * share / (1.0 - share))
        before = 0 if pretraining is None else settings.pretraining_epochs * pretraining.steps_a_pass
        every = (before, first + settings.epochs * without, settings.epochs * with_noise)
        for phase, steps in zip(phases, every, strict=True):
            if phase is not None and (settings.learning_rate_schedule != "constant" or settings.warm_up):
                own = phase.descent
                own.steps, own.schedule = steps, settings.learning_rate_schedule
                own.warm_up = settings.warm_up
        mixed = share is not None
        return cls(phases, settings.epochs, before, without, with_noise, mixed, stream, first)

    def __len__(self) -> int:
        return self.before + self.first + self.epochs * (self.plain + self.noisy)

    def __iter__(self) -> Iterator[Step]:
        """Every step of the training, in order."""
        for plain, steps, work in (
            (self.phases.pretraining, self.before, "pretraining"),
            (self.phases.plain, self.first, "public first"),
        ):
            for number in range(steps):
                assert plain is not None
                yield Step(plain, number, work, number + 1, steps, False, number + 1 == steps)
        for epoch in range(self.epochs):
            order, done = np.arange(self.plain + self.noisy) >= self.plain, [0, 0]
            if self.mixed:
                order = order[self.stream.permutation("order of steps", epoch, len(order))]
            for place, noisy in enumerate(order.tolist(), 1):
                phase, of = (self.phases.noisy, self.noisy) if noisy else (self.phases.plain, self.plain)
                assert phase is not None
                done[noisy] += 1
                work = f"epoch {epoch + 1}, {'with' if noisy else 'without'} noise"
                number = (0 if noisy else self.first) + epoch * of + done[noisy] - 1
                yield Step(phase, number, work, done[noisy], of, noisy, place == len(order))


# Checkpoints: a resumed training goes on from the last one, bit for bit.


SECONDS = 30.0
"""Time after which the state is written again, wherever the training is."""
_TIMES_WRITING = 20.0
"""How many times as long as writing took it waits at least: a large model is not written all the time."""


@dataclass(frozen=True)
class Checkpoint:
    """Where the state of one training lies: what moves in ``network``, and the ``optimizers``' memory.

    ``binding`` names the training it belongs to.  Parameters that are frozen are not written: they are
    what they were read as.  Draws are named by step, so the only counter is the number of steps done.

    Formal guarantees: no key or text is in the file; all that is in it was released by noisy steps or follows
    from public points, but for the last clipped sums of ``correlated`` steps: with them it is a secret of the
    run, encrypted where the run is.
    """

    path: Path
    binding: str
    network: nn.Module
    optimizers: Sequence[Optimizer]
    correlated: BandedPhase | None = None
    average: Average | None = None

    @property
    def _moving(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad}

    def write(self, steps: int) -> None:
        """Commit the state after ``steps`` steps."""
        network = {name: parameter.detach().cpu() for name, parameter in self._moving.items()}
        memory = [
            {
                index: {key: value.cpu() for key, value in own.items() if isinstance(value, torch.Tensor)}
                for index, own in optimizer.state_dict()["state"].items()
            }
            for optimizer in self.optimizers
        ]
        state = {"binding": self.binding, "steps": steps, "network": network, "memory": memory}
        if self.average is not None and self.average.mean is not None:
            state["average"] = self.average.mean.cpu()
        if self.correlated is not None:
            content = io.BytesIO()
            torch.save({**state, "correlated": self.correlated.memory}, content)
            write_secret(self.path, content.getvalue())
            return
        with commit(self.path) as temporary, temporary.open("wb") as file:
            torch.save(state, file)

    @torch.no_grad()
    def read(self) -> int:
        """Load the state; the number of steps that are done.

        0, and nothing is loaded, where there is none or it belongs to another training.
        """
        if not self.path.exists():
            return 0
        file = self.path if self.correlated is None else io.BytesIO(read_secret(self.path))
        state = torch.load(file, map_location="cpu", weights_only=True)
        if state["binding"] != self.binding:
            return 0
        for name, parameter in self._moving.items():
            parameter.copy_(state["network"][name])
        for optimizer, memory in zip(self.optimizers, state["memory"], strict=True):
            optimizer.load_state_dict({**optimizer.state_dict(), "state": memory})
        if self.correlated is not None:
            self.correlated.memory = state["correlated"]
        if self.average is not None and "average" in state:
            self.average.mean = state["average"].to(next(iter(self._moving.values())).device)
        return int(state["steps"])


def steps_left(
    schedule: Schedule,
    checkpoint: Checkpoint,
    every: int,
    recorded: int,
    progress: Progress,
    remark: Callable[[int], str] = lambda steps: "",
    curve: Curve | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[int, Step]]:
    """The steps that are not done, each with its number among all, from 1; whoever asks carries them out.

    A step is done when the next is asked for: a checkpoint follows ``every`` steps, each epoch and some time.

    ``recorded`` is the number of noisy steps in the ledger; ``remark`` is what the progress line adds to
    a noisy step: the epsilon spent so far.  After each epoch ``curve`` is measured, before the checkpoint, so
    that none of it is lost.  The clock decides where an interrupted training goes on, what the progress line
    says of the time left, and nothing else.  ``CheckFailed`` where the checkpoint counts more than the
    ledger.
    """
    begun, steps = checkpoint.read(), iter(schedule)
    if sum(step.noisy for step in islice(steps, begun)) > recorded:
        raise CheckFailed("the ledger lacks steps that are in the checkpoint: remove the model's folder")
    measured, left = curve.begin(begun) if curve else "", TimeLeft(islice(schedule, begun, None))
    written, took = clock(), 0.0
    start = written
    for done, step in enumerate(steps, begun + 1):
        yield done, step
        if checkpoint.average is not None:
            checkpoint.average.take(done)
        if curve and step.ends_epoch:
            measured = curve.measure(done)
        due = clock() - written >= max(SECONDS, _TIMES_WRITING * took)
        if done % every == 0 or step.ends_epoch or due:
            before = clock()
            checkpoint.write(done)
            written = clock()
            took = written - before
        said = remark(step.number + 1) if step.noisy else ""
        start, before = clock(), start
        progress(step.work, step.place, step.of, f"steps{said}{measured}{left.after(step, start - before)}")
    if checkpoint.average is not None and checkpoint.average.mean is not None:
        load(checkpoint.network, checkpoint.average.mean)


class TimeLeft:
    """How long the ``steps`` will take, by the mean of those of the same kind that were made."""

    def __init__(self, steps: Iterable[Step]) -> None:
        self._left = Counter(self._kind(step) for step in steps)
        self._made: Counter[str] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def after(self, step: Step, seconds: float) -> str:
        """What a progress line says after ``step``, which took so long; nothing while a kind is still new."""
        kind = self._kind(step)
        self._left[kind] -= 1
        self._made[kind] += 1
        self._seconds[kind] += seconds
        if any(count and not self._made[other] for other, count in self._left.items()):
            return ""
        left = sum(self._left[one] * self._seconds[one] / self._made[one] for one in self._made)
        if not left:
            return ""
        hours, minutes = divmod(math.ceil(left / 60.0), 60)
        return f", {hours} h {minutes} min left" if hours else f", {minutes} min left"

    @staticmethod
    def _kind(step: Step) -> str:
        return "pretraining" if step.work == "pretraining" else f"noisy {step.noisy}"
