"""Poisson sampling: every point throws its own coin in every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from redactory.foundation.stream import RandomStream


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
