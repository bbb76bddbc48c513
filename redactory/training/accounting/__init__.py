"""Prove epsilons of privacy events: unknown events are refused, and two accountants must agree.

``spendings`` has what was spent. ``comparisons`` states what an epsilon compares, and confirms it: ``verification``
proves bounds, ``loss_distributions`` estimates with dp_accounting, ``approximation`` is fast and for tables alone.
``calibration`` finds noise for a target, ``bounds`` has the chain and the revealed bound, and
``published_epsilons`` what the papers print, with that label.
"""

from redactory.training.accounting.calibration import NoiseSearch as NoiseSearch
from redactory.training.accounting.calibration import find_noise as find_noise
from redactory.training.accounting.comparisons import Comparison as Comparison
from redactory.training.accounting.comparisons import ConfirmedEpsilon as ConfirmedEpsilon
from redactory.training.accounting.comparisons import compare_examples as compare_examples
from redactory.training.accounting.comparisons import compare_units as compare_units
from redactory.training.accounting.comparisons import confirm_epsilon as confirm_epsilon
from redactory.training.accounting.spendings import Spending as Spending
from redactory.training.accounting.spendings import Spendings as Spendings
from redactory.training.accounting.spendings import make_event_tree as make_event_tree
