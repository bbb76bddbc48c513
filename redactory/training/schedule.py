"""The order of a training's steps: a function of public constants and the stream, cut anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.stream import RandomStream


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
