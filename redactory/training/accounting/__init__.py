"""Epsilons from privacy events: what is not known is refused, what is stated two accountants agree on.

- ``pairs``: what was spent, and the pair of worlds that dominates a step;
- ``figures``: the main accountant, groups, curves, calibration, on the distributions of ``losses``;
- ``second``: our own, rounded both ways, from pairs of its own; and the comparison of both;
- ``bounds``: the chain and the revealed bound;
- ``published``: what the papers print, under that label.
"""

from __future__ import annotations

from redactory.training.accounting.figures import (
    calibrate_noise,
    epsilon,
    epsilon_of,
    group_epsilon_of,
    removal_epsilon_of,
)
from redactory.training.accounting.pairs import Spending, Spendings, event_tree

__all__ = [
    "Spending",
    "Spendings",
    "calibrate_noise",
    "epsilon",
    "epsilon_of",
    "event_tree",
    "group_epsilon_of",
    "removal_epsilon_of",
]
