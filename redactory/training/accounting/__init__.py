"""Compute epsilons from privacy events: unknown events are refused, and two accountants must agree.

``dominating_pairs`` has the spent mechanisms and their worlds. ``epsilons`` is the main accountant, on
``loss_distributions`` (dp_accounting); ``verification`` is the independent second one, with proved rounding.
``confirmation`` compares both, ``calibration`` finds noise for a target, ``curves`` has groups and chains of worlds.
``bounds`` has the chain and the revealed bound, ``published_epsilons`` what the papers print, with that label.
"""

from redactory.training.accounting.calibration import calibrate_noise as calibrate_noise
from redactory.training.accounting.dominating_pairs import Spending as Spending
from redactory.training.accounting.dominating_pairs import Spendings as Spendings
from redactory.training.accounting.dominating_pairs import make_event_tree as make_event_tree
from redactory.training.accounting.epsilons import compute_epsilon as compute_epsilon
from redactory.training.accounting.epsilons import compute_group_epsilon as compute_group_epsilon
from redactory.training.accounting.epsilons import compute_removal_epsilon as compute_removal_epsilon
from redactory.training.accounting.epsilons import compute_total_epsilon as compute_total_epsilon
