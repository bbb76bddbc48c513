"""Poisson sampling: every point throws its own coin in every step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.errors import ConfigurationError
from redactory.foundation.stream import RandomStream


def steps_an_epoch(sampling_rate: float) -> int:
    """⌈1/q⌉: in expectation each point (or user) is drawn once in so many steps, whatever their number."""
    return math.ceil(1.0 / sampling_rate)


class Sampler(Protocol):
    """Chooses the rows of a step."""

    def rows(self, stream: RandomStream, step: int, points: int) -> NDArray[np.int64]:
        """The rows in ``range(points)`` that take part in ``step``, ascending."""


@dataclass(frozen=True)
class PoissonSampler:
    """Includes each point in each step independently with probability ``sampling_rate``.

    Formal guarantees: inclusions are independent over points and steps as long as the root of the
    stream is secret; the probability of one is ``sampling_rate`` up to 2⁻⁵³.  A batch is never
    truncated, filled up or left out: an empty one is a step of noise alone
    (``docs/guarantees.md``, "Sampling and constants").
    """

    sampling_rate: float
    name: ClassVar[str] = "poisson"

    def rows(self, stream: RandomStream, step: int, points: int) -> NDArray[np.int64]:
        """The rows in ``range(points)`` that take part in ``step``, ascending."""
        coins = stream.uniform("coins", step, points)
        return np.flatnonzero(coins < self.sampling_rate).astype(np.int64)


@dataclass(frozen=True)
class TruncatedPoissonSampler:
    """Poisson sampling of ``slots`` slots, cut to a random subset of ``size`` where more were drawn.

    Points fill the first slots, the others stay empty: what is drawn is a function of constants and
    coins, never of the number of points.

    Formal guarantees: the sample of slots is that of dp_accounting's
    ``TruncatedSubsampledGaussianDpEvent`` with ``slots`` as the size of the data set: coins
    independent with probability ``sampling_rate``, then a uniform subset.  More points than
    slots are refused.
    """

    sampling_rate: float
    size: int
    slots: int
    name: ClassVar[str] = "truncated_poisson"

    def rows(self, stream: RandomStream, step: int, points: int) -> NDArray[np.int64]:
        """The rows in ``range(points)`` that take part in ``step``, ascending.

        ``ConfigurationError`` where there are more points than slots.
        """
        if points > self.slots:
            raise ConfigurationError(
                "train.dataset_size: there are more noised points than this public bound; raise it, and "
                "train anew"
            )
        drawn = np.flatnonzero(stream.uniform("coins", step, self.slots) < self.sampling_rate)
        if len(drawn) > self.size:
            kept = stream.permutation("truncation", step, len(drawn))[: self.size]
            drawn = np.sort(drawn[kept])
        return drawn[drawn < points].astype(np.int64)
