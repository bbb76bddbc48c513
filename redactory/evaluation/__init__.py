"""Measure and report without text: missed secrets, what a model knows, and what a run did.

Promises: every metric is exact or carries its bound; nothing that is returned or written quotes private text; importing
the package does not import torch. Ground truth comes from labelled rows, or from the corpus simulator, whose people are
invented.
"""
