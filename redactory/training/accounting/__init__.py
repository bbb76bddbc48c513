"""Epsilons from privacy events: what is not known is refused, what is stated two accountants agree on.

- ``pairs``: what was spent, and the pair of worlds that dominates a step;
- ``figures``: the main accountant, groups, curves, calibration, on the distributions of ``losses``;
- ``second``: our own, rounded both ways, from pairs of its own; and the comparison of both;
- ``bounds``: the chain and the revealed bound;
- ``published``: what the papers print, under that label.
"""

from redactory.training.accounting.figures import calibrate_noise as calibrate_noise
from redactory.training.accounting.figures import epsilon as epsilon
from redactory.training.accounting.figures import epsilon_of as epsilon_of
from redactory.training.accounting.figures import group_epsilon_of as group_epsilon_of
from redactory.training.accounting.figures import removal_epsilon_of as removal_epsilon_of
from redactory.training.accounting.pairs import Spending as Spending
from redactory.training.accounting.pairs import Spendings as Spendings
from redactory.training.accounting.pairs import event_tree as event_tree
