"""DP-SGD on every original point: the baseline with a guarantee."""

from __future__ import annotations

from redactory.training.trainers.base import Trainer


class DpSgd(Trainer):
    """Noise on all points.  Formal guarantees: ``docs/guarantees.md``."""

    name = "dpsgd"
    about = "DP-SGD on all original points"
    noised = "vault"
    classifies = True
    unit = "one original data point (a sentence or a turn)"
    assumptions = (
        "The exchanged points both lie on the private side: the vocabulary is made of public/, so a word of "
        "a public point can be a token of this model.",
        "Original texts are used, duplicates included: a secret that stands in K points is a group of K.",
    )
