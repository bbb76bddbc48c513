"""Epsilons from privacy events: what is not known is refused, what is stated two accountants agree on.

- ``pairs``: what was spent, and the pair of worlds that dominates a step;
- ``figures``: the main accountant, groups, curves, calibration, on the distributions of ``losses``;
- ``second``: our own, rounded both ways, from pairs of its own; and the comparison of both;
- ``bounds``: the chain and the revealed bound;
- ``published``: what the papers print, under that label.
"""

from redactory.training.accounting.dominating_pairs import Spending as Spending
from redactory.training.accounting.dominating_pairs import Spendings as Spendings
from redactory.training.accounting.dominating_pairs import make_event_tree as make_event_tree
from redactory.training.accounting.epsilons import calibrate_noise as calibrate_noise
from redactory.training.accounting.epsilons import compute_epsilon as compute_epsilon
from redactory.training.accounting.epsilons import compute_group_epsilon as compute_group_epsilon
from redactory.training.accounting.epsilons import compute_removal_epsilon as compute_removal_epsilon
from redactory.training.accounting.epsilons import compute_total_epsilon as compute_total_epsilon
