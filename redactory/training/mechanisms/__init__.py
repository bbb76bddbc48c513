"""Mechanisms: sampling and noise of a step, exact draws, and the ledger of what ran.

How much they cost is in :mod:`redactory.training.accounting`.
"""
