"""The whole privacy curve of what was spent, as points (ε, δ(ε)): what an audit tests a guarantee by."""

from __future__ import annotations

import numpy as np

from redactory.training.accounting.figures import curve_of
from redactory.training.accounting.spending import Spendings
from redactory.training.mechanism import Relation

_GRID, _WIDEST, _POINTS = 1e-3, 20.0, 201


def privacy_curve(spent: Spendings, relation: Relation) -> list[tuple[float, float]]:
    """(ε, δ(ε)) for ε from 0 on, both directions covered, δ never too small (``docs/guarantees.md``, L3).

    For one exchanged row; ``GuaranteeError`` where an exchanged point exchanges several.
    """
    epsilons = np.linspace(0.0, _WIDEST, _POINTS)
    return list(zip(epsilons.tolist(), curve_of(spent, relation, _GRID, epsilons).tolist(), strict=True))
