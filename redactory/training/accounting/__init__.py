"""Epsilons from privacy events: what is not known is refused, what is stated two accountants agree on.

- ``figures``: the main accountant, groups, calibration; ``mixtures`` makes the laws of its steps, which
  ``distributions`` composes;
- ``second``: our own, rounded both ways, with no code in common; ``second_opinion`` compares;
- ``bounds``: the chain and the revealed bound;
- ``published``: what the papers print, under that label, by Rényi's accountant;
- ``curve``: epsilon against steps, and delta against epsilon.
"""

from __future__ import annotations

from redactory.training.accounting.figures import (
    calibrate_noise,
    epsilon,
    epsilon_of,
    group_epsilon,
    group_epsilon_of,
    removal_epsilon_of,
)
from redactory.training.accounting.spending import Spending, Spendings, event_tree

__all__ = [
    "Spending",
    "Spendings",
    "calibrate_noise",
    "epsilon",
    "epsilon_of",
    "event_tree",
    "group_epsilon",
    "group_epsilon_of",
    "removal_epsilon_of",
]
