"""Indexes: what a run remembers of earlier runs' texts, opened, written, counted and looked at."""
