"""Labelling: a sample of a finished run for people to label, and what the policies missed there."""
