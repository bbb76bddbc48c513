"""The order of a training's steps: a function of public constants and the stream, cut anywhere."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.optim import Optimizer

from redactory.foundation.errors import CheckFailed
from redactory.foundation.files import commit
from redactory.foundation.progress import Progress
from redactory.foundation.stream import RandomStream
from redactory.training.phases import Phase


@dataclass(frozen=True)
class Schedule:
    """``before`` steps of pretraining, then ``epochs`` epochs of ``plain`` steps without noise and ``noisy``
    steps with it.

    Plain steps come first in every epoch (CRT, Algorithm 1, lines 6 and 7), or, ``mixed``, the two
    kinds in an order drawn for each epoch.

    Formal guarantees: the number of noisy steps and their places are functions of constants, of the public
    side's size and of coins: the same in two neighbouring worlds (``docs/guarantees.md``, "Sampling and
    constants").
    """

    epochs: int
    plain: int
    noisy: int
    mixed: bool
    stream: RandomStream
    before: int = 0

    @property
    def steps(self) -> int:
        """Steps of an epoch, of both kinds."""
        return self.plain + self.noisy

    @property
    def total(self) -> int:
        """Steps of the whole training."""
        return self.before + self.epochs * self.steps

    def ends_epoch(self, done: int) -> bool:
        """Whether the first ``done`` steps of all end with an epoch, or with pretraining."""
        after = done - self.before
        return after == 0 or (after > 0 and after % self.steps == 0)

    def place(self, index: int) -> tuple[int, bool, int]:
        """Of step ``index`` >= ``before`` of all: its epoch, whether it is noisy, its number of its kind."""
        epoch, place = divmod(index - self.before, self.steps)
        order = self._order(epoch)
        noisy = bool(order[place])
        before = int(np.count_nonzero(order[:place] == noisy))
        return epoch, noisy, epoch * (self.noisy if noisy else self.plain) + before

    def noisy_before(self, index: int) -> int:
        """How many of the first ``index`` steps of all are noisy."""
        epoch, place = divmod(max(0, index - self.before), self.steps) if self.steps else (0, 0)
        within = int(np.count_nonzero(self._order(epoch)[:place])) if place else 0
        return epoch * self.noisy + within

    def _order(self, epoch: int) -> NDArray[np.bool_]:
        if epoch not in self._drawn:
            order = np.arange(self.steps) >= self.plain
            if self.mixed:
                order = order[self.stream.permutation("order of steps", epoch, self.steps)]
            self._drawn.clear()
            self._drawn[epoch] = order
        return self._drawn[epoch]

    @cached_property
    def _drawn(self) -> dict[int, NDArray[np.bool_]]:
        return {}


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

    Formal guarantees: no key, text or gradient is in the file; all that is in it was released by noisy
    steps or follows from public points.
    """

    path: Path
    binding: str
    network: nn.Module
    optimizers: Sequence[Optimizer]

    def write(self, steps: int) -> None:
        """Commit the state after ``steps`` steps."""
        counters = {"binding": self.binding, "steps": steps}
        tensors = {name: value.detach().contiguous().cpu() for name, value in self._state().items()}
        with commit(self.path) as temporary:
            save_file(tensors, temporary, metadata={"training": json.dumps(counters)})

    def read(self) -> int:
        """Load the state; the number of steps that are done.

        0, and nothing is loaded, where there is none or it belongs to another training.
        """
        if not self.path.exists():
            return 0
        with safe_open(self.path, "pt") as file:
            counters = json.loads(file.metadata()["training"])
            if counters["binding"] != self.binding:
                return 0
            self._load({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118 (no mapping)
        return int(counters["steps"])

    def _state(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {
            f"network.{name}": p for name, p in self.network.named_parameters() if p.requires_grad
        }
        for number, optimizer in enumerate(self.optimizers):
            for index, memory in optimizer.state_dict()["state"].items():
                kept = {key: value for key, value in memory.items() if isinstance(value, Tensor)}
                found.update({f"optimizer.{number}.{index}.{key}": value for key, value in kept.items()})
        return found

    @torch.no_grad()
    def _load(self, tensors: dict[str, Tensor]) -> None:
        for name, parameter in self.network.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(tensors[f"network.{name}"])
        for number, optimizer in enumerate(self.optimizers):
            memory: dict[int, dict[str, Tensor]] = {}
            for name, value in tensors.items():
                kind, *place = name.split(".")
                if kind == "optimizer" and int(place[0]) == number:
                    memory.setdefault(int(place[1]), {})[place[2]] = value
            optimizer.load_state_dict({**optimizer.state_dict(), "state": memory})


class Pace:
    """When a state is due by the clock, and none was written for its own reasons meanwhile.

    The clock decides where an interrupted training goes on and nothing else: a step does not know of it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last, self._took = clock(), 0.0

    def due(self) -> bool:
        """Whether the last state is :data:`SECONDS` old, and writing it took little of that time."""
        return self._clock() - self._last >= max(SECONDS, _TIMES_WRITING * self._took)

    def write(self, checkpoint: Checkpoint, steps: int) -> None:
        """Commit the state after ``steps`` steps."""
        begun = self._clock()
        checkpoint.write(steps)
        self._last = self._clock()
        self._took = self._last - begun


# Through a training's steps, from wherever it stopped to the end.


def walk(
    schedule: Schedule,
    plain: Phase | None,
    noisy: Phase | None,
    checkpoint: Checkpoint,
    every: int,
    recorded: int,
    progress: Progress,
    remark: Callable[[int], str] = lambda steps: "",
    pretraining: Phase | None = None,
) -> None:
    """Carry out the steps that are not done; a checkpoint after ``every`` steps, each epoch and some time.

    ``pretraining`` makes the schedule's steps before all others.

    ``recorded`` is the number of noisy steps in the ledger; ``remark`` is what the progress line adds to
    a noisy step: the epsilon spent so far.  ``CheckFailed`` where the checkpoint counts more than the ledger.
    """
    begun = checkpoint.read()
    if schedule.noisy_before(begun) > recorded:
        raise CheckFailed("the ledger lacks steps that the checkpoint counts: remove the model's folder")
    pace = Pace()
    for index in range(begun, schedule.total):
        said = ""
        if index < schedule.before:
            assert pretraining is not None
            pretraining.step(index)
            work, number, of = "pretraining", index, schedule.before
        else:
            epoch, with_noise, number = schedule.place(index)
            phase = noisy if with_noise else plain
            assert phase is not None
            phase.step(number)
            said = remark(number + 1) if with_noise else ""
            kind, of = ("with noise", schedule.noisy) if with_noise else ("without noise", schedule.plain)
            work, number = f"epoch {epoch + 1}, {kind}", number - epoch * of
        done = index + 1
        if done % every == 0 or schedule.ends_epoch(done) or pace.due():
            pace.write(checkpoint, done)
        progress(work, number + 1, of, f"steps{said}")
