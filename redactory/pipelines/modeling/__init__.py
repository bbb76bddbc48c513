"""Training jobs and synthetic text: plan, train, local privacy, synthesize.

The formulas are in :mod:`redactory.training`.
"""
