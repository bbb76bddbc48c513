"""Evaluation of detection and models, audits, labelling and fitting.

Nothing here changes a run.
"""
