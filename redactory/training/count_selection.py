"""Public by count as a mechanism: noise and threshold from (ε, δ, k), and its cost for an example or a user.

Every user contributes at most k distinct texts. A text is public if its number of users plus N(0, s²) reaches the
threshold. Nothing here reads a count (``docs/guarantees.md``, "Public by count").
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from scipy.optimize import brentq

from redactory.foundation.bounds import format_upper
from redactory.foundation.errors import ConfigurationError
from redactory.training.accounting.bounds import compute_gaussian_delta, compute_gaussian_epsilon
from redactory.training.accounting.spendings import Spending
from redactory.training.mechanisms.counted_texts import CountSelectionGaussian, compute_threshold_failure_delta

_DEVIATION_SCALE, _GRID_STEPS = 1e4, 200


@dataclass(frozen=True)
class CountSelection:
    """One selection of texts: standard ``deviation`` s of each count's noise, ``threshold`` τ, k ``texts_per_user``.

    ``id`` identifies the draw, so that two selections from one corpus are counted twice.
    """

    deviation: float
    threshold: int
    texts_per_user: int
    id: str = ""

    @classmethod
    def calibrate(cls, epsilon: float, delta: float, texts_per_user: int, selections: int = 1) -> Self:
        """Find the lowest threshold so that ``selections`` selections are (ε, δ); ``ConfigurationError`` if none."""
        best = (math.inf, 0.0)
        # the shift that spends all of delta, so that the threshold has none left
        max_shift = float(brentq(lambda shift: _compute_shift_delta(epsilon, shift) - delta, 1e-9, 60.0, xtol=1e-12))
        min_deviation = math.sqrt(2.0 * texts_per_user * selections) / max_shift
        for step in range(1, _GRID_STEPS + 1):
            deviation = math.ceil(min_deviation * (1.0 + 0.005 * step) * _DEVIATION_SCALE) / _DEVIATION_SCALE
            best = min(best, (_find_threshold(epsilon, delta, texts_per_user, selections, deviation), deviation))
        if not math.isfinite(best[0]):
            raise ConfigurationError("route: no threshold reaches this epsilon and delta; raise one of them")
        return cls(best[1], int(best[0]), texts_per_user)

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Self | None:
        """Read the selection from a run's manifest; None if policies decide."""
        route = manifest.get("route")
        return route and cls(route["deviation"], route["threshold"], route["texts_per_user"], route["id"])

    def to_json(self) -> dict[str, Any]:
        """Return the selection's values for a manifest."""
        return {"deviation": self.deviation, "threshold": self.threshold, "id": self.id}

    def compute_example_spending(self) -> Spending:
        """Compute the spending for one example with an exchanged text: one text fewer and one more of its user."""
        return self._make_spending(math.sqrt(2.0) * self.deviation, 1)

    def compute_user_spending(self) -> Spending:
        """Compute the spending for a user whose examples are present or absent."""
        return self._make_spending(self.deviation / math.sqrt(self.texts_per_user), self.texts_per_user)

    def _make_spending(self, noise_multiplier: float, texts: int) -> Spending:
        mechanism = CountSelectionGaussian(
            1.0, noise_multiplier, 1.0, 1.0, "lattice", deviation=self.deviation, threshold=self.threshold, texts=texts
        )
        return Spending(mechanism, 1)

    def compute_user_epsilon(self, delta: float, selections: int = 1) -> float:
        """Compute ε of ``selections`` selections for a user exchanged in each; ``inf`` if none is finite."""
        shift = math.sqrt(2.0 * self.texts_per_user * selections) / self.deviation
        failure_delta = selections * compute_threshold_failure_delta(
            self.deviation, self.threshold, self.texts_per_user
        )
        return (
            compute_gaussian_epsilon(shift, delta - failure_delta) - math.log1p(-failure_delta)
            if failure_delta < min(delta, 1.0)
            else math.inf
        )


SELECTIONS_PER_YEAR = (1, 12, 52, 365)
"""Selections per year: of one run, and of a monthly, weekly and nightly job."""


def plan_count_selection(epsilon: float, delta: float, texts_per_user: int) -> dict[str, Any]:
    """Compute threshold and noise for (ε, δ, k), and the yearly cost for a user who is in every selection.

    ``year``: {selections, delta, epsilon} of that many selections at (ε, δ) each, and the ``threshold`` with which all
    together are (ε, δ). Uses constants alone, no corpus.
    """
    selection = CountSelection.calibrate(epsilon, delta, texts_per_user)
    yearly_costs = [
        {
            "selections": selections,
            "delta": selections * delta,
            "epsilon": selection.compute_user_epsilon(selections * delta, selections),
            "threshold": CountSelection.calibrate(epsilon, delta, texts_per_user, selections).threshold,
        }
        for selections in SELECTIONS_PER_YEAR
        if selections * delta < 1.0
    ]
    other_thresholds = {
        f"epsilon {format_upper(4 * epsilon)}": CountSelection.calibrate(4 * epsilon, delta, texts_per_user).threshold,
        "one text per user": CountSelection.calibrate(epsilon, delta, 1).threshold,
    }
    return {
        "threshold": selection.threshold,
        "deviation": selection.deviation,
        "others": other_thresholds,
        "year": yearly_costs,
    }


def _compute_shift_delta(epsilon: float, shift: float) -> float:
    return float(compute_gaussian_delta(epsilon, np.array([shift]))[0])


def _find_threshold(epsilon: float, delta: float, texts_per_user: int, selections: int, deviation: float) -> float:
    """Find the lowest threshold at this noise; ``inf`` if the Gaussian alone exceeds delta."""
    shift = math.sqrt(2.0 * texts_per_user * selections) / deviation
    if _compute_shift_delta(epsilon + math.log1p(-delta), shift) >= delta:
        return math.inf

    def is_enough(threshold: int) -> bool:
        failure_delta = selections * compute_threshold_failure_delta(deviation, threshold, texts_per_user)
        if failure_delta >= delta:
            return False
        return _compute_shift_delta(epsilon + math.log1p(-failure_delta), shift) + failure_delta <= delta

    # the cost falls as the threshold rises
    highest = 2
    while not is_enough(highest):
        highest *= 2
    return bisect_left(range(highest), True, lo=2, key=is_enough)
