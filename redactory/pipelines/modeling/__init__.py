"""What trains on a run and writes with a model: plan, train, local privacy, synthetic text.

The formulas are in :mod:`redactory.training`.
"""
