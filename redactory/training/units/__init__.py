"""Trainings that hide users or entities: what they are told, who is hidden, and how users are sampled.

Below :mod:`redactory.training.uedp`, which carries them out, and all that books and records a training.
"""
