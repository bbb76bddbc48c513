"""Evaluations: a trained model on held-out text, attacked and audited; the policies on labelled text."""
