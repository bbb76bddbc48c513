"""Epsilon against steps, for progress lines and plots; and delta against epsilon, for an audit."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass, replace

import numpy as np

from redactory.training.accounting.figures import curve_of, epsilon_of
from redactory.training.accounting.spending import Spending, Spendings
from redactory.training.mechanism import Relation

# Epsilon against the number of steps, computed once before the first: for progress lines and plots.


_GRID = 1e-3


@dataclass(frozen=True)
class EpsilonCurve:
    """``values[i]`` is epsilon after ``steps[i]`` steps; ``inf`` where it is not finite."""

    steps: tuple[int, ...]
    values: tuple[float, ...]

    def at(self, steps: int) -> float:
        """An upper bound of epsilon after ``steps`` steps: the figure of the next number computed."""
        if steps <= 0:
            return 0.0
        place = bisect.bisect_left(self.steps, steps)
        return self.values[place] if place < len(self.values) else math.inf


def epsilon_curve(spent: Spending, delta: float, relation: Relation, points: int = 24) -> EpsilonCurve:
    """At most ``points`` numbers of steps up to ``spent.steps``, evenly spread, on a coarse grid."""
    total = spent.steps
    numbers = sorted({max(1, round(total * part / points)) for part in range(1, points + 1)}) if total else []
    found = (epsilon_of((replace(spent, steps=count),), delta, relation, _GRID) for count in numbers)
    return EpsilonCurve(tuple(numbers), tuple(math.inf if value is None else value for value in found))


# The whole privacy curve of what was spent, as points (ε, δ(ε)): what an audit tests a guarantee by.


_WIDEST, _POINTS = 20.0, 201


def privacy_curve(spent: Spendings, relation: Relation) -> list[tuple[float, float]]:
    """(ε, δ(ε)) for ε from 0 on, both directions covered, δ never too small (``docs/guarantees.md``, L3).

    For one exchanged row; ``GuaranteeError`` where an exchanged point exchanges several.
    """
    epsilons = np.linspace(0.0, _WIDEST, _POINTS)
    return list(zip(epsilons.tolist(), curve_of(spent, relation, _GRID, epsilons).tolist(), strict=True))
