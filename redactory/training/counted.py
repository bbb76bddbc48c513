"""Public by count as a mechanism: noise and threshold from (ε, δ, k), what it costs a point or a user.

Every user gives at most k distinct texts; a text's number of users, plus N(0, s²), makes it public from the
threshold on.  Nothing here looks at a count (``docs/guarantees.md``, "Public by count").
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.optimize import brentq
from scipy.special import ndtri

from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting.bounds import gaussian_delta, gaussian_epsilon
from redactory.training.accounting.pairs import Spending
from redactory.training.mechanism import ROUNDED, CountedTexts, lost

_PLACES, _STEPS = 1e4, 200


@dataclass(frozen=True)
class Selection:
    """One selection of texts: ``deviation`` s of each count's noise, ``threshold`` τ, k ``texts`` a user.

    ``id`` names the draw: two selections of one corpus are two.
    """

    deviation: float
    threshold: int
    texts: int
    id: str = ""

    @classmethod
    def calibrated(cls, epsilon: float, delta: float, texts: int, times: int = 1) -> Self:
        """The least threshold with which ``times`` selections are (ε, δ) for a user exchanged in each.

        ``ConfigurationError`` where there is none.
        """
        best = (math.inf, 0.0)
        # the shift that spends all of delta: nothing is left for a threshold
        largest = float(brentq(lambda shift: _spent(epsilon, shift) - delta, 1e-9, 60.0, xtol=1e-12))
        least = math.sqrt(2.0 * texts * times) / largest
        for step in range(1, _STEPS + 1):
            deviation = math.ceil(least * (1.0 + 0.005 * step) * _PLACES) / _PLACES
            best = min(best, (_threshold(epsilon, delta, texts, times, deviation), deviation))
        if not math.isfinite(best[0]):
            raise ConfigurationError("route: no threshold reaches this epsilon and delta; raise one of them")
        return cls(best[1], int(best[0]), texts)

    @classmethod
    def of_run(cls, manifest: Mapping[str, Any]) -> Self | None:
        """The selection of a run with this manifest; None where policies decide."""
        own = manifest.get("route")
        return own and cls(own["deviation"], own["threshold"], own["texts_per_user"], own["id"])

    def to_json(self) -> dict[str, Any]:
        """For a manifest."""
        return {"deviation": self.deviation, "threshold": self.threshold, "id": self.id}

    def of_point(self) -> Spending:
        """What it costs one point whose text is exchanged: its user gives one text less and one more."""
        return self._spending(math.sqrt(2.0) * self.deviation, 1)

    def of_user(self) -> Spending:
        """What it costs a user whose points are there or not."""
        return self._spending(self.deviation / math.sqrt(self.texts), self.texts)

    def _spending(self, noise_multiplier: float, texts: int) -> Spending:
        found = CountedTexts(
            1.0, noise_multiplier, 1.0, 1.0, "lattice", deviation=self.deviation, threshold=self.threshold, texts=texts
        )
        return Spending(found, 1)

    def epsilon(self, delta: float, times: int = 1) -> float:
        """ε of ``times`` selections for a user exchanged in each; ``inf`` where there is none."""
        shift = math.sqrt(2.0 * self.texts * times) / self.deviation
        loss = times * lost(self.deviation, self.threshold, self.texts)
        return gaussian_epsilon(shift, delta - loss) - math.log1p(-loss) if loss < delta else math.inf


YEARLY = (1, 12, 52, 365)
"""Selections a year: of one run, and of a job that selects monthly, weekly, every night."""


def planned(epsilon: float, delta: float, texts: int) -> dict[str, Any]:
    """What (ε, δ, k) make of a corpus, and what selections by the year cost a user who is in each of them.

    ``year``: {selections, delta, epsilon} of so many at (ε, δ) each, and the ``threshold`` with which all of
    them together are (ε, δ).  Constants alone: no corpus was looked at.
    """
    own = Selection.calibrated(epsilon, delta, texts)
    year = [
        {
            "selections": times,
            "delta": times * delta,
            "epsilon": own.epsilon(times * delta, times),
            "threshold": Selection.calibrated(epsilon, delta, texts, times).threshold,
        }
        for times in YEARLY
    ]
    others = {
        f"epsilon {format_upper(4 * epsilon)}": Selection.calibrated(4 * epsilon, delta, texts).threshold,
        "one text per user": Selection.calibrated(epsilon, delta, 1).threshold,
    }
    return {"threshold": own.threshold, "deviation": own.deviation, "others": others, "year": year}


def _spent(epsilon: float, shift: float) -> float:
    return float(gaussian_delta(epsilon, np.array([shift]))[0])


def _threshold(epsilon: float, delta: float, texts: int, times: int, deviation: float) -> float:
    """The least threshold at this noise; ``inf`` where the Gaussian alone costs more."""
    # what is lost is less than delta, and moves epsilon by no more than that
    left = delta - _spent(epsilon + math.log1p(-delta), math.sqrt(2.0 * texts * times) / deviation)
    each = left / times
    if each <= 0.0:
        return math.inf
    above = -math.expm1(math.log1p(-each) / texts)
    found = max(2, math.floor(1.0 + ROUNDED - deviation * float(ndtri(above))))
    while lost(deviation, found, texts) > each:
        found += 1

    def cost(threshold: int) -> float:
        loss = times * lost(deviation, threshold, texts)
        if loss >= delta:
            return math.inf
        shift = math.sqrt(2.0 * texts * times) / deviation
        return _spent(epsilon + math.log1p(-loss), shift) + loss

    # less is lost than was allowed for, which may leave room for a lower one; what it costs falls with it
    least = 1
    while found - least > 1:
        middle = (least + found) // 2
        least, found = (least, middle) if cost(middle) <= delta else (middle, found)
    return found
