"""How well detection and models do: evaluation, audits, labelling, fitting.

Nothing here changes a run.
"""
