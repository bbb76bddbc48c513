"""Mechanisms: sampling and noise of a step, exact draws, and the ledger of what ran.

How much they cost is in :mod:`redactory.training.accounting`.
"""

from redactory.training.mechanisms import counted_texts as counted_texts
from redactory.training.mechanisms import hidden_class as hidden_class
from redactory.training.mechanisms import users as users
